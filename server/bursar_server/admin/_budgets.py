"""Commands for budgets and the limits inside them: per account, per analyst, per request."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from bursar_amounts import Part, bound_text, exact_text, total_text
from bursar_ledger import EVERYONE, Budget, DatasetState, EntryKind, Ledger, Remainder
from bursar_ledger.audit._formats import InOrder
from bursar_server.access.oidc import is_principal
from bursar_server.admin._acting import JSON, STATE, Act, act, opened, say_json
from bursar_server.admin._shares import Share, delta, table
from bursar_server.admin._tables import APPROXIMATE_SHARE_HELP, accounts_names
from bursar_server.admin._totals import I_KNOW, confirm_total, sentence
from bursar_server.tables.catalogue import Registered
from bursar_server.wire.admin_service import check_principal

_SHARE = click.option("--share", type=Share(), required=True, help="Part of the total: 25%, 1/4 or 0.25.")


@click.group(cls=InOrder)
def budget() -> None:
    """Show or change a lifetime privacy budget.

    The budget (epsilon, delta) is the guarantee about everything that is ever released of the people in an account.
    Look at it with show; try a new one with set --dry-run; then set it.
    """


@budget.command()
@click.argument("name")
@STATE
@JSON
def show(directory: Path, name: str, as_json: bool) -> None:
    """Show the budget of a dataset's account: its debits, its remainder, and every budget that it ever had."""
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
@I_KNOW
def set_(
    acting: Act,
    name: str,
    *,
    epsilon: float | None,
    delta: float | None,
    approximate_share: Fraction | None,
    i_know: bool,
) -> None:
    """Raise or lower the budget of a dataset's account.

    Everything that was spent stays spent: every past debit is priced again at the order of the new budget. A new budget
    below that closes the account, and no new fit is accepted until it is raised. Allowances and call limits are shares,
    so they follow the budget.

    A raise weakens the guarantee to the people, and cannot be taken back once it is used. It also matters WHY: if you
    chose the new budget for reasons that have nothing to do with released results, it holds for everything, past and
    future. If it depends on a release (a model looked good, so you allow more), the deltas of the old and the new
    budget add up. The ledger cannot show this; say why with --reason.

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
    # Two administrators may each change a part at once: the second one has seen, and confirmed, another total.
    done = functools.partial(
        acting.ledger.set_budget, name, new, actor=acting.actor, reason=acting.reason, replaces=old
    )
    after = _Standing.entered(new, done(dry_run=True).details)
    totals = (*promises(acting.ledger, before.account), Promise(None, new.epsilon, new.delta))
    click.echo(f"account {before.account}, shared by: {', '.join(accounts_names(acting.ledger, before.account))}")
    click.echo(_compared(_Standing.of(before), after))
    for line in _promise_lines(totals, closed=after.closed):
        click.echo(line)
    if new.epsilon > old.epsilon or new.delta > old.delta:
        click.echo(sentence(new))
        rows = Registered.of(before.manifest).manifest.public_rows
        confirm_total(acting, name, new, rows, i_know=i_know)
    if after.closed:
        click.echo(f"this total is below what was spent: the account {before.account} is closed until it is raised")
        acting.confirm("Close the account?")
    elif new.epsilon > old.epsilon or new.delta > old.delta:
        acting.confirm("Raise the total? What is spent under it stays spent.")
    acting.tell(done(dry_run=acting.dry_run), f"total of {before.account}: {total_text(new.epsilon, new.delta)}")


@click.group(cls=InOrder)
def allowance() -> None:
    """Share a budget among analysts.

    An allowance is the maximum that one analyst may spend of an account, as a share of its budget; it follows the
    budget when that changes. It can only refuse more, never allow more: the budget alone is the guarantee, also against
    analysts who combine their models. Shares may add up to more than all; then the first to request is served first.

    Analysts without an allowance of their own each have everyone's, if there is one; otherwise only the budget limits
    them.
    """


@allowance.command("set")
@click.argument("name")
@act()
@click.option("--analyst", help="For whom.")
@click.option("--everyone", is_flag=True, help="For each analyst who has no allowance of their own.")
@click.option("--new", is_flag=True, help="The analyst has no token yet.")
@_SHARE
def set_allowance(acting: Act, name: str, *, analyst: str | None, everyone: bool, new: bool, share: Fraction) -> None:
    """Set what an analyst may spend, from the next request on; earlier debits count.

    A name without a token is refused, because a misspelt one would be in the ledger for good; --new says that it is
    right.

    \b
      bursar-admin allowance set people --everyone --share 10%
      bursar-admin allowance set people --analyst alice --share 1/3 --reason "main study"
    """  # noqa: D301  click reads the backslash
    who = _who(analyst, everyone)
    if analyst is not None and not new:
        _check_known(acting.ledger, acting.ledger.dataset(name).account, analyst)
    entry = acting.ledger.set_allowance(
        name, who, share, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run
    )
    acting.tell(entry, f"{_called(who)} may spend {_share_of(acting.ledger.dataset(name), share)}")
    if analyst is not None and not acting.dry_run:
        click.echo(_left(acting.ledger.dataset(name), acting.ledger.limits(name, analyst).allowance))


@allowance.command("end")
@click.argument("name")
@act()
@click.option("--analyst", help="Whose.")
@click.option("--everyone", is_flag=True, help="That of each analyst who has none of their own.")
def end_allowance(acting: Act, name: str, *, analyst: str | None, everyone: bool) -> None:
    """End an allowance. The analyst then has everyone's or, if there is none, the whole budget available.

    To stop an analyst, set their share to 0 or revoke their token; ending an allowance allows more.
    """
    who = _who(analyst, everyone)
    if who not in acting.ledger.shares(acting.ledger.dataset(name).account):
        raise ValueError(f"{_called(who)} has no allowance of {name} that could end")
    entry = acting.ledger.set_allowance(
        name, who, None, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run
    )
    ended = acting.would("ended", "would end")
    acting.tell(entry, f"{ended} the allowance of {_called(who)} on the account of {name}")


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
    """Limit the cost of one request, so that no mistake empties an account.

    A share of the budget. It holds for every analyst, also for a request of all that is left.
    """


@call_limit.command("set")
@click.argument("name")
@act()
@_SHARE
def set_call_limit(acting: Act, name: str, *, share: Fraction) -> None:
    """Set the maximum cost of one request, from the next request on.

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
    if None not in acting.ledger.shares(acting.ledger.dataset(name).account):
        raise ValueError(f"{name} has no call limit that could end")
    entry = acting.ledger.set_call_limit(name, None, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run)
    acting.tell(entry, f"{acting.would('ended', 'would end')} the call limit of the account of {name}")


