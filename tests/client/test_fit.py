"""A fit through the client: what is sent, what comes back, and what happens when the stream breaks."""

from __future__ import annotations

import re
import socket
from typing import Any

import grpc
import numpy as np
import pytest

import bursar
from bursar._fit import fit
from bursar._fits import Asked
from bursar_models import COVARIANCE_TYPES, CovarianceType
from bursar_proto.v1 import fit_pb2, types_pb2
from tests import asking
from tests.client.line import Line

ASK: dict[str, Any] = {"n_components": 2, "spend": bursar.rho(0.1)}


def test_a_fit_returns_a_model_with_its_receipt(toy: bursar.Dataset) -> None:
    """The released numbers, the columns in order, what it cost and how noisy it is arrive as values."""
    ask: dict[str, Any] = {**ASK, "columns": ["weight", "height"], "iterations": 5}
    preview = asking.preview(toy, bursar.DPEM, **ask)
    model = asking.fit(toy, bursar.DPEM, **ask)
    assert model.columns == ("weight", "height")
    assert ((model.means_ > [30, 100]) & (model.means_ < [150, 220])).all()
    assert (model.iterations, model.n_rows, model.noise) == (preview.iterations, 1000.0, preview.noise)
    receipt = model.receipt
    assert receipt is not None
    assert (receipt.dataset, len(bytes.fromhex(receipt.ledger_head))) == ("toy", 32)
    assert receipt.allowance_remaining is None
    assert receipt.price == preview.price
    assert receipt.adjacency is bursar.NeighbouringRelation.REPLACE_ONE
    assert not receipt.replayed
    assert re.fullmatch("[0-9a-f]{16}-1", receipt.request_id)
    assert f"entry {receipt.entry} of 'toy'" in repr(model)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_every_covariance_type_goes_and_comes(toy: bursar.Dataset, covariance_type: CovarianceType) -> None:
    """The type that was asked for is the type of the model."""
    model = asking.fit(toy, bursar.DPEM, **ASK, covariance_type=covariance_type)
    assert model.covariance_type == covariance_type
    assert np.isfinite(model.score_samples(model.means_)).all()


def test_kmeans_has_its_own_result(server: Line, toy: bursar.Dataset) -> None:
    """The mode decides the type of the result; no covariance type is sent."""
    model = toy.fit(bursar.DPEM(n_components=2, mode="kmeans"), spend=bursar.pure(0.5))
    assert isinstance(model, bursar.KMeans)
    assert server.requests[0].mode == fit_pb2.MODE_KMEANS
    assert server.requests[0].covariance_type == fit_pb2.COVARIANCE_TYPE_UNSPECIFIED


def test_what_is_left_is_a_spend_of_its_own(server: Line, lone: bursar.Dataset) -> None:
    """The server is not told an amount; the receipt says what it was. A preview says so before."""
    spend = bursar.what_is_left()
    preview = asking.preview(lone, bursar.DPEM, n_components=2, spend=spend)
    model = asking.fit(lone, bursar.DPEM, n_components=2, spend=spend)
    assert server.requests[0].spend.WhichOneof("amount") == "remaining"
    assert model.receipt is not None
    assert model.receipt.price == preview.price
    assert preview.price.rho == pytest.approx(preview.available.rho)
    assert repr(spend) == "bursar.what_is_left()"
    assert spend == bursar.WhatIsLeft()


def test_a_receipt_says_what_is_left_of_an_allowance(server: Line, lone: bursar.Dataset) -> None:
    """The receipt names an allowance only if there is one."""
    server.server.admin("allowance", "set", lone.name, "--analyst", server.name, "--share", "1/2")
    receipt = asking.fit(lone, bursar.DPEM, n_components=1, spend=bursar.rho(lone.limits().available.rho / 2)).receipt
    assert receipt is not None
    assert receipt.allowance_remaining is not None
    assert receipt.allowance_remaining.share == pytest.approx(0.5, abs=0.01)


def test_a_fit_starts_where_it_is_told(server: Line, toy: bursar.Dataset) -> None:
    """Starts are random, given parameters, or an earlier model, its receipt or its entry."""
    model = asking.fit(toy, bursar.DPEM, **ASK)
    receipt = model.receipt
    assert receipt is not None
    for start in (model, receipt, receipt.entry):
        asking.fit(toy, bursar.DPEM, **ASK, start=start)
        assert server.requests[-1].released.entry == receipt.entry
    asking.fit(toy, bursar.DPEM, **ASK, start=bursar.RandomStart(public_seed=2**64 - 1))
    assert server.requests[-1].random.public_seed == 2**64 - 1
    asking.fit(
        toy,
        bursar.DPEM,
        **ASK,
        covariance_type="diag",
        start=bursar.GivenStart(means=[[150, 60], [180, 80]], weights=[0.3, 0.7], covariances=np.ones((2, 2))),
    )
    given = server.requests[-1].given
    assert (list(given.means.shape), list(given.means.values)) == ([2, 2], [150.0, 60.0, 180.0, 80.0])
    assert list(given.weights.values) == [0.3, 0.7]
    assert list(given.covariances.shape) == [2, 2]


