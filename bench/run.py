"""All comparisons in one run: `make bench`, or `python bench/run.py [names]`.

    make bench                           quick sizes: about twenty minutes on two processors
    make bench FULL=1                    the sizes of the committed tables: a day and more
    python bench/run.py kernels ledger   some of them
    python bench/run.py --page           the page and its pictures from the last record, nothing is run

Every comparison is a script of its own and runs as one, with its peers beside it. What they found is put into one
record, bench/record.json: machine, versions, commit, and of each script its ratios and accuracies by name, each with
its mean, standard deviation and number of runs, and what the page shows of it. Everything else that a script finds
stays in bench/results/, which is not committed. The record is compared with the one before: what became worse beyond
the noise of both is printed, and the run ends with 1. Times are not compared, since machines differ; ratios of two
things in one run are.

A record is of one commit. A changed tree is refused, but for files that this script writes; --changed-tree measures it
all the same, and the record says so. A run of some scripts is compared; it goes into a record of the same commit only.

Peers in an environment of their own: PGM=PYTHON names an interpreter that has private-pgm (package mbi 1.1); left out,
what was measured of it earlier is told.

A script that fails or runs out of its time is named in the record; what was known of it stays, with its commit.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Json, is_spread, tree
from scipy.stats import ttest_ind_from_stats

HERE = Path(__file__).parent
RECORD = HERE / "record.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"

FALSE_ALARMS = 0.01
"""Probability that a run of a script in which nothing became worse names a number: shared by all that it compares."""

ROUNDING = 1e-9
"""Relative difference that numbers without noise may have: sums in another order."""

PACKAGES = (
    "numpy",
    "numba",
    "scipy",
    "scikit-learn",
    "diffprivlib",
    "opendp",
    "pyarrow",
    "dask",
    "distributed",
    "grpcio",
    "protobuf",
)

PGM_PACKAGES = ("mbi", "jax")
"""Packages of private-pgm's own environment."""


@dataclass(frozen=True)
class Script:
    """A comparison.

    Attributes:
        name: of bench/NAME.py.
        quick: arguments of a quick run; `{json}` is where it writes.
        full: of a full one.
        minutes: after which a quick run is stopped.
        larger: its ratios are better when they are larger.
        fits: True if it measures how accurate fits are; a run of it that finds no accuracy has failed.
    """

    name: str
    quick: tuple[str, ...]
    full: tuple[str, ...] = ("--json", "{json}")
    minutes: float = 10.0
    larger: bool = False
    fits: bool = False


_QUICK = ("--quick", "--json", "{json}")

SCRIPTS = (
    Script("kernels", _QUICK, minutes=15),
    Script("peers", _QUICK, minutes=20, fits=True),
    Script("growth", _QUICK, minutes=15),
    Script("scale", ("fit", "growth", "compare", *_QUICK), ("--rounds", "9", "--json", "{json}"), minutes=15),
    Script("serving", _QUICK),
    Script("dpem", ("--seeds", "5", "--json", "{json}"), fits=True),
    Script("sketch", _QUICK, minutes=25, fits=True),
    Script("gradient_em", _QUICK, minutes=15, fits=True),
    Script("mrf", _QUICK, fits=True),
    Script("separated_gmm", _QUICK, fits=True),
    Script("real_tables", _QUICK, minutes=30, fits=True),
    Script("load", _QUICK),
    Script("bounds", ("--json", "{json}"), fits=True),
    Script("ledger", ("rate", "flat", "--largest", "10000", "--json", "{json}"), larger=True),
    Script("chaos", ("--kills", "20", "--json", "{json}"), ("--json", "{json}")),
)
"""Scripts of `make bench`. Minutes are several times what quick runs take on two idle processors."""


def numbers_in(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Json]]:
    """Yield the numbers of a script's JSON that are compared between runs, by where they are.

    They are what `spread_of` made: ratios, and accuracies of fits of this repository. Lists are told apart by what
    identifies their rows, so that a row keeps its name when others come before it.
    """
    if isinstance(found, Mapping):
        if is_spread(found):
            yield " / ".join(path), dict(found)
            return
        for key, value in found.items():
            yield from numbers_in(value, (*path, str(key)))
    elif isinstance(found, list):
        names = [_name_of(value) for value in found]
        for i, (name, value) in enumerate(zip(names, found, strict=True)):
            yield from numbers_in(value, (*path, name if name and names.count(name) == 1 else f"{name} {i}".strip()))


