"""`bursar model`: what to do with a model that was released; none of it costs anything."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import bursar
from bursar._cli._connecting import CA, FILE, SERVER, TOKEN_FILE, Connecting
from bursar._cli._failing import STATUS, explained
from bursar._cli._groups import JSON, InOrder
from bursar._cli._printing import json_text, plain, say, say_json, say_table
from bursar_models.files import write_whole
from bursar_models.optional import require

Released = bursar.Model | bursar.Sketch
"""A model, or a sketch that models are decoded from."""

_MODEL = click.argument("file", type=FILE)
_SEED = click.IntRange(0, 2**64 - 1)
_LEVEL = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Share of fits in which an interval is meant to hold.",
)
_PICTURES = (".png", ".svg", ".pdf")


@click.group(cls=InOrder)
def model() -> None:
    """Use a model that bursar fit --save wrote to a file. Everything here is free.

    What is in the file is released: look at it, draw it, sample from it and share it as often as you like.
    """


@model.command(epilog=STATUS)
@click.argument("file", metavar="FILE|ENTRY")
@click.option("--save", type=FILE, help="Write it to this file, which must not be there yet.")
@click.option("--intervals", is_flag=True, help="Intervals of the released numbers, too; computed here, and free.")
@_LEVEL
@SERVER
@CA
@TOKEN_FILE
@JSON
def show(file: str, save: Path | None, intervals: bool, level: float, as_json: bool, **said: Any) -> None:
    """Show a model, or a sketch; or get it again from the server.

    With the ENTRY of the ledger that paid for it, as bursar releases lists it, the server is asked for what it
    released, which is free. A file whose name is a number is written ./12.

    \b
      bursar model show model.json
      bursar model show 13 --save again.json
      bursar model show model.json --intervals --level 0.9
    """  # noqa: D301  click reads the backslash
    with explained():
        if save is not None:
            check_new(save)
        if file.isdecimal():
            with Connecting(**said).completed().client() as client:
                found = client.model(int(file))
        else:
            found = opened(Path(file))
        if save is not None:
            save_released(found, save)
        if intervals and isinstance(found, bursar.Sketch):
            raise click.UsageError("a sketch has no intervals; decode a model from it")
    ends = found.intervals(level) if intervals and isinstance(found, bursar.Model) else None
    if as_json:
        say_json(found.to_dict() | ({} if ends is None else {"intervals": ends}))
        return
    say(found)
    if ends is not None:
        say(ends)
    if save is not None:
        say(f"saved to {save}")


@model.command(epilog=STATUS)
@_MODEL
@click.option("--out", type=FILE, required=True, help="The picture, .png, .svg or .pdf. An older one is replaced.")
@click.option("--columns", help="One or two of a mixture's columns as a,b. [default: the first two]")
@JSON
def plot(file: Path, out: Path, columns: str | None, as_json: bool) -> None:
    """Draw a model: ellipses, centres, coefficients, or the graph of what depends on what. Needs matplotlib.

    \b
      bursar model plot model.json --columns visits,diseases --out model.png
    """  # noqa: D301  click reads the backslash
    if out.suffix.lower() not in _PICTURES:
        raise click.BadParameter(
            f"expected a name that ends in {', '.join(_PICTURES)}, got {out}", param_hint="'--out'"
        )
    with explained():
        found = _model(file)
        chosen = {} if columns is None else {"columns": columns.split(",")}
        if chosen and not isinstance(found, _WITH_COLUMNS):
            raise click.UsageError(f"a {type(found).__name__} is drawn as a whole; leave --columns out")
        _draw(found, out, chosen)
    _say_written(out, as_json=as_json)


@model.command(epilog=STATUS)
@_MODEL
@click.option("-n", "--rows", type=click.IntRange(min=1), default=10, show_default=True, help="How many.")
@click.option("--seed", type=_SEED, help="The same seed gives the same rows; it protects nothing. [default: fresh]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--out", type=FILE, help="Write to this file. An older one is replaced.")
@JSON
def sample(file: Path, rows: int, seed: int | None, as_csv: bool, out: Path | None, as_json: bool) -> None:
    """Sample synthetic rows from a model, as a table, CSV or JSON.

    Mixtures give numbers within the public bounds; Markov random fields give the original categories, and in a
    numeric column a number of the bin. Texts are written as they are: a spreadsheet may take one for a formula.

    \b
      bursar model sample model.json -n 1000 --csv --out synthetic.csv
    """  # noqa: D301  click reads the backslash
    if as_csv and as_json:
        raise click.UsageError("--csv or --json, not both")
    with explained():
        columns = _sampled(_model(file), rows, seed)
        names, cells = list(columns), list(zip(*columns.values(), strict=True))
        records = [dict(zip(names, row, strict=True)) for row in cells]
        if out is not None:
            write_whole(out, json_text(records) if as_json else _csv_text(names, cells))
    if out is not None:
        say(f"wrote {out}", err=True)
    elif as_json:
        say_json(records)
    elif as_csv:
        click.echo(_csv_text(names, cells), nl=False)
    else:
        say_table(names, [[_cell(value) for value in row] for row in cells])


@model.command(epilog=STATUS)
@click.argument("file", type=FILE)
@click.option("--clusters", type=click.IntRange(min=1), metavar="K", required=True, help="How many.")
@click.option("--mixture", is_flag=True, help="A mixture of Gaussians with diagonal covariances instead of k-means.")
@click.option("--restarts", type=click.IntRange(1, 1000), default=20, show_default=True, help="Of the decoder; free.")
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Of the restarts.")
@click.option("--save", type=FILE, help="Write the model to this file, which must not be there yet.")
@JSON
def decode(
    file: Path, clusters: int, mixture: bool, restarts: int, seed: int, save: Path | None, as_json: bool
) -> None:
    """Decode clusters from a sketch, for any number of them.

    The sketch is a file that bursar fit sketch-kmeans --save or bursar-admin sketch wrote.

    \b
      bursar model decode sketch.json --clusters 5
    """  # noqa: D301  click reads the backslash
    with explained():
        if save is not None:
            check_new(save)
        sketch = _sketch(file, "--clusters", clusters)
        decoder = sketch.gaussian_mixture if mixture else sketch.kmeans
        found = decoder(clusters, n_init=restarts, public_seed=seed)
        if save is not None:
            found.save(save)
    if as_json:
        say_json(found.to_dict())
        return
    say(found)
    if save is not None:
        say(f"saved to {save}")


@model.command(epilog=STATUS)
@click.argument("file", type=FILE)
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="Largest number of clusters.")
@click.option("--least", type=click.IntRange(min=1), default=1, show_default=True, help="Smallest number of clusters.")
@_LEVEL
@click.option("--restarts", type=click.IntRange(1, 1000), default=20, show_default=True, help="Of each decoding; free.")
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Of the restarts.")
@JSON
def choose(file: Path, most: int, least: int, level: float, restarts: int, seed: int, as_json: bool) -> None:
    """Say what k-means of each number of clusters leaves, from a sketch, and which number explains it best.

    Mean squared distances to the nearest centre have intervals for the population. The centres are those that bursar
    model decode gives. The suggested number is of Gaussian components.

    \b
      bursar model choose sketch.json --most 8
    """  # noqa: D301  click reads the backslash
    if least > most:
        raise click.UsageError("--least is above --most")
    with explained():
        sketch = _sketch(file, "--most", most)
        found = sketch.choose(most, least=least, level=level, n_init=restarts, public_seed=seed)
    if as_json:
        components = found.components
        derived = {"chosen": components.chosen, "not_ruled_out": components.not_ruled_out}
        say_json({**plain(found), "least": found.least, "numbers": found.numbers, **derived})
    else:
        say(found)


def _sketch(path: Path, option: str, clusters: int) -> bursar.Sketch:
    """Return the sketch in a file, of which so many clusters can be decoded. Raises click.ClickException."""
    sketch = opened(path)
    if not isinstance(sketch, bursar.Sketch):
        raise click.ClickException(f"{path} holds a {type(sketch).__name__}, and only sketches are decoded")
    if not clusters <= sketch.m:
        raise click.ClickException(f"{option}: expected at most the {sketch.m} frequencies of the sketch")
    return sketch


def opened(path: Path) -> Released:
    """Return the model or sketch in a file. Raises ValueError, bursar.InvalidRequestError, or OSError."""
    try:
        return bursar.load(path)
    except ValueError as error:
        if "it holds a sketch" not in str(error):
            raise
    return bursar.load_sketch(path)


def save_released(released: Released, path: Path) -> None:
    """Write what `opened` reads. Raises OSError."""
    if isinstance(released, bursar.Sketch):
        bursar.save_sketch(released, path)
    else:
        released.save(path)


def check_new(path: Path, *, new: bool = True) -> None:
    """Check that a file can be written, and with `new` that it is not there yet, before anything is paid.

    Raises:
        click.ClickException: it cannot.
    """
    if new and path.exists():
        raise click.ClickException(f"{path} is there already; choose another name")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise click.ClickException(f"{path.parent} is no folder that can be written to")


_WITH_COLUMNS = (bursar.GaussianMixture, bursar.KMeans, bursar.SymmetricMixture)


def _model(path: Path) -> bursar.Model:
    found = opened(path)
    if isinstance(found, bursar.Sketch):
        raise click.ClickException(f"{path} holds a sketch; decode it first: bursar model decode {path} --clusters K")
    return found


def _draw(found: bursar.Model, out: Path, chosen: Mapping[str, Any]) -> None:
    """Draw a figure without a display: it is made for a file only."""
    figure = require("matplotlib.figure").Figure(layout="constrained")
    found.plot(figure.add_subplot(), **chosen)
    figure.savefig(out, dpi=150)


def _sampled(found: bursar.Model, n: int, seed: int | None) -> dict[str, list[Any]]:
    """Return rows that a model draws, by column."""
    match found:
        case bursar.GaussianMixture() | bursar.SymmetricMixture():
            rows, _ = found.sample(n, random_state=seed)
            names = found.columns or [f"x{j}" for j in range(rows.shape[1])]
            return {name: rows[:, j].tolist() for j, name in enumerate(names)}
        case bursar.MarkovRandomField():
            table = found.sample(n, random_state=seed, output="dict")
            return {name: cells.tolist() for name, cells in table.items()}
    raise click.ClickException(
        f"a {type(found).__name__} does not say how rows are distributed; mixtures and Markov random fields do"
    )


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _csv_text(names: list[str], rows: list[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    return text.getvalue()


def _say_written(path: Path, *, as_json: bool) -> None:
    if as_json:
        say_json({"wrote": str(path)})
    else:
        say(f"wrote {path}")
