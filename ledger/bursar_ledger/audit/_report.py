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

from bursar_amounts import exact_text, left_share, odds_factor

from ..refusals import Refusal
from ._changes import Changes
from ._charts import OTHERS, burn_down_svg, colours_of
from ._checks import Findings
from ._history import AccountHistory, History, Promise, refused_amounts
from ._language import (
    figure,
    say,
    say_amount,
    say_count,
    say_epsilon,
    say_finding,
    say_number,
    say_part,
    say_percent,
    say_word,
)
from ._pages import environment, style
from ._sentences import day_of, folded, listed, method_in_words
from ._spend import Spend, by_cost, delta_of_units, spend_lines
from ._text import short_time
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
    """Return the page about a ledger file."""
    return _TEMPLATES.get_template("page.html").render(
        name=name,
        style=Markup(style()),  # noqa: S704  our own file
        opening=opening(name, found, told, now),
        verification=verification(found, now),
        changed=changed(new, found, told),
        body=body(told, refusals),
    )


def opening(name: str, found: Findings | None, told: History, now: datetime) -> Markup:
    """Return the verdict, and what was verified; nothing is `found` while it is being verified."""
    html: Markup = _PARTS.opening(_badge(found), report_facts(name, found, told, now))
    return html


def report_facts(name: str, found: Findings | None, told: History, now: datetime) -> list[tuple[str, str]]:
    """Return what a report is about, and when it was made; arguments as those of `opening`."""
    entries = [] if found is None else [(say("entries"), figure(f"{found.verification.entries:,}"))]
    fits = sum(account.debits for account in told.accounts.values())
    return [
        (say("file"), name),
        (say("ledger"), told.ledger_id or say("unknown")),
        *entries,
        (say("fits paid for"), figure(f"{fits:,}")),
        (say("this page"), f"{short_time(now.isoformat())} UTC, bursar {importlib.metadata.version('bursar')}"),
    ]


def _badge(found: Findings | None) -> dict[str, str]:
    if found is None:
        return {"kind": "waiting", "text": say("being verified")}
    judged = verdict(found)
    return {"kind": judged.standing.name.lower(), "text": judged.text}


def verification(found: Findings, now: datetime) -> Markup:
    """Return what was checked, what is not right, and what was not checked."""
    checked = found.verification
    facts = [
        (say("newest entry"), checked.entries),
        (say("its hash (the head)"), checked.head.hex()),
        (say("verified"), f"{short_time(now.isoformat())} UTC"),
        (say("pinned key"), say("none") if found.key is None else found.key),
    ]
    judged = verdict(found)
    checks, gaps = list(assurances(found)), list(reservations(found))
    kept = f"{checked.entries}:{checked.head.hex()}"
    problems = [say_finding(problem) for problem in found.problems[: _MOST + 1]]
    html: Markup = _PARTS.verification(judged, problems, len(found.problems), checks, gaps, facts, kept)
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
    text = say_count(
        refusal.times,
        "An analyst ({analyst}) asked once for {method} of {dataset} and was refused by this limit: {limit}; the last "
        "time on {day}",
        "An analyst ({analyst}) asked {count} times for {method} of {dataset} and was refused by this limit: {limit}; "
        "the last time on {day}",
        analyst=refusal.analyst,
        method=method_in_words(refusal.method),
        dataset=refusal.dataset,
        limit=say_word(str(refusal.refused_by)),
        day=day_of(str(refusal.last)) or say("an unknown day"),
    )
    amounts = refused_amounts(refusal, told)
    if amounts is not None:
        asked, left = map(say_part, amounts)
        text += say(
            ", when it would have cost {asked} of the lifetime budget and {left} was left", asked=asked, left=left
        )
    return f"{text}."


def analysts_in_words(told: History) -> Iterator[tuple[str, str]]:
    """Yield each analyst of each account, those who spent most first, with sentences about what they spent."""
    for account in told.accounts.values():
        for line in spend_lines(account, by_analyst=True, pld=False):
            left = say_percent(left_share(line.left_cost_units, line.cap_cost_units), is_left=True)
            text = say_count(
                line.fits,
                "{analyst} made {count} paid request to {datasets} and spent {share} of the lifetime budget: epsilon "
                "{epsilon}, had all requests been fixed beforehand.",
                "{analyst} made {count} paid requests to {datasets} and spent {share} of the lifetime budget: epsilon "
                "{epsilon}, had all requests been fixed beforehand.",
                analyst=line.analyst,
                datasets=listed(list(account.datasets)),
                share=say_percent(line.share),
                epsilon=say_epsilon(line.nominal_epsilon),
            )
            if line.unreleased:
                text += say(" No release is stored of {count} of them.", count=line.unreleased)
            if line.allowance is None:
                text += say(
                    " There is no limit for this analyst alone; {left} of the budget is left for all.", left=left
                )
            else:
                limit = say_percent(line.allowance, is_left=True)
                text += say(" The limit is {limit} of the budget; {left} is left.", limit=limit, left=left)
            yield line.analyst or "", text


