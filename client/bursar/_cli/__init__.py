"""`bursar`: the command line of the analyst. It uses the SDK's public names, so it can do what a program can do.

`click` comes with the extra `cli`, and nothing else of the package needs it: the commands are imported when they run.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program `bursar`."""
    try:
        from bursar._cli._app import app
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("Error: the command line needs click: pip install './bursar[cli]'")
    app()
