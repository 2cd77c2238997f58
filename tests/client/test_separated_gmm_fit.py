"""Separated components through the client: what is sent, what comes back, and what it may start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

import bursar
from bursar.models import CovarianceType, cholesky_factors, reshaped_covariances
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import fit_pb2, types_pb2

ASK: dict[str, Any] = {"n_components": 4, "sigma_min": 1.0, "sigma_max": 20.0, "spend": bursar.rho(0.1)}
LITTLE: dict[str, Any] = {**ASK, "spend": bursar.rho(1e-4)}
CHOICES: dict[str, Any] = {
    "covariance_type": fit_pb2.COVARIANCE_TYPE_FULL,
    "variant": fit_pb2.SEPARATED_VARIANT_RECURSIVE,
    "search": fit_pb2.SEPARATED_SEARCH_SLABS,
    "estimator": fit_pb2.SEPARATED_ESTIMATOR_EM,
    "units": fit_pb2.COLUMN_UNITS_COMMON,
}


def tensor(values: Any) -> types_pb2.Tensor:
    """On the wire."""
    array = np.asarray(values, dtype=float)
    return types_pb2.Tensor(shape=array.shape, values=array.ravel().tolist())


def test_what_is_found_is_a_mixture_with_its_receipt_and_its_errors(toy: bursar.Dataset) -> None:
    """All of them, in the data's own units, from one debit."""
    model = toy.fit_separated_gmm(**ASK)
    assert type(model) is bursar.GaussianMixture
    assert (model.found_, model.n_components, model.columns) == (4, 4, ("height", "weight"))
    assert model.receipt is not None
    assert (model.receipt.entry, model.receipt.price.rho, model.n_rows, model.iterations) == (2, 0.1, 1000.0, 5)
    np.testing.assert_allclose(model.means_[0], [115, 45])
    np.testing.assert_allclose(model.covariances_, np.tile(15.0**2 * np.eye(2), (4, 1, 1)))
    assert model.separation is not None
    np.testing.assert_array_equal(np.array(model.mean_errors_), np.full((4, 2), 0.15))
    np.testing.assert_array_equal(np.array(model.weight_errors_), np.full(4, 0.0025))
    np.testing.assert_array_equal(np.array(model.covariance_errors_), np.full(4, 0.05))
    assert [noise.name for noise in model.noise] == ["splits"]
    assert [release.method for release in toy.releases()] == ["FitSeparatedGMM"]
    assert model.to_sklearn().predict([[115, 45]]).tolist() == model.predict([[115, 45]]).tolist() == [0]


def test_fewer_than_were_looked_for_are_a_result_that_says_so(toy: bursar.Dataset) -> None:
    """Not an error: found_ is how many there are, and the text names both numbers."""
    model = toy.fit_separated_gmm(**LITTLE)
    assert model.found_ == model.n_components == 2
    assert model.separation is not None
    assert (model.separation.sought, repr(model.separation)) == (
        4,
        "Separation: 2 components of 4 that were looked for",
    )
    title, header, row, *_ = repr(model).splitlines()
    assert title == "GaussianMixture: 2 components of 4 that were looked for, full covariances, entry 2 of 'toy'"
    assert header.split() == ["weight", "height", "weight", "covariance"]
    assert row.split("  ")[-1].strip() == "± 5.0%"
    assert "0.5 ± 0.005" in row
    assert "130 ± 0.2" in row
    assert "of 4 that were looked for" in model._repr_html_()


@pytest.mark.parametrize(("kind", "shape"), [("full", (4, 2, 2)), ("diag", (4, 2)), ("spherical", (4,))])
def test_every_covariance_type_comes_back_in_its_shape(toy: bursar.Dataset, kind: Any, shape: tuple[int, ...]) -> None:
    """One covariance for each component."""
    model = toy.fit_separated_gmm(**ASK, covariance_type=kind)
    assert (model.covariance_type, model.covariances_.shape) == (kind, shape)


