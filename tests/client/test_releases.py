"""What was bought: it is listed, and can be had again for nothing."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

import bursar
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import catalog_pb2

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
        for again in (toy.model(summary.entry), client.model(model.receipt), client.model(summary, progress=False)):
            assert type(again) is type(model)
            assert without_receipt(again) == without_receipt(model)
            assert again.receipt is not None
            assert again.receipt.entry == summary.entry
            assert again.receipt.replayed or again.receipt.free
    assert len(client.releases()) == len(bought)


def test_another_client_gets_sketches_and_is_told_how_to_get_the_rest(server: FakeServer, toy: bursar.Dataset) -> None:
    """The server gives a release to the same request only."""
    model, *_, sketch = buy_all(toy)
    with server.client() as other:
        again = other.model(sketch.receipt.entry)
        assert without_receipt(again) == without_receipt(sketch)
        with pytest.raises(bursar.NotFoundError, match=f"request_id='{model.receipt.request_id}'.*debits nothing"):
            other.model(model.receipt)
        repeated = other.dataset("toy").fit_dpem(n_components=2, **SPEND, request_id=model.receipt.request_id)
        assert repeated.receipt is not None
        assert repeated.receipt.replayed


def test_a_fit_that_broke_off_is_had_by_its_entry(server: FakeServer, toy: bursar.Dataset) -> None:
    """The request was sent, so asking again joins it."""
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError):
        toy.fit_dpem(n_components=2, **SPEND)
    (release,) = toy.releases()
    model = toy.model(release)
    assert isinstance(model, bursar.GaussianMixture)
    assert len(toy.releases()) == 1


def test_a_refused_request_takes_no_place(server: FakeServer, toy: bursar.Dataset) -> None:
    """A request_id that was tried with other arguments still gives what it paid for."""
    model = toy.fit_dpem(n_components=2, **SPEND, request_id="mine")
    server.fail_next(grpc.StatusCode.ALREADY_EXISTS)
    with pytest.raises(bursar.RefusedError):
        toy.fit_dpem(n_components=3, **SPEND, request_id="mine")
    assert model.receipt is not None
    assert without_receipt(toy.model(model.receipt)) == without_receipt(model)


@pytest.mark.parametrize("entry", [1, 3, 99, 2**62])
def test_an_entry_that_is_no_debit_is_refused(toy: bursar.Dataset, entry: int) -> None:
    """Those before, between and after."""
    toy.fit_dpem(n_components=1, **SPEND)
    with pytest.raises(bursar.NotFoundError, match=f"entry {entry} of the ledger is no debit of yours on 'toy'"):
        toy.model(entry)


@pytest.mark.parametrize("entry", [0, -1, 2**63, True - 1])
def test_what_is_no_entry_is_refused(toy: bursar.Dataset, entry: int) -> None:
    """Before anything is sent."""
    with pytest.raises(bursar.InvalidRequestError, match="entry: must be a whole number"):
        toy.model(entry)


class Failing(FakeServer):
    """Its fits all ended without a model."""

    def ListReleases(
        self, request: catalog_pb2.ListReleasesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListReleasesResponse:
        """The base's, with another state."""
        answer = super().ListReleases(request, context)
        for release in answer.releases:
            release.state = catalog_pb2.RELEASE_STATE_FAILED
        return answer


def test_a_fit_that_failed_is_not_asked_for() -> None:
    """It is never run again."""
    with fake_server(Failing) as server, server.client() as client:
        model = client.dataset("toy").fit_dpem(n_components=1, **SPEND)
        assert model.receipt is not None
        with pytest.raises(bursar.NotFoundError, match="entry 2 ended without a model"):
            client.model(model.receipt)
        assert len(server.requests) == 1


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
