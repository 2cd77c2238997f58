"""Totals, and the limits inside them: how much in all, how much for whom, how much at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from bursar_ledger import EVERYONE, Budget, DatasetState, Ledger, Remaining
from bursar_server.admin._acting import JSON, STATE, Act, InOrder, act, opened, say_json
from bursar_server.admin._shares import Share, amount, delta, percent, rho, table
from bursar_server.admin._tables import APPROXIMATE_SHARE_HELP, accounts_names
from bursar_server.services.admin import check_name

_SHARE = click.option("--share", type=Share(), required=True, help="Part of the total: 25%, 1/4 or 0.25.")


@click.group(cls=InOrder)
def budget() -> None:
    """Show or change a total.

    The total (epsilon, delta) is the promise about everything that is ever released of the people in an account.
    Look at it with show; try a new one with set --dry-run; then set it.
    """


@budget.command()
@click.argument("name")
@STATE
@JSON
def show(directory: Path, name: str, as_json: bool) -> None:
    """Show the total of a dataset's account: what was spent, what is left, every total there ever was."""
    with opened(directory) as (_, ledger):
        state = ledger.dataset(name)
        if as_json:
            say_json(_standing_record(ledger, state))
            return
        click.echo(f"account {state.account}, shared by: {', '.join(accounts_names(ledger, state.account))}")
        click.echo(table([(label, value) for label, value in _Standing.of(state).lines], indent="  "))
        for line in _promise_lines(promises(ledger, state.account), closed=_Standing.of(state).closed):
            click.echo(line)


@budget.command("set")
@click.argument("name")
@act(asks=True)
@click.option("--epsilon", type=float, help="The new total; left out: as it is.")
@click.option("--delta", type=float, help="Likewise.")
@click.option("--approximate-share", type=Share(), help=f"{APPROXIMATE_SHARE_HELP} Left out: as it is.")
def set_(
    acting: Act, name: str, *, epsilon: float | None, delta: float | None, approximate_share: Fraction | None
) -> None:
    """Raise or lower the total of a dataset's account.

    Everything that was spent stays spent: every past debit is priced again at the order of the new total. A new total
    below that closes the account, and nobody gets a new fit until it is raised. Allowances and call limits are shares,
    so they follow the total.

    A raise weakens what the people were promised, and cannot be taken back once it is used. It also matters WHY: if you
    chose the new total for reasons that have nothing to do with what was released, it holds for everything, past
    and future. If it depends on a release (a model looked good, so you allow more), the deltas of the old and the new
    total add up. Nobody can see this in the ledger; say why with --reason.

    \b
      bursar-admin budget set people --epsilon 5 --dry-run
      bursar-admin budget set people --epsilon 5 --reason "second year of the study, as in its plan"
    """  # noqa: D301  click reads the backslash
    before = acting.ledger.dataset(name)
    if (epsilon, delta, approximate_share) == (None, None, None):
        raise ValueError("give at least one of --epsilon, --delta and --approximate-share")
    old = before.budget
    new = Budget(
        epsilon=old.epsilon if epsilon is None else epsilon,
        delta=old.delta if delta is None else delta,
        delta_fail_share=old.delta_fail_share if approximate_share is None else approximate_share,
    )
    done = functools.partial(acting.ledger.set_budget, name, new, actor=acting.actor, reason=acting.reason)
    after = _Standing.entered(new, done(dry_run=True).details)
    totals = (*promises(acting.ledger, before.account), Promise(None, new.epsilon, new.delta, new.delta_fail_share))
    click.echo(f"account {before.account}, shared by: {', '.join(accounts_names(acting.ledger, before.account))}")
    click.echo(_compared(_Standing.of(before), after))
    for line in _promise_lines(totals, closed=after.closed):
        click.echo(line)
    if after.closed:
        click.echo(f"this total is below what was spent: the account {before.account} is closed until it is raised")
        acting.confirm("Close the account?")
    elif new.epsilon > old.epsilon or new.delta > old.delta:
        acting.confirm("Raise the total? What is spent under it stays spent.")
    acting.tell(done(dry_run=acting.dry_run), f"total of {before.account}: ({new.epsilon:g}, {new.delta:g})")