def test_spheres_in_units_of_the_bounds_are_diagonal_in_the_datas(toy: bursar.Dataset) -> None:
    """The server says so, and the client takes its word."""
    ask = {**ASK, "sigma_min": 0.01, "sigma_max": 0.5}
    model = toy.fit_separated_gmm(**ask, covariance_type="spherical", units="bounds", columns=["weight"])
    assert (model.covariance_type, model.covariances_.shape, model.columns) == ("diag", (4, 1), ("weight",))


def test_what_is_left_out_is_left_to_the_server(server: FakeServer, toy: bursar.Dataset) -> None:
    """Radius, least weight and separation are zero on the wire; choices are said."""
    toy.fit_separated_gmm(**ASK, request_id="one")
    assert server.separated_gmm_requests == [
        fit_pb2.FitSeparatedGMMRequest(
            request_id="one",
            dataset="toy",
            columns=["height", "weight"],
            spend=types_pb2.Spend(rho=0.1),
            n_components=4,
            sigma_min=1.0,
            sigma_max=20.0,
            **CHOICES,
        )
    ]


@pytest.mark.parametrize(("variant", "shape"), [("easy", "diag"), ("sample_and_aggregate", "spherical")])
def test_every_argument_is_sent_and_previewed(variant: str, shape: str) -> None:
    """What the caller sets arrives as it was set, and a preview asks the same."""
    asked: list[fit_pb2.FitSeparatedGMMRequest] = []

    class Asked(FakeServer):
        def Preview(self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext) -> fit_pb2.PreviewResponse:
            asked.append(request.separated_gmm)
            return super().Preview(request, context)

    numbers: dict[str, Any] = {"radius": 3.0, "min_weight": 0.2, "separation": 0.5, "public_seed": 2**64 - 1}
    choices: dict[str, Any] = {
        "covariance_type": shape,
        "variant": variant,
        "search": "balls",
        "estimator": "clusters",
        "units": "bounds",
    }
    with fake_server(Asked) as server, server.client() as client:
        toy = client.dataset("toy")
        toy.fit_separated_gmm(**ASK, columns=["weight"], **numbers, **choices)
        preview = toy.preview_separated_gmm(**ASK, columns=["weight"], **numbers, **choices)
        asked += server.separated_gmm_requests
    for sent in asked:
        assert sent.request_id
        sent.ClearField("request_id")
        assert sent == fit_pb2.FitSeparatedGMMRequest(
            dataset="toy",
            columns=["weight"],
            spend=types_pb2.Spend(rho=0.1),
            n_components=4,
            sigma_min=1.0,
            sigma_max=20.0,
            covariance_type=f"COVARIANCE_TYPE_{shape.upper()}",  # type: ignore[arg-type]  # names will do
            variant=f"SEPARATED_VARIANT_{variant.upper()}",  # type: ignore[arg-type]  # likewise
            search=fit_pb2.SEPARATED_SEARCH_BALLS,
            estimator=fit_pb2.SEPARATED_ESTIMATOR_CLUSTERS,
            units=fit_pb2.COLUMN_UNITS_BOUNDS,
            **numbers,
        )
    assert len(asked) == 2
    assert (preview.price.rho, preview.affordable, preview.iterations) == (0.1, True, 5)
    assert preview.expected_mean_error == {"weight": 0.5}


@pytest.mark.parametrize("variant", ["easy", "sample_and_aggregate"])
def test_the_papers_variants_find_spheres_unless_told_otherwise(toy: bursar.Dataset, variant: Any) -> None:
    """As in the paper; the recursion finds full covariances. Blocks have no other shapes."""
    assert toy.fit_separated_gmm(**ASK, variant=variant).covariance_type == "spherical"
    assert toy.fit_separated_gmm(**ASK).covariance_type == "full"
    if variant == "easy":
        assert toy.fit_separated_gmm(**ASK, variant=variant, covariance_type="full").covariance_type == "full"
    else:
        with pytest.raises(bursar.InvalidRequestError, match="covariance_type"):
            toy.fit_separated_gmm(**ASK, variant=variant, covariance_type="full")


