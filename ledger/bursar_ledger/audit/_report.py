"""The report: one HTML page that needs nothing else. Whatever comes from the ledger is escaped, wherever it stands.

The page that `bursar-audit serve` shows first is made of the same parts.
"""

from __future__ import annotations

import html
import importlib.metadata
import importlib.resources
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from ..refusals import Refusal
from ._charts import OTHERS, burn_down_svg, colours_of
from ._checks import Findings
from ._history import AccountHistory, History, Promise
from ._sayings import assurances, reservations
from ._spend import Spend, by_cost, delta_of_units, spend_lines
from ._text import counted, number, percent, visible

_MOST = 1000
"""Rows of one table; a page of a long history stays one that can be opened."""


def page(name: str, found: Findings, told: History, refusals: Sequence[Refusal] | None, now: datetime) -> str:
    """The page about a ledger file.

    Args:
        name: of the file.
        found: what verification found.
        told: what the entries say; figures are theirs.
        refusals: as the server noted them; None if it left no note.
        now: when it was verified.
    """
    parts = [*opening(name, found, told, now), *verification(found, now), *body(told, refusals)]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Should escaping ever fail: nothing runs and nothing is loaded.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Privacy ledger {_e(name)}</title>",
            f"<style>\n{style()}</style>",
            "</head>",
            "<body>",
            "<main>",
            *parts,
            "</main>",
            "</body>",
            "</html>",
        ]
    )


def style() -> str:
    """The style sheet of what is below."""
    return importlib.resources.files(__package__).joinpath("report.css").read_text("utf-8")


def opening(name: str, found: Findings | None, told: History, now: datetime) -> Iterator[str]:
    """The verdict, and what was looked at.

    Args:
        name: of the file.
        found: None while it is being verified.
        told: what the entries say.
        now: when it was verified, or read.
    """
    yield "<header>"
    yield "<h1>Privacy ledger</h1>"
    yield _verdict(found)
    facts = [
        ("file", name),
        ("ledger", told.ledger_id or "unknown"),
        *([("entries", f"{found.verification.entries:,}")] if found is not None else []),
        ("fits paid for", f"{sum(account.debits for account in told.accounts.values()):,}"),
        ("this page", f"{_minute(now.isoformat())} UTC, bursar {importlib.metadata.version('bursar')}"),
    ]
    yield _facts(facts)
    yield "</header>"


def _verdict(found: Findings | None) -> str:
    if found is None:
        return '<p class="verdict waiting">being verified</p>'
    kind, text = ("bad", "does not verify") if found.problems else ("good", "verified")
    return f'<p class="verdict {kind}">{text}</p>'


def verification(found: Findings, now: datetime) -> Iterator[str]:
    """What was checked, what is not right, and what was not checked."""
    checked = found.verification
    yield "<section>"
    yield "<h2>Verification</h2>"
    if found.problems:
        yield "<p><strong>This ledger is not right.</strong> The figures below are only what it says.</p>"
        yield from _list(found.problems, "problems")
    yield from _list(assurances(found), "checks")
    yield from _list(reservations(found), "open")
    yield _facts(
        [
            ("newest entry", f"{checked.entries}"),
            ("its hash (the head)", checked.head.hex()),
            ("verified", f"{_minute(now.isoformat())} UTC"),
            ("pinned key", "none" if found.key is None else str(found.key)),
        ]
    )
    yield "</section>"


def _refused(refusals: Sequence[Refusal] | None) -> Iterator[str]:
    """Who asked for what he could not have, as the server counted it; None if it left no count."""
    yield "<section>"
    yield "<h2>Refusals</h2>"
    if refusals is None:
        yield "<p>There is no file of refusals beside this ledger: none was left by the server, or none was copied.</p>"
    elif not refusals:
        yield "<p>Nothing was refused.</p>"
    else:
        rows = [
            [
                _e(refusal.analyst),
                _e(refusal.dataset),
                _e(refusal.method),
                _e(refusal.refused_by),
                f"{refusal.times:,}" if isinstance(refusal.times, int) else _e(refusal.times),
                _minute(str(refusal.last)),
                _amount(refusal.rho_asked),
                _amount(refusal.rho_left),
            ]
            for refusal in refusals[:_MOST]
        ]
        yield from _table(
            ("analyst", "dataset", "request", "refused by", "times", "last", "rho asked", "rho then left"), rows
        )
    yield (
        "<p>A refusal changes nothing, so the ledger has no entry of it. These counts are the server's word, kept "
        "beside the ledger; nothing proves them, and nothing else here depends on them.</p>"
    )
    yield "</section>"


