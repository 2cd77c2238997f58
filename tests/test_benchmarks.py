"""The record of benchmarks: what is compared, what counts as worse, and the page, on made-up records."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(scope="module")
def run() -> Iterator[Any]:
    """The module, which finds its neighbours as a script does."""
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("run")
    sys.path.remove(str(BENCH))


def spread(mean: float, std: float = 0.01, runs: int = 5) -> dict[str, Any]:
    """Return what scripts write of a number that they measured several times."""
    return {"mean": mean, "std": std, "runs": runs}


STEADY = spread(0.8)
LOSS = spread(0.5)
FOUND: dict[str, Any] = {
    "statistics": {"rows": [{"case": "tables", "ours": 10.0, "ratio": 0.8, "ratio_spread": STEADY, "bar": 1.2}]},
    "kmeans": {"rows": [{"case": "FitDPEM", "peer": "another", "points": [{"spend": 0.1, "accuracy": LOSS}]}]},
    "ok": True,
    "rounds": [{"ratio": 0.7}],
    "speed": [{"name": "numpy, the other way", "ratio": 5.0}],
}


def result(commit: str, found: dict[str, Any], numbers: dict[str, Any], problem: str | None = None) -> dict[str, Any]:
    """Return what a script gave."""
    facts = {"commit": commit, "seconds": 3.0, "full": False, "problem": problem}
    return facts | {"numbers": numbers, "found": found}


def test_numbers_have_names_that_do_not_depend_on_places(run: Any) -> None:
    """Rows are told apart by what they are about; what has no spread, times and peers among it, is not compared."""
    numbers = dict(run.numbers_in(FOUND))
    assert numbers == {
        "statistics / rows / case tables / ratio_spread": STEADY,
        "kmeans / rows / case FitDPEM, peer another / points / spend 0.1 / accuracy": LOSS,
    }
    first = {"case": "FitDPEM", "peer": "a third", "error": {"accuracy": spread(0.09)}}
    later = {**FOUND, "kmeans": {"rows": [first, *FOUND["kmeans"]["rows"]]}}
    assert numbers.items() <= dict(run.numbers_in(later)).items()


def test_rows_that_nothing_tells_apart_keep_their_numbers(run: Any) -> None:
    """No number of a list hides another one; those without a name have their places."""
    rows = [{"case": "one", "accuracy": spread(float(i))} for i in range(2)] + [{"accuracy": spread(7.0)}]
    numbers = dict(run.numbers_in({"rows": rows}))
    assert [value["mean"] for value in numbers.values()] == [0.0, 1.0, 7.0]
    assert list(numbers)[2] == "rows / 2 / accuracy"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (spread(1.0, 0.01), spread(1.015, 0.01), False),
        (spread(1.0, 0.01), spread(1.2, 0.01), True),
        (spread(1.0, 0.01), spread(0.5, 0.01), False),
        (spread(1.0, 0.3), spread(1.2, 0.3), False),
        (spread(1.0, 0.3, 200), spread(1.2, 0.3, 200), True),
        (spread(1.0, 0.001), spread(2.0, 1.0), False),
        (spread(1.0, 0.0), spread(1.0 + 1e-12, 0.0), False),
        (spread(1.0, 0.0), spread(1.001, 0.0), True),
        (spread(-1.0, 0.01), spread(-0.5, 0.01), True),
        (spread(1.0), spread(float("nan"), float("nan")), True),
        (spread(1.0), spread(float("inf"), float("nan")), True),
        (spread(1.0), spread(9.0, 0.0, 1), False),
    ],
)
def test_worse_is_what_is_beyond_the_noise_of_both_runs(
    run: Any, before: dict[str, Any], after: dict[str, Any], told: bool
) -> None:
    """The same difference counts where the spread over seeds is small, or the seeds many, and not otherwise."""
    assert bool(run.worse({"x": before}, {"x": after})) is told
    mirrored = [one | {"mean": -one["mean"]} for one in (before, after)]
    assert bool(run.worse({"x": mirrored[0]}, {"x": mirrored[1]}, larger=True)) is told
    assert run.worse({"x": before}, {"y": after}) == []


def test_runs_that_differ_by_noise_alone_are_hardly_ever_worse(run: Any) -> None:
    """400 pairs of runs of 20 numbers, five seeds each, with equal and unequal spreads: 1 % alarm, as it says."""
    generator = np.random.default_rng(0)  # noqa: TID251 - made-up measurements

    def measured() -> dict[str, Any]:
        values = generator.normal(1.0, np.geomspace(0.01, 1.0, 20)[:, None], (20, 5))
        return {str(i): spread(float(one.mean()), float(one.std(ddof=1))) for i, one in enumerate(values)}

    alarms = sum(bool(run.worse(measured(), measured())) for _ in range(400))
    assert alarms < 400 * run.FALSE_ALARMS + 6 * (400 * run.FALSE_ALARMS) ** 0.5


def test_the_record_keeps_what_the_page_shows_and_numbers_with_a_bar(run: Any) -> None:
    """Single rounds, texts and tables of everything else stay in the script's own results; verdicts are the same."""
    found = {
        "settings": {"seeds": [1, 2]},
        "speed": {"n = 10": {"table": [{"ratio": 0.5, "bar": 1.2, "rounds": [0.4, 0.5]}, {"ratio": 0.9}]}},
        "serving": {"rounds": 7},
    }
    assert run.recorded("mrf", found) == {"speed": {"n = 10": {"table": [{"ratio": 0.5, "bar": 1.2}]}}}
    assert run.recorded("mrf", {"settings": {"seeds": [1, 2]}}) == {}
    # Spreads are among the numbers already.
    assert run.recorded("kernels", {"ratio": 0.8, "ratio_spread": STEADY}) == {"ratio": 0.8}
    shown = run.recorded("kernels", found)
    assert shown["settings"] == found["settings"]
    assert shown["serving"] == {"rounds": 7}
    assert shown["speed"]["n = 10"]["table"] == [{"ratio": 0.5, "bar": 1.2}, {"ratio": 0.9}]
    page = importlib.import_module("_page")
    both = ({"scripts": {"mrf": {"found": one}}} for one in (found, run.recorded("mrf", found)))
    before, after = map(page.verdicts, both)
    assert before == after != []


