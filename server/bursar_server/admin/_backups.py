"""Commands for backups of the ledger and of a whole state directory, and for the work after a restoration."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import click

from bursar_ledger import (
    COST_UNIT,
    DELTA_UNIT,
    ApproximateEvent,
    ConcentratedEvent,
    DatasetState,
    DebitRequest,
    price,
    verify,
)
from bursar_server.admin._acting import PATH, STATE, Act, act, actor, explained, opened
from bursar_server.admin._shares import Share
from bursar_server.admin._tables import left_line
from bursar_server.ops.backups import BackupNote, Restored, back_up
from bursar_server.ops.backups import restore as put_back
from bursar_server.wire.admin_service import check_principal, check_reason

METHOD = "WriteOff"
"""Method in debits of a spent budget that has no entry."""

_NUMBER = re.compile(r"\d{1,9}(\.\d{1,40})?([eE]-?\d{1,2})?")


@click.command()
@STATE
@click.argument("path", type=PATH)
@click.option("--whole", is_flag=True, help="The whole state directory, for restore; PATH becomes a folder.")
@click.option("--no-rows", is_flag=True, help="With --whole: without the tables.")
def backup(directory: Path, path: Path, whole: bool, no_rows: bool) -> None:
    """Copy the ledger to PATH, consistently while the server runs, and verify the copy.

    With --whole, PATH becomes a folder of ledger, counts of refusals, settings, keys, certificates and tables, from
    which `bursar-admin restore` makes a state directory. Keep it as secret as the state directory itself. Imports wait
    until it is done. Checkpoints and the administrator's token are not copied. No file is ever overwritten, and a file
    or folder named PATH is always complete.

    Never copy ledger.sqlite itself with cp: it may be in the middle of a change. A restored ledger has lost all later
    debits; signed checkpoints on another disk, and clients, detect that. See restore.

    \b
      bursar-admin backup /mnt/backup/ledger-2026-11-21.sqlite
      bursar-admin backup --whole /mnt/backup/2026-11-21
    """  # noqa: D301  click reads the backslash
    if no_rows and not whole:
        raise click.ClickException("--no-rows goes with --whole: a ledger alone has no rows")
    with opened(directory) as (state, ledger):
        if whole:
            found = back_up(state, ledger, path, rows=not no_rows)
        else:
            ledger.backup(path)
            found = verify(path)
            if not found.ok:
                raise click.ClickException(f"the copy does not verify: {found.problems[0]}; do not rely on it")
        with contextlib.suppress(OSError):  # the backup is there; without a note the owner's page shows an older one
            BackupNote(datetime.now(UTC), found.entries, str(path.absolute())).save(state)
    click.echo(f"copied {found.entries} entries to {path} and verified them: head {found.head.hex()}")


@click.command()
@STATE
@click.argument("path", type=PATH)
@click.option("--reason", default="", help="Why; goes into the ledger's entries, for the auditor.")
def restore(directory: Path, path: Path, reason: str) -> None:
    """Make a state directory from the backup PATH, with every account closed.

    Use it only after a state directory was lost. The backup's ledger has lost all later debits, whose answers cannot be
    taken back. So nothing can be debited at first: the call limit of every account is 0. Debits without a release are
    not run again, because their release may have been sent.

    Add back the spent budget (write-off), repeat what else was done since (tokens that were revoked, tables that were
    retired or destroyed), put the old checkpoints aside, and only then open the accounts again: call-limit end.
    docs/howto-restore.md describes each step.

    \b
      bursar-admin restore /mnt/backup/2026-11-21 --state state --reason "the disk broke"
    """  # noqa: D301  click reads the backslash
    with explained():
        check_reason(reason)
        restored = put_back(path, directory, actor=actor(), reason=reason)
    for line in _told(restored, directory):
        click.echo(line)


def _told(restored: Restored, directory: Path) -> Iterator[str]:
    yield f"restored {directory} from a backup of entry {restored.entries}"
    if restored.problems:
        yield "checkpoints:"
    for problem in restored.problems:
        yield f"  {problem}"
    if restored.lost:
        yield f"paid for without a release, and not run again: entries {', '.join(map(str, restored.lost))}"
    if restored.missing_rows:
        yield f"rows that are not in the backup: {', '.join(restored.missing_rows)}; import them with snapshot"
    yield f"tokens in force: {', '.join(restored.tokens) or 'none'}. Revoke again what was revoked since"
    yield f"closed accounts: {', '.join(restored.closed) or 'none'}. For each, before it is opened again:"
    yield f"  bursar-admin write-off --state {directory} ACCOUNT ... --reason ...   (what was spent since)"
    yield f"  bursar-admin call-limit end --state {directory} ACCOUNT               (opens it)"


class Amount(click.ParamType[Fraction]):
    """Number of at least 0, read exactly as it is written."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return the exact number; fails for any other text."""
        if isinstance(value, Fraction):
            return value
        if not _NUMBER.fullmatch(str(value)):
            self.fail(f"{value!r} is not a number such as 0.05 or 2e-7", param, ctx)
        return Fraction(str(value))


