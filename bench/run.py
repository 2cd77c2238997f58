"""All comparisons in one run: `make bench`, or `python bench/run.py [names]`.

    make bench                           quick sizes: about twenty minutes on two processors
    make bench FULL=1                    the sizes of the committed tables: a day and more
    python bench/run.py kernels ledger   some of them
    python bench/run.py --page           the page and its pictures from the last record, nothing is run

Every comparison is a script of its own and runs as one, with its peers beside it. What they found is put into one
record, bench/record.json: machine, versions, commit, and of each script its ratios and errors by name, with what the
page shows of it. Everything else that a script finds stays in bench/results/, which is not committed. The record is
compared with the one before: what became worse by more than `TOLERANCE` is printed, and the run ends with 1. Times are
not compared, since machines differ; ratios of two things in one run are.

Peers in an environment of their own: PGM=PYTHON names an interpreter that has private-pgm (package mbi 1.1); left out,
what was measured of it earlier is told.

A script that fails or runs out of its time is named in the record; what was known of it stays, with its commit.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
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

Json = dict[str, Any]

HERE = Path(__file__).parent
RECORD = HERE / "record.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"

TOLERANCE = {"ratio": 0.25, "accuracy": 0.5}
"""How much worse a number may become, relative to before: several times what medians of five rounds differ by, or means
of errors over rounds and spends, each with noise of its own."""

LEAST = {"ratio": 0.02, "accuracy": 0.01}
"""Differences below are noise, whatever they are relative to."""

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
"""Of private-pgm's own environment."""


@dataclass(frozen=True)
class Script:
    """A comparison.

    Attributes:
        name: of bench/NAME.py.
        quick: arguments of a quick run; `{json}` is where it writes.
        full: of a full one.
        minutes: after which a quick run is stopped.
        larger: its ratios are better when they are larger.
    """

    name: str
    quick: tuple[str, ...]
    full: tuple[str, ...] = ("--json", "{json}")
    minutes: float = 10.0
    larger: bool = False


_QUICK = ("--quick", "--json", "{json}")

SCRIPTS = (
    Script("kernels", _QUICK, minutes=15),
    Script("peers", _QUICK, minutes=12),
    Script("growth", _QUICK, minutes=15),
    Script("scale", ("fit", "growth", "compare", *_QUICK), ("--rounds", "9", "--json", "{json}"), minutes=15),
    Script("serving", _QUICK),
    Script("dpem", ("synthetic", "speed", "--seeds", "2", "--json", "{json}")),
    Script("sketch", _QUICK),
    Script("gradient_em", _QUICK),
    Script("mrf", _QUICK),
    Script("separated_gmm", _QUICK),
    Script("load", _QUICK),
    Script("bounds", ("--json", "{json}")),
    Script("ledger", ("rate", "flat", "--largest", "10000", "--json", "{json}"), larger=True),
    Script("chaos", ("--kills", "20", "--json", "{json}"), ("--json", "{json}")),
)
"""What `make bench` runs. Minutes are several times what quick runs take on two idle processors."""