def _amount(value: float | None) -> str:
    return _e(number(value)) if isinstance(value, int | float | None) else _e(value)


def body(told: History, refusals: Sequence[Refusal] | None) -> Iterator[str]:
    """Every account with its burn-down and its spenders, refusals, the administrative acts, and what it means."""
    for index, account in enumerate(told.accounts.values()):
        yield from _account(account, f"c{index}")
    yield from _refused(refusals)
    yield from _acts(told)
    yield from _guarantee()


def _account(account: AccountHistory, prefix: str) -> Iterator[str]:
    (whole,) = spend_lines(account, by_analyst=False, pld=False)
    yield "<section>"
    yield f"<h2>{_e(account.name)}</h2>"
    yield (
        f"<p>Promised to the people in it, for the whole life of the data: <strong>(epsilon, delta) = "
        f"({account.epsilon:g}, {account.delta:g})</strong>, whatever all analysts together learn.</p>"
    )
    if account.closed:
        yield "<p><strong>Closed:</strong> the total was lowered below what had been spent.</p>"
    yield _bar_large(whole.share)
    yield _facts(
        [
            ("datasets", ", ".join(f"{name} ({what})" for name, what in account.datasets.items())),
            ("fits paid for", _fits(whole)),
            ("spent", f"{percent(whole.share)} of the total (rho {number(whole.rho)})"),
            ("left", f"{percent(account.left_cost_units / account.cap_cost_units)} (rho {number(whole.left_rho)})"),
            *_failures(account),
            ("nominal epsilon so far", f"{number(whole.nominal_epsilon, 3)} (for planning; the promise is the total)"),
            *([("most for one call", f"{account.call_limit} of the total")] if account.call_limit is not None else []),
        ]
    )
    order = by_cost(account)
    colours = colours_of(order)
    if account.burn_down.entries:
        yield "<h3>What was left, entry by entry</h3>"
        yield f'<figure><div class="chart">{burn_down_svg(account.burn_down, colours, prefix)}</div>'
        yield f"<figcaption>{_legend(order, colours)}</figcaption></figure>"
    if order:
        yield "<h3>Who spent it</h3>"
        yield from _spenders(account, colours)
    yield "<h3>What was promised, and when</h3>"
    yield from _promises(account.promises)
    yield "</section>"


def _spenders(account: AccountHistory, colours: dict[str, str]) -> Iterator[str]:
    rows = []
    for line in spend_lines(account, by_analyst=True, pld=False):
        analyst = line.analyst or ""
        rows.append(
            [
                f'<span class="dot" style="background:{colours[analyst]}"></span>{_e(analyst)}',
                _fits(line),
                number(line.rho),
                _bar(line.share, colours[analyst]),
                number(line.nominal_epsilon, 3),
                "-" if line.allowance is None else percent(line.allowance),
            ]
        )
    yield from _table(("analyst", "fits", "rho", "part of the total", "nominal epsilon", "allowance"), rows)


def _promises(promises: Sequence[Promise]) -> Iterator[str]:
    rows = [
        [
            str(promise.entry),
            _minute(promise.time),
            f"({promise.epsilon:g}, {promise.delta:g})",
            _change(before, promise),
            percent(promise.spent),
            _e(promise.actor),
            _e(promise.reason),
        ]
        for before, promise in zip([None, *promises], promises, strict=False)
    ]
    yield from _table(("entry", "time", "(epsilon, delta)", "change", "spent by then", "by", "reason"), rows)
    if any(not promise.restated for promise in promises[1:]):
        yield (
            "<p>A new total counts everything that had been spent before. If it was chosen because of what had been "
            "released, the deltas of all totals add up.</p>"
        )


def _change(before: Promise | None, promise: Promise) -> str:
    if before is None:
        return "first"
    if promise.restated:
        return "said again"
    return (
        "raised" if promise.epsilon > before.epsilon else "lowered" if promise.epsilon < before.epsilon else "changed"
    )


def _acts(told: History) -> Iterator[str]:
    yield "<section>"
    yield "<h2>Administrative acts</h2>"
    shown = told.acts[-_MOST:]
    if len(shown) < len(told.acts):
        yield f"<p>The newest {len(shown):,} of {len(told.acts):,}; all of them: bursar-audit entries.</p>"
    rows = [
        [
            str(act.entry),
            _minute(act.time),
            _e(act.kind.replace("_", " ")),
            _e(act.dataset),
            _e(act.actor),
            _e(act.what),
        ]
        for act in shown
    ]
    yield from _table(("entry", "time", "act", "dataset", "by", "what"), rows)
    yield "<p>Times are what the server's clock said. The order of entries is that of their numbers.</p>"
    yield "</section>"


