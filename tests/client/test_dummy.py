"""`dummy=True`: every call runs on made-up rows, and what comes of it says so wherever it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import bursar
import bursar.models
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import dummy_pb2

SPEND = bursar.rho(0.1)
Try = Callable[..., Any]
TRIES: dict[str, Try] = {
    "dpem": lambda data, **a: data.fit_dpem(n_components=2, spend=SPEND, **a),
    "dpem kmeans": lambda data, **a: data.fit_dpem(n_components=2, spend=SPEND, mode="kmeans", **a),
    "sketch": lambda data, **a: data.sketch(spend=SPEND, **a),
    "sketch_kmeans": lambda data, **a: data.fit_sketch_kmeans(n_clusters=2, spend=SPEND, **a),
    "mrf": lambda data, **a: data.fit_mrf(cliques=[("group", "spring")], spend=SPEND, **a),
    "regression": lambda data, **a: data.fit_gradient_em(
        model="mixture_of_regressions", target="weight", spend=SPEND, **a
    ),
    "missing": lambda data, **a: data.fit_gradient_em(model="missing_covariates", target="weight", spend=SPEND, **a),
    "symmetric": lambda data, **a: data.fit_gradient_em(model="symmetric_mixture", spend=SPEND, **a),
    "gaussians": lambda data, **a: data.fit_gradient_em(model="gaussian_mixture", spend=SPEND, **a),
    "separated_gmm": lambda data, **a: data.fit_separated_gmm(
        n_components=2, sigma_min=1, sigma_max=20, spend=SPEND, **a
    ),
}


@pytest.fixture(params=list(TRIES))
def attempt(request: pytest.FixtureRequest) -> Try:
    """Every call that can be a dummy run."""
    return TRIES[request.param]


def test_a_dummy_says_what_it_is_and_nothing_is_debited(attempt: Try, toy: bursar.Dataset, server: FakeServer) -> None:
    """No receipt, no entry, no question to the fit's own method; text and HTML say DUMMY; the real one does not."""
    made = attempt(toy, dummy=True)
    assert made.dummy_ is True
    assert made.receipt is None
    assert "DUMMY" in repr(made)
    assert "DUMMY" in made._repr_html_()
    assert len(toy.releases()) == 0
    assert len(server.dummy_requests) == 1
    bought = attempt(toy)
    assert bought.dummy_ is False
    assert "DUMMY" not in repr(bought)
    assert type(bought) is type(made)


def test_saved_files_say_so(attempt: Try, toy: bursar.Dataset, tmp_path: Path) -> None:
    """Whoever loads it knows what it is."""
    made = attempt(toy, dummy=True)
    path = tmp_path / "made.json"
    if isinstance(made, bursar.Sketch):
        bursar.save_sketch(made, path)
        again: Any = bursar.load_sketch(path)
        assert bursar.Sketch.from_dict(made.to_dict()).dummy_
    else:
        made.save(path)
        again = bursar.models.load(path)
    assert again.dummy_
    assert "dummy" in path.read_text()
    assert "DUMMY" in repr(again)


