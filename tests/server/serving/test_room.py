"""Fits that a server has no room for: refused before the debit, or asked for again under it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from bursar_ledger import verify
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc
from bursar_server.config import Config
from bursar_server.jobs import hardening
from bursar_server.jobs.errors import INTERNAL_TEXT
from bursar_server.jobs.job import CutOffError, NoRoomError, NotBegunError, NothingReadError
from bursar_server.jobs.runner import InProcess
from bursar_server.jobs.sandbox import Children, FitLimits
from bursar_server.tables import Keyring, _snapshot
from bursar_server.tables._errors import is_shortage
from bursar_server.wire.server import most_connections
from tests.server.serving.naughty import MEMORY_MIB, PATIENCE, Few, Naughty, job, model, nothing, run_in, silent

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal, Serve

pytestmark = pytest.mark.forks

Make = Callable[..., fit_pb2.FitDPEMRequest]
Refused = Callable[[Callable[[], object]], "Refusal"]


@contextlib.contextmanager
def no_descriptor() -> Iterator[None]:
    """Take every descriptor that this process may still have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds(), hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:  # places below the limit that others have left
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def fit(served: Harness, message: fit_pb2.FitDPEMRequest) -> list[fit_pb2.FitDPEMResponse]:
    """Everything that a fit answers."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    return list(stub.FitDPEM(message, metadata=served.bearer(), timeout=PATIENCE))


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Fits in processes."""
    with Children({"FitDPEM": Naughty(tmp_path)}, FitLimits(MEMORY_MIB, PATIENCE)) as made:
        made.ready()
        yield made


def test_what_was_reserved_is_enough(children: Children) -> None:
    """A fit needs no descriptor of the server beyond those that it had before its debit."""
    with children.reserve() as reserved, no_descriptor():
        assert model(reserved.run(job(nothing), silent)).iterations == 2


def test_without_descriptors_nothing_is_reserved(children: Children) -> None:
    """The lack is found before the debit, and leaves none open."""
    with no_descriptor(), pytest.raises(NoRoomError), children.reserve():
        pass
    before = psutil.Process().num_fds()
    assert model(run_in(children, job(nothing), silent)).iterations == 2
    assert psutil.Process().num_fds() == before


def test_a_fit_may_have_high_descriptors(children: Children) -> None:
    """Numbers of 1,024 and above, which many connections bring about, do not lose it after its debit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this machine allows no more than 1,200 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        assert model(run_in(children, job(nothing), silent)).iterations == 2
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_parent_of_fits_without_descriptors_lives_on(tmp_path: Path) -> None:
    """The fit was never begun, and its caller may ask again."""
    naughty = Naughty(tmp_path)
    # In the parent of fits alone, which has three standard ones, its socket, a pipe, and room for one more at most.
    naughty.warm_up = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))  # type: ignore[attr-defined]
    with Children({"FitDPEM": naughty}, FitLimits(MEMORY_MIB, PATIENCE)) as children:
        children.ready()
        for _ in range(3):
            with pytest.raises(NotBegunError):
                run_in(children, job(nothing), silent)
        assert not children.lost
    assert not (tmp_path / "runs").exists()


def test_ends_without_a_draw_are_told_apart(children: Children) -> None:
    """Killed by the server, rows that could not be opened, never begun: only the second may depend on rows."""
    with children.reserve() as reserved:
        reserved.kill()
        with pytest.raises(CutOffError):
            reserved.run(job(nothing), silent)
    with pytest.raises(NothingReadError) as unread:
        run_in(children, job(nothing, rows=Few(there=False)), silent)
    assert not isinstance(unread.value, NotBegunError)
    with pytest.raises(NotBegunError):
        run_in(children, job(nothing, engine=lambda: None), silent)


def test_no_room_is_told_before_the_debit(
    serve: Serve, fit_request: Make, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UNAVAILABLE with advice; neither a debit nor a place is lost by it, however often."""
    served = serve(fit_workers=1, queue_length=0)

    def full(_: object) -> None:
        raise NoRoomError from OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "reserve", full)
        for _ in range(3):
            refusal = refused(lambda: fit(served, fit_request()))
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ROOM")
            assert "nothing was debited" in refusal.text
        assert served.entries("debit") == 0
    assert fit(served, fit_request())[-1].HasField("model")


