"""Commands that only ask: connection, datasets, limits, releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import bursar
from bursar._cli._connecting import CA, DATASET, PROFILE, SERVER, TOKEN_FILE, Connecting, connected, settings_file
from bursar._cli._failing import STATUS, explained
from bursar._cli._groups import COLUMNS, JSON
from bursar._cli._printing import chosen, say, say_json, say_table
from bursar_amounts import bound_text, exact_text, total_text


@click.command(epilog=STATUS)
@SERVER
@CA
@TOKEN_FILE
@PROFILE
@JSON
def setup(as_json: bool, **said: object) -> None:
    """Try a connection, and keep it for the commands to come.

    What is given here, or in the environment, goes into a file of settings; your token stays where it is, and only the
    name of its file is kept. The file is the one that BURSAR_CONFIG names, else bursar/config.toml in $XDG_CONFIG_HOME
    or ~/.config. Options and the environment come before it. With --profile the settings get a name, and the other
    commands use them with the same --profile, or with BURSAR_PROFILE.

    \b
      bursar setup --server my-host.example.org:8443 --ca ca.pem --token-file alice.token
    """  # noqa: D301  click reads the backslash
    with explained():
        connecting = Connecting(**said).completed(new=True)  # type: ignore[arg-type]  # click has made the types
        with connecting.client() as client:
            found = client.datasets()
        path = settings_file()
        connecting.keep(path)
    if as_json:
        say_json({"settings": str(path), "server": connecting.server, "datasets": [data.name for data in found]})
        return
    say(f"{connecting.server} answers: {len(found)} dataset{'s' * (len(found) != 1)}. Kept in {_short(path)}")
    if connecting.token_file is None:
        say("The token is not kept: leave it in BURSAR_TOKEN, or give --token-file", err=True)


@click.command(epilog=STATUS)
@connected
@COLUMNS
@JSON
def datasets(client: bursar.Client, columns: str | None, as_json: bool) -> None:
    """List the datasets that you may ask about, and what you may spend of each.

    \b
      bursar datasets
    """  # noqa: D301  click reads the backslash
    found = [(data, data.available()) for data in client.datasets()]
    if as_json:
        say_json([{**_public(data), "available": available} for data, available in found])
        return
    rows = [
        (
            data.name,
            "private" if data.public_rows is None else data.public_rows,
            len(data.columns),
            total_text(data.total.epsilon, data.total.delta),
            "retired" if data.retired else str(left),
            data.description,
        )
        for data, left in found
    ]
    if rows:
        header = ("dataset", "rows", "columns", "budget", "available", "description")
        say_table(*chosen(columns, header, rows), whole=("dataset",))
    else:
        say("no datasets: ask the owner to import one", err=True)


@click.command(epilog=STATUS)
@connected
@click.argument("dataset", type=DATASET)
@COLUMNS
@JSON
def show(client: bursar.Client, dataset: str, columns: str | None, as_json: bool) -> None:
    """Show what is public about a dataset, and what is left of its budget.

    Bounds, bins and categories were declared by the owner; nothing of this was computed from rows.

    \b
      bursar show rand-hie
    """  # noqa: D301  click reads the backslash
    data = client.dataset(dataset)
    limits = data.limits()
    if as_json:
        say_json({**_public(data), "limits": limits})
        return
    say(data._title())
    rows = [(c.name, c.domain, c.description) for c in data.columns]
    say_table(*chosen(columns, ("column", "domain", "description"), rows))
    say(data._facts())
    for name, left in _amounts(limits):
        say(f"{name}: {left}")


@click.command(epilog=STATUS)
@connected
@click.argument("dataset", type=DATASET)
@JSON
def limits(client: bursar.Client, dataset: str, as_json: bool) -> None:
    """Show everything that your next request has to fit into.

    All analysts share the owner's budget. Within it you may have an allowance, and a maximum for one request. Percents
    of the budget add up over requests, epsilons do not. The last line is the most that you may ask for now, which is
    also what --what-is-left spends.

    \b
      bursar limits rand-hie
    """  # noqa: D301  click reads the backslash
    found = client.dataset(dataset).limits()
    if as_json:
        say_json(found)
        return
    rows = [(name, left, bound_text(left.pure_epsilon, 6, is_left=True)) for name, left in _amounts(found)]
    say_table(("limit", f"epsilon at delta {exact_text(found.dataset.delta)}", "or pure epsilon"), rows)


@click.command(epilog=STATUS)
@connected
@click.argument("dataset", type=DATASET, required=False)
@COLUMNS
@click.option("--unfetched", is_flag=True, help="Only fits whose models never came back to this machine.")
@JSON
def releases(client: bursar.Client, dataset: str | None, columns: str | None, unfetched: bool, as_json: bool) -> None:
    """List what you have paid for, of one dataset or of all.

    Fetching a release again is free: give the command that paid for it with its request id. The entry
    is what a later fit names to start from a model, to decode a sketch, or to use noisy tables again.

    \b
      bursar releases rand-hie
    """  # noqa: D301  click reads the backslash
    source = client if dataset is None else client.dataset(dataset)
    bought = source.recover() if unfetched else source.releases()
    if as_json:
        say_json(bought)
        return
    header = ("entry", "date", "dataset", "method", "paid", "state", "request id")
    rows = [(r.entry, r.time[:10], r.dataset, r.method, r.price, r.state.value, r.request_id) for r in bought]
    if dataset is not None:
        header, rows = _without(header, 2), [_without(row, 2) for row in rows]
    if rows:
        say_table(*chosen(columns, header, rows), whole=("entry", "date"))
    else:
        say("every model that was paid for came back" if unfetched else "nothing was paid for yet", err=True)


def _public(data: bursar.Dataset) -> dict[str, object]:
    return {
        name: getattr(data, name)
        for name in (
            "name",
            "description",
            "columns",
            "adjacency",
            "privacy_unit",
            "public_rows",
            "total",
            "retired",
        )
    }


def _short(path: Path) -> str:
    """Return a path with ~ for the home, as people write it."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _without(row: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*row[:place], *row[place + 1 :])


def _amounts(limits: bursar.Limits) -> list[tuple[str, bursar.Remaining]]:
    """Return the limits that there are, in words, the smallest last."""
    named = [
        ("left of the budget", limits.dataset),
        ("left of your allowance", limits.allowance),
        ("at most for one request", limits.call),
        ("yours now", limits.available),
    ]
    return [(name, left) for name, left in named if left is not None]