def test_a_script_that_failed_leaves_what_was_known(run: Any) -> None:
    """The commit that it is from and the problem stand beside it."""
    known = run.merged({}, "kernels", result("abc", FOUND, {"a": STEADY}))
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
    monkeypatch.setattr(run, "tree", lambda: ("abc", []))
    return folder / "record.json"


def writes(ratio: float) -> str:
    """The body of a script that measured one ratio."""
    found = {"rows": [{"name": "sum", "ratio_spread": spread(ratio)}]}
    return f'open(sys.argv[1], "w").write({json.dumps(json.dumps(found))})\n'


def test_a_regression_ends_the_run_with_one(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run has nothing to compare with; the second is worse, says so, and is recorded; then all is well."""
    record = scripted(run, tmp_path, monkeypatch, writes(0.5))
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record)])
    assert run.main() == 0
    scripted(run, tmp_path, monkeypatch, writes(0.8))
    assert run.main() == 1
    assert "worse: toy: rows / name sum / ratio_spread: 0.5, now 0.8" in capsys.readouterr().out
    assert run.main() == 0
    assert json.loads(record.read_text())["scripts"]["toy"]["numbers"] == {"rows / name sum / ratio_spread": STEADY}
    assert "| toy | rows / name sum / ratio_spread | 0.8 | 0.01 | 5 |" in (tmp_path / "page.md").read_text()


def test_a_script_of_fits_without_an_accuracy_has_failed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ratio of times is none; an accuracy is enough."""
    record = scripted(run, tmp_path, monkeypatch, writes(0.5))
    monkeypatch.setattr(run, "SCRIPTS", (run.Script("toy", ("{json}",), fits=True),))
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record)])
    assert run.main() == 1
    assert "toy: found no accuracy" in capsys.readouterr().out
    scripted(run, tmp_path, monkeypatch, writes(0.5).replace("ratio_spread", "accuracy"))
    monkeypatch.setattr(run, "SCRIPTS", (run.Script("toy", ("{json}",), fits=True),))
    assert run.main() == 0


