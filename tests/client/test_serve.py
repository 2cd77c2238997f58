"""`bursar.testing.serve`: a real server, with its ledger, its refusals and its noise."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import bursar
from bursar._served import synthetic_rows
from bursar.testing import Server, serve

SCHEMA = """
name = "{name}"
adjacency = "add_remove_one"
[[columns]]
name = "height"
kind = "numeric"
lower = 100.0
upper = 220.0
"""


def test_a_fit_is_charged_and_released(toys: Server) -> None:
    """A receipt with an entry of the ledger, less budget than before, and the same model again."""
    token = toys.token("charged")
    with toys.client(token=token) as client:
        toy = client.dataset("toy")
        before = toy.remaining().cost_units
        preview = toy.preview(bursar.DPEM(n_components=2), spend=bursar.rho(0.001))
        model = toy.fit(bursar.DPEM(n_components=2), spend=bursar.rho(0.001))
        assert model.receipt is not None
        assert toy.remaining().cost_units == before - preview.price.cost_units
        assert [release.entry for release in toy.releases()] == [model.receipt.entry]
        again = client.model(model.receipt.entry)
        assert isinstance(again, bursar.GaussianMixture)
        np.testing.assert_array_equal(again.means_, model.means_)


def test_it_refuses_what_servers_refuse(toys: Server) -> None:
    """More than the budget, more components than a server allows, a dataset that is not there, a role."""
    with toys.client() as client, toys.client("auditor") as auditor:
        toy = client.dataset("toy")
        with pytest.raises(bursar.BudgetExhaustedError):
            toy.fit(bursar.DPEM(n_components=2), spend=bursar.rho(1e6))
        with pytest.raises(bursar.InvalidRequestError, match="n_components"):
            toy.fit(bursar.DPEM(n_components=300), spend=bursar.rho(0.01))
        with pytest.raises(bursar.NotFoundError):
            client.dataset("nothing")
        with pytest.raises(bursar.PermissionDeniedError):
            auditor.dataset("toy").fit(bursar.DPEM(n_components=2), spend=bursar.rho(0.01))
        assert auditor.audit.verify().ok


def test_rows_may_be_given(toys: Server, tmp_path: Path) -> None:
    """Rows are given by name, or as a CSV file; the release is about them."""
    heights = {"height": [110.0, 130.0] * 200}
    (tmp_path / "rows.csv").write_text("height\n" + "110\n130\n" * 200, encoding="utf-8")
    (tmp_path / "table.toml").write_text(SCHEMA.format(name="filed"), encoding="utf-8")
    names = [
        toys.add_table(SCHEMA.format(name="given"), heights, budget=bursar.epsilon_delta(1e4, 1e-6)),
        toys.add_table(tmp_path / "table.toml", tmp_path / "rows.csv", budget=bursar.epsilon_delta(1e4, 1e-6)),
    ]
    assert names == ["given", "filed"]
    with toys.client() as client:
        for name in names:
            model = client.dataset(name).fit(bursar.DPEM(n_components=1), spend=bursar.rho(1000))
            np.testing.assert_allclose(model.means_, [[120.0]], atol=1.0)


def test_synthetic_rows_keep_to_the_schema() -> None:
    """Bounds, bins, categories, missing values and units as declared; the same for the same seed."""
    fields = {
        "public_rows": 500,
        "unit": {"column": "person", "max_rows": 2},
        "columns": [
            {"name": "x", "kind": "numeric", "lower": -1.0, "upper": 1.0, "nullable": True},
            {"name": "y", "kind": "numeric", "lower": 0.0, "upper": 10.0, "bins": 5},
            {"name": "z", "kind": "numeric", "lower": 0.0, "upper": 9.0, "bins": [0.0, 1.0, 9.0]},
            {"name": "town", "kind": "categorical", "categories": ["here", "there"]},
        ],
    }
    rows = synthetic_rows(fields, None, 7)
    assert {name: len(cells) for name, cells in rows.items()} == dict.fromkeys(["x", "y", "z", "town", "person"], 500)
    assert "" in rows["x"]
    assert all(-1 <= x <= 1 for x in rows["x"] if x != "")
    assert np.histogram(rows["y"], [0, 2, 4, 6, 8, 10])[0].min() > 70
    assert 180 < sum(z <= 1 for z in rows["z"]) < 320
    assert set(rows["town"]) == {"here", "there"}
    assert len(set(rows["person"])) == 500
    assert rows == synthetic_rows(fields, 500, 7) != synthetic_rows(fields, 500, 8)


@pytest.mark.slow
def test_errors_have_the_servers_message(toys: Server) -> None:
    """Errors are of the manifest, and of the settings."""
    with pytest.raises(RuntimeError, match=r'import --manifest.*adjacency: missing; expected "replace_one"'):
        toys.add_table(SCHEMA.format(name="bad").replace('adjacency = "add_remove_one"\n', ""))
    with (
        pytest.raises(RuntimeError, match=r"serve.*colour"),
        serve(SCHEMA.format(name="a"), settings={"colour": "red"}),
    ):
        pass


def _accepts(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_nothing_is_left_when_the_program_is_killed(tmp_path: Path) -> None:
    """The server ends with the process that asked for it, however that ends."""
    program = f"""
import bursar.testing, os, time
with bursar.testing.serve({SCHEMA.format(name="a")!r}) as server:
    print(server.address, flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-Ic", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
    (state,) = tmp_path.glob("bursar-*/state")
    host, _, port = address.rpartition(":")
    until = time.monotonic() + 600
    while time.monotonic() < until and _accepts(host, int(port)):
        time.sleep(0.05)
    assert not _accepts(host, int(port))
    assert state.is_dir()


def test_without_the_server_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client alone has no server to run."""
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\")", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        pytest.raises(bursar.MissingDependencyError, match=r"pip install './bursar\[server\]'"),
        serve(SCHEMA.format(name="a")),
    ):
        pass
