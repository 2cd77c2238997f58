"""The first hour in one go: answers on standard input, a server at the end, and the lines for the analyst."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE
from tests.ports import free_port

pytestmark = pytest.mark.slow

ANSWERS = (
    *("utf-8", "", "", "Members", "yes", "none", "1000", "1,234.5"),
    *("age", "", "", "yes", "999"),
    *("boolean", "yes, 1", "no, 0", ""),
    *("money", "", "50000", "", "n/a"),
    *("", "", "yes", "alice"),
)


def test_from_a_file_to_a_model(tmp_path: Path) -> None:
    """The printed lines connect, and fit: nothing but the file, the answers and what was printed is needed."""
    rows = [f'{20 + i % 60},{"yes" if i % 3 else "NO"},"{i % 30},{i % 10}50.5"\n' for i in range(400)]
    (tmp_path / "people.csv").write_text("age,smoker,income\n999,yes,n/a\n" + "".join(rows))
    words = ["-m", "bursar_server.admin", "quickstart", "people.csv", "--port", str(free_port()), "--start"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        guard = threading.Timer(PATIENCE, process.kill)
        guard.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("".join(f"{answer}\n" for answer in ANSWERS))
            process.stdin.close()
            printed = ""
            while "serving on" not in printed:
                line = process.stdout.readline()
                assert line, printed + (tmp_path / "log").read_text()
                printed += line
            sent = tmp_path / "sent"
            sent.mkdir()
            for what in ("token", "authority"):
                found = re.search(rf"^  {what} +(\S+)$", printed, re.MULTILINE)
                assert found is not None, printed
                shutil.copy(tmp_path / found[1], sent)
            lines = printed[printed.index("import bursar\n") :].partition("\n\n")[0]
            (fit,) = re.findall(r'^print\(client.dataset\("people"\).fit.+$', printed, re.MULTILINE)
            (sent / "first.py").write_text(f"{lines}\n{fit}\n")
            told = subprocess.run(
                [sys.executable, "first.py"], cwd=sent, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
            assert told.returncode == 0, told.stderr
            assert "income" in told.stdout
            assert "MarkovRandomField: 1 columns" in told.stdout
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
            guard.cancel()
    assert process.returncode == 0
