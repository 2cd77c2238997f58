"""`bursar preview` and `bursar fit`: a command for each fit that the SDK has."""

from __future__ import annotations

import inspect
import re
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import bursar
from bursar._cli._connecting import DATASET, FILE, connected
from bursar._cli._failing import STATUS, Refused, Unfinished, again, in_options, option
from bursar._cli._groups import JSON, InOrder
from bursar._cli._printing import at_most, percent, rho, say, say_json
from bursar._cli._released import check_new, save_released
from bursar._cli._signatures import Argument, Given, arguments, described
from bursar._cli._values import Value, named_number

_HERE = ("request_id", "progress")
"""Arguments of fits that a command has for itself."""


_KEY_LENGTH = 16
"""Hexadecimal digits of a key that is made here: to be copied from a terminal, and of one analyst only."""


@dataclass(frozen=True)
class Method:
    """A fit of the SDK.

    Attributes:
        name: of its commands.
        fit: the method of `bursar.Dataset`.
        preview: what tells its price.
        words: of each argument, for the help.
    """

    name: str
    fit: Callable[..., Any]
    preview: Callable[..., bursar.Preview]
    words: Mapping[str, str]

    def priced(self, data: bursar.Dataset, values: Mapping[str, Any]) -> bursar.Preview:
        """The price of a fit: what does not change it is no argument of a preview."""
        known = inspect.signature(self.preview).parameters
        return self.preview(data, **{name: value for name, value in values.items() if name in known})


def methods() -> list[Method]:
    """Every fit that the SDK has, and the sketch alone."""
    of = bursar.Dataset
    found = [name.removeprefix("fit_") for name in vars(of) if name.startswith("fit_")]
    # A sketch has one price, whatever is decoded from it.
    previews = {name: getattr(of, f"preview_{name}", of.preview_sketch) for name in found}
    fits = {name: getattr(of, f"fit_{name}") for name in found}
    decoded = described(fits["sketch_kmeans"])
    made = [Method(name.replace("_", "-"), fit, previews[name], described(fit)) for name, fit in fits.items()]
    return [*made, Method("sketch", of.sketch, of.preview_sketch, decoded | described(of.sketch))]