def _account(account: AccountHistory, prefix: str) -> dict[str, object]:
    """Return what the template says of an account; names in its picture begin with the prefix."""
    (whole,) = spend_lines(account, by_analyst=False, pld=False)
    order = by_cost(account)
    colours = colours_of(order)
    return {
        "name": account.name,
        "total": _total(account.epsilon, account.delta),
        "odds": say_number(odds_factor(account.epsilon), 3),
        "closed": account.closed,
        "spent": say_percent(whole.share),
        "width": _width(whole.share),
        "facts": list(_facts(account, whole)),
        "chart": Markup(burn_down_svg(account.burn_down, colours, prefix)) if account.debits else None,  # noqa: S704  numbers
        "legend": list(_legend(order, colours)),
        "spenders": [
            {
                "analyst": line.analyst or "",
                "colour": colours[line.analyst or ""],
                "fits": _fits(line),
                "share": say_percent(line.share),
                "width": _width(line.share),
                "nominal_epsilon": say_epsilon(line.nominal_epsilon),
                "allowance": say_percent(line.allowance, is_left=True),
            }
            for line in (spend_lines(account, by_analyst=True, pld=False) if order else ())
        ],
        "promises": [
            (
                promise.entry,
                short_time(promise.time),
                _total(promise.epsilon, promise.delta),
                _change(before, promise),
                say_percent(promise.spent),
                promise.actor,
                promise.reason,
            )
            for before, promise in zip([None, *account.promises], account.promises, strict=False)
        ],
    }


def _facts(account: AccountHistory, whole: Spend) -> Iterator[tuple[str, object]]:
    yield say("datasets"), ", ".join(f"{name} ({_states(what)})" for name, what in account.datasets.items())
    yield say("fits paid for"), _fits(whole)
    spent = say_amount(whole.spent_epsilon, whole.share)
    yield say("spent"), say("{amount} of the lifetime budget", amount=spent)
    left = left_share(whole.left_cost_units, whole.cap_cost_units)
    yield say("left"), say_amount(whole.left_epsilon, left, is_left=True)
    if account.spent_delta_units:
        parts = delta_of_units(account.spent_delta_units), delta_of_units(account.left_delta_units)
        spent, kept = (say_number(part, 3) for part in parts)
        yield say("failure probability"), say("{spent} spent, {left} left, as parts of delta", spent=spent, left=kept)
    nominal = say_epsilon(whole.nominal_epsilon)
    planned = say("{epsilon} (for planning; the promise is the budget)", epsilon=nominal)
    yield say("nominal epsilon so far"), planned
    if account.call_limit is not None:
        most = say_part(account.limit(account.call_limit))
        yield say("most for one request"), say("{amount} of the lifetime budget", amount=most)


def _states(what: str) -> str:
    """Return what is protected, and what became of a dataset, from text such as "replace_one, retired"."""
    return ", ".join(say_word(_ADJACENCIES.get(word, word)) for word in what.split(", "))


_ADJACENCIES = {
    "replace_one": "protects the values of each person",
    "add_remove_one": "protects the values of each person and whether they are in it",
}


def _legend(order: Sequence[str], colours: dict[str, str]) -> Iterator[tuple[str, str]]:
    own = [name for name in order if colours[name] != OTHERS]
    yield from ((colours[name], name) for name in own)
    if len(own) < len(order):
        yield OTHERS, say_count(len(order) - len(own), "{count} other", "{count} others")


def _change(before: Promise | None, promise: Promise) -> str:
    if before is None:
        return say("first")
    if promise.epsilon == before.epsilon:
        return say("changed")
    return say("raised") if promise.epsilon > before.epsilon else say("lowered")


def _total(epsilon: float, delta: float) -> str:
    return say("({epsilon}, {delta})", epsilon=figure(exact_text(epsilon)), delta=figure(exact_text(delta)))


def _fits(line: Spend) -> str:
    fits = figure(f"{line.fits:,}")
    if not line.unreleased:
        return fits
    return say("{fits} ({count} without a stored release)", fits=fits, count=line.unreleased)


def _width(share: float) -> str:
    return f"{min(max(share, 0.0), 1.0):.2%}"
