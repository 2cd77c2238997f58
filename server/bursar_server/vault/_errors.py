"""What the vault raises when it is asked for more than was paid."""


class OverspendError(Exception):
    """A fit asked for more than was debited; nothing was read, no noise drawn. A bug in the fit, never in the data."""
