"""Text output of the commands: findings, and what was spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bursar_amounts import Part, epsilon_text, percent_text, total_text

from .._replay import AccountTotals
from ._checks import Findings
from ._formats import csv_lines, json_lines
from ._language import say, say_count
from ._oracle import SecondOpinion
from ._spend import Spend
from ._text import table_lines, visible
from ._verdict import Standing, causes, verdict

if TYPE_CHECKING:
    from ..checkpoints import Comparison


def findings_lines(found: Findings) -> Iterator[str]:
    """Yield the output of `verify`."""
    verification, judged = found.verification, verdict(found)
    yield f"verdict  {judged.text}"
    yield ""
    if judged.standing is Standing.WRONG:
        yield "Still certain:"
        yield from (f"  {text}" for text in judged.still_certain)
        if judged.certain:
            yield f"  Spend as of entry {judged.certain}: bursar-audit spend"
    else:
        header = ("account", "promised", "debits", "spent", "left")
        yield from table_lines(header, [_account_cells(totals) for totals in verification.accounts])
    yield ""
    yield f"entries  {verification.entries}"
    yield f"head     {verification.head.hex()}"
    yield from assurances(found)
    yield from reservations(found)


def problem_lines(problems: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong, grouped by cause; nothing if nothing is."""
    for cause in causes(problems):
        yield f"PROBLEM  {cause.text}"
        yield from (f"  {visible(finding)}" for finding in cause.findings)


def assurances(found: Findings) -> Iterator[str]:
    """Yield one line for each check that found nothing."""
    if found.verification.ok:
        yield say("verified: chain, sums, caps, released bytes, and every debit priced again from its events")
    if found.opinion.version is not None and not found.opinion.problems:
        yield opinion_in_words(found.opinion)
    for comparison in found.comparisons:
        yield f"{visible(comparison.place)}: {witnessed(comparison, found.verification.entries)}"


def reservations(found: Findings) -> Iterator[str]:
    """Yield one line for each check that was not made."""
    if found.opinion.version is None:
        yield say("second opinion: none, dp-accounting is not installed or was not asked")
    if found.opinion.left_out:
        yield say_count(
            found.opinion.left_out,
            "second opinion: {count} price beyond the numbers of dp-accounting",
            "second opinion: {count} prices beyond the numbers of dp-accounting",
        )
    if found.comparisons and found.key is None:
        yield unpinned()
    if not found.comparisons:
        yield say("checkpoints: none were given; a copy of yesterday verifies, too, so keep the head elsewhere")


def unpinned() -> str:
    """Say that a comparison was made without a pinned key."""
    return say("the key was taken from the ledger itself, which a forger could have written: pin yours with --key")


def opinion_in_words(opinion: SecondOpinion) -> str:
    """Say what dp-accounting compared, and that it agrees."""
    text = "second opinion: dp-accounting {version} agrees with the prices of {debits} and {promises}"
    if opinion.bounded:
        text = (
            "second opinion: dp-accounting {version} agrees with the prices of {debits} and {promises}; its bounds "
            "enclose {bounded} with Laplace noise or selections"
        )
    return say(
        text,
        version=opinion.version,
        debits=_debits(opinion.debits),
        promises=say_count(opinion.promises, "{count} promise", "{count} promises"),
        bounded=_debits(opinion.bounded),
    )


def _debits(count: int) -> str:
    return say_count(count, "{count} debit", "{count} debits")


def witnessed(comparison: Comparison, size: int) -> str:
    """Say up to which entry a place's checkpoints vouch for a ledger of `size` entries."""
    if not comparison.witnessed:
        return say_count(
            comparison.notes,
            "{count} signed checkpoint, and none of them vouches for this ledger",
            "{count} signed checkpoints, and none of them vouches for this ledger",
        )
    after = size - comparison.witnessed
    return say_count(
        comparison.notes,
        "{count} signed checkpoint; history is witnessed up to entry {entry}, {rest}",
        "{count} signed checkpoints; history is witnessed up to entry {entry}, {rest}",
        entry=comparison.witnessed,
        rest=say("all of it") if after <= 0 else say("not yet the {after} after it", after=after),
    )


