"""The five request values: checked when made, equal by content, printed, kept as JSON and hashed."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bursar
from bursar_models.budget import Price, Receipt, Remaining
from bursar_models.requests import REQUIRED, arguments
from tests.each import each

KINDS = (bursar.DPEM, bursar.SeparatedGMM, bursar.GradientEM, bursar.SketchKMeans, bursar.MRF)
NAN, INF = math.nan, math.inf
NOT_POSITIVE = (0, -1.0, NAN, INF, "1", None.__class__)
NOT_COUNTS = (0, -1, 1.0, 2.5, NAN, "3", 2**32)
NOT_SEEDS = (-1, 2**64, 0.5, NAN)
NOT_NAMES = ("age", ["age", 1], 3, [None])


def receipt(**fields: Any) -> Receipt:
    """A receipt of entry 3 of "toy"."""
    left = Remaining(1, 1, 2, 2, 0.1, 0.2, 16.0)
    known = {"dataset": "toy", "request_id": "r", "entry": 3, "price": Price(1, 0, 0.1), "remaining": left}
    return Receipt(**{**known, "ledger_head": "ab", "adjacency": bursar.NeighbouringRelation.REPLACE_ONE, **fields})


MIXTURE = bursar.GaussianMixture(
    np.array([0.5, 0.5]), np.array([[0.0], [5.0]]), np.array([[[1.0]], [[2.0]]]), "full", columns=("age",)
)
PAID = replace(MIXTURE, receipt=receipt())

REQUESTS: dict[str, Callable[[], bursar.Request]] = {
    "dpem": lambda: bursar.DPEM(n_components=3),
    "kmeans": lambda: bursar.DPEM(n_components=3, columns=["a", "b"], mode="kmeans", iterations=4, clip_radius=0.5),
    "map": lambda: bursar.DPEM(n_components=2, estimator="map", prior=bursar.GaussianPrior(kappa=2)),
    "random": lambda: bursar.DPEM(n_components=2, start=bursar.RandomStart(7)),
    "given": lambda: bursar.DPEM(n_components=1, start=bursar.GivenStart([[0.1, 1e-300]], [1], [[[1, 0], [0, 1]]])),
    "entry": lambda: bursar.DPEM(n_components=2, start=12),
    "receipt": lambda: bursar.DPEM(n_components=2, start=receipt()),
    "model": lambda: bursar.DPEM(n_components=2, start=PAID),
    "separated": lambda: bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=20, radius=3, public_seed=5),
    "symmetric": lambda: bursar.GradientEM(model="symmetric_mixture", centre=[1.5, 2], start=bursar.RandomStart(0)),
    "lines": lambda: bursar.GradientEM(
        model="mixture_of_regressions",
        target="y",
        features=["a"],
        fit_intercept=False,
        start=bursar.GivenCoefficients([[1.0], [2.0]], [0, 0]),
    ),
    "gaussians": lambda: bursar.GradientEM(model="gaussian_mixture", start=MIXTURE, noise_std=0.25, tau=2, zeta=0.01),
    "sketch": lambda: bursar.SketchKMeans(decoding="none", scale=bursar.Pilot(share=0.2), n_frequencies=100),
    "decode": lambda: bursar.SketchKMeans(n_clusters=4, sketch=9, decoder_seed=2, n_init=3),
    "scale": lambda: bursar.SketchKMeans(n_clusters=4, decoding="mixture", scale=0.125, law="multiscale"),
    "tree": lambda: bursar.MRF(cliques="tree", share=0.5),
    "rounds": lambda: bursar.MRF(workload={("a", "b", "c"): 2, ("c", "d"): 1}),
    "cliques": lambda: bursar.MRF(cliques=[("a", "b"), ["c"]], precisions={("b", "a"): 4}, reuse=[3, receipt()]),
    "chain": lambda: bursar.MRF(cliques=bursar.Chain(["a", "b"], null="x"), estimator="naive", regularization=2),
}

WRONG: list[tuple[type[bursar.Request], dict[str, Any], str, tuple[Any, ...]]] = [
    (bursar.DPEM, {}, "n_components", (*NOT_COUNTS, None)),
    (bursar.DPEM, {"n_components": 2}, "columns", NOT_NAMES),
    (bursar.DPEM, {"n_components": 2}, "covariance_type", ("fall", 1, ["full"])),
    (bursar.DPEM, {"n_components": 2}, "estimator", ("mle", None, 1)),
    (bursar.DPEM, {"n_components": 2}, "prior", (1, {"kappa": 1})),
    (bursar.DPEM, {"n_components": 2}, "mode", ("k-means", None)),
    (bursar.DPEM, {"n_components": 2}, "moments", ("centred", None)),
    (bursar.DPEM, {"n_components": 2}, "background", ("yes", True)),
    (bursar.DPEM, {"n_components": 2}, "transform", ("log1p", ["a"], {1: "log1p"})),
    (bursar.SeparatedGMM, {"n_components": 2, "sigma_min": 1, "sigma_max": 2}, "transform", ("log1p",)),
    (bursar.SketchKMeans, {"n_clusters": 2}, "transform", ("log1p",)),
    (bursar.DPEM, {"n_components": 2}, "transform['a']", ({"a": "sqrt"}, {"a": None})),
    (bursar.DPEM, {"n_components": 2}, "iterations", NOT_COUNTS),
    (bursar.DPEM, {"n_components": 2}, "start", ("split", 0, -1, 2**64, None, 1.5, bursar.Pilot())),
    (bursar.DPEM, {"n_components": 2}, "clip_radius", NOT_POSITIVE),
    (bursar.SeparatedGMM, {"sigma_min": 1, "sigma_max": 2}, "n_components", (*NOT_COUNTS, None)),
    (bursar.SeparatedGMM, {"n_components": 2, "sigma_max": 2}, "sigma_min", (*NOT_POSITIVE, None)),
    (bursar.SeparatedGMM, {"n_components": 2, "sigma_min": 1}, "sigma_max", (*NOT_POSITIVE, None, 1, 0.5)),
    *(
        (bursar.SeparatedGMM, {"n_components": 2, "sigma_min": 1, "sigma_max": 2}, name, wrong)
        for name, wrong in {
            "columns": NOT_NAMES,
            "radius": NOT_POSITIVE,
            "min_weight": (*NOT_POSITIVE, 0.51),
            "covariance_type": ("tied", 1),
            "separation": NOT_POSITIVE,
            "variant": ("hard", None),
            "search": ("cubes", None),
            "estimator": ("ml", 1),
            "units": ("metres", None),
            "public_seed": (*NOT_SEEDS, None),
        }.items()
    ),
    (bursar.GradientEM, {}, "model", ("mixture", None, 1)),
    *(
        (bursar.GradientEM, {"model": "gaussian_mixture"}, name, wrong)
        for name, wrong in {
            "columns": NOT_NAMES,
            "n_components": NOT_COUNTS,
            "variant": ("fixed", 1),
            "heavy_tails": ("yes", 1, None),
            "iterations": NOT_COUNTS,
            "step_size": NOT_POSITIVE,
            "averaged": NOT_COUNTS,
            "noise_std": NOT_POSITIVE,
            "scale": NOT_POSITIVE,
            "zeta": NOT_POSITIVE,
            "tau": NOT_POSITIVE,
            "start": (1, "random", bursar.GivenStart([[1.0]])),
            "units": ("metres", None),
            "target": ("y",),
            "features": (["a"],),
            "symmetric": (True,),
            "fit_intercept": (False, "no"),
            "centre": ([1.0], [1.0, 2.0]),
            "paper_weights": (True,),
        }.items()
    ),
    *(
        (bursar.GradientEM, {"model": "symmetric_mixture"}, name, wrong)
        for name, wrong in {
            "centre": ([NAN], "a", [[1], [1, 2]]),
            "n_components": (2,),
            "start": (MIXTURE,),
            "target": ("y",),
            "units": ("metres",),
        }.items()
    ),
    *(
        (bursar.GradientEM, {"model": model}, "target", (None, "", 3))
        for model in ("missing_covariates", "mixture_of_regressions")
    ),
    *(
        (bursar.GradientEM, {"model": model, "target": "y"}, "features", (*NOT_NAMES, ["y"]))
        for model in ("missing_covariates", "mixture_of_regressions")
    ),
    (bursar.GradientEM, {"model": "missing_covariates", "target": "y"}, "fit_intercept", (False,)),
    (bursar.GradientEM, {"model": "missing_covariates", "target": "y"}, "n_components", (1,)),
    (bursar.GradientEM, {"model": "mixture_of_regressions", "target": "y"}, "columns", (["a"],)),
    (bursar.GradientEM, {"model": "mixture_of_regressions", "target": "y"}, "paper_weights", (True,)),
    (bursar.GradientEM, {"model": "mixture_of_regressions", "target": "y"}, "units", ("bounds",)),
    (bursar.SketchKMeans, {}, "n_clusters", (*NOT_COUNTS, None)),
    *(
        (bursar.SketchKMeans, {"n_clusters": 2}, name, wrong)
        for name, wrong in {
            "decoding": ("gmm", None),
            "sketch": (0, 2**64, "s", 1.5),
            "foreign": (1, [1], "ab"),
            "columns": NOT_NAMES,
            "n_frequencies": (*NOT_COUNTS, 16385),
            "frequencies_per_row": (*NOT_COUNTS, 16385),
            "law": ("normal", None),
            "structure": ("sparse", None),
            "signature": ("cosine", None),
            "units": ("metres", None),
            "scale": ("guess", NAN, INF, -1, 0, 1e-5, 1e9, None, True),
            "public_seed": NOT_SEEDS,
            "n_init": NOT_COUNTS,
            "decoder_seed": (*NOT_SEEDS, None),
            "decoded_by": ("cloud", None),
        }.items()
    ),
    (bursar.SketchKMeans, {"n_clusters": 2, "n_frequencies": 10}, "frequencies_per_row", (11,)),
    (bursar.SketchKMeans, {"n_clusters": 2, "sketch": 3}, "law", ("multiscale",)),
    (bursar.MRF, {}, "cliques", ("trees", [], None, 3, "")),
    (bursar.MRF, {}, "cliques[0]", (["tree"], ["a", "b"], [()], [("a", "a")], [(1,)], [("a", 2)])),
    (bursar.MRF, {}, "cliques[1]", ([("a", "b"), ("b", "a")], [("a", "b"), ()])),
    (bursar.MRF, {"cliques": "independent"}, "share", (0.5,)),
    (bursar.MRF, {}, "held_out", (0, 0.001, 0.51, math.nan, "0.1")),
    *(
        (bursar.MRF, {"cliques": [("a", "b")]}, name, wrong)
        for name, wrong in {
            "columns": NOT_NAMES,
            "precisions": (
                *(3, [1, 2], {"a": 1}, {("a", "c"): 1}, {("a", "b"): 0}),
                *({("a", "b"): NAN}, {("a", "b"): 1, ("b", "a"): 1}),
            ),
            "estimator": ("ml", None),
            "regularization": NOT_POSITIVE,
            "inference": ("fast", None),
            "unit_weights": ("people", 1),
            "reuse": (3, "a", [0], [2**64], ["a"], [MIXTURE]),
            "estimated_by": ("cloud", None),
        }.items()
    ),
    (bursar.MRF, {"cliques": "tree"}, "share", (*NOT_POSITIVE, 0.04, 0.91)),
    (bursar.MRF, {"cliques": "tree"}, "precisions", ({}, {("a",): 1})),
    (bursar.MRF, {"cliques": bursar.Chain(["a", "b"])}, "precisions", ({},)),
    (
        bursar.MRF,
        {},
        "workload",
        (3, None, "quadruples", {}, {("a",): 1}, {("a", "b"): 0}, {("a", "b"): NAN}, {("a", "b"): 1, ("b", "a"): 1}),
    ),
    (bursar.MRF, {"cliques": "tree"}, "workload", ({("a", "b"): 1},)),
    (bursar.MRF, {"cliques": bursar.Chain(["a", "b"])}, "columns", (["a"],)),
]


@each(
    ("kind", "others", "field", "value"),
    [(kind, others, field, value) for kind, others, field, values in WRONG for value in values],
)
def test_a_wrong_argument_is_refused_by_its_name(
    kind: type[bursar.Request], others: dict[str, Any], field: str, value: Any
) -> None:
    """NaN, infinities, other types and values outside the range fail where the request is made."""
    with pytest.raises(bursar.InvalidRequestError) as caught:
        kind(**others, **{field.partition("[")[0]: value})
    assert caught.value.violations[0][0] == field


@each(
    ("make", "field"),
    [
        (lambda: bursar.RandomStart(-1), "start.random.public_seed"),
        (lambda: bursar.GivenStart(means=[[NAN]]), "start.given.means"),
        (lambda: bursar.GivenStart(means=[[1.0]], weights="ab"), "start.given.weights"),
        (lambda: bursar.GaussianPrior(scale=0.0), "prior.scale"),
        (lambda: bursar.GivenCoefficients([[INF]]), "start.given.coefficients"),
        (lambda: bursar.GivenCoefficients([[1.0]], intercepts=[NAN]), "start.given.intercepts"),
        (lambda: bursar.GivenCoefficients([[1.0]], weights="all"), "start.given.weights"),
        (lambda: bursar.Pilot(share=0.04), "pilot.share"),
        (lambda: bursar.Pilot(share=NAN), "pilot.share"),
        (lambda: bursar.Pilot(n_frequencies=15), "pilot.n_frequencies"),
        (lambda: bursar.Pilot(n_frequencies=513), "pilot.n_frequencies"),
        *(
            (lambda wrong=wrong: bursar.Chain(wrong), "chain.columns")
            for wrong in ("ab", ["a"], [], ["a", 2], ["a", "b", "a"])
        ),
        *((lambda wrong=wrong: bursar.Chain(["a", "b"], null=wrong), "chain.null") for wrong in ("", 3)),
    ],
)
def test_a_part_of_a_request_checks_itself(make: Callable[[], object], field: str) -> None:
    """One that cannot be is refused where it is made."""
    with pytest.raises(bursar.InvalidRequestError) as caught:
        make()
    assert caught.value.violations[0][0] == field


def test_every_argument_has_a_wrong_value_above() -> None:
    """So that a new field is checked, too."""
    tried = {(kind, field.partition("[")[0]) for kind, _, field, _ in WRONG}
    assert [(kind.__name__, a.name) for kind in KINDS for a in arguments(kind) if (kind, a.name) not in tried] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_is_described_once(kind: type[bursar.Request]) -> None:
    """The class's docstring has a sentence for each field and for nothing else, in their order."""
    words = [argument.words for argument in arguments(kind)]
    assert all(words)
    text = kind.__doc__ or ""
    places = [text.index(f"\n        {argument.name}: ") for argument in arguments(kind)]
    assert places == sorted(places)


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS)
class TestValue:
    """Tests of every request."""

    def test_is_equal_to_another_with_the_same_arguments(self, make: Callable[[], bursar.Request]) -> None:
        """Hash and digest are equal, too, and no other request above is equal to it."""
        assert make() == make()
        assert hash(make()) == hash(make())
        assert make().digest() == make().digest()
        assert sum(make() == other() for other in REQUESTS.values()) == 1
        assert len({other().digest() for other in REQUESTS.values()}) == len(REQUESTS)

    def test_survives_json_exactly(self, make: Callable[[], bursar.Request], tmp_path: Path) -> None:
        """Text, a file, copies and pickles keep it."""
        request = make()
        text = json.dumps(request.to_dict(), allow_nan=False)
        again = bursar.Request.from_dict(json.loads(text))
        assert again == request
        assert json.dumps(again.to_dict()) == text
        request.save(tmp_path / "request.json")
        assert type(request).load(tmp_path / "request.json") == request
        assert copy.deepcopy(request) == request
        assert pickle.loads(pickle.dumps(request)) == request  # noqa: S301 - our own

    def test_cannot_be_changed(self, make: Callable[[], bursar.Request]) -> None:
        """A field that was checked stays as it is."""
        request = make()
        with pytest.raises(FrozenInstanceError):
            setattr(request, arguments(type(request))[0].name, 1)

    def test_shows_what_was_asked_for(self, make: Callable[[], bursar.Request]) -> None:
        """One line that begins with the constructor and has no argument that is at its default."""
        request = make()
        text = repr(request)
        assert text.startswith(f"bursar.{type(request).__name__}(")
        assert "\n" not in text
        assert "None" not in text
        assert all(f"{name}=" in text for name in request.changed())


