"""The request for the noisy mean of one column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from bursar_models.checks import names
from bursar_models.requests._request import Request


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Mean(Request):
    """Release the noisy mean of one column.

    Attributes:
        columns: the column.
    """

    columns: Annotated[Sequence[str], names]

    def result_type(self) -> type[float]:
        """Return the class of the fit's result."""
        return float
