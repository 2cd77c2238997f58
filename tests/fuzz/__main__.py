"""`python -m tests.fuzz --minutes 30`: a campaign against a real server process, and against all that reads files.

Calls and files take turns, a part each in a process of its own, so that a crash in a native library is a finding and no
end. What is found is printed and kept; the exit status is 1 if anything was.

`python -m tests.fuzz --planners --calls 1000000` calls validators and planners without a server, and keeps its result
beside that of the other campaign.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bursar_ledger import verify
from tests.fuzz import calls, files, planners
from tests.fuzz.exploring import WrongError
from tests.fuzz.server import in_its_own_process

_ROOT = Path(__file__).parents[2]
_EXAMPLES = 60
"""Examples of a method or a target, then it is the next one's turn."""
_OF_CALLS = 0.75
"""Share of the time for calls; files have the rest."""
_PART = 300.0
"""Seconds of a part, at most; then there is a new server, a new seed, and another look at the ledger."""


def main() -> None:
    """Run a campaign, or a part of one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=_ROOT / "bench" / "fuzz.json")
    parser.add_argument("--part", choices=("calls", "files", "planners"), help=argparse.SUPPRESS)
    parser.add_argument("--planners", action="store_true")
    parser.add_argument("--calls", type=int, default=100_000, help="of planners, in all")
    parser.add_argument("--jobs", type=int, default=1, help="processes that call planners")
    given = parser.parse_args()
    if given.part == "planners":
        given.out.write_text(json.dumps(_planners(given.calls, given.seed)))
    elif given.part:
        part = _calls if given.part == "calls" else _files
        given.out.write_text(json.dumps(part(given.minutes * 60.0, given.seed)))
    elif given.planners:
        raise SystemExit(planning(given.calls, given.jobs, given.seed, given.out))
    else:
        raise SystemExit(campaign(given.minutes * 60.0, given.seed, given.out))


def campaign(seconds: float, seed: int, out: Path) -> int:
    """Take turns for so long; the exit status."""
    begun, parts = time.monotonic(), []
    number = 0
    while (left := seconds - (time.monotonic() - begun)) > 1:
        # A part of calls and one of files make a pair.
        pair = min(left if number % 2 == 0 else _PART, _PART)
        name, share = ("calls", _OF_CALLS) if number % 2 == 0 else ("files", 1 - _OF_CALLS)
        parts.append(_in_a_process(name, min(left, pair * share), seed + number))
        number += 1
    whole = _summed(parts, seed, time.monotonic() - begun)
    kept = _kept(out)
    return _written(out, whole | ({"planners": kept["planners"]} if "planners" in kept else {}), whole)


def planning(calls: int, jobs: int, seed: int, out: Path) -> int:
    """Call validators and planners so often, in so many processes at once; the exit status."""
    begun, each = time.monotonic(), math.ceil(calls / jobs)
    with ThreadPoolExecutor(jobs) as pool:
        started = [
            pool.submit(_in_a_process, "planners", 0.0, seed + i * _SEEDS_OF_A_JOB, "--calls", str(each))
            for i in range(jobs)
        ]
        parts = [one.result() for one in started]
    outcomes: Counter[tuple[str, str]] = Counter()
    findings: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    for part in parts:
        outcomes.update({(name, outcome): n for name, outcome, n in part["planners"]})
        findings.update(part["findings"])
        slowest |= {name: max(took, slowest.get(name, 0.0)) for name, took in part["slowest"].items()}
    whole = _about(seed, time.monotonic() - begun) | {
        "calls": sum(outcomes.values()),
        "planned": sum(n for (_, outcome), n in outcomes.items() if outcome == "planned"),
        "targets": _nested(outcomes),
        "slowest_seconds": {name: round(took, 2) for name, took in sorted(slowest.items())},
        "findings": [f"{n} times: {text}" for text, n in findings.items()],
    }
    return _written(out, _kept(out) | {"planners": whole}, whole)


_SEEDS_OF_A_JOB = 10**6
"""Distance of the first seeds of two processes."""


def _kept(out: Path) -> dict[str, Any]:
    """Read a file of results, if there is one."""
    kept: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return kept


def _written(out: Path, kept: Mapping[str, Any], whole: Mapping[str, Any]) -> int:
    """Keep results, and print those of now; the exit status."""
    out.write_text(json.dumps(kept, indent=1) + "\n")
    sys.stdout.write(json.dumps(whole, indent=1) + "\n")
    return 1 if whole["findings"] else 0


def _in_a_process(name: str, seconds: float, seed: int, *more: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        words = ["--part", name, "--minutes", str(seconds / 60), "--seed", str(seed), "--out", str(out), *more]
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", *words],
            cwd=_ROOT,
            env={**os.environ, "TMPDIR": folder, "XDG_STATE_HOME": folder},
            stderr=None if name == "planners" else subprocess.PIPE,
            text=True,
            check=False,
        )
        if ended.returncode == 0:
            found: dict[str, Any] = json.loads(out.read_text())
            return found
        last = Path(folder) / "last"
        case = last.read_text() if last.exists() else ""
        text = f"{name}, seed {seed}: ended with {ended.returncode}: {(ended.stderr or '')[-1500:]} {case}"
        nothing: dict[str, Any] = {"findings": {text: 1}, "statuses": [], "debited": {}, "for_nothing": {}, "files": []}
        return nothing | {"planners": [], "slowest": {}}


def _calls(seconds: float, seed: int) -> dict[str, Any]:
    """Calls of a server process, which has to stop in order, and whose ledger has to verify."""
    findings: Counter[str] = Counter()
    # A part need not come round; so each begins elsewhere.
    until, turn = time.monotonic() + seconds, 5 * seed
    with tempfile.TemporaryDirectory() as folder:
        with in_its_own_process(Path(folder)) as running:
            fuzzed = calls.Fuzzed(running)
            while time.monotonic() < until:
                method = calls.ALL[turn % len(calls.ALL)]
                _noting(findings, method.path, calls.run, fuzzed, method, _examples(method.path), seed + turn)
                turn += 1
        if not (found := verify(running.prepared.state.ledger)).ok:
            findings[f"the ledger does not verify: {found.problems[:3]}"] += 1
    tally = fuzzed.tally
    return {
        "findings": findings,
        "statuses": [[path, status, n] for (path, status), n in tally.statuses.items()],
        "debited": tally.debited,
        "for_nothing": tally.for_nothing,
        "twins": tally.twins,
        "entries": found.entries,
        "files": [],
    }


def _examples(path: str) -> int:
    """Fits and previews have the most fields; what has none is soon seen through."""
    if "FitService" in path or "DummyService" in path:
        return _EXAMPLES
    return _EXAMPLES // 4


def _files(seconds: float, seed: int) -> dict[str, Any]:
    """Files of all kinds."""
    findings: Counter[str] = Counter()
    until, turn = time.monotonic() + seconds, 2 * seed
    names = list(files.TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        desk = files.prepare(Path(folder))
        while time.monotonic() < until:
            name = names[turn % len(names)]
            Path(tempfile.gettempdir(), "last").write_text(f"{name}, seed {seed + turn}")
            _noting(findings, name, files.run, desk, name, _EXAMPLES // 2, seed + turn)
            turn += 1
    return {
        "findings": findings,
        "statuses": [],
        "debited": {},
        "for_nothing": {},
        "files": [[name, outcome, n] for (name, outcome), n in desk.outcomes.items()],
    }


def _planners(number: int, seed: int) -> dict[str, Any]:
    """Call validators and planners; a warning is an error here, as in the tests."""
    warnings.simplefilter("error")
    findings: Counter[str] = Counter()
    turn = 0
    outcomes: Counter[tuple[str, str]] = Counter()
    slowest: dict[str, float] = {}
    while (done := outcomes.total()) < number:
        # A part has a ledger of its own: tokens that were issued make it longer.
        with tempfile.TemporaryDirectory() as folder, planners.desk(Path(folder)) as desk:
            desk.outcomes, desk.slowest = outcomes, slowest
            for name, share in planners.SHARES.items():
                for _ in range(_TURNS):
                    calls = math.ceil(min(_CALLS_OF_A_PART, number - done) * share / _TURNS)
                    _noting(findings, name, planners.run, desk, name, calls, seed + turn)
                    turn += 1
        sys.stderr.write(f"{outcomes.total()} calls, {len(findings)} findings\n")
    return {
        "findings": findings,
        "planners": [[name, outcome, n] for (name, outcome), n in outcomes.items()],
        "slowest": slowest,
    }


_CALLS_OF_A_PART, _TURNS = 25_000, 5
"""Calls between two ledgers, and seeds of each target among them: the first wrong call ends what a seed has."""


def _noting(findings: Counter[str], where: str, act: Callable[..., None], *arguments: Any) -> None:
    try:
        act(*arguments)
    except Exception as error:
        notes = "".join(getattr(error, "__notes__", ()))
        place = "" if isinstance(error, WrongError) else traceback.format_exc()[-800:]
        findings[f"{where}: {type(error).__name__}: {str(error)[:600]} {place} {notes}"] += 1


def _summed(parts: list[dict[str, Any]], seed: int, seconds: float) -> dict[str, Any]:
    statuses: Counter[tuple[str, str]] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    debited: Counter[str] = Counter()
    for_nothing: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    for part in parts:
        statuses.update({(path, status): n for path, status, n in part["statuses"]})
        outcomes.update({(name, outcome): n for name, outcome, n in part["files"]})
        debited.update(part["debited"])
        for_nothing.update(part["for_nothing"])
        findings.update(part["findings"])
    fits = sum(n for (path, _), n in statuses.items() if "/Fit" in path.removeprefix("/bursar.v1.FitService"))
    return _about(seed, seconds) | {
        "servers": sum(1 for part in parts if part["statuses"]),
        "calls": sum(statuses.values()),
        "fits_asked": fits,
        "fits_debited": sum(debited.values()),
        "fits_for_nothing": sum(for_nothing.values()),
        "share_debited": round(sum(debited.values()) / max(1, fits), 3),
        "compared_with_other_rows": sum(part.get("twins", 0) for part in parts),
        "entries_verified": sum(part.get("entries", 0) for part in parts),
        "files_and_lines": sum(outcomes.values()),
        "statuses": _nested(statuses),
        "files": _nested(outcomes),
        "findings": [f"{n} times: {text}" for text, n in findings.items()],
    }


def _about(seed: int, seconds: float) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "seed": seed,
        "minutes": round(seconds / 60, 1),
    }


def _nested(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (outer, inner), n in sorted(counts.items()):
        nested.setdefault(outer, {})[inner] = n
    return nested


if __name__ == "__main__":
    main()
