"""Rows that were changed on the disk after their registration: no fit of them is paid for."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from bursar_ledger import DatasetState, Debit, Ledger, verify
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.ops.doctor import check
from bursar_server.tables import Identity, Keyring, KeysError, Snapshot, SnapshotError, rows_tag
from bursar_server.tables import catalogue as datasets_module
from bursar_server.tables._snapshot import identity_of
from bursar_server.tables.catalogue import Datasets, Registered, SnapshotSource, StoredRows
from bursar_server.vault import PaidBudget, RowSource
from tests.server.serving.conftest import Harness, Refusal, refusal_of, request, serve, state, template

__all__ = ["serve", "state", "template"]

Serve = Callable[..., Harness]
Harm = Callable[[Path], None]
CHEAP = types_pb2.Spend(rho=1e-4)


def fit(served: Harness, request_id: str = "r1") -> list[fit_pb2.FitDPEMResponse]:
    """Ask for a fit."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    return list(stub.FitDPEM(request(request_id=request_id, spend=CHEAP), metadata=served.bearer(), timeout=120))


def rows_of(served: Harness) -> Path:
    """Return the file of the dataset's rows."""
    registered = Registered.of(served.ledger.dataset("people").manifest)
    return served.state.datasets / registered.snapshot / "rows.arrow"


