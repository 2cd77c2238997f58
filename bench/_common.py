"""Shared parts of resumable benchmarks: options, single results that are kept, and the JSON of tables."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Json = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
"""Folder of what scripts found. It is not committed: pages have the tables, `record.json` what is compared."""


def results_of(script: str) -> Path:
    """Return the file of a script's results, in a folder that exists."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{Path(script).stem}.json"


WRITTEN = ("bench/record.json", "docs/benchmarks.md", "docs/benchmarks-*.png", "docs/real-tables.md")
"""Files of the repository that benchmarks write, so that they may differ from the commit that is measured."""


def tree() -> tuple[str, list[str]]:
    """Return the commit of the working tree, and the names of its changed and new files but those of `WRITTEN`."""
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        head = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout
        command = ["git", "status", "--porcelain", "--untracked-files=all"]
        status = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown", ["there is no commit"]
    names = [line[3:] for line in status.splitlines()]
    return head.strip(), [name for name in names if not any(fnmatch(name, pattern) for pattern in WRITTEN)]


class Kept:
    """Results that are kept in a folder, or in memory without one.

    Args:
        folder: where they are, and what a script keeps beside them.
        again: methods, whose results are forgotten. They are the last words of keys.
    """

    def __init__(self, folder: Path | None, again: Sequence[str] = ()) -> None:
        self.folder = folder
        self._found: dict[str, Json] = {}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            lines = self._lines.read_text().splitlines() if self._lines.exists() else []
            found = {one["key"]: one["found"] for one in map(json.loads, lines)}
            self._found = {key: one for key, one in found.items() if key.split(", ")[-1] not in again}

    @property
    def _lines(self) -> Path:
        return (self.folder or Path()) / "results.jsonl"

    def result(self, key: str, work: Callable[[], Json]) -> Json:
        """Return what is known under a key, or else comes out of the work."""
        if key not in self._found:
            self._found[key] = work()
            if self.folder:
                with self._lines.open("a") as file:
                    file.write(json.dumps({"key": key, "found": self._found[key]}) + "\n")
        return self._found[key]

    def known(self, keys: Sequence[str]) -> list[Json]:
        """Return what is known under some of the keys."""
        return [self._found[key] for key in keys if key in self._found]


def spread_of(values: Sequence[float]) -> Json:
    """Return what a record compares of a number that was measured several times: mean, standard deviation, count."""
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": std, "runs": len(values)}


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Json:
    """Medians, and their ratio round by round."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    found: Json = {"ours": statistics.median(ours), "theirs": statistics.median(theirs)}
    found |= {"ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]}
    return found | {"ratio_spread": spread_of(ratios)}


def is_spread(value: Any) -> bool:
    """Return whether a value of a JSON is what `spread_of` made."""
    return isinstance(value, dict) and value.keys() == {"mean", "std", "runs"}


ExtentT = TypeVar("ExtentT", bound="DataclassInstance")


@dataclass(frozen=True)
class Wish(Generic[ExtentT]):
    """Request for a measurement, and the place of its results.

    Attributes:
        extent: how much.
        save: called with a table's name and its results as soon as it is done.
        kept: results so far.
        until: when no further trial begins, as `time.monotonic` has it.
        options: of the command line.
    """

    extent: ExtentT
    save: Callable[[str, Any], None]
    kept: Kept
    until: float
    options: argparse.Namespace


def options_of(
    doc: str | None, parts: Iterable[str], extent: DataclassInstance | None = None
) -> argparse.ArgumentParser:
    """A parser of what every such benchmark understands: parts, --quick, --minutes, --json.

    Args:
        doc: docstring of the script.
        parts: names of all parts.
        extent: of a full run; each of its fields, a number or numbers or names, is an option.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="left out: all")
    parser.add_argument("--quick", action="store_true", help="minutes: small, few; no JSON unless asked for")
    parser.add_argument(
        "--minutes", type=float, help="of each part, after which no further trial begins; 0: print what is known"
    )
    parser.add_argument("--json", type=Path, help="instead of bench/results/NAME.json")
    for field in fields(extent) if extent else ():
        usual = getattr(extent, field.name)
        some = usual if isinstance(usual, tuple) else (usual,)
        many: Json = {"nargs": "*"} if some is usual else {}
        told = " ".join(map(str, some)) or "all"
        parser.add_argument(f"--{field.name}", type=type(some[0]) if some else str, help=f"left out: {told}", **many)
    return parser