@click.group(cls=InOrder)
def allowance() -> None:
    """Share a total out among analysts.

    An allowance is the most that one analyst may spend of an account, as a share of its total; it follows the total
    when that changes. It refuses more and never allows more: the total alone is the promise, also about analysts who
    put their models together. Shares may add up to more than all; then who comes first is served first.

    Analysts without an allowance of their own have everyone's, if there is one, each for himself; without that, they
    are bound by the total only.
    """


@allowance.command("set")
@click.argument("name")
@act()
@click.option("--analyst", help="For whom.")
@click.option("--everyone", is_flag=True, help="For each analyst who has no allowance of his own.")
@_SHARE
def set_allowance(acting: Act, name: str, *, analyst: str | None, everyone: bool, share: Fraction) -> None:
    """Set what an analyst may spend, from his next request on; what he spent before counts.

    \b
      bursar-admin allowance set people --everyone --share 10%
      bursar-admin allowance set people --analyst alice --share 1/3 --reason "main study"
    """  # noqa: D301  click reads the backslash
    who = _who(analyst, everyone)
    entry = acting.ledger.set_allowance(
        name, who, share, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run
    )
    if analyst is not None:
        _note_unknown(acting.ledger, analyst)
    acting.tell(entry, f"{_called(who)} may spend {_share_of(acting.ledger.dataset(name), share)}")
    if analyst is not None and not acting.dry_run:
        click.echo(_left(acting.ledger.limits(name, analyst).allowance))


@allowance.command("end")
@click.argument("name")
@act()
@click.option("--analyst", help="Whose.")
@click.option("--everyone", is_flag=True, help="That of each analyst who has none of his own.")
def end_allowance(acting: Act, name: str, *, analyst: str | None, everyone: bool) -> None:
    """End an allowance. The analyst then has everyone's, or if there is none, the whole total before him.

    To stop somebody, set his share to 0 or revoke his token; ending an allowance allows more.
    """
    who = _who(analyst, everyone)
    if who not in _shares(acting.ledger, acting.ledger.dataset(name).account):
        raise ValueError(f"{_called(who)} has no allowance of {name} that could end")
    entry = acting.ledger.set_allowance(
        name, who, None, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run
    )
    acting.tell(entry, f"ended the allowance of {_called(who)} on the account of {name}")


@allowance.command("list")
@click.argument("name", required=False)
@STATE
@JSON
def list_allowances(directory: Path, name: str | None, as_json: bool) -> None:
    """List allowances and call limits, of one dataset's account or of all."""
    with opened(directory) as (_, ledger):
        wanted = [ledger.dataset(name)] if name else [s for s in ledger.datasets() if s.account == s.name]
        limits = [limit for state in wanted for limit in _limits(ledger, state)]
    if as_json:
        say_json([limit.record for limit in limits])
        return
    rows = [limit.row for limit in limits]
    click.echo(table([("account", "for", "share", "at most", "left"), *rows]) if rows else "no limits but the totals")


@click.group("call-limit", cls=InOrder)
def call_limit() -> None:
    """Limit what one request may cost, so that nobody empties an account by mistake.

    As a share of the total; it holds for every analyst, also for one who asks for all that is left.
    """


@call_limit.command("set")
@click.argument("name")
@act()
@_SHARE
def set_call_limit(acting: Act, name: str, *, share: Fraction) -> None:
    """Set the most that one request may cost, from the next request on.

    \b
      bursar-admin call-limit set people --share 5%
    """  # noqa: D301  click reads the backslash
    entry = acting.ledger.set_call_limit(name, share, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run)
    acting.tell(entry, f"one request may cost {_share_of(acting.ledger.dataset(name), share)}")