@dataclass(frozen=True)
class Promise:
    """Budget that was in force from an entry on; entry None: a proposed one."""

    entry: int | None
    epsilon: float
    delta: float


def promises(ledger: Ledger, account: str) -> tuple[Promise, ...]:
    """Return every budget that an account had, in their order."""
    return tuple(
        Promise(entry.number, entry.details["epsilon"], entry.details["delta"])
        for entry in ledger.entries()
        if entry.kind in (EntryKind.REGISTRATION, EntryKind.BUDGET)
        and entry.details.get("account", entry.dataset) == account
        and "epsilon" in entry.details  # which the registration of a dataset that joined an account has not
    )


@dataclass(frozen=True)
class _Standing:
    """State of an account under a budget."""

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
        left = self.budget.part(0 if self.closed else self.caps[0] - self.spent[0], is_left=True)
        return [
            ("total", total_text(self.budget.epsilon, self.budget.delta)),
            ("approximate share", str(self.budget.delta_fail_share)),
            ("order", f"{float(self.order):.4f}"),
            ("rho of the total", f"{float(self.budget.part(self.caps[0]).rho):.6g}"),
            ("spent", str(self.budget.part(self.spent[0]))),
            ("left", str(left) + (", closed" if self.closed else "")),
            ("approximate: cap", f"delta {delta(self.caps[1], is_left=True)}"),
            ("approximate: spent", f"delta {delta(self.spent[1])}"),
        ]


def _compared(before: _Standing, after: _Standing) -> str:
    rows = [(label, old, new) for (label, old), (_, new) in zip(before.lines, after.lines, strict=True)]
    return table([("", "before", "after"), *rows], indent="  ")