@pytest.mark.parametrize(
    "name", ["dpem", "kmeans", "map", "random", "given", "entry", "separated", "lines", "scale", "cliques", "chain"]
)
def test_what_is_shown_makes_the_same_request(name: str) -> None:
    """The text is an expression, unless a model or a receipt stands in it."""
    request = REQUESTS[name]() if name != "cliques" else bursar.MRF(cliques=[("a", "b"), ("c",)])
    assert eval(repr(request), {"bursar": bursar}) == request  # noqa: S307 - our own text


@pytest.mark.parametrize("kind", KINDS)
def test_a_default_that_is_written_out_changes_nothing(kind: type[bursar.Request]) -> None:
    """So that an optional argument that is added later changes no digest."""
    required: dict[str, Any] = {"n_components": 2, "sigma_min": 1, "sigma_max": 2, "model": "gaussian_mixture"}
    required |= {"n_clusters": 2, "cliques": "tree"}
    known = arguments(kind)
    needed = {a.name: required[a.name] for a in known if a.default is REQUIRED or a.name == "n_clusters"}
    full = {a.name: a.default for a in known} | needed
    assert kind(**needed) == kind(**full)
    assert kind(**needed).digest() == kind(**full).digest()


def test_the_digest_stays_the_same_between_versions() -> None:
    """A request id may be derived from it: another digest would be another debit."""
    found = {name: make().digest()[:16] for name, make in REQUESTS.items()}
    assert found == DIGESTS


