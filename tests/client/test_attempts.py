"""Paid fits are noted before they are sent: what was interrupted is resumed, what is repeated is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import grpc
import pytest

import bursar
from bursar._attempts import DAY, Attempts
from bursar._history import in_file
from tests.client.line import Line, refusal, when_released

REQUEST = bursar.DPEM(n_components=2, columns=["height"])
SPEND = bursar.rho(0.1)


def interrupt(line: Line) -> None:
    """Press Ctrl-C while the next model is on its way."""

    def press(answer: Any) -> None:
        if answer.HasField("progress"):
            line.changes.clear()
            raise KeyboardInterrupt

    line.changes["FitService/FitDPEM"] = press


def test_an_interrupted_fit_says_what_was_paid_and_is_resumed(server: Line, toy: bursar.Dataset) -> None:
    """The note names entry and request id; the same fit once more has the same id, and one debit pays for both."""
    interrupt(server)
    with pytest.raises(KeyboardInterrupt) as caught:
        toy.fit(REQUEST, spend=SPEND)
    (release,) = toy.recover()
    (note,) = caught.value.__notes__
    assert f"Entry {release.entry} of the ledger paid for the fit {release.request_id!r}" in note
    model = toy.fit(REQUEST, spend=SPEND)
    assert model.receipt is not None
    assert (model.receipt.request_id, model.receipt.entry) == (release.request_id, release.entry)
    assert [one.entry for one in toy.releases()] == [release.entry]
    assert toy.recover() == []


def test_what_was_paid_and_not_fetched_can_be_fetched_by_its_entry(
    server: Line, client: bursar.Client, toy: bursar.Dataset
) -> None:
    """`recover` lists it until `model` has it, and the next fit is a new one."""
    interrupt(server)
    with pytest.raises(KeyboardInterrupt):
        toy.fit(REQUEST, spend=SPEND)
    (release,) = client.recover()
    when_released(lambda: client.model(release))
    assert client.recover() == []
    assert toy.fit(REQUEST, spend=SPEND).receipt.entry != release.entry  # type: ignore[union-attr]  # it is paid


def test_a_fit_that_is_interrupted_before_its_debit_was_not_paid(server: Line, toy: bursar.Dataset) -> None:
    """The server is asked, and the note says so."""

    def press(request: Any) -> None:
        raise KeyboardInterrupt

    server.before["FitService/FitDPEM"] = press
    with pytest.raises(KeyboardInterrupt) as caught:
        toy.fit(REQUEST, spend=SPEND)
    assert "was not paid when the server was asked" in caught.value.__notes__[0]
    assert toy.recover() == []


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE])
def test_a_broken_fit_says_whether_it_was_paid(server: Line, toy: bursar.Dataset, code: grpc.StatusCode) -> None:
    """The message differs before the debit, after it, and when the server does not answer."""

    def fail(request: Any) -> None:
        raise refusal(code)

    server.before["FitService/FitDPEM"] = fail
    with pytest.raises(bursar.TransportError, match=r"was not paid when the server was asked") as caught:
        toy.fit(REQUEST, spend=SPEND)
    assert caught.value.entry is None
    server.before["CatalogService/ListReleases"] = fail
    with pytest.raises(bursar.TransportError, match="It is not known whether"):
        toy.fit(REQUEST, spend=SPEND)
    server.before.clear()
    server.break_next(3)
    with pytest.raises(bursar.TransportError, match="of the ledger paid for the fit") as caught:
        toy.fit(REQUEST, spend=SPEND)
    assert [one.entry for one in toy.releases()] == [caught.value.entry]


def test_the_same_fit_again_is_said_before_it_is_sent(server: Line, toy: bursar.Dataset) -> None:
    """The warning names the earlier id, points at the caller, and stops the fit where warnings are errors."""
    first = toy.fit(REQUEST, spend=SPEND).receipt
    assert first is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", bursar.RepeatedFitWarning)
        with pytest.raises(bursar.RepeatedFitWarning, match=f"paid .* ago; request_id='{first.request_id}'"):
            toy.fit(REQUEST, spend=SPEND)
        toy.fit(REQUEST, spend=bursar.rho(0.2))
        toy.fit(REQUEST, spend=SPEND, request_id=first.request_id)
    assert len(toy.releases()) == 2
    with pytest.warns(bursar.RepeatedFitWarning) as caught:
        second = toy.fit(REQUEST, spend=SPEND).receipt
    assert caught[0].filename == __file__
    assert second is not None
    assert second.entry != first.entry
    digest, number = second.request_id.split("-")
    assert first.request_id.split("-")[0] == digest
    assert int(number) > int(first.request_id.split("-")[1])


def test_a_refused_fit_leaves_nothing_to_recover(toy: bursar.Dataset, server: Line) -> None:
    """It is asked again under another name."""
    with pytest.raises(bursar.BudgetExhaustedError):
        toy.fit(REQUEST, spend=bursar.rho(1e6))
    with pytest.raises(bursar.BudgetExhaustedError):
        toy.fit(REQUEST, spend=bursar.rho(1e6))
    first, second = (request.request_id for request in server.requests)
    assert first != second
    assert toy.recover() == []


KILLED = """
import os, sys, bursar
from bursar._progress import Report
client = bursar.connect(sys.argv[1], ca=sys.argv[2], history=sys.argv[3])
import bursar._fit
def read(responses, report, remember):
    for response in responses:
        if response.HasField("receipt"):
            os.kill(os.getpid(), 9)
