"""Recorded exchanges: what a real server answered, again, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2, status_pb2

import bursar
from bursar.testing import Exchange, NotRecordedError, Recording, Server, record, recorded
from bursar_proto.v1 import catalog_pb2, fit_pb2
from bursar_proto.v1.types_pb2 import ADJACENCY_REPLACE_ONE, EpsilonDelta
from tests import asking

ASK: dict[str, Any] = {"n_components": 2, "spend": bursar.rho(0.002)}


@pytest.fixture(scope="module")
def file(toys: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a dataset, a preview, the same fit twice, a refusal and what is left before and after."""
    path = tmp_path_factory.mktemp("recording") / "answers.json"
    with toys.client(token=toys.token("recorder")) as client, record(client, path) as recording:
        toy = recording.dataset("toy")
        toy.remaining()
        asking.preview(toy, bursar.DPEM, **ASK)
        for _ in range(2):
            asking.fit(toy, bursar.DPEM, **ASK)
        toy.remaining()
        with pytest.raises(bursar.BudgetExhaustedError):
            toy.fit(bursar.DPEM(n_components=2), spend=bursar.rho(1e6))
    return path


def test_a_recording_answers_as_the_server_did(file: Path) -> None:
    """Two fits of one request are two releases, in their order; the last one is repeated."""
    client = recorded(file)
    toy = client.dataset("toy")
    first, second, third = (asking.fit(toy, bursar.DPEM, **ASK, request_id=name) for name in ("a", "b", "c"))
    assert first.receipt is not None
    assert second.receipt is not None
    assert third.receipt is not None
    assert first.receipt.entry < second.receipt.entry == third.receipt.entry
    assert not np.array_equal(first.means_, second.means_)
    np.testing.assert_array_equal(second.means_, third.means_)


def test_answers_to_the_same_question_come_in_order(file: Path) -> None:
    """The remainders before the fits and after them come in that order."""
    toy = recorded(file).dataset("toy")
    assert toy.remaining().rho > toy.remaining().rho
    assert asking.preview(toy, bursar.DPEM, **ASK).price.rho == pytest.approx(0.002)


def test_a_refusal_is_the_servers(file: Path) -> None:
    """The details are there, too."""
    with pytest.raises(bursar.BudgetExhaustedError) as caught:
        recorded(file).dataset("toy").fit(bursar.DPEM(n_components=2), spend=bursar.rho(1e6))
    assert caught.value.limit == "dataset"
    assert caught.value.remaining is not None
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_what_was_not_recorded_is_named(file: Path) -> None:
    """The question, the questions to the same method, and the methods that there are."""
    client = recorded(file)
    with pytest.raises(
        NotRecordedError, match=r'no answer to CatalogService/GetDataset \{"dataset": "people"\}'
    ) as one:
        client.dataset("people")
    assert 'it has answers for {"dataset": "toy"}' in str(one.value)
    with pytest.raises(NotRecordedError, match=r"ListDatasets.*it has CatalogService/GetDataset \(1\), FitService/Fit"):
        client.datasets()
    with pytest.raises(NotRecordedError, match="it is empty"):
        recorded([]).datasets()


def test_exchanges_may_be_written_by_hand() -> None:
    """Answers may be those that no server could be made to give; recorded questions can be looked up."""
    lost = status_pb2.Status(code=code_pb2.UNAVAILABLE, message="the line broke")
    asked = catalog_pb2.GetDatasetRequest(dataset="toy")
    total = EpsilonDelta(epsilon=1.0, delta=1e-6)
    toy = catalog_pb2.Dataset(name="toy", adjacency=ADJACENCY_REPLACE_ONE, total=total)
    answer = catalog_pb2.GetDatasetResponse(dataset=toy)
    recording = Recording(
        [
            Exchange("CatalogService/GetDataset", asked, error=lost),
            Exchange("CatalogService/GetDataset", asked, (answer,)),
        ]
    )
    client = recording.client()
    with pytest.raises(bursar.UnavailableError, match="the line broke"):
        client.dataset("toy")
    assert client.dataset("toy").name == "toy"
    assert recording.calls == [("CatalogService/GetDataset", asked)] * 2


def test_a_stream_may_break_after_its_receipt(file: Path) -> None:
    """The client asks again with the same key, and gets what was released."""
    content = json.loads(file.read_text())
    fit = next(one for one in content["exchanges"] if one["method"] == "FitService/FitDPEM")
    whole = Exchange.from_dict(fit)
    broken = Exchange(whole.method, whole.request, whole.answers[:1], status_pb2.Status(code=code_pb2.UNAVAILABLE))
    others = [Exchange.from_dict(one) for one in content["exchanges"] if one["method"].startswith("Catalog")]
    recording = Recording([*others, broken, whole])
    asking.fit(recording.client().dataset("toy"), bursar.DPEM, **ASK)
    keys = [request.request_id for _, request in recording.calls if isinstance(request, fit_pb2.FitDPEMRequest)]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_file_is_readable_and_has_no_token(file: Path) -> None:
    """JSON with the contract's names; a token is in no message."""
    text = file.read_text(encoding="utf-8")
    assert '"method": "FitService/FitDPEM"' in text
    assert "bursar_" not in text
    assert "GetHistory" not in text
    exchanges = [Exchange.from_dict(fields) for fields in json.loads(text)["exchanges"]]
    assert [one.to_dict() for one in exchanges] == json.loads(text)["exchanges"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "exchanges": [{"method": "x"}]}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    """The message has its name and what was expected."""
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=r"other\.json: expected a recording"):
        recorded(tmp_path / "other.json")
