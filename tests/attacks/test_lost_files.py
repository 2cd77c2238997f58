"""Accidents with the ledger's files under a server that serves: what is no longer the directory's takes no debit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bursar_ledger import Ledger, LedgerLostError, LedgerUnavailableError, Role
from bursar_ledger._mark import OpenFiles
from bursar_proto.v1 import types_pb2
from bursar_server.admin.cli import main as admin
from bursar_server.state import State, StateError
from tests.asking import debit_of
from tests.attacks.asking import PATIENCE, Make, call
from tests.server.serving.conftest import Refusal

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve

Refused = Callable[[Callable[[], object]], Refusal]
LITTLE = types_pb2.Spend(rho=0.001)
TEXT = "the ledger cannot be used now; ask again with the same request_id, nothing is paid twice"


def _remove(*ends: str) -> Callable[[Path], object]:
    def harm(ledger: Path) -> None:
        for end in ends:
            ledger.with_name(ledger.name + end).unlink()

    return harm


def _replace(ledger: Path) -> None:
    new = ledger.with_name("new")
    new.write_bytes(ledger.read_bytes())
    new.replace(ledger)


ACCIDENTS: dict[str, Callable[[Path], object]] = {
    "-wal and -shm removed": _remove("-wal", "-shm"),
    "-shm removed": _remove("-shm"),
    "mark removed": _remove("-mark"),
    "database replaced": _replace,
    "database removed": _remove(""),
    "database linked": lambda ledger: os.link(ledger, ledger.with_name("other")),
}


def _health(served: Harness) -> int:
    stub = health_pb2_grpc.HealthStub(served.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status)


def taken_after_the_accident(
    served: Harness, fit_request: Make, refused: Refused, harm: Callable[[Path], object]
) -> int:
    """Return how many fits read rows after an accident, of two that are asked for, and one that was debited before."""
    served.fit.hold.clear()
    first = call(served, fit_request(request_id="first", spend=LITTLE))
    assert served.fit.started.wait(PATIENCE)
    second = call(served, fit_request(request_id="second", spend=LITTLE))  # debited, and waits for the one worker
    for answers in (first, second):
        assert next(iter(answers)).HasField("receipt")
    debits, runs = served.entries("debit"), served.fit.runs
    assert (debits, runs) == (2, 1)
    harm(served.state.ledger)
    served.fit.hold.set()
    for name in ("third", "fourth"):
        refusal = refused(lambda name=name: list(call(served, fit_request(request_id=name, spend=LITTLE))))  # type: ignore[misc]
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "LEDGER_UNAVAILABLE")
        assert refusal.text == TEXT
    for answers in (first, second):
        assert refused(lambda answers=answers: list(answers)).code is grpc.StatusCode.UNAVAILABLE  # type: ignore[misc]
    assert served.entries("debit") == debits
    return served.fit.runs - runs


@pytest.mark.parametrize("harm", ACCIDENTS.values(), ids=ACCIDENTS)
def test_nothing_is_drawn_from_a_ledger_whose_files_are_gone(
    serve: Serve, fit_request: Make, refused: Refused, harm: Callable[[Path], object]
) -> None:
    """New fits are refused in a constant text; what was debited and has not begun does not begin."""
    served = serve(fit_workers=1)
    assert taken_after_the_accident(served, fit_request, refused, harm) == 0
    with pytest.raises(LedgerUnavailableError):
        served.ledger.check_files()


def test_health_says_that_files_are_gone(served: Harness) -> None:
    """The next look at the files says so, without a request."""
    ACCIDENTS["-wal and -shm removed"](served.state.ledger)
    for _ in range(round(PATIENCE)):
        if _health(served) == health_pb2.HealthCheckResponse.NOT_SERVING:
            break
        served.fit.started.clear()
        served.fit.started.wait(1.0)
    assert _health(served) == health_pb2.HealthCheckResponse.NOT_SERVING


def test_the_rival_pays_into_files_that_are_gone(
    serve: Serve, fit_request: Make, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same accident on a server that compares its files at the start only: it debits, reads and releases."""
    monkeypatch.setattr(OpenFiles, "problem", lambda _: None)
    with pytest.raises(pytest.fail.Exception):
        taken_after_the_accident(serve(fit_workers=1), fit_request, refused, ACCIDENTS["-wal and -shm removed"])


def test_two_histories_are_never_begun(served: Harness, fit_request: Make) -> None:
    """Commands beside a server whose -wal is gone are refused; once they began a second entry of one number."""
    list(call(served, fit_request(request_id="before")))
    newest = served.ledger.newest()
    _remove("-wal", "-shm")(served.state.ledger)
    state = ["--state", str(served.state.path)]
    for command in (
        ["call-limit", "set", "people", "--share", "50%"],
        ["call-limit", "set", "people", "--share", "50%", "--dry-run"],
        ["token", "issue", "--name", "eve", "--role", "analyst"],
        ["datasets"],
        ["backup", str(served.state.path.with_name("copy"))],
    ):
        result = CliRunner().invoke(admin, [*command, *state])
        assert result.exit_code == 1, result.output
        assert "another process has" in result.output
        assert "SIGTERM" in result.output
    assert not served.state.ledger.with_name("ledger.sqlite-wal").exists()
    served.stop()
    served.ledger.close()  # as the end of a server does; SQLite writes what it holds
    with Ledger.open(served.state.ledger) as ledger:
        assert ledger.newest() == newest


def test_a_kill_after_the_accident_forgets_nothing_silently(served: Harness, fit_request: Make) -> None:
    """The files that are left lack the debits, and the next start says which."""
    list(call(served, fit_request(request_id="before", spend=types_pb2.Spend(rho=0.001))))
    newest = served.ledger.newest()[0]
    left = served.state.path.with_name("left")
    left.mkdir()
    for end in ("", "-mark"):
        name = served.state.ledger.name + end
        (left / name).write_bytes((served.state.path / name).read_bytes())
    with pytest.raises(LedgerLostError, match=rf"to {newest} are lost"):
        Ledger.open(left / "ledger.sqlite")


@pytest.mark.parametrize("lock", ["serving", "importing", "sketching"])
def test_no_lock_can_be_deleted(state: State, lock: str) -> None:
    """Locks are on directories that nothing works without; once a file could be removed, and let a second server in."""
    files = {path for path in state.path.rglob("*") if path.is_file()}
    with getattr(state, lock)():
        assert {path for path in state.path.rglob("*") if path.is_file()} == files
        with pytest.raises(StateError, match="another"), getattr(State(state.path), lock)():
            raise AssertionError("two at once")
    with getattr(state, lock)():
        pass


def test_an_administrators_acts_beside_load_keep_one_history(served: Harness, fit_request: Make) -> None:
    """Commands in processes' own connections between debits: one chain, and the mark names its end."""
    state = ["--state", str(served.state.path)]
    for number in range(4):
        list(call(served, fit_request(request_id=f"r{number}", spend=types_pb2.Spend(rho=0.001))))
        for share in ("50%", "40%"):
            result = CliRunner().invoke(admin, ["call-limit", "set", "people", "--share", share, *state])
            assert result.exit_code == 0, result.output
    assert debit_of(served.ledger, "the-analyst", "r3") is not None
    assert served.tokens[Role.ANALYST]
    served.stop()
    served.ledger.close()
    with Ledger.open(served.state.ledger) as ledger:
        assert ledger.newest()[0] == sum(1 for _ in ledger.entries())