_IDENTITIES = (
    *("case", "peer", "table", "name", "covariances", "model", "method", "mode", "moments", "noise", "shape"),
    *("weights", "n", "d", "k", "sought", "separation", "radius", "far", "bound", "adjacency", "scale"),
    *("rho", "epsilon", "spend", "pure"),
)


def _name_of(row: Any) -> str:
    facts = row if isinstance(row, Mapping) else {}
    return ", ".join(f"{key} {facts[key]}" for key in _IDENTITIES if isinstance(facts.get(key), str | int | float))


def worse(
    before: Mapping[str, Json], after: Mapping[str, Json], *, larger: bool = False
) -> list[tuple[str, float, float]]:
    """Return the numbers whose means became worse beyond the noise of both runs: larger, or smaller if `larger`.

    Welch's test at a level that all compared numbers share, so that it alarms falsely in `FALSE_ALARMS` of runs. A
    number that is not finite is worse. One that was measured once has no noise to compare with, and is left out.
    """
    shared = [name for name in before.keys() & after.keys() if min(before[name]["runs"], after[name]["runs"]) > 1]
    return sorted(
        (name, before[name]["mean"], after[name]["mean"])
        for name in shared
        if not _is_as_good(before[name], after[name], -1.0 if larger else 1.0, FALSE_ALARMS / len(shared))
    )


def _is_as_good(before: Json, after: Json, sign: float, level: float) -> bool:
    growth = sign * (after["mean"] - before["mean"])
    if not growth > ROUNDING * abs(before["mean"]):
        return math.isfinite(after["mean"])
    if before["std"] == after["std"] == 0.0:
        return False
    numbers = (sign * after["mean"], after["std"], after["runs"], sign * before["mean"], before["std"], before["runs"])
    return bool(ttest_ind_from_stats(*numbers, equal_var=False, alternative="greater").pvalue > level)


def run(script: Script, full: bool) -> Json:
    """Run a script as a process of its own: its JSON, its seconds, or what went wrong."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / f"{script.name}.json"
        arguments = [part.format(json=output) for part in (script.full if full else script.quick)]
        command = [sys.executable, str(HERE / f"{script.name}.py"), *arguments]
        problem = problem_of(command, Path(folder), None if full else 60 * script.minutes)
        found = json.loads(output.read_text()) if output.exists() else {}
    numbers = dict(numbers_in(found))
    if script.fits and not any(name.endswith("accuracy") for name in numbers):
        problem = problem or "found no accuracy"
    facts: Json = {"seconds": round(time.monotonic() - begun, 1), "full": full, "problem": problem}
    return facts | {"numbers": numbers, "found": recorded(script.name, found)}


SHOWN = ("kernels", "peers", "growth", "scale", "serving")
"""Scripts whose tables and pictures are on the page."""


def recorded(name: str, found: Json) -> Json:
    """Return what the record keeps of a script's JSON: what the page shows of it, or else the numbers with a bar."""
    kept = _without_rounds(found) if name in SHOWN else _barred(found)
    return dict(kept or {})


def _without_rounds(found: Any) -> Any:
    if isinstance(found, Mapping):
        single = {key for key, value in found.items() if key == "rounds" and isinstance(value, list)}
        return {
            key: _without_rounds(value) for key, value in found.items() if key not in single and not is_spread(value)
        }
    return [_without_rounds(value) for value in found] if isinstance(found, list) else found


def _barred(found: Any) -> Any:
    """Return the parts of a JSON value that have a bar, where they were; None if it has none."""
    if isinstance(found, Mapping):
        if any(key == "bar" or key.startswith("bar_") or key.endswith("_bar") for key in found):
            return _without_rounds(found)
        kept = {key: part for key, value in found.items() if (part := _barred(value)) is not None}
        return kept or None
    if isinstance(found, list):
        return [part for value in found if (part := _barred(value)) is not None] or None
    return None


GRACE = 30.0
"""Seconds that a script which ran out of its time has to clean up."""