def test_a_preview_says_whether_the_components_will_be_found(toy: bursar.Dataset) -> None:
    """And from which spend on; nothing is debited for it."""
    enough, little = toy.preview_separated_gmm(**ASK), toy.preview_separated_gmm(**LITTLE)
    assert enough.preflight == bursar.Preflight({"search": 2.0}, 4, 0.05, 1e-3)
    assert enough.preflight.holds
    assert little.preflight is not None
    assert (little.preflight.predicted_found, little.preflight.holds) == (2, False)
    assert "expected to find 2 components; relative error of a covariance: 0.05" in repr(little)
    assert "rules of thumb, which hold from 1 on: search 0.5; all do from about rho=0.001" in repr(little)
    assert toy.releases() == []


def test_a_preview_without_a_preflight_says_nothing_of_it() -> None:
    """As where the number of rows is not public, and where no spend would do."""

    class Private(FakeServer):
        def Preview(self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext) -> fit_pb2.PreviewResponse:
            answer = super().Preview(request, context)
            if request.separated_gmm.n_components == 1:
                answer.ClearField("preflight")
            else:
                answer.preflight.suggested_rho = 0.0
            return answer

    with fake_server(Private) as server, server.client() as client:
        toy = client.dataset("toy")
        one, two = (toy.preview_separated_gmm(**{**ASK, "n_components": k}) for k in (1, 2))
    assert one.preflight is None
    assert "expected to find" not in repr(one)
    assert two.preflight is not None
    assert two.preflight.suggested_rho is None
    assert "about rho" not in repr(two)


def test_a_preview_takes_what_a_fit_takes() -> None:
    """All of it, with the same defaults, but for the key, the bar, and whether it is paid for."""
    fit = dict(inspect.signature(bursar.Dataset.fit_separated_gmm).parameters)
    del fit["request_id"], fit["progress"], fit["dummy"]
    assert fit == dict(inspect.signature(bursar.Dataset.preview_separated_gmm).parameters)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_components": 2.0}, "n_components"),
        ({"sigma_min": 0}, "sigma_min"),
        ({"sigma_min": float("nan")}, "sigma_min"),
        ({"sigma_max": float("inf")}, "sigma_max"),
        ({"sigma_max": 1.0}, "sigma_max"),
        ({"spend": 0.1}, "spend"),
        ({"spend": bursar.pure(1.0)}, "spend"),
        ({"columns": "height"}, "columns"),
        ({"radius": 0}, "radius"),
        ({"radius": -1}, "radius"),
        ({"min_weight": 0.26}, "min_weight"),
        ({"min_weight": "few"}, "min_weight"),
        ({"separation": float("nan")}, "separation"),
        ({"covariance_type": "tied"}, "covariance_type"),
        ({"variant": "hard"}, "variant"),
        ({"search": "cubes"}, "search"),
        ({"estimator": "ml"}, "estimator"),
        ({"units": "metres"}, "units"),
        ({"public_seed": -1}, "public_seed"),
        ({"public_seed": 2**64}, "public_seed"),
    ],
)
def test_what_no_server_would_accept_is_not_sent(
    server: FakeServer, toy: bursar.Dataset, change: dict[str, Any], field: str
) -> None:
    """The error names the field, for a fit and a preview."""
    for call in (toy.fit_separated_gmm, toy.preview_separated_gmm):
        with pytest.raises(bursar.InvalidRequestError) as caught:
            call(**{**ASK, **change})
        assert caught.value.violations[0][0] == field
    assert server.separated_gmm_requests == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": ["group"]}, "columns: 'group' is no numeric column"),
        ({"columns": []}, "columns: expected at least one"),
        ({"n_components": 33}, "n_components: expected 1 to 32"),
        ({"radius": 0.5}, "radius: expected sigma_min, 1.0, or more, got 0.5"),
    ],
)
def test_the_fake_refuses_what_the_server_would(toy: bursar.Dataset, change: dict[str, Any], message: str) -> None:
    """Before it debits."""
    for call in (toy.fit_separated_gmm, toy.preview_separated_gmm):
        with pytest.raises(bursar.InvalidRequestError, match=message):
            call(**{**ASK, **change})
    assert toy.releases() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma_max": 1.0}, "sigma_max: expected more than sigma_min"),
        ({"sigma_min": 0.0}, "sigma_max: expected more than sigma_min"),
        ({"min_weight": 0.26}, "min_weight: expected 1 / n_components or less"),
        ({"covariance_type": fit_pb2.COVARIANCE_TYPE_TIED}, "covariance_type: expected full"),
        ({"spend": types_pb2.Spend(epsilon=1.0)}, "spend.epsilon: expected rho or epsilon_delta"),
    ],
)
def test_the_fake_checks_what_other_clients_may_send(
    server: FakeServer, client: bursar.Client, change: dict[str, Any], message: str
) -> None:
    """The same as this client checks before it sends."""
    sent: dict[str, Any] = {"n_components": 4, "sigma_min": 1.0, "sigma_max": 2.0, "spend": types_pb2.Spend(rho=0.1)}
    request = fit_pb2.FitSeparatedGMMRequest(dataset="toy", request_id="r", columns=["height"], **{**sent, **change})
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_stream("/bursar.v1.FitService/FitSeparatedGMM")
        with pytest.raises(grpc.RpcError, match=message):
            list(call(request.SerializeToString()))
    assert client.dataset("toy").releases() == []


