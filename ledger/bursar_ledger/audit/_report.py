"""Report: one HTML page that needs nothing else. The page that `bursar-audit serve` shows first has the same parts.

The templates in `pages/report` put values in; this module only says which.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..refusals import Refusal
from ._charts import OTHERS, burn_down_svg, colours_of
from ._checks import Findings
from ._history import AccountHistory, History, Promise
from ._pages import environment, style
from ._spend import Spend, by_cost, delta_of_units, spend_lines
from ._text import counted, number, percent, short_time
from ._text_output import assurances, reservations
from ._verdict import verdict

_MOST = 1000
"""Rows of one table; a page of a long history stays one that can be opened."""
_TEMPLATES = environment(Path(str(importlib.resources.files(__package__))) / "pages" / "report")
_TEMPLATES.globals["most"] = _MOST
_PARTS: Any = _TEMPLATES.get_template("parts.html").module


def page(name: str, found: Findings, told: History, refusals: Sequence[Refusal] | None, now: datetime) -> str:
    """Return the page about a ledger file.

    Args:
        name: name of the file.
        found: what verification found.
        told: what the entries say; figures are theirs.
        refusals: as the server noted them; None if it left no note.
        now: when it was verified.
    """
    return _TEMPLATES.get_template("page.html").render(
        name=name,
        style=Markup(style()),  # noqa: S704  our own file
        opening=opening(name, found, told, now),
        verification=verification(found, now),
        body=body(told, refusals),
    )


def opening(name: str, found: Findings | None, told: History, now: datetime) -> Markup:
    """Return the verdict, and what was verified.

    Args:
        name: name of the file.
        found: None while it is being verified.
        told: what the entries say.
        now: when it was verified, or read.
    """
    entries = [] if found is None else [("entries", f"{found.verification.entries:,}")]
    html: Markup = _PARTS.opening(
        _badge(found),
        [
            ("file", name),
            ("ledger", told.ledger_id or "unknown"),
            *entries,
            ("fits paid for", f"{sum(account.debits for account in told.accounts.values()):,}"),
            ("this page", f"{short_time(now.isoformat())} UTC, bursar {importlib.metadata.version('bursar')}"),
        ],
    )
    return html


def _badge(found: Findings | None) -> dict[str, str]:
    if found is None:
        return {"kind": "waiting", "text": "being verified"}
    judged = verdict(found)
    return {"kind": judged.standing.name.lower(), "text": judged.text}


def verification(found: Findings, now: datetime) -> Markup:
    """Return what was checked, what is not right, and what was not checked."""
    checked = found.verification
    facts = [
        ("newest entry", checked.entries),
        ("its hash (the head)", checked.head.hex()),
        ("verified", f"{short_time(now.isoformat())} UTC"),
        ("pinned key", "none" if found.key is None else found.key),
    ]
    judged = verdict(found)
    html: Markup = _PARTS.verification(
        judged, found.problems, list(assurances(found)), list(reservations(found)), facts
    )
    return html


def body(told: History, refusals: Sequence[Refusal] | None) -> Markup:
    """Return every account with its burn-down and its spenders, refusals, administrative acts, and what it means."""
    html: Markup = _PARTS.body(
        [_account(account, f"c{index}") for index, account in enumerate(told.accounts.values())],
        None if refusals is None else [_refused(refusal) for refusal in refusals[:_MOST]],
        [
            (act.entry, short_time(act.time), act.kind.replace("_", " "), act.dataset, act.actor, act.what)
            for act in told.acts[-_MOST:]
        ],
        len(told.acts),
    )
    return html


def _refused(refusal: Refusal) -> tuple[object, ...]:
    # The file of refusals is the server's word, and may hold anything.
    times = f"{refusal.times:,}" if isinstance(refusal.times, int) else refusal.times
    asked = (refusal.analyst, refusal.dataset, refusal.method, refusal.refused_by)
    return (*asked, times, short_time(str(refusal.last)), _amount(refusal.rho_asked), _amount(refusal.rho_left))


def _amount(value: object) -> object:
    return number(value) if isinstance(value, int | float | None) else value


def _account(account: AccountHistory, prefix: str) -> dict[str, object]:
    """Return what the template says of an account; names in its picture begin with the prefix."""
    (whole,) = spend_lines(account, by_analyst=False, pld=False)
    order = by_cost(account)
    colours = colours_of(order)
    drawn = account.burn_down.entries
    return {
        "name": account.name,
        "total": _total(account.epsilon, account.delta),
        "closed": account.closed,
        "spent": percent(whole.share),
        "width": _width(whole.share),
        "facts": list(_facts(account, whole)),
        "chart": Markup(burn_down_svg(account.burn_down, colours, prefix)) if drawn else None,  # noqa: S704  numbers
        "legend": list(_legend(order, colours)),
        "spenders": [
            {
                "analyst": line.analyst or "",
                "colour": colours[line.analyst or ""],
                "fits": _fits(line),
                "rho": number(line.rho),
                "share": percent(line.share),
                "width": _width(line.share),
                "nominal_epsilon": number(line.nominal_epsilon, 3),
                "allowance": percent(line.allowance),
            }
            for line in (spend_lines(account, by_analyst=True, pld=False) if order else ())
        ],
        "promises": [
            (
                promise.entry,
                short_time(promise.time),
                _total(promise.epsilon, promise.delta),
                _change(before, promise),
                percent(promise.spent),
                promise.actor,
                promise.reason,
            )
            for before, promise in zip([None, *account.promises], account.promises, strict=False)
        ],
    }


def _facts(account: AccountHistory, whole: Spend) -> Iterator[tuple[str, object]]:
    yield "datasets", ", ".join(f"{name} ({what})" for name, what in account.datasets.items())
    yield "fits paid for", _fits(whole)
    yield "spent", f"{percent(whole.share)} of the total (rho {number(whole.rho)})"
    yield "left", f"{percent(account.left_cost_units / account.cap_cost_units)} (rho {number(whole.left_rho)})"
    if account.spent_delta_units:
        spent, left = delta_of_units(account.spent_delta_units), delta_of_units(account.left_delta_units)
        yield "failure probability", f"{number(spent, 3)} spent, {number(left, 3)} left, as parts of delta"
    yield "nominal epsilon so far", f"{number(whole.nominal_epsilon, 3)} (for planning; the promise is the total)"
    if account.call_limit is not None:
        yield "most for one call", f"{account.call_limit} of the total"


def _legend(order: Sequence[str], colours: dict[str, str]) -> Iterator[tuple[str, str]]:
    own = [name for name in order if colours[name] != OTHERS]
    yield from ((colours[name], name) for name in own)
    if len(own) < len(order):
        yield OTHERS, counted(len(order) - len(own), "other")


def _change(before: Promise | None, promise: Promise) -> str:
    if before is None:
        return "first"
    return (
        "raised" if promise.epsilon > before.epsilon else "lowered" if promise.epsilon < before.epsilon else "changed"
    )


def _total(epsilon: float, delta: float) -> str:
    return f"({epsilon:g}, {delta:g})"


def _fits(line: Spend) -> str:
    return f"{line.fits:,}" + (f" ({line.unreleased} without a stored release)" if line.unreleased else "")


def _width(share: float) -> str:
    return f"{min(max(share, 0.0), 1.0):.2%}"
