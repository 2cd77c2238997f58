"""What a client remembers of a server's ledger, where it keeps it, and when it complains."""

from __future__ import annotations

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
from bursar._history import HistoryHead, Shelf, server_name
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2

ASK: dict[str, Any] = {"n_components": 1, "spend": bursar.rho(0.1)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where heads are kept; the folder is not there yet."""
    return tmp_path / "state" / "history.json"


@pytest.fixture
def connected(server: FakeServer, file: Path) -> Iterator[Callable[[], bursar.Client]]:
    """Makes clients of the fake server that share a file, one after the other."""
    clients: list[bursar.Client] = []

    def make() -> bursar.Client:
        clients.append(bursar.Client(grpc.insecure_channel(server.address), retry_delays=(0.0,), history=file))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def kept(file: Path) -> dict[str, Any]:
    """The one record of a file."""
    (record,) = json.loads(file.read_text())["servers"].values()
    return dict(record)


def test_a_ledger_that_grows_is_no_reason_to_complain(
    server: FakeServer, connected: Callable[[], bursar.Client], file: Path
) -> None:
    """Fits, repetitions and new programs go on; what is kept grows with the ledger."""
    sizes = []
    for name in ("a", "b", "a", "c"):
        connected().dataset("toy").fit_dpem(**ASK, request_id=name)
        sizes.append(kept(file)["size"])
    assert sizes == [2, 3, 3, 4]
    assert len(server.requests) == 4


def test_a_rolled_back_ledger_is_noticed_before_a_fit_is_sent(
    server: FakeServer, connected: Callable[[], bursar.Client], file: Path
) -> None:
    """The next program complains at its first call, and says what was seen, what is there, and what to do."""
    receipt = connected().dataset("toy").fit_dpem(**ASK).receipt
    assert receipt is not None
    server.roll_back()
    with pytest.raises(bursar.HistoryError, match="lost 1 entries") as caught:
        connected().datasets()
    error = caught.value
    assert error.found is not None
    assert (error.seen.size, error.seen.head, error.found.size) == (receipt.entry, receipt.ledger_head, 1)
    for word in (error.seen.seen, str(file), "Tell the auditor", "history=False"):
        assert word in str(error)
    assert kept(file)["size"] == receipt.entry


def test_a_ledger_that_is_rolled_back_meanwhile_is_noticed_too(server: FakeServer, toy: bursar.Dataset) -> None:
    """Every fit asks first, whatever was asked before on the same connection; afterwards nothing at all is sent."""
    toy.fit_dpem(**ASK)
    server.roll_back()
    calls = len(server.metadata)
    for ask in (lambda: toy.fit_dpem(**ASK, request_id="b"), toy.remaining, toy.releases, lambda: toy.fit_dpem(**ASK)):
        with pytest.raises(bursar.HistoryError):
            ask()
    assert len(server.requests) == 1
    assert len(server.metadata) == calls


def test_a_ledger_that_grew_again_after_it_was_rolled_back_is_noticed(
    server: FakeServer, connected: Callable[[], bursar.Client]
) -> None:
    """It is as long as it was, or longer, but another entry stands at the place."""
    connected().dataset("toy").fit_dpem(**ASK, request_id="a")
    server.roll_back()
    with server.client() as stranger:
        stranger.dataset("toy").fit_dpem(**ASK, request_id="b")
        for name in ("c", "d"):
            with pytest.raises(bursar.HistoryError, match="entry 2 of the server's ledger is not the one"):
                connected().dataset("toy")
            stranger.dataset("toy").fit_dpem(**ASK, request_id=name)


def test_another_ledger_at_the_same_server_is_noticed(connected: Callable[[], bursar.Client], file: Path) -> None:
    """Even if it is longer."""
    connected().datasets()
    with fake_server() as other:
        for name in ("a", "b"):
            with other.client() as stranger:
                stranger.dataset("toy").fit_dpem(**ASK, request_id=name)
        with (
            bursar.Client(grpc.insecure_channel(other.address), history=file) as client,
            pytest.raises(bursar.HistoryError, match="another ledger"),
        ):
            client.datasets()


def test_who_knows_goes_on_with_another_file(server: FakeServer, connected: Callable[[], bursar.Client]) -> None:
    """A ledger that was rightly restored is used again by those who say so; the evidence stays."""
    connected().dataset("toy").fit_dpem(**ASK)
    server.roll_back()
    with server.client() as client:
        client.dataset("toy").fit_dpem(**ASK)
    with pytest.raises(bursar.HistoryError):
        connected().datasets()


class Old(FakeServer):
    """Does not know the question."""

    GetHistory: Any = catalog_pb2_grpc.CatalogServiceServicer.GetHistory


def test_a_server_from_before_the_question_is_used_as_ever(file: Path) -> None:
    """Unless it knew the question once."""
    with fake_server(Old) as server:
        channel = grpc.insecure_channel(server.address)
        with bursar.Client(channel, history=file) as client:
            client.dataset("toy").fit_dpem(**ASK)
        assert not file.exists()
        Shelf(file, "channel").keep(HistoryHead.now("a", 1, bytes(32)))
        channel = grpc.insecure_channel(server.address)
        with bursar.Client(channel, history=file) as client:
            with pytest.raises(bursar.HistoryError, match="does not say any more") as caught:
                client.datasets()
            assert caught.value.found is None


class Forgetful(FakeServer):
    """Is rolled back while it fits: between the question and the receipt, or after the receipt."""

    when = "before"

    def FitDPEM(
        self, request: fit_pb2.FitDPEMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitDPEMResponse]:
        """As told."""
        if request.request_id == "b" and self.when == "before":
            self.roll_back()
        yield from super().FitDPEM(request, context)
        if request.request_id == "b" and self.when == "after":
            self.roll_back()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_receipt_has_to_be_in_the_history(when: str) -> None:
    """What happens between the question and the model is noticed with the receipt, or by the question after it."""
    Forgetful.when = when
    with fake_server(Forgetful) as server, server.client() as client:
        toy = client.dataset("toy")
        toy.fit_dpem(**ASK, request_id="a")
        with pytest.raises(bursar.HistoryError) as caught:
            toy.fit_dpem(**ASK, request_id="b")
        assert caught.value.request_id == "b"


class Fragile(FakeServer):
    """Answers the question once, and then not."""

    asked = 0

    def GetHistory(
        self, request: catalog_pb2.GetHistoryRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetHistoryResponse:
        """See the class."""
        self.asked += 1
        if self.asked == 3:  # dataset(), before the fit, after the fit
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return super().GetHistory(request, context)


def test_a_model_is_not_lost_because_the_last_question_fails(file: Path) -> None:
    """The receipt is kept already, and the next call asks again."""
    with fake_server(Fragile) as server:
        with bursar.Client(grpc.insecure_channel(server.address), history=file) as client:
            receipt = client.dataset("toy").fit_dpem(**ASK).receipt
        assert receipt is not None
        assert (kept(file)["size"], kept(file)["head"]) == (receipt.entry, receipt.ledger_head)


def test_a_question_that_fails_is_a_fit_that_was_not_sent() -> None:
    """It is repeated as a broken stream is."""

    class Late(FakeServer):
        asked = 0

        def GetHistory(
            self, request: catalog_pb2.GetHistoryRequest, context: grpc.ServicerContext
        ) -> catalog_pb2.GetHistoryResponse:
            self.asked += 1
            if self.asked == 2:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return super().GetHistory(request, context)

    with fake_server(Late) as server, server.client() as client:
        assert client.dataset("toy").fit_dpem(**ASK).n_components == 1
        assert len(server.requests) == 1


class Empty(FakeServer):
    """Answers with an empty message."""

    def GetHistory(
        self, request: catalog_pb2.GetHistoryRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetHistoryResponse:
        """See the class."""
        return catalog_pb2.GetHistoryResponse()


def test_an_answer_that_is_none_is_the_servers_error() -> None:
    """A ledger has an id and at least one entry."""
    with fake_server(Empty) as server, server.client() as client, pytest.raises(bursar.ServerError, match="history"):
        client.datasets()


def test_threads_of_one_client_may_fit_at_once(server: FakeServer, client: bursar.Client) -> None:
    """Heads that arrive out of order are no contradiction."""
    toy = client.dataset("toy")
    with ThreadPoolExecutor(8) as pool:
        models = list(pool.map(lambda i: toy.fit_dpem(**ASK, request_id=f"r{i}"), range(40)))
    assert sorted(model.receipt.entry for model in models if model.receipt) == list(range(2, 42))


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


def test_programs_that_write_at_once_leave_the_newest_head(file: Path) -> None:
    """Two processes write every size once; the largest is there at the end."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_keep_many, args=(file, first)) for first in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
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
    server: FakeServer, connected: Callable[[], bursar.Client], file: Path, content: str | bytes
) -> None:
    """The error names the argument, and nothing is sent."""
    file.parent.mkdir()
    before = content if isinstance(content, bytes) else content.encode()
    file.write_bytes(before)
    with pytest.raises(bursar.InvalidRequestError, match="no file of heads"):
        connected().datasets()
    assert file.read_bytes() == before
    assert server.metadata == []


