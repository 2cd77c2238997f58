"""Memory of a client of a server's ledger: what it keeps, where, and when it complains."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import bursar
from bursar._client import _history
from bursar._history import Shelf, Shown, in_file, in_memory, server_name
from bursar._history_head import HistoryHead
from bursar_proto.v1 import catalog_pb2
from tests import asking
from tests.client.line import HISTORY, Line, refusal, to_model

ASK: dict[str, Any] = {"n_components": 1, "spend": bursar.rho(0.1)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where heads are kept; the folder is not there yet."""
    return tmp_path / "state" / "history.json"


@pytest.fixture
def connected(server: Line, file: Path) -> Iterator[Callable[[], bursar.Client]]:
    """Makes clients of the server that share a file, one after the other."""
    clients: list[bursar.Client] = []

    def make() -> bursar.Client:
        clients.append(server.client(retry_delays=(0.0,), history=file))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def kept(file: Path) -> dict[str, Any]:
    """The one record of a file."""
    (record,) = json.loads(file.read_text())["servers"].values()
    return dict(record)


def test_a_ledger_that_grows_is_no_reason_to_complain(
    server: Line, connected: Callable[[], bursar.Client], file: Path
) -> None:
    """Fits, repetitions and new programs go on; what is kept grows with the ledger."""
    sizes, entries = [], []
    for name in ("a", "b", "a", "c"):
        receipt = asking.fit(connected().dataset("toy"), bursar.DPEM, **ASK, request_id=name).receipt
        assert receipt is not None
        sizes.append(kept(file)["size"])
        entries.append(receipt.entry)
    first = entries[0]
    # A debit and its release are an entry each.
    assert entries == [first, first + 2, first, first + 4]
    assert sizes == [first + 1, first + 3, first + 3, first + 5]
    assert len(server.requests) == 4


def test_a_rolled_back_ledger_is_noticed_before_a_fit_is_sent(
    server: Line, connected: Callable[[], bursar.Client], file: Path
) -> None:
    """The next program complains at its first call, and says what was seen, what is there, and what to do."""
    receipt = asking.fit(connected().dataset("toy"), bursar.DPEM, **ASK).receipt
    assert receipt is not None
    before = kept(file)
    server.roll_back()
    with pytest.raises(bursar.HistoryError, match="lost 1 entries") as caught:
        connected().datasets()
    error = caught.value
    assert error.found is not None
    assert (error.seen.size, error.seen.head, error.found.size) == (
        before["size"],
        before["head"],
        receipt.entry,
    )
    for word in (error.seen.seen, str(file), "Tell the auditor", "history=False"):
        assert word in str(error)
    assert kept(file) == before


def test_a_ledger_that_is_rolled_back_meanwhile_is_noticed_too(server: Line, toy: bursar.Dataset) -> None:
    """Every fit asks first, whatever was asked before on the same connection; afterwards nothing at all is sent."""
    asking.fit(toy, bursar.DPEM, **ASK)
    server.roll_back()
    calls = len(server.metadata)
    for ask in (
        lambda: asking.fit(toy, bursar.DPEM, **ASK, request_id="b"),
        toy.remaining,
        toy.releases,
        lambda: asking.fit(toy, bursar.DPEM, **ASK),
    ):
        with pytest.raises(bursar.HistoryError):
            ask()
    assert len(server.requests) == 1
    assert len(server.metadata) == calls


def test_a_ledger_that_grew_again_after_it_was_rolled_back_is_noticed(
    server: Line, connected: Callable[[], bursar.Client]
) -> None:
    """It is as long as it was, or longer, but another entry stands at the place."""
    asking.fit(connected().dataset("toy"), bursar.DPEM, **ASK, request_id="a")
    server.roll_back()
    with server.client() as stranger:
        asking.fit(stranger.dataset("toy"), bursar.DPEM, **ASK, request_id="b")
        for name in ("c", "d"):
            with pytest.raises(bursar.HistoryError, match=r"entry \d+ of the server's ledger is not the one"):
                connected().dataset("toy")
            asking.fit(stranger.dataset("toy"), bursar.DPEM, **ASK, request_id=name)


