"""State directories of earlier versions are served by this one: what was spent, released and promised is as it was."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from bursar_ledger import DatasetState, DebitRequest, GaussianEvent, Ledger, Verification, verify
from bursar_ledger.audit.cli import main as audit
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc
from bursar_server.admin.cli import main as admin
from bursar_server.auth import hash_token
from bursar_server.checking import check
from bursar_server.checkpointing import open_checkpoints
from bursar_server.config import Config
from bursar_server.state import State
from bursar_server.tls import Certificates
from tests.console import lines, matches
from tests.states.make import ROOT, VERSIONS, facts, unpack

PATIENCE = 240.0


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with an earlier version's state directory, and what its clients saw."""
    unpacked(request.param, tmp_path)
    return tmp_path


def unpacked(version: str, folder: Path) -> State:
    """An earlier version's state directory, with certificates of now."""
    unpack(version, folder)
    state = State.open(folder / "state")
    for path in (state.path, *filter(Path.is_dir, state.path.rglob("*"))):
        path.chmod(0o700)
    state.tls.mkdir(mode=0o700)
    Certificates(state.tls).create()
    return state


def _admin(state: State, *words: str) -> str:
    result = CliRunner().invoke(admin, [*words, "--state", str(state.path)])
    assert result.exit_code == 0, result.output
    return result.output


def _sums(found: Verification) -> dict[str, tuple[Any, ...]]:
    return {
        one.name: (one.spent_cost_units, one.spent_delta_units, one.cap_cost_units, one.order, one.debits, one.analysts)
        for one in found.accounts
    }


def _spent(state: DatasetState) -> tuple[Any, ...]:
    return state.account, state.spent_cost_units, state.spent_delta_units, state.cap_cost_units, state.content_tag


def test_what_was_promised_and_spent_is_as_it_was(old: Path) -> None:
    """Nothing is rewritten: every old entry has its hash; sums, limits, releases and tokens are the same."""
    state, known = State.open(old / "state"), facts(old)
    before = verify(state.ledger)
    assert before.problems == ()
    with closing(sqlite3.connect(state.ledger)) as file:
        stored = dict(file.execute("SELECT debit, content FROM releases").fetchall())
    with Ledger.open(state.ledger) as ledger:
        assert ledger.hash_at(before.entries) == before.head
        for token in known["tokens"].values():
            assert ledger.credential(hash_token(token)) is not None
        released = [record for record in ledger.releases() if record.released]
        assert len(released) == len(known["released"])
        for record, (method, _, answers) in zip(released, known["released"], strict=True):
            assert record.method == method
            assert ledger.release(record.entry) == stored[record.entry]
            assert stored[record.entry] == bytes.fromhex(answers[-1])
        event = GaussianEvent(1, Fraction(1000))
        ledger.debit(DebitRequest("people", "alice", "new", bytes(32), "FitDPEM", (event,)))
    after = verify(state.ledger)
    assert after.problems == ()
    for name, (spent, _, cap, order, debits, _) in _sums(before).items():
        now = _sums(after)[name]
        assert (now[2], now[3]) == (cap, order)
        assert now[0] - spent in ((0,) if name != "people" else range(1, 2**40))
        assert now[4] - debits == (name == "people")


def test_who_might_see_one_table_still_may_see_that_one_only(tmp_path: Path) -> None:
    """Tokens of then keep what they were issued for: tables, and an end."""
    state = unpacked("shared-key", tmp_path)
    tokens = facts(tmp_path)["tokens"]
    with Ledger.open(state.ledger) as ledger:
        bob, alice = (ledger.credential(hash_token(tokens[name])) for name in ("bob", "alice"))
    assert bob is not None
    assert alice is not None
    assert (bob.datasets, alice.datasets) == (("towns",), None)
    assert str(bob.expires) > "2036"


def test_its_owner_goes_on(old: Path) -> None:
    """Rows that come again are recognised though every table gets its own key now; old tables are as they were."""
    state = State.open(old / "state")
    assert [finding for finding in check(state.path, rows=True) if finding.fatal and finding.problem] == []
    with Ledger.open(state.ledger) as ledger:
        before = _spent(ledger.dataset("people"))
    manifest = old / "once-more.toml"
    manifest.write_text((old / "people.toml").read_text().replace('"people"', '"once-more"'))
    output = _admin(state, "import", "--manifest", str(manifest), "--csv", str(old / "people.csv"))
    assert "these rows are known" in output
    with Ledger.open(state.ledger) as ledger:
        assert ledger.dataset("once-more").account == "people"
        assert _spent(ledger.dataset("people")) == before
    for name in ("people", "towns"):
        _admin(state, "rekey", name)
    if "again" in _admin(state, "datasets"):
        _admin(state, "rekey", "again")
    destroy = ("--delete-rows", "--destroy-key", "--yes", "--reason", "end of the study")
    _admin(state, "retire", "people", *destroy)
    assert not (state.keys / "tables.key").exists()
    assert [finding for finding in check(state.path, rows=True) if finding.fatal and finding.problem] == []
    assert verify(state.ledger).problems == ()


