"""`bursar preview`, `bursar suggest` and `bursar fit`: a command for each request that the SDK has."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import bursar
from bursar._attempts import Attempt
from bursar._cli._connecting import DATASET, FILE, connected
from bursar._cli._failing import STATUS, Refused, Unfinished, again, in_options, option
from bursar._cli._groups import JSON, InOrder
from bursar._cli._printing import say, say_json
from bursar._cli._released import check_new, save_released
from bursar._cli._signatures import DRY_RUN, LIKE, SPEND, Given, arguments, dry_run, like, spend
from bursar._cli._values import Value, accuracy, distance, named_number
from bursar._fit import begin


@dataclass(frozen=True)
class Method:
    """The commands of a request.

    Attributes:
        targets: numbers of `bursar.Target` that its previews promise.
        wanted: target of an example.
        may_be_free: whether it may be asked for without a spend.
    """

    name: str
    kind: type[bursar.Request]
    targets: tuple[str, ...]
    example: str
    wanted: str
    may_be_free: bool = False


METHODS = (
    Method("dpem", bursar.DPEM, ("mean_error", "quantile_error"), "--n-components 3", "--mean-error 0.5"),
    Method(
        "sketch-kmeans",
        bursar.SketchKMeans,
        ("snr", "relative_sse"),
        "--n-clusters 3",
        "--relative-sse 1.1",
        may_be_free=True,
    ),
    Method(
        "mrf",
        bursar.MRF,
        ("table_error", "table_errors"),
        "--cliques tree",
        "--table-errors 0.02",
        may_be_free=True,
    ),
    Method(
        "gradient-em",
        bursar.GradientEM,
        ("mean_error", "quantile_error", "coef_error", "relative_error"),
        "--model gaussian_mixture",
        "--relative-error 0.1",
    ),
    Method(
        "separated-gmm",
        bursar.SeparatedGMM,
        ("mean_error", "quantile_error", "covariance_error", "found"),
        "--n-components 3 --sigma-min 0.5 --sigma-max 2",
        "--covariance-error 0.1",
    ),
)
"""Every request that the SDK has."""


class _Typed:
    """The options of a request, and what was typed as the request."""

    def __init__(self, kind: type[bursar.Request]) -> None:
        self._kind = kind
        self._made = arguments(kind)
        self.options = [option for argument in self._made for option in argument.options]

    def request(self, given: Given) -> bursar.Request:
        """Return the request with what was typed; it knows what the other arguments are."""
        typed = {argument.name: argument.value(given) for argument in self._made}
        return self._kind(**{name: value for name, value in typed.items() if value not in (None, ())})


@click.group(cls=InOrder)
def preview() -> None:
    """Say what a fit would cost and how exact it would be. Reads no row, costs nothing.

    Every fit has its own command with its own options; then take the same line with fit instead of preview.
    """


@click.group(cls=InOrder)
def suggest() -> None:
    """Say what a fit has to cost for an accuracy. Reads no row, costs nothing.

    Some twenty previews are asked for, and the least spend that promises enough is shown, also if it is more than what
    is left. What a preview promises is a rule of thumb from public numbers.
    """


@click.group(cls=InOrder)
def fit() -> None:
    """Fit a model, and pay for it.

    The price and what is left are shown before anything is spent. What was paid for is kept by the server: the same
    command with the same --request-id fetches it again for free.
    """


def _preview_command(method: Method) -> click.Command:
    typed = _Typed(method.kind)

    @connected
    @JSON
    def command(client: bursar.Client, dataset: str, as_json: bool, **given: Any) -> None:
        amount, rows = spend(given, must=not method.may_be_free), like(given)
        found = client.dataset(dataset).preview(typed.request(given), spend=amount, like=rows)
        if as_json:
            say_json(found)
        else:
            say(found)

    text = f"Price bursar fit {method.name}: what it would debit, and how exact it would be."
    return _command(method, "preview", command, [*SPEND, *LIKE, *typed.options], text)


def _suggest_command(method: Method) -> click.Command:
    typed = _Typed(method.kind)
    targets = [
        click.Option(
            [option(name)],
            type=_TYPES.get(name, click.FLOAT),
            multiple=name in _REPEATED,
            help=f"{_TARGETS[name]}.",
        )
        for name in method.targets
    ]

    @connected
    @JSON
    def command(client: bursar.Client, dataset: str, as_json: bool, **given: Any) -> None:
        wanted = {name: given.pop(name) for name in method.targets}
        wanted |= {name: _of_tables(option(name), wanted[name]) for name in _REPEATED & wanted.keys()}
        wanted["noise"] = dict(given.pop("noise")) or None
        if all(value is None for value in wanted.values()):
            raise click.UsageError(f"say what to reach, by at least one of {', '.join(map(option, wanted))}")
        goal = bursar.Target(**wanted)
        delta, pure = given.pop("delta"), given.pop("pure")
        if pure and delta is not None:
            raise click.UsageError("--pure or --delta, not both")
        first = bursar.pure(_FIRST) if pure else None if delta is None else bursar.epsilon_delta(_FIRST, delta)
        rows = like(given)
        found = client.dataset(dataset).suggest_spend(typed.request(given), target=goal, spend=first, like=rows)
        if as_json:
            said = {"spend": found.spend, "expected": found.expected, "preview": found.preview}
            ranged = {} if rows is None else {"low": found.low, "high": found.high}
            say_json({**said, **ranged, **({"instead": found.instead} if found.instead else {})})
        else:
            say(found)

    noise = click.Option(
        ["--noise"],
        type=Value("NAME=STD", named_number),
        multiple=True,
        help="Largest standard deviation of the noise on the counts of a release of that name (repeat it).",
    )
    delta = click.Option(["--delta"], type=click.FLOAT, help="Look for an epsilon at this delta, instead of rho.")
    pure = click.Option(["--pure"], is_flag=True, help="Look for a pure epsilon, instead of rho.")
    text = f"Find the least spend of bursar fit {method.name} for an accuracy."
    made = _command(method, "suggest", command, [*LIKE, *typed.options], text)
    made.params = [made.params[0], *targets, noise, delta, pure, *made.params[1:]]
    return made


_FIRST = 0.1
"""Epsilon to begin with."""

_TYPES = {
    **dict.fromkeys(("mean_error", "quantile_error", "coef_error"), Value("X or NAME=X,...", accuracy)),
    "table_errors": Value("X or A,B=X", distance),
}
"""Types of targets that may differ by column or table."""

_REPEATED = frozenset({"table_errors"})
"""Targets that differ by table. Commas separate the columns of one table, so the option is repeated for each table."""


def _of_tables(typed: str, given: Sequence[float | tuple[str, float]]) -> float | dict[str, float] | None:
    """Return the distance of all tables, or distances by table; None if nothing was typed."""
    numbers = [one for one in given if isinstance(one, float)]
    if numbers and len(given) > 1:
        raise click.UsageError(f"{typed} is one number for all tables, or columns such as a,b=0.05; one of them")
    return numbers[0] if numbers else dict(one for one in given if isinstance(one, tuple)) or None


_TARGETS = {
    "mean_error": "Largest error of a component's mean, in the columns' units; one for all columns, or by column",
    "quantile_error": "Largest mean error of a column's quantiles, in its units, of a mixture; with a prior (--like)",
    "coef_error": "Largest error of a coefficient of a regression; one for all features, or by feature",
    "relative_error": "Largest error of parameters, in units of the model's noise level",
    "covariance_error": "Largest relative error of a covariance",
    "found": "How many components are expected to be found at least",
    "table_error": "Largest distance of a released table from the truth, 0 to 1",
    "table_errors": "Largest distance of the model's tables from the truth, 0 to 1: of all, or of some (repeat it)",
    "snr": "Least signal-to-noise ratio of a sketch",
    "relative_sse": "Largest sum of squares over that of Lloyd's algorithm",
}
"""Numbers of a `bursar.Target`, in words."""


def _fit_command(method: Method) -> click.Command:
    typed = _Typed(method.kind)

    @connected
    @JSON
    def command(
        client: bursar.Client,
        dataset: str,
        save: Path | None,
        request_id: str | None,
        progress: bool | None,
        yes: bool,
        anyway: bool,
        as_json: bool,
        **given: Any,
    ) -> None:
        dry, rows = dry_run(given), like(given)
        amount = spend(given, must=not method.may_be_free)
        request: Any = typed.request(given)
        data = client.dataset(dataset)
        if dry is not None:
            if request_id is not None:
                raise click.UsageError("--request-id is for what is paid for; leave it out with --dry-run")
            wanted: Any = dry
            _try(
                lambda: data.dry_run(request, spend=amount, like=rows, progress=progress, **wanted),
                save,
                as_json=as_json,
            )
            return
        bought = noted = None
        if amount is not None:
            noted = begin(client._connection, request, data._asked(amount, request_id or ""))
            # The fit below takes this name; until then a new command may take it, too.
            client._connection.attempts.end(noted.request_id)
            request_id, bought = noted.request_id, None if noted.is_new else _bought(data, noted.request_id)
        elif request_id is not None:
            bought = _bought(data, request_id)
        if save is not None:
            check_new(save, new=bought is None)
        if amount is not None:
            if bought is not None:
                say(f"entry {bought.entry} has paid for {request_id}: nothing more is debited", err=True)
            elif not yes:
                _ask(data.preview(request, spend=amount, like=rows), dataset, noted and noted.earlier, anyway=anyway)
                anyway, rows = anyway or rows is not None, None  # the forecast has decided
            say(f"request id {request_id}: give it with --request-id if this is cut off", err=True)
        with _resumable(None if amount is None else request_id):
            model = data.fit(request, spend=amount, request_id=request_id, anyway=anyway, like=rows, progress=progress)
        _say_model(model, save, as_json=as_json)

    save = click.option("--save", type=FILE, help="Write the model to this file, which must not be there yet.")
    key = click.option("--request-id", help=_REQUEST_ID)
    bar = click.option("--progress/--no-progress", default=None, help="Show a bar. [default: on a terminal]")
    sure = click.option("--yes", is_flag=True, help="Do not ask for confirmation; for scripts.")
    useless = click.option("--anyway", is_flag=True, help="Pay also for an answer that a preview calls useless.")
    for added in (useless, sure, bar, key, save):
        command = added(command)
    options = [*SPEND, *LIKE, *typed.options, *DRY_RUN]
    return _command(method, "fit", command, options, in_options(_first_sentence(method.kind)))


_REQUEST_ID = (
    "Idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; left out: one is made for what is paid. The same key with "
    "the same arguments gets the same release without a second debit."
)


def _command(
    method: Method, group: str, callback: Callable[..., None], options: Sequence[click.Option], text: str
) -> click.Command:
    made: click.Command = click.command(method.name, epilog=STATUS, help=f"{text}\n\n\b\n  {_example(group, method)}")(
        callback
    )
    dataset = click.Argument(["dataset"], type=DATASET)
    made.params = [dataset, *options, *made.params]
    return made


def _first_sentence(kind: type[bursar.Request]) -> str:
    """Return the first line of a request's documentation."""
    return (inspect.getdoc(kind) or "").partition("\n")[0].replace("`", "")