@call_limit.command("end")
@click.argument("name")
@act()
def end_call_limit(acting: Act, name: str) -> None:
    """End the limit: one request may then cost all that its analyst may spend."""
    if None not in _shares(acting.ledger, acting.ledger.dataset(name).account):
        raise ValueError(f"{name} has no call limit that could end")
    entry = acting.ledger.set_call_limit(name, None, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run)
    acting.tell(entry, f"ended the call limit of the account of {name}")


@dataclass(frozen=True)
class Promise:
    """A total that was in force from an entry on; None: it would be."""

    entry: int | None
    epsilon: float
    delta: float
    delta_fail_share: Fraction

    def same(self, other: Promise) -> bool:
        """Whether the filter is the same: another share of delta is another order, and so another promise."""
        return dataclasses.replace(self, entry=other.entry) == other


def promises(ledger: Ledger, account: str) -> tuple[Promise, ...]:
    """Every total that an account had, one after the other."""
    found: list[Promise] = []
    for entry in ledger.entries():
        if entry.kind not in ("registration", "budget"):
            continue
        details = entry.details
        # Of a dataset that joined an account, the registration has no total.
        if details.get("account", entry.dataset) != account or "epsilon" not in details:
            continue
        share = Fraction(details["delta_fail_share"])
        new = Promise(entry.number, details["epsilon"], details["delta"], share)
        # An upgrade of the ledger enters the same total again, with what every analyst spent.
        if not found or not found[-1].same(new):
            found.append(new)
    return tuple(found)


@dataclass(frozen=True)
class _Standing:
    """Where an account stands under a total."""

    budget: Budget
    order: Fraction
    caps: tuple[int, int]
    spent: tuple[int, int]

    @classmethod
    def of(cls, state: DatasetState) -> _Standing:
        return cls(
            state.budget,
            state.order,
            (state.cap_cost_units, state.cap_delta_units),
            (state.spent_cost_units, state.spent_delta_units),
        )

    @classmethod
    def entered(cls, budget: Budget, details: Mapping[str, Any]) -> _Standing:
        caps = details["cap_cost_units"], details["cap_delta_units"]
        return cls(budget, budget.order, caps, (details["spent_cost_units"], details["spent_delta_units"]))

    @property
    def closed(self) -> bool:
        return not all(spent <= cap for spent, cap in zip(self.spent, self.caps, strict=True))

    @property
    def lines(self) -> list[tuple[str, str]]:
        cap, left = self.caps[0], 0 if self.closed else self.caps[0] - self.spent[0]
        return [
            ("total", f"({self.budget.epsilon:g}, {self.budget.delta:g})"),
            ("approximate share", str(self.budget.delta_fail_share)),
            ("order", f"{float(self.order):.4f}"),
            ("cap", rho(cap, self.order)),
            ("spent", f"{rho(self.spent[0], self.order)} ({percent(self.spent[0], cap)})"),
            ("left", f"{rho(left, self.order)} ({percent(left, cap)})" + (", closed" if self.closed else "")),
            ("approximate: cap", f"delta {delta(self.caps[1])}"),
            ("approximate: spent", f"delta {delta(self.spent[1])}"),
        ]


def _compared(before: _Standing, after: _Standing) -> str:
    rows = [(label, old, new) for (label, old), (_, new) in zip(before.lines, after.lines, strict=True)]
    return table([("", "before", "after"), *rows], indent="  ")


def _promise_lines(totals: tuple[Promise, ...], *, closed: bool) -> Iterator[str]:
    """What several totals promise together: `_pricing.md`, "A new total"."""
    if len(totals) < 2:
        return
    shown = ", ".join(
        f"({total.epsilon:g}, {total.delta:g})" + (" now" if total.entry is None else f" in entry {total.entry}")
        for total in totals
    )
    yield f"totals, one after the other: {shown}"
    newest = totals[-1]
    if not closed:
        yield (
            f"if no change depended on what was released, the newest holds for everything that is ever released: "
            f"({newest.epsilon:g}, {newest.delta:g})"
        )
    yield (
        "if a change depended on what was released, the deltas add: "
        f"({max(total.epsilon for total in totals):g}, {sum(total.delta for total in totals):g})"
    )