def _guarantee() -> Iterator[str]:
    yield "<section>"
    yield "<h2>What this means</h2>"
    for paragraph in _MEANING:
        yield f"<p>{paragraph}</p>"
    yield "<h3>What this page cannot show</h3>"
    yield from _list(_LIMITS, "limits")
    yield "</section>"


_MEANING = (
    "<strong>The promise.</strong> Take any one person (or row, as the owner declared it) in the table. Whatever all "
    "analysts together see of it, over its whole life, they would see almost as likely if that person's data were "
    "different or missing: probabilities change by a factor of at most e<sup>epsilon</sup>, except for events of "
    "probability delta. This holds against people who know everything else.",
    "<strong>How it is kept.</strong> Before a fit reads a row, its price is written into this ledger. A fit that "
    "costs more than what is left is refused. There are no refunds, and nothing comes back with time.",
    "<strong>How it is checked.</strong> The price follows from what was released: which noise, how much of it, how "
    "often. Every price on this page was computed again from that, by other arithmetic than the server's. Each entry "
    "carries the hash of the one before it, so none can be changed or taken out of the middle without a trace.",
    "<strong>Spent so far</strong> is for planning. Analysts choose their questions after seeing answers, and for that "
    "only the total is a guarantee (Feldman and Zrnic 2021). Nominal epsilons presume questions that were fixed "
    "beforehand, and they do not add up: two of 1 are less than 2.",
)
_LIMITS = (
    "That these are all the entries: a ledger whose end was cut off, or an old copy, verifies as well. Signed "
    "checkpoints and the receipts of analysts, kept elsewhere, show that.",
    "That the server ran the program it should have run, and that its noise was noise.",
    "That the table held the people it is said to hold, one unit for each, and that no other table holds them, too.",
    "Times: they are the server's word.",
)


def _fits(line: Spend) -> str:
    return f"{line.fits:,}" + (f" ({line.unreleased} without a stored release)" if line.unreleased else "")


def _failures(account: AccountHistory) -> list[tuple[str, str]]:
    if not account.spent_delta_units:
        return []
    spent, left = delta_of_units(account.spent_delta_units), delta_of_units(account.left_delta_units)
    return [("failure probability", f"{number(spent, 3)} spent, {number(left, 3)} left, as parts of delta")]


def _legend(order: Sequence[str], colours: dict[str, str]) -> str:
    own = [name for name in order if colours[name] != OTHERS]
    dots = [f'<span class="dot" style="background:{colours[name]}"></span>{_e(name)}' for name in own]
    if len(own) < len(order):
        dots.append(f'<span class="dot" style="background:{OTHERS}"></span>{counted(len(order) - len(own), "other")}')
    dots.append('<span class="dash"></span>new total')
    return " ".join(f'<span class="key">{dot}</span>' for dot in dots)


def _bar(share: float, colour: str) -> str:
    width = min(max(share, 0.0), 1.0)
    return f'<span class="bar"><span style="width:{width:.2%};background:{colour}"></span></span> {percent(share)}'


def _bar_large(share: float) -> str:
    width = min(max(share, 0.0), 1.0)
    return f'<div class="bar large" title="{percent(share)} spent"><span style="width:{width:.2%}"></span></div>'


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<div><dt>{_e(name)}</dt><dd>{_e(value)}</dd></div>" for name, value in pairs)
    return f"<dl>{rows}</dl>"


def _list(texts: Iterable[str], kind: str) -> Iterator[str]:
    items = list(texts)
    if not items:
        return
    yield f'<ul class="{kind}">'
    yield from (f"<li>{_e(text)}</li>" for text in items[:_MOST])
    if len(items) > _MOST:
        yield f"<li>and {len(items) - _MOST:,} more: bursar-audit verify</li>"
    yield "</ul>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table whose cells are HTML already."""
    yield '<div class="wide"><table>'
    yield "<thead><tr>" + "".join(f"<th>{_e(title)}</th>" for title in header) + "</tr></thead>"
    yield "<tbody>"
    yield from ("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    yield "</tbody></table></div>"


def _minute(time: str) -> str:
    """A time to the minute, escaped; what is no time as it is."""
    return _e(time[:16].replace("T", " "))


def _e(text: object) -> str:
    return html.escape(visible(text))