def _example(group: str, method: Method) -> str:
    """Return a line to begin with: what must be given, and a spend."""
    last = {"fit": f"--spend 5% --save {method.name}.json", "preview": "--spend 5%"}.get(group, method.wanted)
    return " ".join(["bursar", group, method.name, "people", method.example, last])


def _bought(data: bursar.Dataset, request_id: str) -> bursar.ReleaseSummary | None:
    """Return the debit that was made under this request id; None if there is none."""
    return next((release for release in data.releases() if release.request_id == request_id), None)


def _ask(preview: bursar.Preview, dataset: str, earlier: Attempt | None, *, anyway: bool) -> None:
    """Show price and remainder, and ask whether to go on; also if the same fit was paid within a day.

    Raises:
        Refused: it is above what is left.
        click.ClickException: it is useless, or there is no terminal to ask at.
        click.Abort: the answer was no.
    """
    price, left, yours = preview.price, preview.remaining, preview.available
    say(f"price  {price} of the budget", err=True)
    if not preview.affordable:
        less = f"; ask for at most --spend {yours.percent}, or for --what-is-left" if yours.rho > 0 else ""
        raise Refused(
            f"the fit costs {price}, and {yours} is yours to spend now{less}. Nothing was debited; see: "
            f"bursar limits {dataset}"
        )
    say(f"left   {left}, after it {left.less(price.cost_units)}", err=True)
    if yours.cost_units < left.cost_units:
        say(f"yours  {yours} for one request now", err=True)
    for warning in preview.warnings:
        say(f"note   {warning}", err=True)
    if preview.useless and not anyway:
        raise click.ClickException(
            "nothing was debited. Spend more, or ask for less; --anyway pays for it all the same"
        )
    if earlier is not None:
        say(f"note   the same fit was paid {earlier.ago}: --request-id {earlier.request_id} is free", err=True)
    if not at_terminal():
        raise click.ClickException("there is no terminal to ask at: give --yes to pay this, or ask for a preview only")
    click.confirm(f"Spend that of {dataset}, for good?", abort=True, err=True)