def test_which_machine_computes_is_no_part_of_a_request() -> None:
    """The release is the same."""
    here, there = bursar.MRF(cliques="tree"), bursar.MRF(cliques="tree", estimated_by="server")
    assert here == there
    assert here.digest() == there.digest()
    assert "estimated_by='server'" in repr(there)
    decoded = [bursar.SketchKMeans(n_clusters=2, decoded_by=where) for where in ("client", "server")]
    assert decoded[0] == decoded[1]


def test_a_receipt_counts_by_its_dataset_and_entry() -> None:
    """The remainder of then, and a replayed release, do not make another request."""
    first, again = (
        bursar.DPEM(n_components=2, start=receipt()),
        bursar.DPEM(n_components=2, start=receipt(replayed=True)),
    )
    assert first == again
    assert first.digest() == again.digest()
    assert first != bursar.DPEM(n_components=2, start=receipt(entry=4))
    assert first != bursar.DPEM(n_components=2, start=receipt(dataset="other"))


def test_numbers_are_normalised() -> None:
    """Numpy's numbers and integers that stand for floats make the same request."""
    one = bursar.SeparatedGMM(n_components=np.int64(2), sigma_min=np.float32(1), sigma_max=2)  # type: ignore[arg-type]
    assert one == bursar.SeparatedGMM(n_components=2, sigma_min=1.0, sigma_max=2.0)
    assert type(one.n_components) is int
    assert type(one.sigma_max) is float


