"""`make demo`, end to end: what it prints, what it leaves behind, and that the guides' code runs against its server."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

import bursar
from bursar._cli._app import app
from bursar_ledger import Ledger, verify
from bursar_ledger.audit.cli import main as audit
from tests.console import lines, matches
from tests.pages import WITH_CODE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
EXPORT = re.compile(r'export (BURSAR_\w+)="(.*)"')


def _demo(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "demo", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@dataclass(frozen=True)
class Demo:
    """A demo whose server goes on after the tour.

    Attributes:
        folder: where it keeps everything.
        process: still running.
        printed: until the tour's end.
        variables: what it says to export in another terminal.
    """

    folder: Path
    process: subprocess.Popen[str]
    printed: str
    variables: dict[str, str]

    def debits(self) -> int:
        """Number of debits in the ledger."""
        with Ledger.open(self.folder / "state" / "ledger.sqlite") as ledger:
            return [entry.kind for entry in ledger.entries()].count("debit")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The whole tour, once; the server serves until the module's last test."""
    folder = tmp_path_factory.mktemp("demo") / "demo-state"
    with _demo("--state", folder, "--serve") as process:
        try:
            lines: list[str] = []
            for line in process.stdout or ():
                lines.append(line)
                if line.startswith("export BURSAR_CA"):
                    break
            printed = "".join(lines)
            variables = dict(EXPORT.findall(printed))
            assert variables, printed
            variables["BURSAR_TOKEN"] = (folder / "alice.token").read_text().strip()
            yield Demo(folder, process, printed, variables)
        finally:
            process.terminate()


@pytest.mark.parametrize(
    "line",
    [
        r"registered rand-hie with \(epsilon, delta\) = \(3, 1e-06\)",
        r"token of alice written",
        r"serving on 127\.0\.0\.1:\d+",
        r"20190 rows; privacy unit: one row; REPLACE_ONE; total budget: epsilon 3, delta 1e-06",
        r"Preview: debits epsilon 1 \(13\.2%\) of epsilon 3 \(100%\) left; affordable, 7 like it are left",
        r"receipt: entry 9, debited epsilon 1 \(13\.2%\), left epsilon 2\.78 \(86\.8%\)",
        r"receipt: entry 11, debited epsilon 1 \(13\.2%\), left epsilon 2\.54 \(73\.6%\)",
        r"the stored release came again.*Debited: nothing",
        r"BudgetExhaustedError:(.|\n)*epsilon\s+2\.54\s+\(73\.6%\)(.|\n)*Nothing\s+was\s+debited",
        r"left, unchanged: epsilon 2\.54 \(73\.6%\)",
        r"bob may spend 1/10 of the account rand-hie",
        r"receipt: entry 13, debited epsilon 0\.43 \(2\.7\d?%\), left epsilon 2\.49 \(70\.9%\)",
        r"the server decodes it, too: 3 clusters from entry 13, debited nothing",
        r"the tree, with mutual information in nats: (\w+ - \w+ \d\.\d{3}(, )?){3}\n",
        r"receipt: entry 15, debited epsilon 0\.43 \(2\.7\d?%\), left epsilon 2\.44 \(68\.2%\)",
        r"receipt: entry 17, debited epsilon 0\.864 \(10%\), left epsilon 2\.24 \(58\.2%\)",
        r"left to him: epsilon 0\.864 \(10%\)",
        r"left to him: epsilon 0 \(0%\)",
        r"second opinion: dp-accounting",
        r"signed checkpoints; history is witnessed up to entry \d+",
        r"wrote .*report\.html",
        r"verified: chain, sums, caps",
        r"receipts \(entries 9, 11, 13, 15, 17\) have the hashes",
    ],
)
def test_the_tour_says_what_happened(demo: Demo, line: str) -> None:
    """Every step of the path shows in the output: prices and refusals are the same in every run."""
    assert re.search(line, demo.printed), demo.printed


def test_the_released_plans_are_those_of_the_experiment(demo: Demo) -> None:
    """The four coinsurance plans come out at their rates and sizes; free care has more visits than the full price."""
    table = demo.printed.split("She fits a mixture")[1].split("receipt:")[0]
    rows = [list(map(float, re.findall(r"-?[\d.]+", line))) for line in table.splitlines() if "." in line]
    shares, rates, visits = ([row[i] for row in rows] for i in range(3))
    assert rates == pytest.approx([0, 25, 50, 96], abs=5)
    assert shares == pytest.approx([54, 20, 7, 18], abs=5)
    # About 0.9 apart with a standard deviation of 0.08.
    assert visits[0] - visits[3] > 0.2