def at_terminal() -> bool:
    """Return whether there is a terminal to ask at."""
    return sys.stdin.isatty()


@contextmanager
def _resumable(request_id: str | None) -> Iterator[None]:
    """Says how to go on after a Ctrl-C, if the fit is one that is paid."""
    try:
        yield
    except KeyboardInterrupt:
        if request_id is None:
            raise
        raise Unfinished(f"interrupted. {again(request_id)}") from None


def _try(run: Callable[[], Any], save: Path | None, *, as_json: bool) -> None:
    """Make a dry run, which pays nothing and is kept nowhere but in the file."""
    if save is not None:
        check_new(save)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model = run()
    for warning in warned:
        say(f"note   {warning.message}", err=True)
    if save is not None:
        save_released(model, save)
    if as_json:
        say_json({"receipt": None, "saved": save and str(save), "model": model.to_dict()})
        return
    say(model)
    say("a dry run on synthetic rows: nothing was debited")
    if save is not None:
        say(f"saved to {save}")


def _say_model(model: Any, save: Path | None, *, as_json: bool) -> None:
    receipt: bursar.Receipt = model.receipt
    if save is not None:
        _save(model, save, receipt)
    if as_json:
        say_json({"receipt": receipt, "saved": save and str(save), "model": model.to_dict()})
        return
    say(model)
    say(_receipt_line(receipt))
    for warning in receipt.warnings:
        say(f"note   {warning}", err=True)
    if save is not None:
        say(f"saved to {save}")


def _save(model: Any, path: Path, receipt: bursar.Receipt) -> None:
    try:
        save_released(model, path)
    except OSError as error:
        advice = "" if receipt.free else f". {again(receipt.request_id)}"
        raise Unfinished(f"{path}: {error.strerror or error}; the model could not be saved{advice}") from None


def _receipt_line(receipt: bursar.Receipt) -> str:
    left = f"left {receipt.remaining}"
    if receipt.free or receipt.replayed:
        whose = f"entry {receipt.entry} had paid for it, " if receipt.entry else ""
        return f"receipt: {whose}nothing was debited; {left}"
    return f"receipt: entry {receipt.entry}, debited {receipt.price}, {left}"


for _method in METHODS:
    preview.add_command(_preview_command(_method))
    suggest.add_command(_suggest_command(_method))
    fit.add_command(_fit_command(_method))
