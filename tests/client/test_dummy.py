"""Dry runs: every request runs on synthetic rows, and the result says so wherever it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import bursar
from bursar_proto.v1 import dummy_pb2
from tests import asking
from tests.client.line import Line

SPEND = bursar.rho(0.1)
Try = Callable[..., Any]
TRIES: dict[str, Try] = {
    "dpem": lambda data, **a: asking.fit(data, bursar.DPEM, n_components=2, spend=SPEND, **a),
    "dpem kmeans": lambda data, **a: asking.fit(data, bursar.DPEM, n_components=2, spend=SPEND, mode="kmeans", **a),
    "sketch": lambda data, **a: asking.fit(data, bursar.SketchKMeans, decoding="none", spend=SPEND, **a),
    "sketch_kmeans": lambda data, **a: asking.fit(data, bursar.SketchKMeans, n_clusters=2, spend=SPEND, **a),
    "mrf": lambda data, **a: asking.fit(data, bursar.MRF, cliques=[("group", "spring")], spend=SPEND, **a),
    "regression": lambda data, **a: asking.fit(
        data, bursar.GradientEM, model="mixture_of_regressions", target="weight", spend=SPEND, **a
    ),
    "missing": lambda data, **a: asking.fit(
        data, bursar.GradientEM, model="missing_covariates", target="weight", spend=SPEND, **a
    ),
    "symmetric": lambda data, **a: asking.fit(data, bursar.GradientEM, model="symmetric_mixture", spend=SPEND, **a),
    "gaussians": lambda data, **a: asking.fit(data, bursar.GradientEM, model="gaussian_mixture", spend=SPEND, **a),
    "separated_gmm": lambda data, **a: asking.fit(
        data, bursar.SeparatedGMM, n_components=2, sigma_min=1, sigma_max=20, spend=SPEND, **a
    ),
}


@pytest.fixture(params=list(TRIES))
def attempt(request: pytest.FixtureRequest) -> Try:
    """Every call that can be a dummy run."""
    return TRIES[request.param]


def test_a_dummy_says_what_it_is_and_nothing_is_debited(attempt: Try, toy: bursar.Dataset, server: Line) -> None:
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
    """A reader of the file is told what it is."""
    made = attempt(toy, dummy=True)
    path = tmp_path / "made.json"
    if isinstance(made, bursar.Sketch):
        bursar.save_sketch(made, path)
        again: Any = bursar.load_sketch(path)
        assert bursar.Sketch.from_dict(made.to_dict()).dummy_
    else:
        made.save(path)
        again = bursar.load(path)
    assert again.dummy_
    assert "dummy" in path.read_text()
    assert "DUMMY" in repr(again)


def test_the_plot_says_so(toy: bursar.Dataset) -> None:
    """A picture travels without its text."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    made = toy.dry_run(bursar.DPEM(n_components=2), spend=SPEND)
    assert "DUMMY" in made.plot(Figure().add_subplot()).get_title(loc="left")


def test_what_is_made_of_a_dummy_is_one(toy: bursar.Dataset) -> None:
    """Decoded, merged, taken apart: once made up, always made up."""
    sketch = toy.dry_run(bursar.SketchKMeans(decoding="none", public_seed=1, scale=0.1), spend=SPEND)
    real = toy.fit(bursar.SketchKMeans(decoding="none", public_seed=1, scale=0.1), spend=SPEND)
    assert sketch.kmeans(2).dummy_
    assert sketch.gaussian_mixture(2).dummy_
    assert real.merge(sketch).dummy_
    assert not real.kmeans(2).dummy_
    lines = toy.dry_run(bursar.GradientEM(model="mixture_of_regressions", target="weight"), spend=SPEND)
    assert lines.component(0).dummy_
    assert toy.dry_run(bursar.GradientEM(model="symmetric_mixture"), spend=SPEND).mixture.dummy_