def test_a_changed_tree_is_refused(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run and nothing recorded, but with the flag, and then the record says so."""
    record = scripted(run, tmp_path, monkeypatch, writes(0.5))
    monkeypatch.setattr(run, "tree", lambda: ("abc", ["server/x.py"]))
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record)])
    with pytest.raises(SystemExit, match=r"the tree is changed \(server/x.py\): commit first, or say --changed-tree"):
        run.main()
    assert not record.exists()
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record), "--changed-tree"])
    assert run.main() == 0
    assert json.loads(record.read_text())["scripts"]["toy"]["commit"] == "abc+"


def test_a_record_is_of_one_commit(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some scripts at another commit are compared and not recorded; a whole run begins a new record."""
    record = scripted(run, tmp_path, monkeypatch, writes(0.5))
    other = run.merged({}, "other", result("abc", FOUND, {}))
    record.write_text(json.dumps(other))
    monkeypatch.setattr(sys, "argv", ["run.py", "toy", "--record", str(record)])
    assert run.main() == 0
    assert json.loads(record.read_text())["scripts"].keys() == {"other", "toy"}
    monkeypatch.setattr(run, "tree", lambda: ("def", []))
    before = record.read_text()
    (tmp_path / "toy.py").write_text("import json, sys\n" + writes(0.8))
    assert run.main() == 1
    told = capsys.readouterr().out
    assert "worse: toy: rows / name sum / ratio_spread: 0.5, now 0.8" in told
    assert "not recorded" in told
    assert record.read_text() == before
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record)])
    assert run.main() == 1
    assert {name: one["commit"] for name, one in json.loads(record.read_text())["scripts"].items()} == {"toy": "def"}


def test_the_tree_is_that_of_the_repository(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New and changed files are named, but for those that benchmarks write; no repository is a changed one."""
    common = importlib.import_module("_common")
    monkeypatch.setattr(common, "RESULTS", tmp_path / "bench" / "results")
    (tmp_path / "bench").mkdir()
    (tmp_path / "docs").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert common.tree() == ("unknown", ["there is no commit"])

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *who, *words]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "code.py").write_text("1\n")
    git("add", ".")
    git("commit", "-m", "x")
    commit, changed = common.tree()
    assert len(commit) >= 7
    assert changed == []
    for name in ("bench/record.json", "docs/benchmarks.md", "docs/benchmarks-peers.png"):
        (tmp_path / name).write_text("1\n")
    assert common.tree() == (commit, [])
    (tmp_path / "code.py").write_text("2\n")
    (tmp_path / "bench" / "new.py").write_text("2\n")
    assert common.tree() == (commit, ["code.py", "bench/new.py"])


def test_a_script_that_fails_fails_the_run(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is named on the page."""
    record = scripted(run, tmp_path, monkeypatch, "sys.exit(3)\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--record", str(record)])
    assert run.main() == 1
    assert "ended with 3" in (tmp_path / "page.md").read_text()


def ended(pid: int) -> bool:
    """Return whether a process is gone, or waits only for its end to be read: soon, if it was killed."""
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


@pytest.mark.slow
def test_the_page_is_that_of_the_record(page: Any, tmp_path: Path) -> None:
    """Word for word, met and missed bars among it, with all its pictures; those of an earlier page are gone."""
    made = tmp_path / "benchmarks.md"
    page.write_page(json.loads((BENCH / "record.json").read_text(encoding="utf-8")), made)
    assert made.read_text() == (BENCH.parent / "docs" / made.name).read_text(encoding="utf-8")
    assert {file.stem for file in tmp_path.glob("*.png")} == {f"benchmarks-{one.name}" for one in page.PICTURES}
    page.write_page({}, made)
    assert list(tmp_path.glob("*.png")) == []
    assert not page.Verdict("x", "y", float("nan"), 1.0).met


def test_every_script_is_there(run: Any) -> None:
    """`make bench` runs no script that does not exist."""
    assert [script.name for script in run.SCRIPTS if not (BENCH / f"{script.name}.py").exists()] == []