def test_a_home_that_cannot_be_written_is_said_once(server: FakeServer, tmp_path: Path) -> None:
    """The client works from memory then, and complains as long as it lives."""
    (tmp_path / "no-folder").touch()
    channel = grpc.insecure_channel(server.address)
    with bursar.Client(channel, history=tmp_path / "no-folder" / "history.json", retry_delays=()) as client:
        with pytest.warns(RuntimeWarning, match="cannot be kept in .*BURSAR_HISTORY"):
            toy = client.dataset("toy")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            toy.fit_dpem(**ASK)
        server.roll_back()
        with pytest.raises(bursar.HistoryError, match="Tell the auditor"):
            toy.fit_dpem(**ASK)


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
    """As its specification says; else heads would lie about wherever a program is started."""
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


def test_receipts_of_a_shown_ledger_are_remembered_at_once(file: Path) -> None:
    """A stream that breaks after the receipt leaves its head in the file."""
    with fake_server() as server:
        server.break_next()
        channel = grpc.insecure_channel(server.address)
        with bursar.Client(channel, history=file, retry_delays=()) as client, pytest.raises(bursar.UnavailableError):
            client.dataset("toy").fit_dpem(**ASK)
    assert kept(file)["size"] == 2


def test_a_receipt_that_contradicts_what_was_seen_is_refused(server: FakeServer, client: bursar.Client) -> None:
    """Two heads of one size are two histories."""
    client.datasets()
    history = client._connection.history
    with pytest.raises(bursar.HistoryError, match="two different histories"):
        history.add_receipt(1, b"\7" * 32)
    with pytest.raises(bursar.HistoryError):
        client.datasets()


def test_the_receipt_of_a_repetition_takes_nothing_back() -> None:
    """It is older than what is known."""
    with fake_server() as server, server.client() as client:
        toy = client.dataset("toy")
        for name in ("a", "b", "a"):
            toy.fit_dpem(**ASK, request_id=name)
        newest = client._connection.history._newest
        assert newest is not None
        assert newest.size == 3