def test_a_stream_that_keeps_breaking_can_be_resumed(server: Line, toy: bursar.Dataset) -> None:
    """The error has the request_id, and asking with it gets the model under the same entry."""
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError) as caught:
        asking.fit(toy, bursar.DPEM, **ASK)
    assert len(server.requests) == 3
    model = asking.fit(toy, bursar.DPEM, **ASK, request_id=caught.value.request_id)
    assert model.receipt is not None
    assert [release.entry for release in toy.releases()] == [model.receipt.entry]
    assert server.requests[-1] == server.requests[0]


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED]
)
def test_a_refusal_is_not_repeated(server: Line, toy: bursar.Dataset, code: grpc.StatusCode) -> None:
    """Only transport errors are; a second failure would have come if the client had asked again."""
    server.fail_next(code)
    with pytest.raises(bursar.Error):
        asking.fit(toy, bursar.DPEM, **ASK)
    assert server.requests == []


def test_no_repetition_outlives_the_callers_patience(server: Line) -> None:
    """A wait that would pass the timeout is not begun."""
    with server.client(timeout=60.0, retry_delays=(3600.0,)) as client:
        toy = client.dataset("toy")
        server.break_next()
        with pytest.raises(bursar.UnavailableError):
            asking.fit(toy, bursar.DPEM, **ASK)
    assert len(server.requests) == 1


def test_a_call_past_its_deadline_says_so() -> None:
    """The timeout of the client ends a call to a machine that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        channel = grpc.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}")
        with bursar.Client(channel, timeout=0.05) as client, pytest.raises(bursar.DeadlineError):
            client.datasets()


def test_an_interrupted_caller_leaves_the_stream(server: Line) -> None:
    """Ctrl-C is not caught, is not repeated, and tells the server at once."""

    def interrupt(step: int, steps: int) -> None:
        raise KeyboardInterrupt

    asked = Asked(dataset="toy", spend=bursar.rho(0.1), request_id="a")
    with server.client() as client, pytest.raises(KeyboardInterrupt):
        fit(client._connection, bursar.DPEM(n_components=2, columns=["height"]), asked, interrupt)
    assert len(server.requests) == 1
    assert server.streams[-1].call.code() is grpc.StatusCode.CANCELLED


RECEIPT = types_pb2.Receipt(request_id="a", adjacency=types_pb2.ADJACENCY_REPLACE_ONE)


@pytest.mark.parametrize(
    ("receipt", "model", "kind", "message"),
    [
        (None, None, bursar.UnavailableError, "ended before the model"),
        (RECEIPT, None, bursar.UnavailableError, "ended before the model"),
        (types_pb2.Receipt(), fit_pb2.GaussianMixtureModel(), bursar.ServerError, "install a newer bursar"),
        (RECEIPT, fit_pb2.GaussianMixtureModel(), bursar.ServerError, "0 values for an array of shape"),
        (
            RECEIPT,
            fit_pb2.GaussianMixtureModel(
                mode=fit_pb2.MODE_KMEANS,
                weights=types_pb2.Tensor(shape=[1], values=[2.0]),
                means=types_pb2.Tensor(shape=[1, 1], values=[0.0]),
                covariances=types_pb2.Tensor(shape=[1], values=[1.0]),
            ),
            bursar.ServerError,
            "no valid model: weights_: expected a sum of 1",
        ),
    ],
)
def test_an_answer_that_is_none_is_an_error(
    server: Line,
    toy: bursar.Dataset,
    receipt: types_pb2.Receipt | None,
    model: fit_pb2.GaussianMixtureModel | None,
    kind: type[bursar.Error],
    message: str,
) -> None:
    """A stream without a model is a broken one; a model that cannot be is the server's error, not the caller's."""
    answers = (fit_pb2.FitDPEMResponse(receipt=receipt), fit_pb2.FitDPEMResponse(model=model))
    server.instead["FitService/FitDPEM"] = lambda _: answers
    with pytest.raises(kind, match=message) as caught:
        asking.fit(toy, bursar.DPEM, **ASK, request_id="a")
    assert caught.value.request_id == "a"