def test_the_plot_says_so(toy: bursar.Dataset) -> None:
    """A picture travels without its text."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    made = toy.fit_dpem(n_components=2, spend=SPEND, dummy=True)
    assert "DUMMY" in made.plot(Figure().add_subplot()).get_title(loc="left")


def test_what_is_made_of_a_dummy_is_one(toy: bursar.Dataset) -> None:
    """Decoded, merged, taken apart: once made up, always made up."""
    sketch = toy.sketch(spend=SPEND, public_seed=1, scale=0.1, dummy=True)
    real = toy.sketch(spend=SPEND, public_seed=1, scale=0.1)
    assert sketch.kmeans(2).dummy_
    assert sketch.gaussian_mixture(2).dummy_
    assert real.merge(sketch).dummy_
    assert not real.kmeans(2).dummy_
    lines = toy.fit_gradient_em(model="mixture_of_regressions", target="weight", spend=SPEND, dummy=True)
    assert lines.component(0).dummy_
    assert toy.fit_gradient_em(model="symmetric_mixture", spend=SPEND, dummy=True).mixture.dummy_


def test_a_dummy_goes_into_dummies_only(toy: bursar.Dataset, server: FakeServer) -> None:
    """A start and a sketch are sent by their numbers to a dummy run, and are refused by what is paid for."""
    mixture = toy.fit_dpem(n_components=2, spend=SPEND, dummy=True)
    sketch = toy.sketch(spend=SPEND, public_seed=1, scale=0.1, dummy=True)
    centres = toy.fit_dpem(n_components=2, spend=SPEND, mode="kmeans", dummy=True)
    assert toy.fit_dpem(n_components=2, spend=SPEND, start=mixture, dummy=True).dummy_
    assert server.dummy_requests[-1].fit.dpem.given.means.values
    assert toy.fit_dpem(n_components=2, spend=SPEND, mode="kmeans", start=centres, dummy=True).dummy_
    assert toy.fit_sketch_kmeans(n_clusters=3, sketch=sketch, dummy=True).n_clusters == 3
    there = toy.fit_sketch_kmeans(n_clusters=3, sketch=sketch, dummy=True, decoded_by="server")
    assert there.dummy_
    assert server.dummy_requests[-1].fit.sketch_kmeans.foreign[0].dummy
    assert toy.fit_gradient_em(model="gaussian_mixture", spend=SPEND, start=mixture, dummy=True).dummy_
    field = toy.fit_mrf(cliques=[("spring",)], spend=SPEND, dummy=True)
    asked = len(server.requests + server.sketch_requests + server.gradient_em_requests + server.mrf_requests)
    for refused, name in (
        (lambda: toy.fit_dpem(n_components=2, spend=SPEND, start=mixture), "start"),
        (lambda: toy.fit_gradient_em(model="gaussian_mixture", spend=SPEND, start=mixture), "start"),
        (lambda: toy.fit_sketch_kmeans(n_clusters=3, sketch=sketch), "sketch"),
        (lambda: toy.fit_sketch_kmeans(n_clusters=3, foreign=[sketch]), "foreign"),
        (lambda: toy.fit_mrf(cliques=[("spring",)], reuse=[field]), "reuse"),
    ):
        with pytest.raises(bursar.InvalidRequestError, match=f"{name}: was made by a dummy run"):
            refused()
    assert asked == len(server.requests + server.sketch_requests + server.gradient_em_requests + server.mrf_requests)


def test_a_release_starts_a_dummy_by_its_numbers(toy: bursar.Dataset, server: FakeServer) -> None:
    """A dummy run knows no entries, so what an earlier model has is sent; an entry alone is refused."""
    model = toy.fit_dpem(n_components=2, spend=SPEND)
    toy.fit_dpem(n_components=2, spend=SPEND, start=model, dummy=True)
    assert server.dummy_requests[-1].fit.dpem.WhichOneof("start") == "given"
    assert model.receipt is not None
    with pytest.raises(bursar.InvalidRequestError, match="looks nothing up in the ledger"):
        toy.fit_dpem(n_components=2, spend=SPEND, start=model.receipt, dummy=True)
    with pytest.raises(bursar.InvalidRequestError, match="looks no earlier tables up"):
        toy.fit_mrf(cliques=[("spring",)], reuse=[5], dummy=True)


def test_rows_and_seed_are_sent(toy: bursar.Dataset, server: FakeServer) -> None:
    """True leaves both to the server; what is left becomes the amount that it is now."""
    toy.fit_dpem(n_components=2, spend=SPEND, dummy=True)
    assert (server.dummy_requests[-1].rows, server.dummy_requests[-1].public_seed) == (0, 0)
    toy.fit_dpem(n_components=2, spend=bursar.what_is_left(), dummy=bursar.Dummy(rows=50, public_seed=7))
    assert (server.dummy_requests[-1].rows, server.dummy_requests[-1].public_seed) == (50, 7)
    assert server.dummy_requests[-1].fit.dpem.spend.rho == 0.9


@pytest.mark.parametrize("wrong", [1, 0, None, "yes", 2.0])
def test_nothing_but_true_and_false_decides_whether_a_fit_is_paid_for(toy: bursar.Dataset, wrong: Any) -> None:
    """No truth of other values: a typing error must neither pay nor pretend."""
    with pytest.raises(bursar.InvalidRequestError, match=r"dummy: must be True, False or a bursar\.Dummy"):
        toy.fit_dpem(n_components=2, spend=SPEND, dummy=wrong)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": 2**20 + 1}, {"rows": 1.5}, {"public_seed": -1}])
def test_a_dummy_has_numbers_in_their_ranges(wrong: dict[str, Any]) -> None:
    """As the server would have them."""
    with pytest.raises(bursar.InvalidRequestError, match="must be a whole number"):
        bursar.Dummy(**wrong)


class Cutting(FakeServer):
    """Makes fewer rows up than the table has."""

    def RunDummy(
        self, request: dummy_pb2.DummyRequest, context: grpc.ServicerContext
    ) -> Iterator[dummy_pb2.DummyResponse]:
        """With a warning."""
        for answer in super().RunDummy(request, context):
            if answer.HasField("start"):
                answer.start.warnings.append("fewer rows")
            yield answer


def test_a_warning_about_the_rows_is_shown() -> None:
    """As Python shows warnings."""
    with fake_server(Cutting) as server, server.client() as client:
        data = client.dataset("toy")
        with pytest.warns(RuntimeWarning, match="fewer rows"):
            data.fit_dpem(n_components=2, spend=SPEND, dummy=True)


def test_a_stream_without_a_model_is_an_error(toy: bursar.Dataset, server: FakeServer) -> None:
    """It was for nothing, so it is not asked for again."""
    server.fail_next(grpc.StatusCode.UNAVAILABLE, "away")
    server.fail_next(grpc.StatusCode.UNAVAILABLE, "away")
    with pytest.raises(bursar.UnavailableError):
        toy.fit_dpem(n_components=2, spend=SPEND, dummy=True)
    assert server.dummy_requests == []