def test_a_list_of_the_caller_is_copied() -> None:
    """Changing it afterwards does not change the request."""
    columns = ["a", "b"]
    precisions: dict[tuple[str, ...], float] = {("a", "b"): 2.0}
    means = np.array([[1.0]])
    requests = (
        bursar.DPEM(n_components=1, columns=columns),
        bursar.MRF(cliques=[("a", "b")], precisions=precisions),
        bursar.DPEM(n_components=1, start=bursar.GivenStart(means)),
    )
    digests = [request.digest() for request in requests]
    columns.append("c")
    precisions[("a", "b")] = 3.0
    means[0, 0] = 2.0
    assert [request.digest() for request in requests] == digests


def test_a_request_is_not_equal_to_anything_else() -> None:
    """Another kind with the same fields, or no request at all."""
    assert bursar.DPEM(n_components=2) != 2
    assert bursar.DPEM(n_components=2) != bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=2)


NAMES = st.lists(st.text(min_size=1), max_size=4)
POSITIVE = st.floats(min_value=5e-324, allow_infinity=False, allow_nan=False)


@given(
    st.integers(1, 2**32 - 1),
    st.none() | NAMES,
    st.sampled_from(["ml", "map"]),
    st.none() | st.builds(bursar.GaussianPrior, kappa=st.none() | POSITIVE, scale=st.none() | POSITIVE),
    st.just("splitting") | st.builds(bursar.RandomStart, st.integers(0, 2**64 - 1)) | st.integers(1, 2**64 - 1),
    st.none() | POSITIVE,
)
def test_any_dpem_survives_json(n: int, columns: Any, estimator: Any, prior: Any, start: Any, radius: Any) -> None:
    """Every name and every float, with the same digest."""
    request = bursar.DPEM(
        n_components=n, columns=columns, estimator=estimator, prior=prior, start=start, clip_radius=radius
    )
    again = bursar.DPEM.from_dict(json.loads(json.dumps(request.to_dict())))
    assert again == request
    assert again.digest() == request.digest()


