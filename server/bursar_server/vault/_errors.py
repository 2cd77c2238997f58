"""Exceptions of the vault."""


class OverspendError(Exception):
    """Error: a fit requested more than was debited. Nothing was read and no noise drawn.

    A bug in the fit, never in the data.
    """
