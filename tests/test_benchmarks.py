"""The record of benchmarks: what is compared, what counts as worse, and the page, on made-up records."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(scope="module")
def run() -> Iterator[Any]:
    """The module, which finds its neighbours as a script does."""
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("run")
    sys.path.remove(str(BENCH))


FOUND: dict[str, Any] = {
    "statistics": {"rows": [{"case": "tables", "ours": 10.0, "theirs": 12.0, "ratio": 0.8, "bar": 1.2}]},
    "kmeans": {"rows": [{"case": "FitDPEM", "peer": "another", "error_mean": 0.05, "points": [{"error": 0.5}]}]},
    "ok": True,
    "rounds": [{"ratio": 0.7}],
    "speed": [{"name": "numpy, the other way", "ratio": 5.0}],
}


def result(commit: str, found: dict[str, Any], numbers: dict[str, float], problem: str | None = None) -> dict[str, Any]:
    """What a script gave."""
    facts = {"commit": commit, "seconds": 3.0, "full": False, "problem": problem}
    return facts | {"numbers": numbers, "found": found}


def test_numbers_have_names_that_do_not_depend_on_places(run: Any) -> None:
    """Rows are told apart by what they are about; times, rounds, peers' numbers and flags are not compared."""
    numbers = dict(run.numbers_in(FOUND))
    assert numbers == {
        "statistics / rows / case tables / ratio": 0.8,
        "kmeans / rows / case FitDPEM, peer another / error_mean": 0.05,
    }
    first = {"case": "FitDPEM", "peer": "a third", "error_mean": 0.09}
    later = {**FOUND, "kmeans": {"rows": [first, *FOUND["kmeans"]["rows"]]}}
    assert numbers.items() <= dict(run.numbers_in(later)).items()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [(0.8, 0.99, False), (0.8, 1.01, True), (0.8, 0.1, False), (0.001, 0.015, False), (0.8, float("nan"), True)],
)
def test_worse_is_what_is_beyond_the_tolerance(run: Any, before: float, after: float, told: bool) -> None:
    """A quarter more is tolerated, and differences of next to nothing; better never counts, no number does."""
    assert bool(run.worse({"x / ratio": before}, {"x / ratio": after})) is told
    assert run.worse({"x / ratio": before}, {"y / ratio": 9.0}) == []
    assert run.worse({"x / ratio": 1.0}, {"x / ratio": 0.5}, larger=True) == [("x / ratio", 1.0, 0.5)]
    assert run.worse({"x / ratio": 1.0}, {"x / ratio": 2.0}, larger=True) == []
    assert run.worse({"x / error_mean": 1.0}, {"x / error_mean": 1.4}) == []
    assert run.worse({"x / error_mean": 1.0}, {"x / error_mean": 1.6}) == [("x / error_mean", 1.0, 1.6)]


def test_the_record_keeps_what_the_page_shows_and_numbers_with_a_bar(run: Any) -> None:
    """Single rounds, texts and tables of everything else stay in the script's own results; verdicts are the same."""
    found = {
        "settings": {"seeds": [1, 2]},
        "speed": {"n = 10": {"table": [{"ratio": 0.5, "bar": 1.2, "rounds": [0.4, 0.5]}, {"ratio": 0.9}]}},
        "serving": {"rounds": 7},
    }
    assert run.recorded("mrf", found) == {"speed": {"n = 10": {"table": [{"ratio": 0.5, "bar": 1.2}]}}}
    assert run.recorded("mrf", {"settings": {"seeds": [1, 2]}}) == {}
    shown = run.recorded("kernels", found)
    assert shown["settings"] == found["settings"]
    assert shown["serving"] == {"rounds": 7}
    assert shown["speed"]["n = 10"]["table"] == [{"ratio": 0.5, "bar": 1.2}, {"ratio": 0.9}]
    page = importlib.import_module("_page")
    both = ({"scripts": {"mrf": {"found": one}}} for one in (found, run.recorded("mrf", found)))
    before, after = map(page.verdicts, both)
    assert before == after != []


def test_a_script_that_failed_leaves_what_was_known(run: Any) -> None:
    """With the commit that it is from, and the problem beside it."""
    known = run.merged({}, "kernels", result("abc", FOUND, {"a": 1.0}))
    after = run.merged(known, "kernels", result("def", {}, {}, "ran out of time"))
    assert after["scripts"]["kernels"] == known["scripts"]["kernels"] | {"problem": "ran out of time"}
    assert {"processors", "system"} <= set(after["machine"])
    assert {"python", "numpy"} <= set(after["versions"])