@given(st.lists(st.sets(st.text(min_size=1), min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_any_mrf_survives_json(cliques: list[set[str]], data: st.DataObject) -> None:
    """Cliques and their precisions, whatever the columns are called."""
    listed = [tuple(clique) for clique in {frozenset(clique) for clique in cliques}]
    precise = data.draw(st.dictionaries(st.sampled_from(listed), POSITIVE))
    request = bursar.MRF(cliques=listed, precisions=precise, reuse=data.draw(st.lists(st.integers(1, 2**64 - 1))))
    assert bursar.MRF.from_dict(json.loads(json.dumps(request.to_dict()))) == request


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (3, "request"),
        ({}, "kind"),
        ({"kind": "GaussianMixture", "version": 1}, "kind"),
        ({"kind": "MRF", "version": 1, "cliques": "tree"}, "kind"),
        ({"kind": "DPEM", "n_components": 2}, "version"),
        ({"kind": "DPEM", "version": 2, "n_components": 2}, "version"),
        ({"kind": "DPEM", "version": True, "n_components": 2}, "version"),
        ({"kind": "DPEM", "version": 1}, "n_components"),
        ({"kind": "DPEM", "version": 1, "n_components": NAN}, "n_components"),
        ({"kind": "DPEM", "version": 1, "n_components": 2, "spend": 1}, "spend"),
        ({"kind": "DPEM", "version": 1, "n_components": 2, "start": {"kind": "Popen", "args": "ls"}}, "start"),
        ({"kind": "DPEM", "version": 1, "n_components": 2, "start": {"kind": "RandomStart"}}, "start"),
        ({"kind": "DPEM", "version": 1, "n_components": 2, "start": {"kind": "GivenStart", "means": "x"}}, None),
        ({"kind": "DPEM", "version": 1, "n_components": 2, "start": {"kind": "Receipt", "entry": 1}}, "start"),
        ({"kind": "DPEM", "version": 1, "n_components": 2, "start": {"kind": "pairs"}}, "start"),
    ],
)
def test_what_is_no_request_is_refused(content: Any, field: str | None) -> None:
    """The message names the wrong field; only requests and their parts are made."""
    with pytest.raises(bursar.InvalidRequestError) as caught:
        bursar.DPEM.from_dict(content)
    assert field is None or caught.value.violations[0][0] == field


def test_a_file_that_is_no_request_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    path = tmp_path / "no.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(bursar.InvalidRequestError, match=r"no\.json"):
        bursar.Request.load(path)


DIGESTS = {
    "dpem": "ccb611feba25873e",
    "kmeans": "042af1b44920d157",
    "map": "29a58cdcb1fbfeeb",
    "random": "c67f2f7b0f8db001",
    "given": "eaed009c997552a4",
    "entry": "300400562f18496d",
    "receipt": "7c1ed391ab0ffdc4",
    "model": "2e67c5fcb2568a2a",
    "separated": "aba03184d0ec873b",
    "symmetric": "e1a25f362fc721ec",
    "lines": "a963efa60de88fbd",
    "gaussians": "020033a1caabfcf4",
    "sketch": "c06c85558c372975",
    "decode": "1ce550699619665f",
    "scale": "602f0b4f4c8a215c",
    "tree": "d5680515c5c6cb65",
    "rounds": "fb1ba6860e11b3d5",
    "cliques": "c67bc329dd90682f",
    "chain": "2a20cf6b2ef3fc17",
}
