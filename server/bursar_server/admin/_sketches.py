"""Commands for sketches of several sites: each is made beside its rows, under its ledger. Merging is free.

Modules that compile are imported where they are used, so that other commands do not wait for them.
"""

from __future__ import annotations

import functools
import os
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bursar_ledger import DebitRequest, RestRequest
from bursar_ledger.audit._formats import InOrder
from bursar_models._frequencies import FREQUENCY_LAWS, FREQUENCY_STRUCTURES
from bursar_models._sketch import SIGNATURES
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.admin._acting import FILE, PATH, Act, act, explained
from bursar_server.jobs.engine import engine_of, storage_of
from bursar_server.jobs.errors import ReleaseLostError
from bursar_server.jobs.job import Outcome, WorkerPool
from bursar_server.jobs.order import Orders, Quote
from bursar_server.jobs.paid import Ask, PaidRun, RequestKey, Reserve, Runs
from bursar_server.log import Events
from bursar_server.ops.checkpoints import check_checkpoints
from bursar_server.tables.catalogue import Datasets

_METHOD = "FitSketchKMeans"
_UNITS = ("common", "bounds")
_SEED = click.IntRange(0, 2**64 - 1)
_WHOLE = click.IntRange(1, 2**32 - 1)
_LOST = 'the sketch was cut off after its debit, and this state directory\'s recovery = "lost" makes none again'
_AGAIN = "the same command with the same --request-id tries again, and nothing is paid twice"