def test_the_released_tree_is_that_of_the_experiment(demo: Demo) -> None:
    """Self-rated health and chronic diseases go together, and synthetic rows have the original answers."""
    text = demo.printed.split("She lets the server choose")[1].split("receipt:")[0]
    assert "diseases - health" in text
    shares = dict(re.findall(r"(excellent|good|fair|poor) (\d+\.\d)%", text))
    # 4 % and 25 %, about.
    assert float(shares["excellent"]) < float(shares["fair"])
    table = text.split("drawn from the model:\n")[1].splitlines()[:6]
    assert table[0].split() == ["coinsurance", "visits", "diseases", "health"]
    assert all(line.split()[-1] in ("excellent", "good", "fair", "poor") for line in table[1:])


def test_the_demo_leaves_a_picture_and_a_ledger_that_verifies(demo: Demo) -> None:
    """The pictures are PNGs; the ledger, read by the library, agrees with what the auditor's command said."""
    for picture in ("mixture.png", "field.png"):
        assert (demo.folder / picture).read_bytes().startswith(b"\x89PNG")
    assert verify(demo.folder / "state" / "ledger.sqlite").ok


def test_the_command_lines_tour_runs_against_the_demo(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of the page, in order, as a reader would type it, prints what the page says."""
    home = demo.folder.parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    for name, value in (demo.variables | {"HOME": str(home), "BURSAR_CONFIG": ""}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(home)
    monkeypatch.setattr("bursar._cli._fitting.at_terminal", lambda: True)
    typed = list(lines(ROOT / "docs" / "cli.md"))
    assert len(typed) > 15
    for line, said in typed:
        words = shlex.split(os.path.expandvars(line))[1:]
        result = CliRunner().invoke(app, words, input="y\n" if "[y/N]: y" in said else None)
        assert matches(said, result.output), f"$ {line}\n{result.output}"
        assert result.exit_code == (3 if "Error:" in said else 0)


def test_the_auditors_command_line_runs_on_the_demos_ledger(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of its page prints what the page says; what is not there has a status of its own."""
    monkeypatch.chdir(demo.folder.parent)
    typed = list(lines(ROOT / "docs" / "cli-audit.md"))
    assert len(typed) > 8
    for line, said in typed:
        result = CliRunner().invoke(audit, shlex.split(line)[1:], prog_name="bursar-audit")
        assert matches(said, result.output), f"$ {line}\n{result.output}"
        assert result.exit_code == (3 if "Error:" in said else 0)


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_guides_code_runs_against_the_demo(demo: Demo, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of a page, in order and in one namespace, as a reader would type it."""
    for name, value in demo.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(demo.folder.parent)
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {"__name__": page}
    try:
        for block in blocks:
            exec(compile(block, page, "exec"), namespace)  # noqa: S102 - our own pages
    finally:
        for thing in namespace.values():
            if isinstance(thing, bursar.Client):
                thing.close()


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    """It may hold a budget; the demo names it and ends."""
    (tmp_path / "ledger.sqlite").write_text("precious")
    with _demo("--state", tmp_path) as process:
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert "was not made by the demo" in printed
    assert (tmp_path / "ledger.sqlite").read_text() == "precious"


def test_ctrl_c_stops_the_server_in_order(demo: Demo) -> None:
    """Nothing of the demo runs after the tour's end and a Ctrl-C. The last test of this file: it ends the server."""
    assert demo.debits() >= 2
    demo.process.send_signal(signal.SIGINT)
    rest, _ = demo.process.communicate(timeout=600)  # against hanging for ever, not about speed
    assert demo.process.returncode == 0
    assert rest.endswith("The server has stopped.\n")
    assert "stopped" in (demo.folder / "server.log").read_text()
    with pytest.raises(bursar.UnavailableError):
        _datasets(demo)


def _datasets(demo: Demo) -> None:
    values = demo.variables
    with bursar.connect(values["BURSAR_ADDRESS"], token=values["BURSAR_TOKEN"], ca=values["BURSAR_CA"]) as client:
        client.datasets()