def _account_cells(totals: AccountTotals) -> Sequence[str]:
    spent, left = _spent_and_left(totals)
    name = totals.name + (" (closed)" if totals.closed else "")
    return (name, total_text(totals.epsilon, totals.delta), str(totals.debits), str(spent), str(left))


def _spent_and_left(totals: AccountTotals) -> tuple[Part, Part]:
    spent, cap = totals.spent_cost_units, totals.cap_cost_units
    delta = Fraction(totals.delta) * (1 - totals.delta_fail_share)
    return (
        Part(spent, cap, totals.order, delta),
        Part(max(cap - spent, 0), cap, totals.order, delta, is_left=True),
    )


def findings_json(found: Findings) -> dict[str, Any]:
    """Return the output of `verify --json`."""
    verification, judged = found.verification, verdict(found)
    return {
        "ok": not found.problems,
        "verdict": judged.standing.value,
        "causes": [dataclasses.asdict(cause) for cause in judged.causes],
        "certain": judged.certain,
        "problems": list(found.problems),
        "ledger_id": verification.ledger_id,
        "entries": verification.entries,
        "head": verification.head.hex(),
        "accounts": [_account_json(totals) for totals in verification.accounts],
        "second_opinion": dataclasses.asdict(found.opinion),
        "checkpoints": [dataclasses.asdict(comparison) for comparison in found.comparisons],
        "key": None if found.key is None else str(found.key),
        "witnessed": found.witnessed,
    }


def _account_json(totals: AccountTotals) -> dict[str, Any]:
    fields = {f.name: getattr(totals, f.name) for f in dataclasses.fields(totals) if not f.name.startswith("_")}
    spent, left = _spent_and_left(totals)
    return {name: _plain(value) for name, value in fields.items()} | {"spent": spent.to_dict(), "left": left.to_dict()}


def _plain(value: Any) -> Any:
    """Return values as JSON has them; a fraction as numerator/denominator."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (int, float, str, type(None))) else str(value)


_SPEND_COLUMNS = tuple(f.name for f in dataclasses.fields(Spend))


def _spend_table(spends: Sequence[Spend]) -> Iterator[str]:
    with_pld = any(line.pld_epsilon is not None for line in spends)
    analysts = any(line.analyst is not None for line in spends)
    header = [
        "account",
        *(["analyst", "allowance"] if analysts else ["promised"]),
        "fits",
    ]
    header += ["spent", "left", "nominal epsilon", *(["PLD epsilon"] if with_pld else [])]
    yield from table_lines(header, [_spend_cells(line, analysts, with_pld) for line in spends])
    yield ""
    yield "The promise is the total; only the cap is a guarantee. Nominal figures are for planning."
    if with_pld:
        yield "PLD epsilon: information, not the guarantee; discrete Gaussian noise is taken as continuous."


def _spend_cells(line: Spend, analysts: bool, with_pld: bool) -> list[str]:
    whose = (
        [line.analyst or "", percent_text(line.allowance, is_left=True)]
        if analysts
        else [total_text(line.epsilon, line.delta)]
    )
    fits = str(line.fits) + (f" ({line.unreleased} without release)" if line.unreleased else "")
    return [
        line.account + (" (closed)" if line.closed else ""),
        *whose,
        fits,
        line.spent,
        line.left,
        epsilon_text(line.nominal_epsilon),
        *(["-" if line.pld_epsilon is None else epsilon_text(line.pld_epsilon)] if with_pld else []),
    ]


SPEND_FORMATS: dict[str, Callable[[Sequence[Spend]], Iterator[str]]] = {
    "table": _spend_table,
    "csv": lambda spends: csv_lines(_SPEND_COLUMNS, [dataclasses.asdict(line) for line in spends]),
    "json": lambda spends: json_lines([dataclasses.asdict(line) for line in spends]),
}
"""Writers of `spend`'s output, by the name of the format."""
