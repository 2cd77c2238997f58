"""`bursar-audit`: what an auditor needs, from the ledger file alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from sqlite_utils import Database

from ._canonical import Entry, read_entry
from ._replay import AccountTotals
from ._store import connect, translated
from ._verify import verify as verify_file
from .errors import LedgerError

_PATH = click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="bursar")
def main() -> None:
    """Read and verify a bursar ledger. Needs the file only: neither the server nor the data."""


@main.command()
@_PATH
def verify(path: Path) -> None:
    """Recompute chain, sums, caps and every price. Exit status 1 if anything does not agree."""
    found = verify_file(path)
    click.echo(_table(_SPEND_COLUMNS, [_spend_row(totals) for totals in found.accounts]))
    click.echo(f"\nentries  {found.entries}\nhead     {found.head.hex()}")
    for problem in found.problems:
        click.echo(f"PROBLEM  {problem}", err=True)
    if not found.ok:
        raise click.ClickException(f"{path.name} does not verify: {len(found.problems)} problem(s)")
    click.echo("verified: chain, sums, caps, released bytes, and every debit priced again from its events")


@main.command()
@_PATH
@click.option("--dataset", help="Only entries about this dataset.")
def entries(path: Path, dataset: str | None) -> None:
    """List the entries, one a line."""
    where, parameters = ("dataset = ?", [dataset]) if dataset else ("1", [])
    rows = [_entry_row(entry) for entry in _read(path, where, parameters)]
    click.echo(_table(("entry", "time", "kind", "actor", "dataset", "what"), rows))


@main.command()
@_PATH
@click.argument("entry", type=click.IntRange(min=1))
def show(path: Path, entry: int) -> None:
    """Show one entry in full."""
    found = _read(path, "number = ?", [entry])
    if not found:
        raise click.ClickException(f"there is no entry {entry}")
    click.echo(json.dumps(json.loads(found[0].body), indent=2, ensure_ascii=False))
    click.echo(f"hash: {found[0].hash.hex()}")


_SPEND_COLUMNS = ("dataset", "epsilon", "delta", "order", "debits", "rho spent", "rho left", "spent")


def _spend_row(totals: AccountTotals) -> Sequence[str]:
    unit = (1 << 40) * totals.order
    spent, cap = totals.spent_cost_units, totals.cap_cost_units
    return (
        totals.name,
        f"{totals.epsilon:g}",
        f"{totals.delta:g}",
        f"{float(totals.order):.4f}",
        str(totals.debits),
        f"{float(spent / unit):.6g}",
        f"{float((cap - spent) / unit):.6g}",
        f"{spent / cap:.1%}",
    )


def _entry_row(entry: Entry) -> Sequence[str]:
    return (str(entry.number), entry.time, entry.kind, entry.actor, entry.dataset, _summary(entry))


def _summary(entry: Entry) -> str:
    details = entry.details
    match entry.kind:
        case "registration":
            return f"({details['epsilon']:g}, {details['delta']:g})-DP, {details['adjacency']}"
        case "debit":
            share = details["cost_units"] / details["cap_cost_units"]
            return f"{details['method']}: {details['cost_units']} units ({share:.1%}), request {details['request_id']}"
        case "release":
            return f"{details['size']} bytes under debit {details['debit']}"
        case "credential_issued" | "credential_revoked":
            return f"{details['credential']} ({details.get('role', 'revoked')})"
        case _:
            return str(details.get("reason", ""))


def _read(path: Path, where: str, parameters: Sequence[object]) -> list[Entry]:
    with _opened(path) as db:
        sql = f"SELECT number, body, hash FROM entries WHERE {where} ORDER BY number"  # noqa: S608
        return [read_entry(*row) for row in db.execute(sql, parameters)]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Database]:
    try:
        with translated(), contextlib.closing(connect(path, read_only=True)) as db:
            yield db
    except (LedgerError, ValueError, KeyError) as error:
        raise click.ClickException(f"{path.name} cannot be read as a ledger ({error}); try verify") from error


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns; control characters made visible, since a forged ledger may hold anything."""
    lines = [[_visible(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


if __name__ == "__main__":
    main()