@click.command("write-off")
@click.argument("name")
@act(asks=True)
@click.option("--analyst", help="Who spent it, if that is known; it counts against their allowance.")
@click.option("--rho", type=Amount(), help="How much was spent.")
@click.option("--left-rho", type=Amount(), help="How much is to be left, as the newest receipt says.")
@click.option("--spent", type=Share(), metavar="PERCENT", help="How much was spent, as percent of the total: 2.71%.")
@click.option("--left", type=Share(), metavar="PERCENT", help="How much is to be left, as percent of the total: 55.5%.")
@click.option("--delta", type=Amount(), help="Of the share of delta for approximate releases, how much was spent.")
@click.option("--all", "everything", is_flag=True, help="All that is left, if nobody knows.")
def write_off(
    acting: Act,
    name: str,
    *,
    analyst: str | None,
    rho: Fraction | None,
    left_rho: Fraction | None,
    spent: Fraction | None,
    left: Fraction | None,
    delta: Fraction | None,
    everything: bool,
) -> None:
    """Debit from a dataset's account a spent budget that has no entry.

    Use it after a ledger was restored from a backup. The amount is in the receipts of analysts (`receipt.remaining` of
    the newest), in the server's log (`debit`, with cost_units) and metrics, and in later copies that an auditor has. A
    receipt shows what was spent rounded up and what was left rounded down, so its percents are safe. If the amount is
    uncertain, write off all: too much costs answers, too little breaks the guarantee.

    It is a debit like any other: it cannot be taken back, and the sums are verified. Call limits do not apply to it.

    \b
      bursar-admin write-off people --left 55.5% --reason "receipt of entry 57, of alice"
      bursar-admin write-off people --all --reason "nobody has a receipt"
    """  # noqa: D301  click reads the backslash
    if sum((*(one is not None for one in (rho, left_rho, spent, left)), everything)) != 1:
        raise ValueError("give exactly one of --spent, --left, --rho, --left-rho and --all")
    if everything and delta is not None:
        raise ValueError("--delta goes with an amount, and not with --all")
    if analyst is not None:
        check_principal(analyst)
    dataset = acting.ledger.dataset(name)
    unit, cap = COST_UNIT * dataset.order, dataset.cap_cost_units
    if spent is not None:
        rho = Fraction(math.ceil(spent * cap)) / unit
    if left is not None:
        left_rho = Fraction(math.floor(left * cap)) / unit
    events = _events(dataset, rho, left_rho, delta or Fraction(0), everything)
    amount = _amount(dataset, events)
    request_id = f"write-off-{secrets.token_hex(8)}"
    request = DebitRequest(
        dataset=name,
        principal=analyst or acting.actor,
        request_id=request_id,
        request_hash=hashlib.sha256(request_id.encode()).digest(),
        method=METHOD,
        events=events,
    )
    click.echo(f"before: {left_line(dataset)}")
    if acting.dry_run:
        click.echo(f"it would be a debit of {request.principal}: {amount}")
        return
    acting.confirm(f"Debit {amount} from {dataset.account} for good?")
    paid = acting.ledger.write_off(request, actor=acting.actor, reason=acting.reason)
    click.echo(f"after:  {left_line(acting.ledger.dataset(name))}")
    acting.told(f"wrote off: entry {paid.entry}")


def _amount(dataset: DatasetState, events: Sequence[ConcentratedEvent | ApproximateEvent]) -> str:
    """Return what a debit of events costs, for people."""
    cost = price(events, dataset.order)
    part = dataset.budget.part(cost.cost_units)
    failure = f", {cost.delta_units / DELTA_UNIT:.3g} of delta" if cost.delta_units else ""
    return f"{part} of the total, rho {float(part.rho):.6g}{failure}"


def _events(
    dataset: DatasetState, rho: Fraction | None, left_rho: Fraction | None, delta: Fraction, everything: bool
) -> tuple[ConcentratedEvent | ApproximateEvent, ...]:
    """Return events of the given amounts, exact in the ledger's units or one unit more."""
    left, unit = dataset.remaining, COST_UNIT * dataset.order
    if everything:
        rho, delta = Fraction(left.cost_units) / unit, Fraction(left.delta_units, DELTA_UNIT)
    elif left_rho is not None:
        rho = Fraction(left.cost_units) / unit - left_rho
    if rho is None or not rho > 0:
        raise ValueError("there is nothing to write off: as much is left, or less")
    spent = ConcentratedEvent(rho)
    return (spent,) if not delta else (ApproximateEvent(spent, delta),)