@pytest.mark.parametrize("shown", ["", "00" * 32])
def test_a_server_that_does_not_show_the_entry_that_was_seen_is_not_believed(shown: str) -> None:
    """A longer ledger has that entry: no hash in its place is as wrong as another one."""
    history, seen = in_memory(), HistoryHead("ledger", 2, "11" * 32, "then")
    history.check(lambda size: Shown(seen, ""))
    longer = HistoryHead("ledger", 3, "22" * 32, "now")
    with pytest.raises(bursar.HistoryError, match="entry 2 of the server's ledger is not the one"):
        history.check(lambda size: Shown(longer, shown))
    with pytest.raises(bursar.HistoryError):
        history.check(lambda size: Shown(longer, seen.head))


def test_what_another_program_saw_counts_as_seen(file: Path) -> None:
    """A ledger that is longer than this program saw it, and shorter than another one did, was rolled back."""
    short, middle, long = (HistoryHead("ledger", size, f"{size:064x}", "then") for size in (1, 2, 3))
    one, other = (in_file(file, "server") for _ in range(2))
    one.check(lambda size: Shown(short, ""))
    other.check(lambda size: Shown(long, short.head))
    with pytest.raises(bursar.HistoryError, match="lost 1 entries"):
        one.check(lambda size: Shown(middle, short.head if size == 1 else ""))


def test_an_old_copy_at_another_address_is_noticed(server: Line, file: Path) -> None:
    """A ledger is known by its id, too: another port, or another name of the machine, hides no rollback."""
    with server.client(retry_delays=(0.0,), history=in_file(file, "here")) as client:
        asking.fit(client.dataset("toy"), bursar.DPEM, **ASK)
    with server.client(retry_delays=(0.0,), history=in_file(file, "another name")) as client:
        asking.fit(client.dataset("toy"), bursar.DPEM, **ASK, request_id="b")
    server.roll_back()
    for name in ("here", "another port"):
        with (
            server.client(retry_delays=(0.0,), history=in_file(file, name)) as client,
            pytest.raises(bursar.HistoryError, match="lost 1 entries"),
        ):
            client.datasets()
    assert len(server.requests) == 2


def test_another_ledger_at_the_same_server_is_noticed(server: Line, connected: Callable[[], bursar.Client]) -> None:
    """Even if it is longer."""
    connected().datasets()
    server.changes[HISTORY] = lambda answer: answer.MergeFrom(
        catalog_pb2.GetHistoryResponse(ledger_id="another", size=answer.size + 1)
    )
    with pytest.raises(bursar.HistoryError, match="another ledger"):
        connected().datasets()


def test_who_knows_goes_on_with_another_file(server: Line, connected: Callable[[], bursar.Client]) -> None:
    """A ledger that was rightly restored is used again by those who say so; the evidence stays."""
    asking.fit(connected().dataset("toy"), bursar.DPEM, **ASK)
    server.roll_back()
    with server.client() as client:
        asking.fit(client.dataset("toy"), bursar.DPEM, **ASK)
    with pytest.raises(bursar.HistoryError):
        connected().datasets()


def test_a_server_that_does_not_show_its_history_any_more_is_not_believed(
    server: Line, connected: Callable[[], bursar.Client]
) -> None:
    """It did once."""
    connected().datasets()
    server.before[HISTORY] = raising(grpc.StatusCode.UNIMPLEMENTED)
    with pytest.raises(bursar.HistoryError, match="does not say any more") as caught:
        connected().datasets()
    assert caught.value.found is None


def raising(code: grpc.StatusCode, when: int = 1) -> Callable[[object], None]:
    """Return a function that raises a status when it is called for the n-th time, and later if that is the first."""
    calls = itertools.count(1)

    def hook(_: object) -> None:
        if next(calls) == when or when == 1:
            raise refusal(code)

    return hook


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_receipt_has_to_be_in_the_history(server: Line, toy: bursar.Dataset, when: str) -> None:
    """A change between question and model is noticed with the receipt, or by the next question."""
    asking.fit(toy, bursar.DPEM, **ASK, request_id="a")
    if when == "before":
        server.before["FitService/FitDPEM"] = lambda _: server.roll_back()
    else:
        # More than the debit and its release: the fit that another test left may release meanwhile.
        server.changes["FitService/FitDPEM"] = to_model(lambda _: server.roll_back(4))
    with pytest.raises(bursar.HistoryError) as caught:
        asking.fit(toy, bursar.DPEM, **ASK, request_id="b")
    assert caught.value.request_id == "b"