def _who(analyst: str | None, everyone: bool) -> str:
    if (analyst is not None) == everyone:
        raise ValueError("give one of --analyst and --everyone")
    if analyst is None:
        return EVERYONE
    check_name(analyst)
    return analyst


def _called(who: str) -> str:
    return "everyone without an allowance of their own" if who == EVERYONE else who


def _note_unknown(ledger: Ledger, analyst: str) -> None:
    if not any(held.name == analyst and not held.revoked for held in ledger.credentials()):
        click.echo(f"note: no token in force has the name {analyst!r}; is it spelt as in: bursar-admin token list")


def _share_of(state: DatasetState, share: Fraction) -> str:
    # Rounded down, as the ledger enforces it.
    units = int(share * state.cap_cost_units)
    return (
        f"{share} of the account {state.account}, {rho(units, state.order)} of {rho(state.cap_cost_units, state.order)}"
    )


def _left(limit: Remaining | None) -> str:
    return "" if limit is None else f"left of it: {rho(limit.cost_units, limit.order)}"


def _shares(ledger: Ledger, account: str) -> dict[str | None, Fraction]:
    """The limits of an account that are in force: shares by analyst, that of one call under None."""
    found: dict[str | None, Fraction] = {}
    for entry in ledger.entries():
        if entry.kind in ("allowance", "call_limit") and entry.details["account"] == account:
            details = entry.details
            whose = details.get("analyst")
            found.pop(whose, None)
            if details["share"] is not None:
                found[whose] = Fraction(details["share"])
    return found


@dataclass(frozen=True)
class _Limit:
    """An allowance, also everyone's, or the maximum of one request; and what is left of it, if it is somebody's."""

    state: DatasetState
    whose: str | None
    share: Fraction
    left: int | None

    @property
    def most(self) -> int:
        return int(self.share * self.state.cap_cost_units)

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        who = {EVERYONE: "everyone else, each", None: "one request"}.get(self.whose, self.whose)
        left = "" if self.left is None else rho(self.left, self.state.order)
        most = rho(self.most, self.state.order)
        return self.state.account, str(who), f"{self.share} ({percent(self.share)})", most, left

    @property
    def record(self) -> dict[str, object]:
        cap, order = self.state.cap_cost_units, self.state.order
        return {
            "account": self.state.account,
            "kind": "call_limit" if self.whose is None else "allowance",
            "analyst": None if self.whose in (EVERYONE, None) else self.whose,
            "share": str(self.share),
            "most": amount(self.most, cap, order),
            "left": None if self.left is None else amount(self.left, cap, order),
        }


def _limits(ledger: Ledger, state: DatasetState) -> Iterator[_Limit]:
    for whose, share in _shares(ledger, state.account).items():
        # Everyone's share is each one's for himself, so nothing of it is left or gone in general.
        own = ledger.limits(state.name, whose).allowance if whose not in (EVERYONE, None) else None
        yield _Limit(state, whose, share, None if own is None else own.cost_units)


def _standing_record(ledger: Ledger, state: DatasetState) -> dict[str, object]:
    standing = _Standing.of(state)
    (cap, cap_delta), (spent, spent_delta) = standing.caps, standing.spent
    return {
        "account": state.account,
        "datasets": list(accounts_names(ledger, state.account)),
        "total": {"epsilon": state.budget.epsilon, "delta": state.budget.delta},
        "approximate_share": str(state.budget.delta_fail_share),
        "order": str(state.order),
        "cap": amount(cap, cap, state.order),
        "spent": amount(spent, cap, state.order),
        "left": amount(state.remaining.cost_units, cap, state.order),
        "cap_delta_units": cap_delta,
        "spent_delta_units": spent_delta,
        "closed": standing.closed,
        "totals": [
            {"entry": total.entry, "epsilon": total.epsilon, "delta": total.delta}
            for total in promises(ledger, state.account)
        ],
    }