def test_the_same_request_gets_the_same_model(server: FakeServer, toy: bursar.Dataset) -> None:
    """After a broken stream, and when it is asked again by its request_id; one debit."""
    server.break_next()
    first = toy.fit_separated_gmm(**ASK, request_id="mine")
    again = toy.fit_separated_gmm(**ASK, request_id="mine")
    assert again.receipt is not None
    assert again.receipt.replayed
    np.testing.assert_array_equal(first.means_, again.means_)
    assert (len(server.separated_gmm_requests), len(toy.releases())) == (3, 1)


def test_what_was_found_starts_other_fits_for_nothing(server: FakeServer, toy: bursar.Dataset) -> None:
    """Its numbers are sent, in the shape of the covariances that the new fit has."""
    found = toy.fit_separated_gmm(**LITTLE)
    toy.fit_dpem(n_components=2, spend=bursar.rho(0.1), start=found)
    assert server.requests[-1].given == fit_pb2.StartGiven(
        weights=tensor([0.5, 0.5]), means=tensor(found.means_), covariances=tensor(found.covariances_)
    )
    shapes: list[tuple[dict[str, Any], Any]] = [
        ({"covariance_type": "tied"}, 400 * np.eye(2)),
        ({"covariance_type": "diag"}, np.full((2, 2), 400)),
        ({"covariance_type": "spherical"}, np.full(2, 400)),
        ({"mode": "kmeans"}, np.full(2, 400)),
    ]
    for change, covariances in shapes:
        toy.fit_dpem(n_components=2, spend=bursar.rho(0.1), start=found, **change)
        assert server.requests[-1].given.covariances == tensor(covariances)
    toy.fit_gradient_em(model="gaussian_mixture", n_components=2, spend=bursar.rho(0.1), start=found)
    assert server.gradient_em_requests[-1].given.coefficients == tensor(found.means_)