def _promise_lines(totals: tuple[Promise, ...], *, closed: bool) -> Iterator[str]:
    """Yield the joint guarantee of several budgets: `_pricing.md`, "A new total"."""
    if len(totals) < 2:
        return
    shown = ", ".join(
        total_text(total.epsilon, total.delta) + (" now" if total.entry is None else f" in entry {total.entry}")
        for total in totals
    )
    yield f"totals, one after the other: {shown}"
    newest, deltas = totals[-1], sum(Fraction(total.delta) for total in totals)
    if not closed:
        yield (
            f"if no change depended on what was released, the newest holds for everything that is ever released: "
            f"{total_text(newest.epsilon, newest.delta)}"
        )
    yield (
        "if a change depended on what was released, the deltas add: "
        f"({exact_text(max(total.epsilon for total in totals))}, {bound_text(deltas, 6)})"
    )


def _who(analyst: str | None, everyone: bool) -> str:
    if (analyst is not None) == everyone:
        raise ValueError("give one of --analyst and --everyone")
    if analyst is None:
        return EVERYONE
    check_principal(analyst)
    return analyst


def _called(who: str) -> str:
    return "everyone without an allowance of their own" if who == EVERYONE else who


def _check_known(ledger: Ledger, account: str, analyst: str) -> None:
    """Raise ValueError for a name that has neither a token in force nor an allowance of the account."""
    held = [one.name for one in ledger.credentials() if not one.revoked]
    # An identity provider's names are unknown here, so only this server's own are checked.
    if not (is_principal(analyst) or analyst in held or analyst in ledger.shares(account)):
        near = difflib.get_close_matches(analyst, held, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"no token in force has the name {analyst!r}; {meant}bursar-admin token list shows the names. If it is "
            "right, and the token comes later, give --new"
        )


def _share_of(state: DatasetState, share: Fraction) -> str:
    # Rounded down, as the ledger enforces it.
    return (
        f"{share} of the account {state.account}, {state.budget.part(int(share * state.cap_cost_units), is_left=True)}"
    )


def _left(state: DatasetState, limit: Remainder | None) -> str:
    return "" if limit is None else f"left of it: {state.budget.part(limit.cost_units, is_left=True)}"


@dataclass(frozen=True)
class _Limit:
    """Allowance, everyone's share, or call limit; with its remainder if it belongs to one analyst."""

    state: DatasetState
    whose: str | None
    share: Fraction
    left: Part | None

    @property
    def most(self) -> Part:
        return self.state.budget.part(int(self.share * self.state.cap_cost_units), is_left=True)

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        who = {EVERYONE: "everyone else, each", None: "one request"}.get(self.whose, self.whose)
        return self.state.account, str(who), str(self.share), str(self.most), str(self.left or "")

    @property
    def record(self) -> dict[str, object]:
        return {
            "account": self.state.account,
            "kind": "call_limit" if self.whose is None else "allowance",
            "analyst": None if self.whose in (EVERYONE, None) else self.whose,
            "share": str(self.share),
            "most": self.most.to_dict(),
            "left": None if self.left is None else self.left.to_dict(),
        }


def _limits(ledger: Ledger, state: DatasetState) -> Iterator[_Limit]:
    for whose, share in ledger.shares(state.account).items():
        # Everyone's share is one for each analyst, so it has no remainder of its own.
        own = ledger.limits(state.name, whose).allowance if whose not in (EVERYONE, None) else None
        left = None if own is None else state.budget.part(own.cost_units, is_left=True)
        yield _Limit(state, whose, share, left)


def _standing_record(ledger: Ledger, state: DatasetState) -> dict[str, object]:
    standing = _Standing.of(state)
    (cap, cap_delta), (_, spent_delta) = standing.caps, standing.spent
    return {
        "account": state.account,
        "datasets": list(accounts_names(ledger, state.account)),
        "total": {"epsilon": state.budget.epsilon, "delta": state.budget.delta},
        "approximate_share": str(state.budget.delta_fail_share),
        "order": str(state.order),
        "cap": state.budget.part(cap).to_dict(),
        "spent": state.spent.to_dict(),
        "left": state.left.to_dict(),
        "cap_delta_units": cap_delta,
        "spent_delta_units": spent_delta,
        "closed": standing.closed,
        "totals": [
            {"entry": total.entry, "epsilon": total.epsilon, "delta": total.delta}
            for total in promises(ledger, state.account)
        ],
    }
