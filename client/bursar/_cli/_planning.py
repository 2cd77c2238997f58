"""`bursar plan`: several fits priced together, kept in a file, and paid in one go or one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import bursar
from bursar._cli._connecting import DATASET, FILE, connected
from bursar._cli._failing import STATUS
from bursar._cli._fitting import at_terminal
from bursar._cli._groups import JSON
from bursar._cli._printing import say, say_json
from bursar._cli._released import check_new, save_released
from bursar._cli._signatures import LIKE, SPEND, like, spend
from bursar._cli._values import Value, numbers

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("plan", epilog=STATUS)
@click.option("--shares", type=Value("A,B,...", numbers), help="Weights of the fits in the total. [default: equal]")
@click.option("--save", type=FILE, help="Write the plan to this file, which must not be there yet.")
@click.option("--run", is_flag=True, help="Pay what is not paid yet, and fetch all models.")
@click.option("--only", type=click.IntRange(min=1), multiple=True, help="With --run: this fit alone, by its number.")
@click.option("--models", type=_FOLDER, help="With --run: the folder for the models, each under its request id.")
@click.option("--anyway", is_flag=True, help="Pay also for answers that a preview calls useless.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation; for scripts.")
@JSON
@connected
def plan(
    client: bursar.Client,
    dataset: str,
    files: Sequence[Path],
    shares: list[float] | None,
    save: Path | None,
    run: bool,
    only: Sequence[int],
    models: Path | None,
    anyway: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Plan several fits: prices, forecasts, and what is left. Debits nothing without --run.

    FILES are requests, as `bursar.Request.save` writes them, and the spend is that of all together; or one plan that
    was saved, which has its spends. The same plan run again pays nothing twice: what is paid is fetched. With --like or
    --guess every fit has a forecast.

    \b
      bursar plan people two.json three.json --spend 10% --shares 1,2 --save study.json
      bursar plan people study.json --like earlier.json
      bursar plan people study.json --run --models models
    """  # noqa: D301  click reads the backslash
    data, total, rows = client.dataset(dataset), spend(given, must=False), like(given)
    if save is not None:
        check_new(save)
    if not run and (only or models):
        raise click.UsageError("--only and --models go with --run")
    if models is not None and not models.is_dir():
        raise click.ClickException(f"{models} is no folder; make it first")
    if _is_plan(files[0]):
        if len(files) > 1 or total is not None or shares is not None:
            raise click.UsageError("a saved plan has its requests and spends: give its file alone")
        found = data.load_plan(files[0], like=rows)
    else:
        requests = [bursar.Request.load(file) for file in files]
        found = data.plan(requests, total=total, shares=shares, like=rows)
    if save is not None:
        found.save(save)
    if not run:
        _say(found, as_json=as_json)
        return
    if not yes:
        _ask(found, dataset, only)
    places = None if not only else [number - 1 for number in only]
    made = data.run(found, only=places, anyway=anyway)
    for model in made:
        if models is not None:
            save_released(model, models / f"{model.receipt.request_id or model.receipt.entry}.json")
    if as_json:
        say_json({"receipts": [model.receipt for model in made]})
        return
    for model in made:
        say(model)


def _is_plan(file: Path) -> bool:
    """Return whether a file says that it holds a plan; whatever else it holds is a request's matter."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == "Plan"


def _say(found: bursar.Plan, *, as_json: bool) -> None:
    if as_json:
        known = {"name": found.study.name, "total": found.total, "unpaid": found.unpaid}
        say_json({**known, "affordable": found.affordable, "largest": found.largest, "fits": found.fits})
    else:
        say(found)


def _ask(found: bursar.Plan, dataset: str, only: Sequence[int]) -> None:
    """Show the plan, and ask whether to pay it. Raises click.ClickException and click.Abort."""
    say(found, err=True)
    if not at_terminal():
        raise click.ClickException("there is no terminal to ask at: give --yes to pay this, or leave --run out")
    what = str(found.unpaid) if not only else f"fits {', '.join(map(str, only))}"
    click.confirm(f"Spend {what} of {dataset}, for good?", abort=True, err=True)


plan.params = [
    click.Argument(["dataset"], type=DATASET),
    click.Argument(["files"], type=FILE, nargs=-1, required=True),
    *SPEND,
    *LIKE,
    *plan.params,
]
