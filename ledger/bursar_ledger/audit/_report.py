"""Report: one HTML page that needs nothing else. The page that `bursar-audit serve` shows first has the same parts.

The templates in `pages/report` put values in; this module only says which.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bursar_amounts import epsilon_text, left_share, percent_text

from ..refusals import Refusal
from ._changes import Changes
from ._charts import OTHERS, burn_down_svg, colours_of
from ._checks import Findings
from ._history import AccountHistory, History, Promise, refused_amounts
from ._pages import environment, style
from ._sentences import day_of, folded, listed
from ._spend import Spend, by_cost, delta_of_units, spend_lines
from ._text import counted, number, short_time
from ._text_output import assurances, reservations
from ._verdict import verdict

_MOST = 1000
"""Rows of one table; a page of a long history stays one that can be opened."""
_TEMPLATES = environment(Path(str(importlib.resources.files(__package__))) / "pages" / "report")
_TEMPLATES.globals["most"] = _MOST
_PARTS: Any = _TEMPLATES.get_template("parts.html").module


def page(
    name: str,
    found: Findings,
    told: History,
    refusals: Sequence[Refusal] | None,
    now: datetime,
    new: Changes | None = None,
) -> str:
    """Return the page about a ledger file.

    Args:
        name: name of the file.
        found: what verification found.
        told: what the entries say; figures are theirs.
        refusals: as the server noted them; None if it left no note.
        now: when it was verified.
        new: what changed since an earlier visit; None if none was given.
    """
    return _TEMPLATES.get_template("page.html").render(
        name=name,
        style=Markup(style()),  # noqa: S704  our own file
        opening=opening(name, found, told, now),
        verification=verification(found, now),
        changed=changed(new, found, told),
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
    checks, gaps = list(assurances(found)), list(reservations(found))
    kept = f"{checked.entries}:{checked.head.hex()}"
    html: Markup = _PARTS.verification(judged, found.problems, checks, gaps, facts, kept)
    return html


def changed(new: Changes | None, found: Findings, told: History) -> Markup:
    """Return what changed since an earlier visit; nothing if none was given."""
    if new is None:
        return Markup()
    refused = None if new.refusals is None else [refusal_in_words(one, told) for one in new.refusals[:_MOST]]
    agrees = found.since is not None and not found.since.problems
    rows = [(event.entries[-1], event.text) for event in new.events[-_MOST:]]
    html: Markup = _PARTS.changed(new.since, new.summary, rows, refused, agrees)
    return html


def body(told: History, refusals: Sequence[Refusal] | None) -> Markup:
    """Return every account with its burn-down and its spenders, refusals, administrative acts, and what it means."""
    html: Markup = _PARTS.body(
        [_account(account, f"c{index}") for index, account in enumerate(told.accounts.values())],
        None if refusals is None else [refusal_in_words(refusal, told) for refusal in refusals[:_MOST]],
        [(act.entries[-1], act.text) for act in folded(act.story for act in told.acts[-_MOST:])],
        min(len(told.acts), _MOST),
        len(told.acts),
    )
    return html


def refusal_in_words(refusal: Refusal, told: History) -> str:
    """Return a sentence about refusals of one kind; all of it is the server's word, and may be anything."""
    times = "once" if refusal.times == 1 else f"{refusal.times} times"
    text = (
        f"An analyst ({refusal.analyst}) asked {times} for {refusal.method} of {refusal.dataset} and was refused by "
        f"this limit: {refusal.refused_by}; the last time on {day_of(str(refusal.last)) or 'an unknown day'}"
    )
    amounts = refused_amounts(refusal, told)
    if amounts is not None:
        asked, left = amounts
        text += f", when it would have cost {asked} of the lifetime budget and {left} was left"
    return f"{text}."


def analysts_in_words(told: History) -> Iterator[tuple[str, str]]:
    """Yield each analyst of each account, those who spent most first, with sentences about what they spent."""
    for account in told.accounts.values():
        for line in spend_lines(account, by_analyst=True, pld=False):
            left = percent_text(left_share(line.left_cost_units, line.cap_cost_units), is_left=True)
            text = (
                f"{line.analyst} made {counted(line.fits, 'paid request')} to {listed(list(account.datasets))} and "
                f"spent {percent_text(line.share)} of the lifetime budget: epsilon "
                f"{epsilon_text(line.nominal_epsilon)}, had all requests been fixed beforehand."
            )
            if line.unreleased:
                text += f" No release is stored of {line.unreleased:,} of them."
            if line.allowance is None:
                text += f" There is no limit for this analyst alone; {left} of the budget is left for all."
            else:
                text += f" The limit is {percent_text(line.allowance, is_left=True)} of the budget; {left} is left."
            yield line.analyst or "", text


def _account(account: AccountHistory, prefix: str) -> dict[str, object]:
    """Return what the template says of an account; names in its picture begin with the prefix."""
    (whole,) = spend_lines(account, by_analyst=False, pld=False)
    order = by_cost(account)
    colours = colours_of(order)
    drawn = account.burn_down.entries
    return {
        "name": account.name,
        "total": _total(account.epsilon, account.delta),
        "odds": number(math.exp(min(account.epsilon, 700.0)), 3),
        "closed": account.closed,
        "spent": percent_text(whole.share),
        "width": _width(whole.share),
        "facts": list(_facts(account, whole)),
        "chart": Markup(burn_down_svg(account.burn_down, colours, prefix)) if drawn else None,  # noqa: S704  numbers
        "legend": list(_legend(order, colours)),
        "spenders": [
            {
                "analyst": line.analyst or "",
                "colour": colours[line.analyst or ""],
                "fits": _fits(line),
                "share": percent_text(line.share),
                "width": _width(line.share),
                "nominal_epsilon": epsilon_text(line.nominal_epsilon),
                "allowance": percent_text(line.allowance, is_left=True),
            }
            for line in (spend_lines(account, by_analyst=True, pld=False) if order else ())
        ],
        "promises": [
            (
                promise.entry,
                short_time(promise.time),
                _total(promise.epsilon, promise.delta),
                _change(before, promise),
                percent_text(promise.spent),
                promise.actor,
                promise.reason,
            )
            for before, promise in zip([None, *account.promises], account.promises, strict=False)
        ],
    }


def _facts(account: AccountHistory, whole: Spend) -> Iterator[tuple[str, object]]:
    yield "datasets", ", ".join(f"{name} ({what})" for name, what in account.datasets.items())
    yield "fits paid for", _fits(whole)
    yield "spent", f"{whole.spent} of the lifetime budget"
    yield "left", whole.left
    if account.spent_delta_units:
        spent, left = delta_of_units(account.spent_delta_units), delta_of_units(account.left_delta_units)
        yield "failure probability", f"{number(spent, 3)} spent, {number(left, 3)} left, as parts of delta"
    yield "nominal epsilon so far", f"{epsilon_text(whole.nominal_epsilon)} (for planning; the promise is the budget)"
    if account.call_limit is not None:
        yield "most for one request", f"{account.limit(account.call_limit)} of the lifetime budget"


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