def test_a_model_is_not_lost_because_the_last_question_fails(server: Line, file: Path) -> None:
    """The receipt is kept already, and the next call asks again."""
    server.before[HISTORY] = raising(grpc.StatusCode.UNAVAILABLE, 3)  # dataset(), before the fit, after the fit
    with server.client(history=file) as client:
        receipt = asking.fit(client.dataset("toy"), bursar.DPEM, **ASK).receipt
    assert receipt is not None
    assert (kept(file)["size"], kept(file)["head"]) == (receipt.entry, receipt.ledger_head)


def test_a_question_that_fails_is_a_fit_that_was_not_sent(server: Line) -> None:
    """It is repeated as a broken stream is."""
    server.before[HISTORY] = raising(grpc.StatusCode.UNAVAILABLE, 2)
    with server.client() as client:
        assert asking.fit(client.dataset("toy"), bursar.DPEM, **ASK).n_components == 1
    assert len(server.requests) == 1


def test_an_answer_that_is_none_is_the_servers_error(server: Line, client: bursar.Client) -> None:
    """A ledger has an id and at least one entry."""
    server.instead[HISTORY] = lambda _: [catalog_pb2.GetHistoryResponse()]
    with pytest.raises(bursar.ServerError, match="history"):
        client.datasets()


def test_threads_of_one_client_may_fit_at_once(server: Line) -> None:
    """Heads that arrive out of order are no contradiction."""
    # A place is free a moment after its fit has ended, so the server may say that it is busy.
    with server.client(patience=60.0) as client, ThreadPoolExecutor(8) as pool:
        toy = client.dataset("toy")
        models = list(pool.map(lambda i: asking.fit(toy, bursar.DPEM, **ASK, request_id=f"r{i}"), range(40)))
    assert len({model.receipt.entry for model in models if model.receipt}) == 40


def _head(size: int, ledger: str = "a", head: bytes = bytes(32)) -> HistoryHead:
    return HistoryHead.now(ledger, size, head)


def test_a_file_is_private_and_whole(file: Path) -> None:
    """Readable by its owner only, and nothing but its lock is left beside it."""
    shelf, head = Shelf(file, "s", "host:1"), _head(3)
    assert shelf.load() is None
    assert shelf.keep(head) is None
    assert shelf.load() == head
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in file.parent.iterdir()} == {"history.json", "history.json.lock"}
    assert kept(file)["address"] == "host:1"


def test_an_older_head_never_takes_the_place_of_a_newer_one(file: Path) -> None:
    """Nor does one that contradicts it; that one is reported."""
    shelf = Shelf(file, "s")
    shelf.keep(_head(5))
    assert shelf.keep(_head(4)) is None
    assert kept(file)["size"] == 5
    for strange in (_head(5, head=b"\1" * 32), _head(9, ledger="b")):
        contradiction = shelf.keep(strange)
        assert contradiction is not None
        assert contradiction.size == 5
    assert (kept(file)["size"], kept(file)["ledger_id"]) == (5, "a")


def test_servers_do_not_disturb_one_another(file: Path) -> None:
    """One file holds many, by authority and address."""
    names = [server_name(ca, address) for ca in (None, b"x", b"xh") for address in ("h:1", "ost:1")]
    assert len(set(names)) == len(names)
    for size, name in enumerate(names, start=1):
        Shelf(file, name).keep(_head(size))
    assert [head.size for name in names if (head := Shelf(file, name).load())] == list(range(1, len(names) + 1))


def _keep_many(file: Path, first: int) -> None:
    for size in range(first, 200, 2):
        Shelf(file, "s").keep(_head(size))