def _choice(
    name: str, values: Sequence[str], default: str, about: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that takes one of some words, and shows its default."""
    return click.option(name, type=click.Choice(values), default=default, show_default=True, help=about)


@click.group(cls=InOrder)
def sketch() -> None:
    """Make and merge sketches of several sites.

    Rows stay where they are: every site makes its own noisy sketch under its own budget, and sends the file. The
    recipient merges the files, and decodes them with bursar model decode, as often as they like and for any number of
    clusters, free of charge.
    """


@sketch.command()
@act(asks=True)
@click.argument("dataset")
@click.option("--rho", "amount_rho", type=float, metavar="R", help="Spend so much, with Gaussian noise.")
@click.option(
    "--epsilon", type=float, help="With --delta: spend what implies them, with Gaussian noise. Alone: Laplace."
)
@click.option("--delta", type=float, help="Goes with --epsilon.")
@click.option("--columns", help="Numeric columns as a,b,c, in this order. [default: all that are never null]")
@click.option("--clusters", type=click.IntRange(1, 256), metavar="K", help="How many you look for.")
@click.option("--frequencies", type=_WHOLE, metavar="M", help="How many. [default: from K and the columns]")
@click.option("--sigma", type=float, help="Width of a cluster, in half-widths of the bounds. [default: from K]")
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Of the frequencies; public.")
@_choice("--law", FREQUENCY_LAWS, "adapted_radius", "Of frequencies.")
@_choice("--structure", FREQUENCY_STRUCTURES, "dense", "Of frequencies.")
@_choice("--signature", SIGNATURES, "exponential", "Of the sketch.")
@_choice("--units", _UNITS, "common", "Of the columns.")
@click.option("--per-row", type=_WHOLE, help="Frequencies that each row is asked for. [default: all]")
@click.option("--out", type=PATH, required=True, help="Write the sketch to this file.")
@click.option("--request-id", help="Go on with, or get again, what was paid for under this id. [default: a new one]")
def make(
    acting: Act,
    dataset: str,
    *,
    amount_rho: float | None,
    epsilon: float | None,
    delta: float | None,
    columns: str | None,
    out: Path,
    request_id: str | None,
    **agreed: Any,
) -> None:
    """Sketch a dataset of this state directory, charged to its budget.

    The cost is in the ledger, under your name, before a row is read; it is charged to the budget that analysts share.
    There are no refunds. If the command is interrupted, give it again with the --request-id that it printed: the
    charged sketch is finished or fetched again, and costs nothing more.

    Sketches of several sites can be merged if all sites give the same columns (with the same bounds in their
    manifests), --frequencies, --sigma, --seed, --law, --structure, --signature and --units. With --clusters the first
    two follow from K, the columns and the kind of noise alone, so they are the same at every site. None of them may be
    computed from rows.

    \b
      bursar-admin sketch make people --rho 0.01 --clusters 5 --seed 7 --out north.json
      bursar-admin sketch make people --epsilon 0.5 --frequencies 200 --sigma 0.1 --seed 7 --out north.json
    """  # noqa: D301  click reads the backslash
    from bursar_server.admin import _site_sketch
    from bursar_server.fits import sketch as sketch_fit

    # As a server does when it starts: an older ledger that was put back has forgotten what was spent since.
    check_checkpoints(acting.state, acting.config)
    datasets = Datasets(acting.ledger, acting.state.datasets, partitioned=storage_of(acting.config) is not None)
    spend = _spend(amount_rho, epsilon, delta)
    numeric = datasets.table(datasets.state(dataset)).numeric
    names = columns.split(",") if columns else [column.name for column in numeric if not column.nullable]
    request = fit_pb2.FitSketchKMeansRequest(
        request_id=request_id or str(uuid.uuid4()),
        dataset=dataset,
        columns=names,
        spend=spend,
        new_sketch=_new(max(len(names), 1), pure=spend.WhichOneof("amount") == "epsilon", **agreed),
    )
    engine = engine_of(acting.config, acting.state)
    orders = Orders(fits={_METHOD: sketch_fit}, datasets=datasets, ledger=acting.ledger, engine=engine)
    order = orders.order(_METHOD, acting.actor, request)
    earlier = acting.ledger.find_debit(order.principal, request.request_id, order.hash)

    @functools.cache
    def ask() -> DebitRequest | RestRequest:
        return _with_reason(orders.ask(order), acting.reason)

    if earlier is None:
        ask()  # what would be refused is refused before the price is shown
    _check_out(out, new=earlier is None)
    if earlier is None:
        _show(orders.quote(order))
    if acting.dry_run:
        would = "it would be a debit of this price" if earlier is None else f"entry {earlier.entry} has paid for it"
        click.echo(f"sketch of {dataset}: {would}")
        return
    if earlier is None:
        acting.confirm(f"Spend that of the total of {dataset}, for good?")
        click.echo(f"request id {request.request_id}: give it with --request-id if this is cut off", err=True)
    run, paid_now = _run(acting, order.key, ask, functools.partial(orders.reserve, order))
    made = _released(run)
    _site_sketch.write_sketch(out, made)
    if paid_now:
        entry = next(acting.ledger.entries(run.debit.entry, 1))
        acting.tell(entry, f"sketch of {dataset} written to {out}")
    else:
        click.echo(
            f"sketch of {dataset} written to {out}: entry {run.debit.entry} had paid for it, nothing was debited"
        )
    click.echo(f"other sites: {_for_others(made, agreed)}")


@sketch.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--out", type=PATH, required=True, help="Write the merged sketch to this file.")
def merge(files: tuple[Path, ...], out: Path) -> None:
    """Merge sketches of sites with disjoint rows into one; free of charge.

    Every row counts the same, at whatever site it is. It cannot be checked whether two sites have rows of the same
    people; such people are protected less: the sites' costs for them add up.

    \b
      bursar-admin sketch merge north.json south.json --out both.json
    """  # noqa: D301  click reads the backslash
    from bursar_server.admin import _site_sketch

    with explained():
        _check_out(out, new=True)
        sketches = {str(path): _site_sketch.read_sketch(path) for path in files}
        if len(sketches) < len(files):
            raise ValueError("a file is given twice; its rows would count twice")
        _site_sketch.write_sketch(out, _site_sketch.merged(sketches))
        click.echo(_site_sketch.read_sketch(out))
        click.echo(f"merged {len(sketches)} sketches into {out}")


def _spend(amount: float | None, epsilon: float | None, delta: float | None) -> types_pb2.Spend:
    match amount, epsilon, delta:
        case float(), None, None:
            return types_pb2.Spend(rho=amount)
        case None, float(), None:
            return types_pb2.Spend(epsilon=epsilon)
        case None, float(), float():
            return types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=epsilon, delta=delta))
    raise ValueError("give --rho, or --epsilon with --delta (Gaussian noise), or --epsilon alone (Laplace noise)")


def _new(
    d: int,
    *,
    pure: bool,
    clusters: int | None,
    frequencies: int | None,
    sigma: float | None,
    seed: int,
    per_row: int | None,
    **words: str,
) -> fit_pb2.NewSketch:
    """Return a sketch request with all shared settings decided; a pilot would differ between sites."""
    from bursar_server.admin._site_sketch import new_sketch
    from bursar_server.fits.sketch._choices import default_frequencies, schema_sigma

    if clusters is None and (frequencies is None or sigma is None):
        raise ValueError("give --clusters, or both --frequencies and --sigma")
    k = clusters or 0
    if frequencies is None:
        # Chosen as for an unknown number of rows, which may differ between sites.
        frequencies = default_frequencies(k, d, pure=pure, snr=lambda m: None)
    return new_sketch(
        n_frequencies=frequencies,
        sigma=schema_sigma(k, d) if sigma is None else sigma,
        public_seed=seed,
        frequencies_per_row=per_row,
        **words,
    )


def _with_reason(asked: DebitRequest | RestRequest, reason: str) -> DebitRequest | RestRequest:
    if not (reason and isinstance(asked, DebitRequest)):
        return asked
    return replace(asked, parameters={**asked.parameters, "reason": reason})


def _check_out(out: Path, *, new: bool) -> None:
    """Check before the debit that a file can be written. Raises ValueError."""
    if new and out.exists():
        raise ValueError(f"{out} is there already; choose another name")
    if not (out.parent.is_dir() and os.access(out.parent, os.W_OK)):
        raise ValueError(f"{out.parent} is no folder that can be written to")


def _show(quote: Quote) -> None:
    """Print cost, noise and remaining budget, and check that the cost fits. Raises BudgetExhaustedError."""
    cost, limits, plan = quote.price, quote.limits, quote.plan
    click.echo(f"price  {quote.budget.part(cost.cost_units)} of the total")
    quote.check()
    units = limits.dataset.cost_units
    left, after = (quote.budget.part(one, is_left=True) for one in (units, units - cost.cost_units))
    click.echo(f"left   {left}, after it {after}")
    (noise,) = plan.noise
    rows = f", on the number of rows {noise.count_std:.4g}" if noise.count_std else ""
    click.echo(f"noise  standard deviation {noise.sum_std:.4g} on {noise.size} sums{rows}")
    if "snr" in plan.expected:
        click.echo(f"SNR    {plan.expected['snr'].value:.4g} predicted for this site alone")
    for warning in plan.warnings:
        click.echo(f"note   this site alone: {warning}")


def _run(acting: Act, key: RequestKey, ask: Ask, reserve: Reserve) -> tuple[PaidRun, bool]:
    """Charge and make the release as a server does, or find an earlier one.

    Return the run, and whether it was charged now.
    """
    from bursar_server.fits import sketch as sketch_fit

    # Before the debit, so that a failing compilation costs nothing.
    sketch_fit.warm_up()
    with acting.state.sketching():  # else two commands with one request id could both draw noise
        pool = WorkerPool(workers=1, queue_length=0)
        runs = Runs(
            ledger=acting.ledger,
            pool=pool,
            free_pool=pool,  # unused: there are no free requests here
            quantum=acting.config.response_quantum_seconds,
            fits_per_principal=1,
            rerun=acting.config.recovery == "rerun",
            events=Events(),
        )
        try:
            admission = runs.admit(key, ask, reserve)
            admission.run.settled.wait()
        except ReleaseLostError:
            raise click.ClickException(_LOST) from None
        finally:
            pool.close()  # a charged run is finished even after an interrupt
    return admission.run, admission.paid_now


def _released(run: PaidRun) -> fit_pb2.Sketch:
    """Return the sketch that a run released. Raises click.ClickException if it released none."""
    if run.release is None:
        told = {
            Outcome.NOT_STORED: f"the ledger could not store the sketch, so it was thrown away; {_AGAIN}",
            Outcome.LOST: _LOST,
        }
        failed = f"the sketch could not be made ({run.incident} in the log). If no row was read, {_AGAIN}"
        raise click.ClickException(f"{told.get(run.outcome, failed)}. Entry {run.debit.entry} stays")
    made = fit_pb2.FitSketchKMeansResponse.FromString(run.release).model.sketch
    made.entry = run.debit.entry
    return made


def _for_others(made: fit_pb2.Sketch, agreed: Mapping[str, Any]) -> str:
    """Return the options with which other sites make sketches that can be merged with this one."""
    options = {
        "columns": ",".join(made.columns),
        "frequencies": made.frequencies.m,
        "sigma": made.frequencies.sigma,
        "seed": made.frequencies.public_seed,
        **{name: agreed[name] for name in ("law", "structure", "signature", "units")},
    }
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in options.items())
