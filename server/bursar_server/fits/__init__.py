"""Fits: the releases of each fitting method, and how its model is made from released numbers.

| module | purpose |
|---|---|
| `registry` | the table of the fits |
| `contract` | names, messages and fields of each fit, read from the contract |
| `_seam` | the protocol of a fit: public table, plan and run |
| `_requests`, `_arrays` | checks of requests, and the array API for devices |
| `mixtures` | Gaussian mixtures by noisy EM, shared by two fits |
| all others | a package a fit, named by what it fits |

Every package of a fit has `plan(request, table, released)`, which reads no row, and `run(plan, session)`. Its module
`_statistics` bounds the contribution of one row, with the proof beside it. No fit imports another. Must not import
tables, jobs, wire or any room above.
"""

from bursar_server.fits._seam import (
    JSON,
    UNIT_ROWS,
    AnyFit,
    BoundedColumn,
    CodedColumn,
    Expected,
    Fit,
    InvalidFieldsError,
    Plan,
    PublicFacts,
    PublicTable,
    Released,
)

__all__ = [
    "JSON",
    "UNIT_ROWS",
    "AnyFit",
    "BoundedColumn",
    "CodedColumn",
    "Expected",
    "Fit",
    "InvalidFieldsError",
    "Plan",
    "PublicFacts",
    "PublicTable",
    "Released",
]