def numbers_in(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Numbers of a script's JSON that can be compared between runs, by where they are.

    Ratios: those called so. Accuracies: means of the fits' errors beside a peer. Lists are told apart by what
    identifies their rows, so that a row keeps its name when others come before it. Single rounds are no numbers to
    compare, nor is what numpy takes beside what is called a peer.
    """
    if isinstance(found, Mapping):
        if str(found.get("name", "")).startswith("numpy"):
            return
        for key, value in found.items():
            if key != "rounds":
                yield from numbers_in(value, (*path, str(key)))
    elif isinstance(found, list):
        for i, value in enumerate(found):
            yield from numbers_in(value, (*path, _name_of(value, i)))
    elif isinstance(found, int | float) and not isinstance(found, bool) and path and _kind_of(path[-1]):
        yield " / ".join(path), float(found)


_IDENTITIES = ("case", "peer", "name", "covariances", "model", "method", "n", "d", "k", "rho", "epsilon")


def _name_of(row: Any, place: int) -> str:
    known = [f"{key} {row[key]}" for key in _IDENTITIES if key in row] if isinstance(row, Mapping) else []
    return ", ".join(known) or str(place)


def _kind_of(key: str) -> str | None:
    """What a number of this name is compared as; None: it is not."""
    if key in ("ratio", "ratio_median", "share"):
        return "ratio"
    return "accuracy" if key == "error_mean" else None


def worse(
    before: Mapping[str, float], after: Mapping[str, float], *, larger: bool = False
) -> list[tuple[str, float, float]]:
    """Numbers that became worse by more than is tolerated: larger ones, or smaller ones if `larger` is better."""
    found = []
    for name in before.keys() & after.keys():
        kind = _kind_of(name.rsplit(" / ", 1)[-1]) or "ratio"
        allowed = max(TOLERANCE[kind] * abs(before[name]), LEAST[kind])
        growth = before[name] - after[name] if larger else after[name] - before[name]
        if not growth <= allowed:  # NaN is worse
            found.append((name, before[name], after[name]))
    return sorted(found)


def run(script: Script, full: bool, commit: str) -> Json:
    """Run a script as a process of its own: its JSON, its seconds, the commit, or what went wrong."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / f"{script.name}.json"
        arguments = [part.format(json=output) for part in (script.full if full else script.quick)]
        command = [sys.executable, str(HERE / f"{script.name}.py"), *arguments]
        problem = problem_of(command, Path(folder), None if full else 60 * script.minutes)
        found = json.loads(output.read_text()) if output.exists() else {}
    seconds = round(time.monotonic() - begun, 1)
    facts: Json = {"commit": commit, "seconds": seconds, "full": full, "problem": problem}
    return facts | {"numbers": dict(numbers_in(found)), "found": recorded(script.name, found)}


SHOWN = ("kernels", "peers", "growth", "scale", "serving")
"""Scripts whose tables and pictures are on the page."""


def recorded(name: str, found: Json) -> Json:
    """Return what the record keeps of a script's JSON: what the page shows of it, or else the numbers with a bar."""
    kept = _without_rounds(found) if name in SHOWN else _barred(found)
    return dict(kept or {})


def _without_rounds(found: Any) -> Any:
    if isinstance(found, Mapping):
        single = {key for key, value in found.items() if key == "rounds" and isinstance(value, list)}
        return {key: _without_rounds(value) for key, value in found.items() if key not in single}
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
    """What went wrong with a command, None if nothing did; no process of it and no file in the folder outlives it.

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


def working_tree() -> str:
    """Its commit, with a + if it was changed."""
    try:
        command = ["git", "describe", "--always", "--dirty=+"]
        told = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


def machine() -> Json:
    """Where a record is from."""
    model = next(
        (line.split(":")[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")),
        platform.processor(),
    )
    return {"system": platform.platform(), "processor": model, "processors": os.cpu_count()}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def versions() -> dict[str, str]:
    """Of Python, of what times depend on and of peers; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    interpreter = os.environ.get("PGM")
    return found | (versions_of(interpreter, PGM_PACKAGES) if interpreter else {})


def versions_of(interpreter: str, packages: Sequence[str]) -> dict[str, str]:
    """Of packages in another environment; empty if it has not all of them."""
    program = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    try:
        told = subprocess.run([interpreter, "-c", program, *packages], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(packages, told.stdout.split(), strict=True))


def merged(record: Json, name: str, result: Json) -> Json:
    """A record with a script's new result. One that found nothing leaves the old one, and its problem beside it."""
    scripts = dict(record.get("scripts", {}))
    known = scripts.get(name)
    scripts[name] = (
        known | {"problem": result["problem"]} if known and result["problem"] and not result["numbers"] else result
    )
    return record | {"machine": machine(), "versions": versions(), "scripts": scripts}


def main() -> int:
    """Run what was asked for, write record and page; 1 if something became worse, or a script failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*(script.name for script in SCRIPTS), []], help="left out: all")
    parser.add_argument("--full", action="store_true", default=bool(os.environ.get("FULL")))
    parser.add_argument("--page", action="store_true", help="only the page, from the record")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--document", type=Path, default=PAGE, help="the page; its pictures lie beside it")
    options = parser.parse_args()
    from _page import write_page

    before: Json = json.loads(options.record.read_text()) if options.record.exists() else {}
    if options.page:
        write_page(before, options.document)
        return 0
    record, regressions, failed = before, [], False
    commit = working_tree()  # before the record is written, which is part of it
    for script in SCRIPTS:
        if options.names and script.name not in options.names:
            continue
        if not (HERE / f"{script.name}.py").exists():
            continue
        print(f"\n===== {script.name} =====", flush=True)
        result = run(script, options.full, commit)
        old = before.get("scripts", {}).get(script.name, {})
        if old.get("full") == options.full:  # sizes differ otherwise
            regressions += [
                (script.name, *one) for one in worse(old["numbers"], result["numbers"], larger=script.larger)
            ]
        failed |= result["problem"] is not None
        record = merged(record, script.name, result)
        options.record.write_text(json.dumps(record, indent=1) + "\n")  # now: the rest may be cut off
    write_page(record, options.document)
    problems = {name: one["problem"] for name, one in record["scripts"].items() if one["problem"]}
    for name, problem in problems.items():
        print(f"{name}: {problem}")
    for name, number, old, new in regressions:
        print(f"worse: {name}: {number}: {old:.4g}, now {new:.4g}")
    return 1 if regressions or failed else 0


if __name__ == "__main__":
    sys.exit(main())