def test_a_start_has_the_columns_and_the_components_of_the_fit(server: FakeServer, toy: bursar.Dataset) -> None:
    """Fewer components than a fit has are refused with their number, before anything is sent."""
    found = toy.fit_separated_gmm(**LITTLE)
    with pytest.raises(bursar.InvalidRequestError, match="start: found 2 components; ask for n_components=2, got 4"):
        toy.fit_dpem(n_components=4, spend=bursar.rho(0.1), start=found)
    with pytest.raises(bursar.InvalidRequestError, match="is a model of columns"):
        toy.fit_dpem(n_components=2, columns=["weight", "height"], spend=bursar.rho(0.1), start=found)
    assert server.requests == []
    # Without names the caller knows best.
    toy.fit_dpem(n_components=2, columns=["weight", "height"], spend=bursar.rho(0.1), start=replace(found, columns=()))


def test_mixtures_of_other_fits_start_by_their_numbers(server: FakeServer, toy: bursar.Dataset) -> None:
    """Only a mixture of the same method is known to the server under its entry."""
    spend = bursar.rho(0.1)
    own = toy.fit_dpem(n_components=2, spend=spend)
    gradient = toy.fit_gradient_em(model="gaussian_mixture", n_components=2, spend=spend)
    sketched = toy.fit_sketch_kmeans(n_clusters=2, decoding="mixture", spend=spend)
    for start, kind in ((own, "released"), (gradient, "given"), (sketched, "given")):
        toy.fit_dpem(n_components=2, spend=spend, start=start)
        assert server.requests[-1].WhichOneof("start") == kind
    with pytest.raises(bursar.InvalidRequestError, match="start: has 2 components; ask for n_components=2, got 3"):
        toy.fit_dpem(n_components=3, spend=spend, start=gradient)


@pytest.mark.parametrize("given", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("wanted", ["full", "tied", "diag", "spherical"])
def test_covariances_take_another_shape(given: CovarianceType, wanted: CovarianceType) -> None:
    """As near as that shape lets them: what it has room for stays, the rest is averaged or left out."""
    rng = np.random.default_rng(0)  # noqa: TID251 - random parameters, no release
    k, d, weights = 3, 2, np.array([0.5, 0.25, 0.25])
    roots = rng.normal(size=(k, d, d))
    matrices = roots @ roots.swapaxes(1, 2) + np.eye(d)
    covariances = {
        "full": matrices,
        "tied": matrices[0],
        "diag": matrices.diagonal(axis1=1, axis2=2),
        "spherical": matrices[:, 0, 0],
    }[given]
    shaped = reshaped_covariances(covariances, weights, d, given=given, wanted=wanted)
    before, after = (_matrices(values, kind, k, d) for values, kind in ((covariances, given), (shaped, wanted)))
    if wanted == "tied" and given != "tied":
        before = np.broadcast_to(np.einsum("k,kij->ij", weights, before), before.shape)
    np.testing.assert_allclose(np.trace(after, axis1=1, axis2=2), np.trace(before, axis1=1, axis2=2))
    if wanted in ("full", "tied"):
        np.testing.assert_allclose(after, before, atol=1e-12)
    if wanted == "diag":
        np.testing.assert_allclose(after, before * np.eye(d), atol=1e-12)


def _matrices(covariances: Any, kind: CovarianceType, k: int, d: int) -> Any:
    factors = cholesky_factors(np.asarray(covariances), kind, k, d)
    if factors.ndim == 2:
        return factors[:, :, None] ** 2 * np.eye(d)
    return factors @ factors.swapaxes(1, 2)


ERRORS: dict[str, Any] = {
    "sought": 3,
    "mean_errors": [[0.1, 0.2], [0.3, 0.4]],
    "weight_errors": [0.0, 0.1],
    "covariance_errors": [0.1, 0.2],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sought": 1}, "sought: expected at least 2"),
        ({"sought": float("nan")}, "sought: expected at least 2"),
        ({"mean_errors": [0.1, 0.2]}, r"mean_errors: expected shape \(found, d\)"),
        ({"mean_errors": [[0.1, np.nan], [0.3, 0.4]]}, "mean_errors: every entry must be finite"),
        ({"mean_errors": [[0.1, -0.2], [0.3, 0.4]]}, "mean_errors: every entry must be at least 0"),
        ({"weight_errors": [0.1]}, r"weight_errors: expected shape \(2,\)"),
        ({"weight_errors": [0.1, -1e-9]}, "weight_errors: every entry must be at least 0"),
        ({"covariance_errors": [[0.1, 0.2]]}, r"covariance_errors: expected shape \(2,\)"),
        ({"covariance_errors": [0.1, np.inf]}, "covariance_errors: every entry must be finite"),
    ],
)
def test_errors_check_themselves(change: dict[str, Any], message: str) -> None:
    """Shapes, signs and numbers."""
    with pytest.raises(ValueError, match=message):
        bursar.Separation(**{**ERRORS, **change})


