"""What was bought: it is listed, and can be had again for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

import bursar
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc

SPEND: dict[str, Any] = {"spend": bursar.rho(0.1)}


def buy_all(toy: bursar.Dataset) -> list[Any]:
    """A model of every fit, in order of their entries; of a sketch, the sketch."""
    return [
        toy.fit_dpem(n_components=2, **SPEND),
        toy.fit_dpem(n_components=2, mode="kmeans", **SPEND),
        toy.fit_mrf(cliques="tree", **SPEND),
        toy.fit_gradient_em(model="missing_covariates", target="weight", **SPEND),
        toy.fit_separated_gmm(n_components=2, sigma_min=1.0, sigma_max=20.0, **SPEND),
        toy.sketch(n_clusters=2, **SPEND),
    ]


def without_receipt(model: Any) -> dict[str, Any]:
    """All of it but what asking again changes."""
    return {name: value for name, value in model.to_dict().items() if name != "receipt"}


def test_every_model_can_be_had_again(server: FakeServer, client: bursar.Client, toy: bursar.Dataset) -> None:
    """By entry, receipt or what the list has, from dataset or client; nothing is debited."""
    bought = buy_all(toy)
    listed = client.releases()
    assert [one.entry for one in listed] == [model.receipt.entry for model in bought]
    for model, summary in zip(bought, listed, strict=True):
        for again in (toy.model(summary.entry), client.model(model.receipt), client.model(summary)):
            assert type(again) is type(model)
            assert without_receipt(again) == without_receipt(model)
            assert again.receipt is not None
            assert again.receipt.entry == summary.entry
            assert again.receipt.replayed
            assert again.receipt == model.receipt
    assert len(client.releases()) == len(bought)
    assert len(server.requests) == 2


def test_another_client_gets_every_model(server: FakeServer, toy: bursar.Dataset) -> None:
    """One that sent none of the requests, as in another program: the same models, types included."""
    bought = buy_all(toy)
    with server.client() as other:
        for model in bought:
            again = other.dataset("toy").model(model.receipt.entry)
            assert type(again) is type(model)
            assert without_receipt(again) == without_receipt(model)


def test_a_fit_that_broke_off_is_had_by_its_entry(server: FakeServer, toy: bursar.Dataset) -> None:
    """It was paid for, and the server finished it."""
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError):
        toy.fit_dpem(n_components=2, **SPEND)
    (release,) = toy.releases()
    model = toy.model(release)
    assert isinstance(model, bursar.GaussianMixture)
    assert len(toy.releases()) == 1


@pytest.mark.parametrize("entry", [1, 3, 99, 2**62])
def test_an_entry_that_is_no_debit_is_refused(toy: bursar.Dataset, entry: int) -> None:
    """Those before, between and after."""
    toy.fit_dpem(n_components=1, **SPEND)
    with pytest.raises(bursar.NotFoundError, match="this entry is no debit of yours"):
        toy.model(entry)


@pytest.mark.parametrize("entry", [0, -1, 2**63, True - 1])
def test_what_is_no_entry_is_refused(toy: bursar.Dataset, entry: int) -> None:
    """Before anything is sent."""
    with pytest.raises(bursar.InvalidRequestError, match="entry: must be a whole number"):
        toy.model(entry)


class Strange(FakeServer):
    """Its releases are of a dataset, of a kind or of numbers that they are not."""

    change: Callable[[catalog_pb2.GetReleaseResponse], None]

    def GetRelease(
        self, request: catalog_pb2.GetReleaseRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetReleaseResponse:
        """The base's, changed."""
        answer = super().GetRelease(request, context)
        type(self).change(answer)
        return answer


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            lambda answer: answer.ClearField("dpem"),
            bursar.ServerError,
            "a kind of model that this client does not know",
        ),
        (lambda answer: answer.dpem.ClearField("means"), bursar.ServerError, "sent 0 values for an array"),
        (lambda answer: answer.sketch_kmeans.SetInParent(), bursar.ServerError, "sent 0 where this client knows"),
        (
            lambda answer: setattr(answer.receipt, "dataset", "other"),
            bursar.NotFoundError,
            "entry 2 of the ledger is a debit of yours on 'other', not on 'toy'",
        ),
    ],
)
def test_a_release_that_is_not_what_was_asked_for_is_refused(
    change: Callable[[Any], None], error: type[bursar.Error], said: str
) -> None:
    """Of a newer kind, broken, or of another dataset, which the client's own `model` gives."""
    kind = type("Changed", (Strange,), {"change": staticmethod(change)})
    with fake_server(kind) as server, server.client() as client:
        toy = client.dataset("toy")
        toy.fit_dpem(n_components=1, **SPEND)
        with pytest.raises(error, match=said):
            toy.model(2)
        if error is bursar.NotFoundError:
            assert isinstance(client.model(2), bursar.GaussianMixture)


def test_a_receipt_of_another_ledger_is_refused(toy: bursar.Dataset) -> None:
    """An entry of the same number is another model."""
    toy.fit_dpem(n_components=1, **SPEND)
    with fake_server() as server, server.client() as client:
        receipt = client.dataset("toy").fit_dpem(n_components=1, **SPEND).receipt
    assert receipt is not None
    with pytest.raises(bursar.NotFoundError, match="another debit than the receipt's"):
        toy.model(receipt)


def test_an_old_server_says_that_it_has_no_such_method() -> None:
    """One from before `GetRelease`."""
    old = type("Old", (FakeServer,), {"GetRelease": catalog_pb2_grpc.CatalogServiceServicer.GetRelease})
    with fake_server(old) as server, server.client() as client, pytest.raises(bursar.NotImplementedByServerError):
        client.model(2)


def test_releases_show_themselves(client: bursar.Client, toy: bursar.Dataset) -> None:
    """As a table, and as one of HTML with everything escaped."""
    assert repr(client.releases()).startswith("0 releases\n")
    toy.fit_dpem(n_components=1, **SPEND)
    releases = client.releases()
    lines = repr(releases).splitlines()
    assert lines[0] == "1 release"
    assert lines[1].split() == ["entry", "dataset", "method", "state", "rho", "time"]
    assert lines[2].split() == ["2", "toy", "FitDPEM", "released", "0.1"]
    assert "<td>FitDPEM</td>" in releases._repr_html_()