bursar._fit._read = read
client.dataset("toy").fit(bursar.DPEM(n_components=2, columns=["height"]), spend=bursar.rho(0.1))
"""


def test_a_killed_program_is_resumed_by_the_next(server: Line, tmp_path: Path) -> None:
    """The note was on the disk before the fit was sent."""
    file, served = tmp_path / "history.json", server.server
    words = [sys.executable, "-c", KILLED, served.address, str(served.ca), str(file)]
    done = subprocess.run(words, env={**os.environ, "BURSAR_TOKEN": server.token}, check=False)
    assert done.returncode == -9
    with bursar.connect(served.address, token=server.token, ca=served.ca, history=file) as client:
        (release,) = client.recover()
        model = client.dataset("toy").fit(REQUEST, spend=SPEND)
        assert model.receipt is not None
        assert model.receipt.entry == release.entry
        assert (client.recover(), len(client.releases())) == ([], 1)


def test_two_programs_share_their_notes(server: Line, tmp_path: Path) -> None:
    """A fit that one fetched is repeated by the other; one that waits is not taken from the other."""
    history = tmp_path / "history.json"
    one, other = (server.client(history=in_file(history, "s"))._connection.attempts for _ in range(2))
    first = one.begin(b"fit", "toy")
    while_waiting = other.begin(b"fit", "toy")
    assert while_waiting.request_id != first.request_id
    assert while_waiting.earlier is not None
    one.end(first.request_id)
    other.end(while_waiting.request_id, fetched=True)
    assert other.begin(b"fit", "toy") == (first.request_id, False, None)
    assert one.unfetched() == set()  # it is waited for
    other.end(first.request_id)
    assert one.unfetched() == {first.request_id}
    assert (tmp_path / "history.fits.json").stat().st_mode & 0o077 == 0


def test_notes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that came back is repeated without a word after a day; what did not is known for thirty days."""
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    notes = Attempts(None, "")
    done, lost = notes.begin(b"done", "toy").request_id, notes.begin(b"lost", "toy").request_id
    notes.end(done, fetched=True)
    notes.end(lost)
    now[0] += DAY / 2
    repeated = notes.begin(b"done", "toy")
    assert repeated.earlier is not None
    assert repeated.earlier.ago == "12 hours ago"
    notes.end(repeated.request_id, forget=True)
    now[0] += DAY
    assert notes.begin(b"done", "toy").earlier is None
    assert notes.unfetched() == {lost}
    now[0] += 30 * DAY
    notes.begin(b"done", "toy")
    assert notes.unfetched() == set()


def test_notes_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest fits that came back are noted, and all that did not; numbers go on."""
    monkeypatch.setattr("bursar._attempts._MOST", 3)
    notes = Attempts(None, "")
    lost = notes.begin(b"lost", "toy").request_id
    notes.end(lost)
    for number in range(10):
        notes.end(notes.begin(b"%d" % number, "toy").request_id, fetched=True)
    assert notes.begin(b"9", "toy").earlier is not None
    repeated = notes.begin(b"0", "toy")
    assert repeated.earlier is None
    assert repeated.request_id.endswith("-13")
    assert notes.unfetched() == {lost}


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 1, "servers": {"s": {"nonce": 1}}}', "\0"])
def test_a_file_that_is_none_is_written_anew(tmp_path: Path, content: str) -> None:
    """The notes are a help; without them the ledger still has every debit."""
    path = tmp_path / "fits.json"
    path.write_text(content)
    name = Attempts(path, "s").begin(b"fit", "toy").request_id
    assert json.loads(path.read_text())["servers"]["s"]["attempts"][0]["request_id"] == name


def test_a_folder_that_cannot_be_written_keeps_notes_in_memory(tmp_path: Path) -> None:
    """The fit goes on."""
    (tmp_path / "file").write_text("")
    notes = Attempts(tmp_path / "file" / "fits.json", "s")
    name = notes.begin(b"fit", "toy").request_id
    notes.end(name)
    assert notes.begin(b"fit", "toy").request_id == name