@pytest.mark.slow
def test_programs_that_write_at_once_leave_the_newest_head(file: Path) -> None:
    """Two processes write every size once; the largest is there at the end."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_keep_many, args=(file, first)) for first in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(600)
        assert writer.exitcode == 0
    assert kept(file)["size"] == 199


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "servers": {}}',
        '{"format": 1, "servers": []}',
        '{"format": 1, "servers": {"channel": 1}}',
        '{"format": 1, "servers": {"channel": {"size": 1}}}',
        '{"format": 1, "servers": {"channel": {"ledger_id": "a", "size": "1", "head": "b", "seen": "c"}}}',
        b"\xff\xfe",
    ],
)
def test_a_file_of_something_else_is_not_overwritten(
    server: Line, connected: Callable[[], bursar.Client], file: Path, content: str | bytes
) -> None:
    """The error names the argument, and nothing is sent."""
    file.parent.mkdir()
    before = content if isinstance(content, bytes) else content.encode()
    file.write_bytes(before)
    with pytest.raises(bursar.InvalidRequestError, match="no file of heads"):
        connected().datasets()
    assert file.read_bytes() == before
    assert server.metadata == []


def test_a_home_that_cannot_be_written_is_said_once(server: Line, tmp_path: Path) -> None:
    """The client works from memory then, and complains as long as it lives."""
    (tmp_path / "no-folder").touch()
    with server.client(history=tmp_path / "no-folder" / "history.json", retry_delays=()) as client:
        with pytest.warns(RuntimeWarning, match="cannot be kept in .*BURSAR_HISTORY"):
            toy = client.dataset("toy")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asking.fit(toy, bursar.DPEM, **ASK)
        server.roll_back()
        with pytest.raises(bursar.HistoryError, match="Tell the auditor"):
            asking.fit(toy, bursar.DPEM, **ASK)


@pytest.mark.parametrize(
    ("argument", "variable", "state", "expected"),
    [
        (None, None, "state", "state/bursar/history.json"),
        (None, None, None, "home/.local/state/bursar/history.json"),
        (None, "mine.json", "state", "mine.json"),
        (None, "off", "state", None),
        (False, "mine.json", "state", None),
        ("other.json", "off", "state", "other.json"),
    ],
)
def test_where_heads_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argument: Any,
    variable: str | None,
    state: str | None,
    expected: str | None,
) -> None:
    """The argument wins over the variable, which wins over the folder for state."""

    def absolute(name: str) -> str:
        return str(tmp_path / name) if "." in name or "/" not in name else name

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in {"BURSAR_HISTORY": variable, "XDG_STATE_HOME": state}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value if value == "off" else absolute(value))
    history = _history(absolute(argument) if isinstance(argument, str) else argument, None, "h:1")
    assert history._shelf.path == (None if expected is None else tmp_path / expected)


def test_a_folder_for_state_that_is_not_absolute_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specification says so; otherwise heads would lie wherever a program is started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.delenv("BURSAR_HISTORY", raising=False)
    assert _history(None, None, "h:1")._shelf.path == tmp_path / ".local/state/bursar/history.json"


def test_a_user_without_a_home_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no place to keep anything, and nothing is written into the working directory."""

    def nowhere() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", nowhere)
    for name in ("BURSAR_HISTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    shelf = _history(None, None, "h:1")._shelf
    assert shelf.path is not None
    assert os.devnull in str(shelf.path)
    with pytest.warns(RuntimeWarning, match="cannot be kept"):
        assert shelf.load() is None
    assert shelf.keep(_head(1)) is None


def test_receipts_of_a_shown_ledger_are_remembered_at_once(server: Line, file: Path) -> None:
    """A stream that breaks after the receipt leaves its head in the file."""
    server.break_next()
    with server.client(history=file, retry_delays=()) as client, pytest.raises(bursar.UnavailableError):
        asking.fit(client.dataset("toy"), bursar.DPEM, **ASK)
    with server.client() as client:
        (release,) = client.releases()
    assert kept(file)["size"] == release.entry


def test_a_receipt_that_contradicts_what_was_seen_is_refused(server: Line, client: bursar.Client) -> None:
    """Two heads of one size are two histories."""
    client.datasets()
    history = client._connection.history
    with pytest.raises(bursar.HistoryError, match="two different histories"):
        history.add_receipt(history._newest.size if history._newest else 0, b"\7" * 32)
    with pytest.raises(bursar.HistoryError):
        client.datasets()


def test_the_receipt_of_a_repetition_takes_nothing_back(client: bursar.Client) -> None:
    """It is older than what is known."""
    toy = client.dataset("toy")
    receipts = [asking.fit(toy, bursar.DPEM, **ASK, request_id=name).receipt for name in ("a", "b", "a")]
    newest = client._connection.history._newest
    assert newest is not None
    assert receipts[1] is not None
    assert newest.size == receipts[1].entry + 1