def test_errors_are_read_only_and_those_of_their_model() -> None:
    """A mixture takes those of its own shape alone; one without has none."""
    separation = bursar.Separation(**ERRORS)
    with pytest.raises(ValueError, match="read-only"):
        separation.weight_errors[0] = 1.0
    shared: dict[str, Any] = {"covariance_type": "spherical", "separation": separation}
    mixture = bursar.GaussianMixture(np.full(2, 0.5), np.zeros((2, 2)), np.ones(2), **shared)
    assert (mixture.found_, mixture.weight_errors_ is separation.weight_errors) == (2, True)
    bare = replace(mixture, separation=None)
    assert (bare.found_, bare.mean_errors_, bare.weight_errors_, bare.covariance_errors_) == (None, None, None, None)
    with pytest.raises(ValueError, match=r"separation: expected mean_errors of shape \(1, 2\), got \(2, 2\)"):
        bursar.GaussianMixture(np.ones(1), np.zeros((1, 2)), np.ones(1), **shared)


def _cut(message: types_pb2.Tensor) -> None:
    del message.values[-1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model: model.ClearField("found"),
        lambda model: model.ClearField("covariance_type"),
        lambda model: model.ClearField("weights"),
        lambda model: model.ClearField("means"),
        lambda model: model.ClearField("covariances"),
        lambda model: model.ClearField("mean_errors"),
        lambda model: model.ClearField("weight_errors"),
        lambda model: model.ClearField("covariance_errors"),
        lambda model: model.means.CopyFrom(types_pb2.Tensor(values=[1.0])),
        lambda model: model.mean_errors.CopyFrom(tensor(np.full((4, 2), -1.0))),
        lambda model: model.columns.append("age"),
        lambda model: _cut(model.means),
        lambda model: setattr(model, "covariance_type", 99),
    ],
)
def test_what_is_no_model_is_the_servers_error(spoil: Callable[[fit_pb2.SeparatedGMM], None]) -> None:
    """Not a model that answers nonsense."""

    class Spoilt(FakeServer):
        def FitSeparatedGMM(
            self, request: fit_pb2.FitSeparatedGMMRequest, context: grpc.ServicerContext
        ) -> Iterator[fit_pb2.FitSeparatedGMMResponse]:
            for response in super().FitSeparatedGMM(request, context):
                if response.HasField("model"):
                    spoil(response.model)
                yield response

    with fake_server(Spoilt) as server, server.client() as client, pytest.raises(bursar.ServerError):
        client.dataset("toy").fit_separated_gmm(**ASK)


def test_more_components_than_were_asked_for_are_the_servers_error() -> None:
    """Whoever asks for two gets two at most."""

    class Eager(FakeServer):
        def FitSeparatedGMM(
            self, request: fit_pb2.FitSeparatedGMMRequest, context: grpc.ServicerContext
        ) -> Iterator[fit_pb2.FitSeparatedGMMResponse]:
            request.n_components = 4
            yield from super().FitSeparatedGMM(request, context)

    wrong = pytest.raises(bursar.ServerError, match="sought: expected at least 4")
    with fake_server(Eager) as server, server.client() as client, wrong:
        client.dataset("toy").fit_separated_gmm(**{**ASK, "n_components": 2})
