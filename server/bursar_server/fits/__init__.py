"""The fits: what each releases, and how released numbers become a model."""

from bursar_server.fits._seam import (
    UNIT_ROWS,
    CategoricalColumn,
    InvalidRequestError,
    NumericColumn,
    Plan,
    PublicTable,
)

__all__ = ["UNIT_ROWS", "CategoricalColumn", "InvalidRequestError", "NumericColumn", "Plan", "PublicTable"]