def test_it_gets_its_checkpoints(old: Path) -> None:
    """A ledger from before them gets key and place at the first start; the notes of others agree."""
    state = State.open(old / "state")
    config = Config.load(state.config)
    with Ledger.open(state.ledger) as ledger:
        open_checkpoints(state, ledger, config)
    _admin(state, "checkpoint", "write")
    with Ledger.open(state.ledger) as ledger:
        open_checkpoints(state, ledger, config)


@pytest.mark.slow
def test_it_is_served(old: Path) -> None:
    """Old releases come byte for byte for nothing, what was cut off runs under its debit, new fits are paid."""
    state, known = State.open(old / "state"), facts(old)
    with Ledger.open(state.ledger) as ledger:
        debits = len(ledger.releases())
    command = [sys.executable, "-m", "bursar_server", "run", "--state", str(state.path), "--address", "127.0.0.1:0"]
    with (
        (old / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            where = server.stdout.readline().split()[-1]
            credentials = grpc.ssl_channel_credentials((state.tls / "ca.pem").read_bytes())
            with grpc.secure_channel(where, credentials) as channel:
                stub = fit_pb2_grpc.FitServiceStub(channel)
                bearer = (("authorization", f"Bearer {known['tokens']['alice']}"),)
                for method, asked, answers in known["released"]:
                    request = getattr(fit_pb2, f"{method}Request").FromString(bytes.fromhex(asked))
                    again = list(getattr(stub, method)(request, metadata=bearer, timeout=PATIENCE))
                    assert again[-1].SerializeToString() == bytes.fromhex(answers[-1])
                    assert again[0].receipt == type(again[0]).FromString(bytes.fromhex(answers[0])).receipt
                cut_off = fit_pb2.FitDPEMRequest.FromString(bytes.fromhex(known["cut_off"]))
                finished = list(stub.FitDPEM(cut_off, metadata=bearer, timeout=PATIENCE))
                assert finished[-1].HasField("model")
                cut_off.request_id = "new"
                fresh = list(stub.FitDPEM(cut_off, metadata=bearer, timeout=PATIENCE))
                assert fresh[-1].HasField("model")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(PATIENCE)
    with Ledger.open(state.ledger) as ledger:
        records = ledger.releases()
    assert len(records) == debits + 1
    assert all(record.released for record in records)
    assert verify(state.ledger).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_its_own_version_refuses_it_afterwards(version: str, tmp_path: Path) -> None:
    """By name and without a change: an older version does not know what the newer one enters."""
    commit, module = VERSIONS[version]
    command = ["git", "archive", commit, "client", "server", "ledger", "proto"]
    archive = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the history up to {commit} is not here")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path / "tree", filter="data")
    state = unpacked(version, tmp_path)
    _admin(state, "token", "revoke", "--name", "eve")
    head = verify(state.ledger).head
    path = os.pathsep.join(str(tmp_path / "tree" / part) for part in ("client", "server", "ledger", "proto"))
    then = [sys.executable, "-c", f"from {module} import main; main()", "token", "issue", "--name", "late"]
    done = subprocess.run(
        [*then, "--role", "analyst", "--state", str(state.path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    # The first version knew of no other: to it, what it does not know is damage.
    expected = {"first": "does not belong into a ledger of this version"}.get(version, "newer version")
    assert expected in done.stderr
    assert version == "first" or "0003_destructions" in done.stderr
    assert verify(state.ledger).head == head


def test_the_page_about_upgrades_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines, typed in on a directory of an earlier version."""
    state = unpacked("accounts", tmp_path)
    monkeypatch.chdir(tmp_path)
    programs = {"bursar-admin": admin, "bursar-audit": audit}
    typed = list(lines(ROOT / "docs" / "howto-upgrade.md"))
    assert len(typed) >= 5
    for line, said in typed:
        words = shlex.split(line)
        result = CliRunner().invoke(programs[words[0]], words[1:], prog_name=words[0])
        assert result.exit_code == 0, f"$ {line}\n{result.output}"
        assert matches(said, result.output), f"$ {line}\n{result.output}"
    assert verify(state.ledger).problems == ()