class _Typed:
    """The options of a command, and what was typed as the SDK's arguments.

    Args:
        made: the arguments.
    """

    def __init__(self, made: Sequence[Argument]) -> None:
        self._made = made
        self.options = [option for argument in made for option in argument.options]

    def values(self, given: Given) -> dict[str, Any]:
        """Those that were typed; the SDK knows what the others are."""
        typed = {argument.name: argument.value(given) for argument in self._made}
        return {name: value for name, value in typed.items() if value not in (None, ())}


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
    command with the same --request-id gets it again for nothing.
    """


def _preview_command(method: Method) -> click.Command:
    typed = _Typed(arguments(method.preview, method.words))

    @connected
    @JSON
    def command(client: bursar.Client, dataset: str, as_json: bool, **given: Any) -> None:
        found = method.priced(client.dataset(dataset), typed.values(given))
        if as_json:
            say_json(found)
        else:
            say(found)

    text = f"Price bursar fit {method.name}: what it would debit, and how exact it would be."
    return _command(method, "preview", command, typed, text)


def _suggest_command(method: Method) -> click.Command:
    typed = _Typed(arguments(method.preview, method.words, without=("spend",)))
    targets = [
        click.Option([option(name)], type=click.FLOAT, help=f"{_TARGETS[name]}.") for name in _TARGETS_OF[method.name]
    ]

    @connected
    @JSON
    def command(client: bursar.Client, dataset: str, as_json: bool, **given: Any) -> None:
        wanted = {name: given.pop(name) for name in _TARGETS_OF[method.name]}
        goal = bursar.Target(**wanted, noise=dict(given.pop("noise")) or None)
        delta, pure = given.pop("delta"), given.pop("pure")
        if pure and delta is not None:
            raise click.UsageError("--pure or --delta, not both")
        spend = bursar.pure(_FIRST) if pure else None if delta is None else bursar.epsilon_delta(_FIRST, delta)
        name: Any = method.name.replace("-", "_")
        found = client.dataset(dataset).suggest_spend(name, goal, spend=spend, **typed.values(given))
        if as_json:
            say_json({"spend": found.spend, "expected": found.expected, "preview": found.preview})
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
    made = _command(method, "suggest", command, typed, text)
    made.params = [made.params[0], *targets, noise, delta, pure, *made.params[1:]]
    return made


_FIRST = 0.1
"""Epsilon to begin with."""

_TARGETS = {
    "mean_error": "Largest error of a component's mean, in the columns' units",
    "coef_error": "Largest error of a coefficient of a regression",
    "relative_error": "Largest error of parameters, in units of the model's noise level",
    "covariance_error": "Largest relative error of a covariance",
    "found": "How many components are expected to be found at least",
    "table_error": "Largest distance of a table from the truth, 0 to 1",
    "snr": "Least signal-to-noise ratio of a sketch",
    "relative_sse": "Largest sum of squares over that of Lloyd's algorithm",
}
"""Numbers of a `bursar.Target`, in words."""

_TARGETS_OF = {
    "dpem": ("mean_error",),
    "gradient-em": ("mean_error", "coef_error", "relative_error"),
    "separated-gmm": ("mean_error", "covariance_error", "found"),
    "mrf": ("table_error",),
    "sketch": ("snr", "relative_sse"),
    "sketch-kmeans": ("snr", "relative_sse"),
}
"""What the preview of each fit tells."""


def _fit_command(method: Method) -> click.Command:
    typed = _Typed(arguments(method.fit, method.words, without=_HERE))

    @connected
    @JSON
    def command(
        client: bursar.Client,
        dataset: str,
        save: Path | None,
        request_id: str | None,
        progress: bool | None,
        yes: bool,
        as_json: bool,
        **given: Any,
    ) -> None:
        values = typed.values(given)
        data = client.dataset(dataset)
        if "dummy" in values:
            _try(method, data, values, request_id, save, progress, as_json=as_json)
            return
        bought = _bought(data, request_id)
        if save is not None:
            check_new(save, new=bought is None)
        if "spend" in values:
            request_id = request_id or uuid.uuid4().hex[:_KEY_LENGTH]
            if bought is not None:
                say(f"entry {bought.entry} has paid for {request_id}: nothing more is debited", err=True)
            elif not yes:
                _ask(method.priced(data, values), dataset)
            say(f"request id {request_id}: give it with --request-id if this is cut off", err=True)
        with _resumable(request_id if "spend" in values else None):
            model = method.fit(data, **values, request_id=request_id, progress=progress)
        _say_model(model, save, as_json=as_json)

    save = click.option("--save", type=FILE, help="Write the model to this file, which must not be there yet.")
    key = click.option("--request-id", help=method.words["request_id"])
    bar = click.option("--progress/--no-progress", default=None, help="Show a bar. [default: on a terminal]")
    sure = click.option("--yes", is_flag=True, help="Do not ask for confirmation; for scripts.")
    for added in (sure, bar, key, save):
        command = added(command)
    return _command(method, "fit", command, typed, in_options(_first_sentence(method.fit)))


def _command(method: Method, group: str, callback: Callable[..., None], typed: _Typed, text: str) -> click.Command:
    made: click.Command = click.command(method.name, epilog=STATUS, help=f"{text}\n\n\b\n  {_example(group, method)}")(
        callback
    )
    dataset = click.Argument(["dataset"], type=DATASET)
    made.params = [dataset, *typed.options, *made.params]
    return made


def _first_sentence(method: Callable[..., Any]) -> str:
    """What a fit is, without the words about its price, which the command asks about."""
    sentence = (inspect.getdoc(method) or "").partition("\n")[0]
    return re.sub(r"; debits `spend`(, if any)?", "", sentence).replace("`", "")


def _example(group: str, method: Method) -> str:
    """A line to begin with: what must be given, and a spend."""
    parameters = list(inspect.signature(method.fit).parameters.values())[1:]
    needed = [p.name for p in parameters if p.default is inspect.Parameter.empty and p.name in _EXAMPLES]
    words = [f"--{name.replace('_', '-')} {_EXAMPLES[name]}" for name in needed]
    last = {"fit": f"--rho 0.01 --save {method.name}.json", "preview": "--rho 0.01"}.get(group, _WANTED[method.name])
    return " ".join(["bursar", group, method.name, "people", *words, last])


_WANTED = {
    "dpem": "--mean-error 0.5",
    "gradient-em": "--relative-error 0.1",
    "separated-gmm": "--covariance-error 0.1",
    "mrf": "--table-error 0.02",
    "sketch": "--snr 1000",
    "sketch-kmeans": "--relative-sse 1.1",
}
"""Targets of examples."""

_EXAMPLES = {
    "n_components": "3",
    "n_clusters": "3",
    "cliques": "tree",
    "model": "gaussian_mixture",
    "sigma_min": "0.5",
    "sigma_max": "2",
}
"""Values of arguments that must be given."""


def _bought(data: bursar.Dataset, request_id: str | None) -> bursar.ReleaseSummary | None:
    """The debit that was made under this request id; None if there is none, and for a new one."""
    if request_id is None:
        return None
    return next((release for release in data.releases() if release.request_id == request_id), None)


def _ask(preview: bursar.Preview, dataset: str) -> None:
    """Show price and remainder, and ask whether to go on.

    Raises:
        Refused: it is above what is left.
        click.ClickException: there is nobody to ask.
        click.Abort: the answer was no.
    """
    price, left, yours = preview.price.rho, preview.remaining, preview.available
    of_all = preview.price.cost_units / left.cap_cost_units if left.cap_cost_units else 0.0
    say(f"price  {rho(price)} ({percent(of_all)} of the total)", err=True)
    if not preview.affordable:
        less = f"; ask for at most --rho {at_most(yours.rho)}, or for --what-is-left" if yours.rho > 0 else ""
        raise Refused(
            f"the fit costs {rho(price)}, and {rho(yours.rho)} is yours to spend now{less}. Nothing was debited; see: "
            f"bursar limits {dataset}"
        )
    say(f"left   {rho(left.rho)}, after it {rho(left.rho - price)}", err=True)
    if yours.rho < left.rho:
        say(f"yours  {rho(yours.rho)} for one request now", err=True)
    for warning in preview.warnings:
        say(f"note   {warning}", err=True)
    if not at_terminal():
        raise click.ClickException("there is no terminal to ask at: give --yes to pay this, or ask for a preview only")
    click.confirm(f"Spend that of {dataset}, for good?", abort=True, err=True)


def at_terminal() -> bool:
    """Whether there is somebody to ask."""
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


def _try(
    method: Method,
    data: bursar.Dataset,
    values: Mapping[str, Any],
    request_id: str | None,
    save: Path | None,
    progress: bool | None,
    *,
    as_json: bool,
) -> None:
    """A dummy run, which pays nothing and is kept nowhere but in the file."""
    if request_id is not None:
        raise click.UsageError("--request-id is for what is paid for; leave it out with --dummy")
    if save is not None:
        check_new(save)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model = method.fit(data, **values, progress=progress)
    for warning in warned:
        say(f"note   {warning.message}", err=True)
    if save is not None:
        save_released(model, save)
    if as_json:
        say_json({"receipt": None, "saved": save and str(save), "model": model.to_dict()})
        return
    say(model)
    say("a dummy run: nothing was debited, and this is about nobody")
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
    if save is not None:
        say(f"saved to {save}")


def _save(model: Any, path: Path, receipt: bursar.Receipt) -> None:
    try:
        save_released(model, path)
    except OSError as error:
        advice = "" if receipt.free else f". {again(receipt.request_id)}"
        raise Unfinished(f"{path}: {error.strerror or error}; the model could not be saved{advice}") from None


def _receipt_line(receipt: bursar.Receipt) -> str:
    left = f"left {rho(receipt.remaining.rho)} ({percent(receipt.remaining.share)})"
    if receipt.free or receipt.replayed:
        whose = f"entry {receipt.entry} had paid for it, " if receipt.entry else ""
        return f"receipt: {whose}nothing was debited; {left}"
    return f"receipt: entry {receipt.entry}, debited {rho(receipt.price.rho)}, {left}"


for _method in methods():
    preview.add_command(_preview_command(_method))
    suggest.add_command(_suggest_command(_method))
    fit.add_command(_fit_command(_method))
