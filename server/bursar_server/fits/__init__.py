"""The fits: what each releases, and how released numbers become a model."""

from bursar_server.fits._seam import InvalidRequestError, NumericColumn, Plan, PublicTable

__all__ = ["InvalidRequestError", "NumericColumn", "Plan", "PublicTable"]