def problem_of(command: list[str], folder: Path, seconds: float | None) -> str | None:
    """Return what went wrong with a command, None if nothing did.

    No process of it and no file in the folder outlives it.

    Args:
        command: to run.
        folder: where its temporary files go, such as tables of gigabytes.
        seconds: that it may take.
    """
    environment = os.environ | {"TMPDIR": str(folder)}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    problem = None
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        problem = "ran out of time"
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    finally:  # its servers and workers too, whatever happened
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return problem or (f"ended with {process.returncode}" if process.returncode else None)


def machine() -> Json:
    """Return where a record is from."""
    model = next(
        (line.split(":")[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")),
        platform.processor(),
    )
    return {"system": platform.platform(), "processor": model, "processors": os.cpu_count()}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def versions() -> dict[str, str]:
    """Return versions of Python, of what times depend on and of installed peers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    interpreter = os.environ.get("PGM")
    return found | (versions_of(interpreter, PGM_PACKAGES) if interpreter else {})


def versions_of(interpreter: str, packages: Sequence[str]) -> dict[str, str]:
    """Return versions of packages in another environment; empty if it has not all of them."""
    program = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    try:
        told = subprocess.run([interpreter, "-c", program, *packages], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(packages, told.stdout.split(), strict=True))


def merged(record: Json, name: str, result: Json) -> Json:
    """Return a record with a script's new result. One that found nothing leaves the old one, with its problem."""
    scripts = dict(record.get("scripts", {}))
    known = scripts.get(name)
    scripts[name] = (
        known | {"problem": result["problem"]} if known and result["problem"] and not result["numbers"] else result
    )
    return record | {"machine": machine(), "versions": versions(), "scripts": scripts}


def continued(record: Json, commit: str) -> Json | None:
    """Return the record that a run of some scripts goes into; None if the one that there is, is of another commit."""
    commits = {one["commit"] for one in record.get("scripts", {}).values()}
    return record if commits <= {commit} else None


def commit_to_record(changed_tree: bool) -> str:
    """Return the commit that a run measures, with a + if the tree is changed.

    Raises:
        SystemExit: the tree is changed, and `changed_tree` is False.
    """
    commit, changed = tree()
    if changed and not changed_tree:
        some = ", ".join(changed[:5]) + (", ..." if changed[5:] else "")
        raise SystemExit(f"the tree is changed ({some}): commit first, or say --changed-tree, which the record tells")
    return f"{commit}+" if changed else commit


def main() -> int:
    """Run what was asked for, write record and page; 1 if something became worse, or a script failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*(script.name for script in SCRIPTS), []], help="left out: all")
    parser.add_argument("--full", action="store_true", default=bool(os.environ.get("FULL")))
    parser.add_argument("--page", action="store_true", help="only the page, from the record")
    parser.add_argument("--changed-tree", action="store_true", help="measure files that are not committed, too")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--document", type=Path, default=PAGE, help="the page; its pictures lie beside it")
    options = parser.parse_args()
    from _page import write_page

    before: Json = json.loads(options.record.read_text()) if options.record.exists() else {}
    if options.page:
        write_page(before, options.document)
        return 0
    commit = commit_to_record(options.changed_tree)
    record = continued(before, commit) if options.names else {}
    regressions, failed = [], False
    for script in SCRIPTS:
        if options.names and script.name not in options.names:
            continue
        print(f"\n===== {script.name} =====", flush=True)
        result: Json = {"commit": commit} | run(script, options.full)
        old = before.get("scripts", {}).get(script.name, {})
        if old.get("full") == options.full:  # sizes differ otherwise
            regressions += [
                (script.name, *one) for one in worse(old["numbers"], result["numbers"], larger=script.larger)
            ]
        if result["problem"] is not None:
            failed = True
            print(f"{script.name}: {result['problem']}")
        if record is not None:
            record = merged(record, script.name, result)
            options.record.write_text(json.dumps(record, indent=1) + "\n")  # now: the rest may be cut off
    if record is None:
        print(f"not recorded: {options.record} is of another commit; run everything, or name another --record")
    else:
        write_page(record, options.document)
    for name, number, old, new in regressions:
        print(f"worse: {name}: {number}: {old:.4g}, now {new:.4g}")
    return 1 if regressions or failed else 0


if __name__ == "__main__":
    sys.exit(main())