def test_a_dummy_goes_into_dummies_only(toy: bursar.Dataset, server: Line) -> None:
    """A start and a sketch are sent by their numbers to a dummy run, and are refused by what is paid for."""
    mixture = toy.dry_run(bursar.DPEM(n_components=2), spend=SPEND)
    sketch = toy.dry_run(bursar.SketchKMeans(decoding="none", public_seed=1, scale=0.1), spend=SPEND)
    centres = toy.dry_run(bursar.DPEM(n_components=2, mode="kmeans"), spend=SPEND)
    assert toy.dry_run(bursar.DPEM(n_components=2, start=mixture), spend=SPEND).dummy_
    assert server.dummy_requests[-1].fit.dpem.given.means.values
    assert toy.dry_run(bursar.DPEM(n_components=2, mode="kmeans", start=centres), spend=SPEND).dummy_
    assert toy.dry_run(bursar.SketchKMeans(n_clusters=3, sketch=sketch)).n_clusters == 3
    there = toy.dry_run(bursar.SketchKMeans(n_clusters=3, sketch=sketch, decoded_by="server"))
    assert there.dummy_
    assert server.dummy_requests[-1].fit.sketch_kmeans.foreign[0].dummy
    assert toy.dry_run(bursar.GradientEM(model="gaussian_mixture", start=mixture), spend=SPEND).dummy_
    field = toy.dry_run(bursar.MRF(cliques=[("spring",)]), spend=SPEND)
    asked = len(server.requests + server.sketch_requests + server.gradient_em_requests + server.mrf_requests)
    for refused, name in (
        (lambda: toy.fit(bursar.DPEM(n_components=2, start=mixture), spend=SPEND), "start"),
        (lambda: toy.fit(bursar.GradientEM(model="gaussian_mixture", start=mixture), spend=SPEND), "start"),
        (lambda: toy.fit(bursar.SketchKMeans(n_clusters=3, sketch=sketch)), "sketch"),
        (lambda: toy.fit(bursar.SketchKMeans(n_clusters=3, foreign=[sketch])), "foreign"),
        (lambda: toy.fit(bursar.MRF(cliques=[("spring",)], reuse=[field])), "reuse"),
    ):
        with pytest.raises(bursar.InvalidRequestError, match=f"{name}: was made by a dry run"):
            refused()
    assert asked == len(server.requests + server.sketch_requests + server.gradient_em_requests + server.mrf_requests)


def test_a_release_starts_a_dummy_by_its_numbers(toy: bursar.Dataset, server: Line) -> None:
    """A dummy run knows no entries, so what an earlier model has is sent; an entry alone is refused."""
    model = toy.fit(bursar.DPEM(n_components=2), spend=SPEND)
    toy.dry_run(bursar.DPEM(n_components=2, start=model), spend=SPEND)
    assert server.dummy_requests[-1].fit.dpem.WhichOneof("start") == "given"
    assert model.receipt is not None
    with pytest.raises(bursar.InvalidRequestError, match="looks nothing up in the ledger"):
        toy.dry_run(bursar.DPEM(n_components=2, start=model.receipt), spend=SPEND)
    with pytest.raises(bursar.InvalidRequestError, match="looks no earlier tables up"):
        toy.dry_run(bursar.MRF(cliques=[("spring",)], reuse=[5]))


def test_rows_and_seed_are_sent(toy: bursar.Dataset, lone: bursar.Dataset, server: Line) -> None:
    """True leaves both to the server; what is left becomes the amount that it is now."""
    toy.dry_run(bursar.DPEM(n_components=2), spend=SPEND)
    assert (server.dummy_requests[-1].rows, server.dummy_requests[-1].public_seed) == (0, 0)
    left = lone.remaining().rho
    lone.dry_run(bursar.DPEM(n_components=2), spend=bursar.what_is_left(), rows=50, seed=7)
    assert (server.dummy_requests[-1].rows, server.dummy_requests[-1].public_seed) == (50, 7)
    assert server.dummy_requests[-1].fit.dpem.spend.rho == left


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": 2**20 + 1}, {"rows": 1.5}, {"seed": -1}])
def test_a_dummy_has_numbers_in_their_ranges(toy: bursar.Dataset, wrong: dict[str, Any]) -> None:
    """The numbers are in the ranges that the server would keep."""
    with pytest.raises(bursar.InvalidRequestError, match="must be a whole number"):
        toy.dry_run(bursar.DPEM(n_components=2), spend=SPEND, **wrong)


def cut(answer: dummy_pb2.DummyResponse) -> None:
    """Say that fewer rows were made up than the table has."""
    if answer.HasField("start"):
        answer.start.warnings.append("fewer rows")


def test_a_warning_about_the_rows_is_shown(server: Line, toy: bursar.Dataset) -> None:
    """Python shows it as other warnings."""
    server.changes["DummyService/RunDummy"] = cut
    with pytest.warns(RuntimeWarning, match="fewer rows"):
        asking.fit(toy, bursar.DPEM, n_components=2, spend=SPEND, dummy=True)


def test_a_stream_without_a_model_is_an_error(toy: bursar.Dataset, server: Line) -> None:
    """It was for nothing, so it is not asked for again."""
    server.fail_next(grpc.StatusCode.UNAVAILABLE, "away")
    server.fail_next(grpc.StatusCode.UNAVAILABLE, "away")
    with pytest.raises(bursar.UnavailableError):
        toy.dry_run(bursar.DPEM(n_components=2), spend=SPEND)
    assert server.dummy_requests == []
