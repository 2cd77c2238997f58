"""Run of `bursar-audit serve`: the watch of a ledger, and the pages about it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ._changes import Visit
from ._site import link, site
from ._watch import watching
from ._web import serve

if TYPE_CHECKING:
    from ..checkpoints import Place, VerifierKey


def run(
    ledger: Path,
    key: VerifierKey | None,
    places: Sequence[Place],
    listener: socket.socket,
    names: Sequence[str],
    *,
    ask: bool,
    visit: Visit | None,
    afresh: bool,
    show: bool,
) -> None:
    """Serve until it is interrupted, after printing the link.

    Args:
        ledger: the file.
        key: that checkpoints are by.
        places: places of checkpoints.
        listener: where to listen.
        names: hosts that browsers may ask for, beside the address that they reach.
        ask: whether dp-accounting gives a second opinion.
        visit: earlier visit to compare with.
        afresh: whether to verify all again instead of going on from the last visit.
        show: whether to open a browser at the link.
    """
    with watching(ledger, key, places, ask=ask, visit=visit, afresh=afresh) as watch, site(watch, names) as made:
        serve(made.app(), listener, ledger, link(made), show=show)