def scripted(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """One script in a folder of its own in the place of all, and where its record goes."""
    (folder / "toy.py").write_text("import json, sys\n" + body)
    monkeypatch.setattr(run, "HERE", folder)
    monkeypatch.setattr(run, "PAGE", folder / "page.md")
    monkeypatch.setattr(run, "SCRIPTS", (run.Script("toy", ("{json}",), ("{json}",)),))
    return folder / "record.json"


WRITES = 'open(sys.argv[1], "w").write(json.dumps({{"rows": [{{"name": "sum", "ratio": {ratio}}}]}}))\n'


def test_a_regression_ends_the_run_with_one(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run has nothing to compare with; the second is worse, says so, and is recorded; then all is well."""
    record = scripted(run, tmp_path, monkeypatch, WRITES.format(ratio=0.5))
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record)])
    assert run.main() == 0
    scripted(run, tmp_path, monkeypatch, WRITES.format(ratio=0.8))
    assert run.main() == 1
    assert "worse: toy: rows / name sum / ratio: 0.5, now 0.8" in capsys.readouterr().out
    assert run.main() == 0
    assert json.loads(record.read_text())["scripts"]["toy"]["numbers"] == {"rows / name sum / ratio": 0.8}
    assert "| toy | rows / name sum / ratio | 0.8 |" in (tmp_path / "page.md").read_text()


def test_a_script_that_fails_fails_the_run(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is named on the page."""
    record = scripted(run, tmp_path, monkeypatch, "sys.exit(3)\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record)])
    assert run.main() == 1
    assert "ended with 3" in (tmp_path / "page.md").read_text()


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits only for its end to be read: soon, if it was killed."""
    for _ in range(200):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_a_script_that_hangs_is_ended_with_all_that_it_began(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may clean up; its files lie where they are removed; its server, which would run for an hour, ends with it."""
    monkeypatch.setattr(run, "GRACE", 0.1)
    body = f"sleep 3600 & echo $! > {tmp_path}/child; echo $TMPDIR > {tmp_path}/folder; wait"
    assert run.problem_of(["sh", "-c", body], tmp_path, 0.5) == "ran out of time"
    assert (tmp_path / "folder").read_text().strip() == str(tmp_path)
    assert ended(int((tmp_path / "child").read_text()))
    assert run.problem_of([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, 60.0) == "ended with 3"
    assert run.problem_of([sys.executable, "-c", ""], tmp_path, None) is None


def test_versions_are_those_of_peers_too(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of another environment, if it has them."""
    assert run.versions_of(sys.executable, ["numpy", "scipy"]) == {
        name: importlib.metadata.version(name) for name in ("numpy", "scipy")
    }
    assert run.versions_of(sys.executable, ["numpy", "no such package"]) == {}
    monkeypatch.setattr(run, "PGM_PACKAGES", ("numpy", "pytest"))
    monkeypatch.setenv("PGM", sys.executable)
    assert run.versions()["pytest"] == importlib.metadata.version("pytest")


@pytest.fixture
def page(run: Any) -> Any:
    """The module that writes the page."""
    return importlib.import_module("_page")


PEER = {"case": "FitDPEM, k-means", "peer": "another", "version": "1.0", "n": 100, "unit": "epsilon", "measure": "loss"}
STEP = {"covariances": "full", "n": 1000, "k": 5, "ratio": 0.1, "bar": 0.2}
EVERYTHING: dict[str, Any] = {
    "kernels": {
        "statistics": FOUND["statistics"],
        "steps": {
            "rows": [
                STEP | {"d": d, "ours": 0.1 * d, "theirs": 1.0 * d, "all": {"ratio": 0.02 * d, "processors": 2}}
                for d in (5, 50)
            ]
        },
        "noise": {"rows": [{"covariances": "full", "n": 1000, "d": 50, "k": 5, "share": 0.2, "bar": 0.1}]},
    },
    "peers": {
        "kmeans": {
            "rows": [
                PEER
                | {"ours": 1.0, "theirs": 2.0, "ratio": 0.5, "ratio_range": [0.4, 0.6], "rounds": 5}
                | {
                    "points": [
                        {"spend": 0.1, "error": 0.5, "peer_error": 0.7},
                        {"spend": 1.0, "error": -0.1, "peer_error": 0.2},
                    ]
                },
                PEER
                | {
                    "peer": "a third",
                    "version": "",
                    "recorded": True,
                    "theirs_range": [6.0, 21.0],
                    "where": "elsewhere",
                }
                | {"points": [{"spend": 0.1, "peer_error": 0.3}]},
            ]
        }
    },
    "growth": {
        part: {
            "rows": [{"n": 10, "d": 2, "k": 3, axis: value, "seconds": {"FitDPEM": 0.1 * value}} for value in (2, 4)]
        }
        for part, axis in (("rows", "n"), ("columns", "d"), ("clusters", "k"))
    },
    "scale": {
        "columns": 10,
        "1000": {
            "growth of a step": {
                "seconds_by_n": {"10": 0.1, "1000": 9.0},
                "slope": 0.98,
                "bend": 0.02,
                "bend_bar": 0.15,
            },
            "threads and processes": {
                "seconds_by_way": {"1 thread": 2.0, "2 threads": 1.0},
                "compared": [{"case": "two over one", "ratio": 0.65, "ratio_range": [0.6, 0.7], "bar": 0.588}],
                "peak_mib": 300.0,
                "bar_mib": 2048,
            },
        },
    },
    "serving": {
        "whole": {
            "10, 0.25": {"FitDPEM": {"added_median": 0.3}, "rows": 10, "quantum": 0.25},
            "10, 0.01": {"FitDPEM": {"added_median": 0.05, "bar": 0.1}, "rows": 10, "quantum": 0.01},
        }
    },
}


def everything(run: Any) -> dict[str, Any]:
    """A record with something of each script that the page draws."""
    record: dict[str, Any] = {}
    for script, found in EVERYTHING.items():
        record = run.merged(record, script, result("abc+", found, dict(run.numbers_in(found))))
    return record


def test_every_picture_is_drawn_from_the_record(run: Any, page: Any, tmp_path: Path) -> None:
    """All of them from a whole record; from one of a single script its own: those of an earlier page are gone."""
    page.write_page(everything(run), tmp_path / "benchmarks.md")
    text = (tmp_path / "benchmarks.md").read_text()
    for picture in page.PICTURES:
        assert f"](benchmarks-{picture.name}.png)" in text
        assert (tmp_path / f"benchmarks-{picture.name}.png").stat().st_size > 1000
    assert "| `bench/kernels.py` | abc+ | quick | 3 |  |" in text
    assert (
        "| FitDPEM, k-means | another [1.0] | 1 | 2 | 0.5 | epsilon 0.1: 0.5 / 0.7; epsilon 1: -0.1 / 0.2 | 5 pairs |"
        in text
    )
    assert "| FitDPEM, k-means | a third |  | 6 to 21 |  | epsilon 0.1: - / 0.3 | earlier: elsewhere |" in text
    serving = {"scripts": {"serving": everything(run)["scripts"]["serving"]}}
    page.write_page(serving, tmp_path / "benchmarks.md")
    assert [file.name for file in tmp_path.glob("*.png")] == ["benchmarks-server.png"]
    page.write_page({}, tmp_path / "benchmarks.md")
    assert list(tmp_path.glob("*.png")) == []


def test_bars_are_beside_their_numbers(run: Any, page: Any) -> None:
    """Whatever has one, with whether it is met: no number is not; what has none is left out."""
    found = {one.what: one for one in page.verdicts(everything(run))}
    assert {what: one.met for what, one in found.items()} == {
        "tables": True,
        "EM step, full, n = 1,000, d = 5, k = 5": True,
        "EM step, full, n = 1,000, d = 50, k = 5": True,
        "EM step, full, n = 1,000, d = 5, k = 5, 2 processors": True,
        "EM step, full, n = 1,000, d = 50, k = 5, 2 processors": False,
        "noise of a fit, full, n = 1,000, d = 50, k = 5: share of its time": False,
        "1000, growth of a step: slope of log time against log rows, from 1": True,
        "two over one": False,
        "1000, threads and processes: memory, MiB": True,
        "10, 0.01, FitDPEM: seconds that the server adds": True,
    }
    assert (found["two over one"].least, found["two over one"].most) == (0.6, 0.7)
    assert not page.Verdict("x", "y", float("nan"), 1.0).met
    assert "**missed**" in page._verdict_table(everything(run))


def test_every_script_is_there(run: Any) -> None:
    """`make bench` runs no script that does not exist."""
    assert [script.name for script in run.SCRIPTS if not (BENCH / f"{script.name}.py").exists()] == []