def run_parts(
    parser: argparse.ArgumentParser,
    parts: Mapping[str, Callable[[Wish[ExtentT]], None]],
    script: str,
    *,
    full: ExtentT,
    quick: ExtentT,
    again: Sequence[str] = (),
    **facts: Any,
) -> None:
    """Run the parts that the command line names, or all.

    Args:
        parser: of `options_of`, with the options of the script.
        parts: by name.
        script: file of the script.
        full: extent of a full run.
        quick: of a quick one.
        again: names of options that name methods whose results are forgotten.
        facts: saved with the results.
    """
    options = parser.parse_args()
    output = output_of(options, script)
    given = {field.name: getattr(options, field.name) for field in fields(full)}
    given = {name: tuple(one) if isinstance(one, list) else one for name, one in given.items() if one not in (None, [])}
    extent = replace(quick if options.quick else full, **given)
    kept = Kept(output and output.with_suffix(".kept"), [name for one in again for name in getattr(options, one)])
    for part in options.parts or parts:
        begun = time.monotonic()
        until = math.inf if options.minutes is None else begun + 60 * options.minutes
        parts[part](Wish(extent, partial(saved, output, part, **facts), kept, until, options))
        print(f"  ({part}: {time.monotonic() - begun:.0f} s)", flush=True)


def output_of(options: argparse.Namespace, script: str) -> Path | None:
    """Return where results go: the JSON that was asked for, or that of the script but for quick runs."""
    given: Path | None = options.json
    return given or (None if options.quick else results_of(script))


def seeded_parts(
    doc: str | None, parts: Iterable[str], script: str, *, seeds: int, of: str
) -> Iterator[tuple[str, argparse.Namespace, Callable[[Any], None]]]:
    """Yield each part that the command line names, or all, with the options and what saves the part's rows.

    Args:
        doc: docstring of the script.
        parts: names of all parts.
        script: file of the script.
        seeds: default of the option `--seeds`.
        of: what has that many fits.
    """
    parts = [*parts]
    parser = options_of(doc, parts)
    parser.add_argument("--seeds", type=int, default=seeds, help=f"fits of each {of}")
    options = parser.parse_args()
    output = output_of(options, script)
    for part in options.parts or parts:
        print(f"--- {part}")
        yield part, options, partial(saved, output, part, "rows", seeds=options.seeds)


def followed(rows: Iterable[Json], show: Callable[[Json], None], save: Callable[[list[Json]], None]) -> list[Json]:
    """Show each row when it is measured, and save those that there are; return all of them."""
    found = []
    for row in rows:
        show(row)
        found.append(row)
        save(found)
    return found


def saved(output: Path | None, part: str, name: str, found: Any, **facts: Any) -> None:
    """Write results into those that there are; read again each time, so that parts may be run side by side."""
    if output is None:
        return
    results: Json = json.loads(output.read_text()) if output.exists() else {}
    results |= {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()} | facts
    results[part] = results.get(part, {}) | {name: found}
    output.write_text(json.dumps(results, indent=1) + "\n")


def show(title: str, rows: Sequence[Json]) -> None:
    """Print a table with a column for each name that any of the rows has; what a row lacks, or None, is a dash."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    print(f"\n{title}")
    for line in texts:
        print("  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True)), flush=True)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " to ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def part_of(row: Json, *names: str) -> Json:
    """Return a part of a row, to be shown."""
    return {name: row[name] for name in names}