@pytest.mark.parametrize("lacking", ["the snapshot", "its secret"])
def test_rows_that_cannot_be_compared_now_are_no_finding(
    serve: Serve, fit_request: Make, refused: Refused, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """A server without descriptors says so before the debit, and takes the same rows once it has some again."""
    served = serve()

    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        if lacking == "the snapshot":
            patch.setattr(_snapshot, "_opened", full)
        else:
            patch.setattr(Keyring, "load", full)
        for _ in range(2):
            refusal = refused(lambda: fit(served, fit_request()))
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ROOM")
        assert served.entries("debit") == 0
    assert fit(served, fit_request())[-1].HasField("model")


@pytest.mark.parametrize(("number", "expected"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.ENOMEM, False)])
def test_a_lack_of_memory_is_no_shortage(number: int, *, expected: bool) -> None:
    """Memory for a table depends on how many rows it has; a fit told so after its debit would tell that number."""
    assert is_shortage(OSError(number, "")) is expected


@pytest.mark.parametrize(
    ("error", "recovery", "code", "reason"),
    [
        (NotBegunError, "rerun", grpc.StatusCode.UNAVAILABLE, "FIT_NOT_BEGUN"),
        (NotBegunError, "lost", grpc.StatusCode.DATA_LOSS, "RELEASE_LOST"),
        (NothingReadError, "rerun", grpc.StatusCode.INTERNAL, "INTERNAL"),
        (NothingReadError, "lost", grpc.StatusCode.DATA_LOSS, "RELEASE_LOST"),
    ],
)
def test_a_fit_that_read_nothing_runs_again_under_its_debit(
    serve: Serve,
    fit_request: Make,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    recovery: str,
    code: grpc.StatusCode,
    reason: str,
) -> None:
    """Asking again is advised where the cause depends on no row; else the text is that of every failure."""
    served = serve(recovery=recovery)

    def unable(*_: object) -> bytes:
        raise error from OSError()

    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "run", unable)
        refusal = refused(lambda: fit(served, fit_request()))
    assert (refusal.code, refusal.reason) == (code, reason)
    assert (refusal.text == INTERNAL_TEXT) == (reason == "INTERNAL")
    assert served.entries("release") == 0
    if recovery == "rerun":
        assert fit(served, fit_request())[-1].HasField("model")
        assert served.fit.runs == 1
    else:
        assert refused(lambda: fit(served, fit_request())).reason == "RELEASE_LOST"
    assert served.entries("debit") == 1
    assert verify(served.state.ledger).problems == ()


def test_a_server_raises_its_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit rises to the hard one, at most 65,536; a higher one stays."""
    now: dict[str, Any] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda _: now["limit"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: now.update(limit=limit))
    infinite = resource.RLIM_INFINITY
    for before, after in (
        ((1024, 4096), (4096, 4096)),
        ((1024, 2**20), (65_536, 2**20)),
        ((1024, infinite), (65_536, infinite)),
        ((2**17, 2**20), (2**17, 2**20)),
        ((infinite, infinite), (infinite, infinite)),
    ):
        now["limit"] = before
        hardening.raise_descriptor_limit()
        assert now["limit"] == after
        assert hardening.descriptor_limit() == (65_536 if after[0] == infinite else after[0])


def test_connections_leave_descriptors_for_fits() -> None:
    """Every fit that runs or waits has some, and files; half of all if there are few."""
    config = Config(fit_workers=4, queue_length=16)
    assert most_connections(config, 1024) == 1024 - 64 - 4 * 22
    assert most_connections(config, 128) == 64