def rewrite(path: Path, content: bytes) -> None:
    """Change a file in its place, as a program that has it open would."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    path.chmod(0o400)


def flipped(place: float) -> Harm:
    """Flip one bit at a part of the file's length."""

    def harm(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[min(int(place * len(content)), len(content) - 1)] ^= 1
        rewrite(path, bytes(content))

    return harm


def valued(value: float) -> Harm:
    """Set a cell to a value."""

    def harm(path: Path) -> None:
        content = path.read_bytes()
        known = struct.pack("<d", 1.5)
        assert known in content
        rewrite(path, content.replace(known, struct.pack("<d", value)))

    return harm


def cut(path: Path) -> None:
    """Cut the end off."""
    rewrite(path, path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    """Leave no byte."""
    rewrite(path, b"")


def replaced(path: Path) -> None:
    """Put another table of the same shape in the place, by a rename, as a wrong restore would."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    other = path.with_name("other")
    with pa.OSFile(str(other), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch.take(pa.array(range(batch.num_rows - 1, -1, -1))))
    other.rename(path)


def swapped(path: Path) -> None:
    """Exchange two blocks of 64 bytes."""
    content = path.read_bytes()
    place = content.index(struct.pack("<d", 1.5)) // 64 * 64
    one, two = content[place - 64 : place], content[place : place + 64]
    rewrite(path, content[: place - 64] + two + one + content[place + 64 :])


def renamed(path: Path) -> None:
    """Move the manifest's bounds: the rows are the same, and what they mean is not."""
    manifest = path.with_name("manifest.json")
    fields = json.loads(manifest.read_text())
    fields["columns"][0]["upper"] = 4.0
    rewrite(manifest, json.dumps(fields).encode())


HARMS: dict[str, Harm] = {
    "bit at the begin": flipped(0.0),
    "bit in the middle": flipped(0.5),
    "bit at the end": flipped(1.0),
    "too large": valued(1e6),
    "no number": valued(float("nan")),
    "cut": cut,
    "emptied": emptied,
    "replaced": replaced,
    "swapped": swapped,
    "manifest": renamed,
}


def told(refusal: Refusal) -> tuple[Any, ...]:
    """Return all that a client sees of a refusal."""
    return refusal.code, refusal.text, refusal.reason, refusal.metadata, refusal.fields


def attack(served: Harness, harm: Harm, *, known: bool) -> tuple[Any, ...]:
    """Change the rows, before or after a first fit; check that nothing is paid for, and return what clients see."""
    if known:
        fit(served, "before")
    path, runs, head = rows_of(served), served.fit.runs, served.ledger.newest()
    manifest = path.with_name("manifest.json")
    saved = path.read_bytes(), manifest.read_bytes()
    harm(path)
    seen = told(refusal_of(lambda: fit(served)))
    assert told(refusal_of(lambda: fit(served, "r2"))) == seen
    assert served.fit.runs == runs
    assert served.ledger.newest() == head
    problems = [one for one in check(served.state.path, rows=True) if one.what == "dataset people"]
    assert problems[0].fatal
    assert problems[0].problem
    rewrite(path, saved[0])
    rewrite(manifest, saved[1])
    *_, last = fit(served)
    assert last.HasField("model")
    assert verify(served.state.ledger).ok
    return seen


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", HARMS)
def test_changed_rows_are_refused_before_the_debit(serve: Serve, name: str, known: bool) -> None:
    """The change and earlier reads do not matter; once the rows are back, the same request is served."""
    code, text, reason, *_ = attack(serve(), HARMS[name], known=known)
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ROWS_UNAVAILABLE")
    assert "nothing was debited" in text
    assert "tell the administrator" in text


def _never(self: StoredRows, snapshot: str, *_: object) -> Any:
    return identity_of(self._directory / snapshot)


def _not_before_the_debit(self: Datasets, state: Any) -> None:
    """Compare where a worker opens the rows only."""


@pytest.mark.parametrize("bug", ["skipped", "first block", "after the debit", "manifest", "once for ever"])
def test_planted_bugs_are_noticed(serve: Serve, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    """An attack above succeeds without the comparison, with a part of it, or with it in a wrong place."""
    served, name, known = serve(), "too large", bug == "once for ever"
    if bug == "skipped":
        monkeypatch.setattr(StoredRows, "compare", _never)
    elif bug == "first block":
        begin, tag = (
            rows_of(served).read_bytes()[:256],
            Registered.of(served.ledger.dataset("people").manifest).rows_tag,
        )
        monkeypatch.setattr(
            datasets_module, "rows_tag", lambda *_: tag if rows_of(served).read_bytes()[:256] == begin else ""
        )
    elif bug == "after the debit":
        compare = Datasets.compare
        monkeypatch.setattr(Datasets, "compare", _not_before_the_debit)
        monkeypatch.setattr(
            Datasets,
            "rows",
            _compared_when_opened(compare),
        )
    elif bug == "manifest":
        name = "manifest"
        is_same = StoredRows._is_same
        monkeypatch.setattr(
            StoredRows,
            "_is_same",
            lambda self, folder, _, tag: is_same(self, folder, Snapshot.open(folder).manifest, tag),
        )
    else:
        monkeypatch.setattr(datasets_module, "identity_of", lambda folder: ((0,) * 5,) * 2)
        monkeypatch.setattr(datasets_module, "_as_compared", lambda folder, _: Snapshot.open(folder))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        assert attack(served, HARMS[name], known=known)[2] == "ROWS_UNAVAILABLE"


def _compared_when_opened(compare: Callable[[Datasets, DatasetState], Identity]) -> Callable[..., SnapshotSource]:
    """A `Datasets.rows` that finds the rows by itself, since `compare` is planted not to."""

    def rows(self: Datasets, debit: Debit, columns: tuple[str, ...]) -> SnapshotSource:
        state = self.state(debit.request.dataset)
        folder = self._directory / Registered.of(state.manifest).snapshot
        return SnapshotSource(PaidBudget(debit), folder, columns, compare(self, state))

    return rows


class _Changing(Datasets):
    """Rows that change after the debit, before they are opened or after the comparison."""

    harm: Callable[[], None]
    late = False

    def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
        if self.late:
            source = super().rows(debit, columns)
            self.harm()
            return source
        self.harm()
        return super().rows(debit, columns)


@pytest.mark.parametrize("late", [False, True])
def test_rows_that_change_after_a_debit_are_not_read(serve: Serve, late: bool) -> None:
    """Nothing is drawn; the debit stays, and the same request runs under it once the rows are back."""
    made: list[_Changing] = []

    def make(ledger: Ledger, directory: Path) -> Datasets:
        made.append(_Changing(ledger, directory))
        return made[0]

    served = serve(make_datasets=make)
    path = rows_of(served)
    saved = path.read_bytes()
    made[0].late, made[0].harm = late, lambda: valued(1e6)(path)
    assert refusal_of(lambda: fit(served)).reason == "INTERNAL"
    made[0].harm = lambda: None
    assert refusal_of(lambda: fit(served)).reason == "INTERNAL"
    assert refusal_of(lambda: fit(served, "r2")).reason == "ROWS_UNAVAILABLE"
    assert (served.fit.runs, served.entries("debit")) == (0, 1)
    rewrite(path, saved)
    *_, last = fit(served)
    assert last.HasField("model")
    assert (served.fit.runs, served.entries("debit")) == (1, 1)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Snapshots that are read as a whole, in order."""
    found: list[str] = []

    def noting(keys: Any, snapshot: Any) -> str:
        found.append(snapshot.directory.name)
        return rows_tag(keys, snapshot)

    monkeypatch.setattr(datasets_module, "rows_tag", noting)
    return found


def test_a_file_is_read_once_for_every_state_of_it(serve: Serve, reads: list[str]) -> None:
    """Fits in turn and at once read it once, and again after it was touched; previews and refusals do not."""
    served = serve()
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    stub.Preview(fit_pb2.PreviewRequest(dpem=request()), metadata=served.bearer())
    assert refusal_of(lambda: list(stub.FitDPEM(request(n_components=0), metadata=served.bearer()))).fields
    assert not reads
    threads = [threading.Thread(target=fit, args=(served, f"r{i}")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fit(served, "r0")
    fit(served, "r9")
    assert len(reads) == 1
    rows_of(served).touch()
    fit(served, "r0")
    assert len(reads) == 1
    fit(served, "r10")
    assert len(reads) == 2


def test_the_operator_reads_which_rows_differ(serve: Serve) -> None:
    """Health is degraded with the dataset's name from the first refusal on, until the rows are back."""
    made: list[Datasets] = []

    def make(ledger: Ledger, directory: Path) -> Datasets:
        made.append(Datasets(ledger, directory))
        return made[0]

    served = serve(make_datasets=make)
    path = rows_of(served)
    saved = path.read_bytes()
    assert made[0].problem() is None
    valued(1e6)(path)
    assert made[0].problem() is None
    refusal_of(lambda: fit(served))
    assert made[0].problem() == "those of people are not those that were registered"
    rewrite(path, saved)
    assert made[0].problem() is None


def test_rows_without_the_key_of_their_tag_are_not_fitted(serve: Serve) -> None:
    """They cannot be compared; once the key is back, they can."""
    served = serve()
    key = served.state.keys / "tables" / f"{rows_of(served).parent.name}.key"
    key.rename(served.state.path / "away")
    assert refusal_of(lambda: fit(served)).reason == "ROWS_UNAVAILABLE"
    assert served.entries("debit") == 0
    (served.state.path / "away").rename(key)
    assert fit(served)[-1].HasField("model")


def test_the_time_of_a_reading_is_a_multiple_of_the_quantum(
    serve: Serve, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes; a call that finds the files known does not wait."""
    served = serve()
    registered = Registered.of(served.ledger.dataset("people").manifest)
    slept: list[float] = []
    for took in (0.01, 0.24, 0.26, 7.1):
        clock = iter((100.0, 100.0 + took))
        # In the place of the module's own clock: threads of the server look at theirs meanwhile.
        monkeypatch.setattr(
            datasets_module, "time", SimpleNamespace(monotonic=partial(next, clock), sleep=slept.append)
        )
        stored = StoredRows(served.state.datasets, Keyring(served.state.keys), quantum=0.25)
        for _ in range(2):
            stored.compare(registered.snapshot, registered.manifest, registered.rows_tag)
        assert 4 * (took + slept[-1]) == pytest.approx(round(4 * (took + slept[-1])))
        assert 0 < slept[-1] <= 0.25
    assert (len(slept), len(reads)) == (4, 4)


def test_a_call_that_waits_for_a_reading_goes_on_when_the_reader_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finds the files known, or gets the lock, before the tick: calls begun at many times would find the end."""
    served = serve()
    registered = Registered.of(served.ledger.dataset("people").manifest)
    stored = StoredRows(served.state.datasets, Keyring(served.state.keys), quantum=0.25)
    seen: list[bool] = []

    def sleep(seconds: float) -> None:
        seen.append(registered.snapshot in stored._known or not stored._reading[registered.snapshot].locked())

    monkeypatch.setattr(datasets_module, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=sleep))
    stored.compare(registered.snapshot, registered.manifest, registered.rows_tag)
    assert seen == [False]


def test_files_that_are_missing_are_an_error(serve: Serve) -> None:
    """Missing rows, a missing manifest and a missing key are errors that say what to do."""
    served = serve()
    registered = Registered.of(served.ledger.dataset("people").manifest)
    stored = StoredRows(served.state.datasets, Keyring(served.state.path / "none"))
    with pytest.raises(KeysError, match="restore it from a backup"):
        stored.compare(registered.snapshot, registered.manifest, registered.rows_tag)
    rows_of(served).with_name("manifest.json").unlink()
    with pytest.raises(SnapshotError, match="restore it from a backup"):
        stored.compare(registered.snapshot, registered.manifest, registered.rows_tag)
