"""Requests and messages have the same fields: nothing that is asked for is forgotten on its way to the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor

import bursar
from bursar._fits import KINDS, Asked, kind_of
from bursar_models import Frequencies
from bursar_models.requests import REQUIRED, arguments
from bursar_models.schema import NumericColumn
from bursar_proto.v1 import fit_pb2, types_pb2
from tests.client.line import tensor
from tests.each import each

COLUMNS = tuple(NumericColumn(name, "", 0.0, 1.0) for name in ("x", "y"))
ASKED = Asked(dataset="toy", columns=COLUMNS, spend=bursar.rho(0.1), request_id="key")
FREE = replace(ASKED, spend=None)
SKETCH = bursar.Sketch(
    columns=("x",),
    centre=np.array([0.5]),
    unit=np.array([0.5]),
    lower=np.array([0.0]),
    upper=np.array([1.0]),
    frequencies=Frequencies(4, 1, 0, 0.3),
    signature="exponential",
    frequencies_per_row=4,
    sums=np.zeros((2, 4)),
    noise_std=1.0,
    n_rows=10.0,
    n_rows_std=0.0,
)
START = bursar.GivenCoefficients([[1.0, 2.0]])

BASES: dict[type[bursar.Request], tuple[dict[str, Any], ...]] = {
    bursar.DPEM: ({"n_components": 2},),
    bursar.SeparatedGMM: ({"n_components": 2, "sigma_min": 1, "sigma_max": 2},),
    bursar.GradientEM: (
        {"model": "gaussian_mixture"},
        {"model": "symmetric_mixture"},
        {"model": "mixture_of_regressions", "target": "y"},
    ),
    bursar.SketchKMeans: ({"n_clusters": 2, "scale": 0.3}, {"n_clusters": 2, "sketch": 3}),
    bursar.MRF: ({"cliques": [("x", "y")]}, {"cliques": "tree"}, {}),
}
"""Requests to begin with."""

OTHERS: dict[str, tuple[Any, ...]] = {
    "n_components": (3, (1, 3)),
    "columns": (["y"],),
    "covariance_type": ("diag",),
    "estimator": ("map", "clusters", "naive"),
    "prior": (bursar.GaussianPrior(kappa=2),),
    "mode": ("kmeans",),
    "moments": ("fixed_origin",),
    "iterations": (7,),
    "start": (5, START),
    "background": ("off",),
    "transform": ({"x": "log1p"},),
    "clip_radius": (0.5,),
    "sigma_min": (0.5,),
    "sigma_max": (3,),
    "radius": (4,),
    "min_weight": (0.1,),
    "separation": (9,),
    "variant": ("easy", "radial"),
    "search": ("balls",),
    "units": ("bounds",),
    "public_seed": (7,),
    "model": ("symmetric_mixture",),
    "target": ("x",),
    "features": ([],),
    "symmetric": (True,),
    "fit_intercept": (False,),
    "heavy_tails": (True,),
    "step_size": (0.25,),
    "averaged": (2,),
    "held_out": (0.05,),
    "noise_std": (0.75,),
    "scale": (0.125,),
    "zeta": (0.01,),
    "tau": (6,),
    "centre": ([0.25, 0.25],),
    "paper_weights": (True,),
    "n_clusters": (3,),
    "decoding": ("mixture",),
    "sketch": (4,),
    "foreign": ([SKETCH],),
    "n_frequencies": (20,),
    "frequencies_per_row": (10,),
    "law": ("multiscale",),
    "structure": ("hadamard",),
    "signature": ("one_bit",),
    "n_init": (5,),
    "decoder_seed": (8,),
    "decoded_by": ("server",),
    "cliques": ("independent",),
    "precisions": ({("x", "y"): 4},),
    "workload": ({("x", "y"): 4}, "triples"),
    "share": (0.5,),
    "regularization": (2,),
    "inference": ("loopy",),
    "unit_weights": ("rows",),
    "reuse": ([3],),
    "estimated_by": ("server",),
}
"""Values for each argument that some base does not have."""


def message(kind: type[bursar.Request], values: dict[str, Any]) -> Any:
    """The message of a request; one with an earlier sketch has no spend. Raises InvalidRequestError."""
    request = kind(**values)
    return kind_of(request).message(request, FREE if "sketch" in values else ASKED)


def sent(kind: type[bursar.Request], name: str) -> list[tuple[Any, Any]]:
    """Messages without and with another value of an argument, for all bases that go with it."""
    pairs = []
    for base in BASES[kind]:
        for value in OTHERS[name]:
            if base.get(name) == value:
                continue
            try:
                pairs.append((message(kind, base), message(kind, {**base, name: value})))
            except bursar.InvalidRequestError:
                continue
    return pairs


@each(("kind", "name"), [(kind, one.name) for kind in KINDS for one in arguments(kind)])
def test_every_argument_reaches_the_message(kind: type[bursar.Request], name: str) -> None:
    """Another value makes another message."""
    pairs = sent(kind, name)
    assert pairs, "no base goes with a value above"
    assert all(before != after for before, after in pairs)


SEPARATED: dict[str, Any] = {"n_components": 2, "sigma_min": 1, "sigma_max": 20}
NUMBERS: dict[str, Any] = {
    "iterations": 7,
    "step_size": 0.5,
    "averaged": 3,
    "noise_std": 2.0,
    "scale": 1.5,
    "zeta": 0.1,
    "tau": 4.0,
}
GAUSSIANS: dict[str, Any] = {"model": "gaussian_mixture"}
LINES: dict[str, Any] = {"model": "mixture_of_regressions", "target": "y"}
MISSING: dict[str, Any] = {"model": "missing_covariates", "target": "y"}
BOTH = ["x", "y"]
SEED: dict[str, Any] = {"decoding": "none", "public_seed": 2**64 - 1}


def new_sketch(**fields: Any) -> fit_pb2.NewSketch:
    """Return a sketch with the defaults of the request."""
    return fit_pb2.NewSketch(
        law=fields.pop("law", fit_pb2.FREQUENCY_LAW_ADAPTED_RADIUS),
        structure=fields.pop("structure", fit_pb2.FREQUENCY_STRUCTURE_DENSE),
        signature=fields.pop("signature", fit_pb2.SIGNATURE_EXPONENTIAL),
        units=fields.pop("units", fit_pb2.COLUMN_UNITS_COMMON),
        public_seed=2**64 - 1,
        **fields,
    )


OURS: Any = bursar
"""The kinds, which tables of arguments make."""

SENT: list[tuple[bursar.Request, dict[str, Any]]] = [
    (
        OURS.DPEM(n_components=2),
        {
            "columns": BOTH,
            "n_components": 2,
            "estimator": "ESTIMATOR_MAXIMUM_LIKELIHOOD",
            "mode": "MODE_MIXTURE",
            "moments": "MOMENTS_RECENTRED",
            "splitting": fit_pb2.StartBySplitting(),
        },
    ),
    (
        OURS.DPEM(
            n_components=3,
            covariance_type="tied",
            estimator="map",
            prior=bursar.GaussianPrior(kappa=2.0),
            moments="fixed_origin",
            background="off",
            iterations=7,
            clip_radius=1.25,
            start=bursar.RandomStart(2**64 - 1),
        ),
        {
            "columns": BOTH,
            "n_components": 3,
            "covariance_type": "COVARIANCE_TYPE_TIED",
            "estimator": "ESTIMATOR_MAXIMUM_A_POSTERIORI",
            "prior": fit_pb2.GaussianPrior(kappa=2.0),
            "mode": "MODE_MIXTURE",
            "moments": "MOMENTS_FIXED_ORIGIN",
            "background": "BACKGROUND_OFF",
            "iterations": 7,
            "clip_radius": 1.25,
            "random": fit_pb2.StartAtRandom(public_seed=2**64 - 1),
        },
    ),
    (
        OURS.SeparatedGMM(**SEPARATED),
        {
            **SEPARATED,
            "columns": BOTH,
            "covariance_type": "COVARIANCE_TYPE_FULL",
            "variant": "SEPARATED_VARIANT_RECURSIVE",
            "search": "SEPARATED_SEARCH_SLABS",
            "estimator": "SEPARATED_ESTIMATOR_EM",
            "units": "COLUMN_UNITS_COMMON",
        },
    ),
    *(
        (
            OURS.SeparatedGMM(
                **SEPARATED,
                columns=["y"],
                radius=3.0,
                min_weight=0.2,
                separation=0.5,
                public_seed=2**64 - 1,
                covariance_type=shape,
                variant=variant,
                search="balls",
                estimator="clusters",
                units="bounds",
            ),
            {
                **SEPARATED,
                "columns": ["y"],
                "radius": 3.0,
                "min_weight": 0.2,
                "separation": 0.5,
                "public_seed": 2**64 - 1,
                "covariance_type": f"COVARIANCE_TYPE_{shape.upper()}",
                "variant": f"SEPARATED_VARIANT_{variant.upper()}",
                "search": "SEPARATED_SEARCH_BALLS",
                "estimator": "SEPARATED_ESTIMATOR_CLUSTERS",
                "units": "COLUMN_UNITS_BOUNDS",
            },
        )
        for variant, shape in (("easy", "diag"), ("sample_and_aggregate", "spherical"))
    ),
    (OURS.GradientEM(model="symmetric_mixture"), {"model": "LATENT_MODEL_SYMMETRIC_MIXTURE", "columns": BOTH}),
    (OURS.GradientEM(**GAUSSIANS), {"model": "LATENT_MODEL_GAUSSIAN_MIXTURE", "columns": BOTH}),
    (
        OURS.GradientEM(**LINES),
        {"model": "LATENT_MODEL_MIXTURE_OF_REGRESSIONS", "columns": ["x"], "target": "y"},
    ),
    (
        OURS.GradientEM(**MISSING),
        {"model": "LATENT_MODEL_MISSING_COVARIATES", "columns": ["x"], "target": "y"},
    ),
    *(
        (OURS.GradientEM(**NUMBERS, **ask), NUMBERS | expected)
        for ask, expected in (
            (
                {**dict.fromkeys(["paper_weights"], True), "model": "symmetric_mixture", "columns": ["y"]}
                | {"centre": [80], "units": "bounds"},
                {"model": 1, "columns": ["y"], "centre": tensor([80]), "units": 2, "paper_weights": True},
            ),
            (
                {**GAUSSIANS, "n_components": 5, "start": bursar.RandomStart(9), "variant": "dp_em"},
                {"model": 4, "columns": BOTH, "n_components": 5, "random": {"public_seed": 9}, "variant": 5},
            ),
            (
                {**LINES, "n_components": 3, "fit_intercept": False, "heavy_tails": True, "features": ["x"]},
                {"model": 2, "target": "y", "columns": ["x"], "n_components": 3}
                | {"without_intercept": True, "heavy_tails": True},
            ),
            (
                {**LINES, "target": "x", "symmetric": True, "paper_weights": True},
                {"model": 2, "target": "x", "columns": ["y"], "symmetric": True, "paper_weights": True},
            ),
            (
                {**MISSING, "start": bursar.GivenCoefficients([[0.5]], intercepts=[2.0])},
                {"model": 3, "target": "y", "columns": ["x"]}
                | {"given": {"coefficients": tensor([[0.5]]), "intercepts": tensor([2.0])}},
            ),
            (
                {**GAUSSIANS, "columns": ["x"], "start": bursar.GivenCoefficients([[1], [2]], weights=[0.25, 0.75])},
                {"model": 4, "columns": ["x"]}
                | {"given": {"coefficients": tensor([[1], [2]]), "weights": tensor([0.25, 0.75])}},
            ),
        )
    ),
    *(
        (
            OURS.SketchKMeans(**SEED, scale=scale),
            {"columns": BOTH, "new_sketch": new_sketch(**expected)},
        )
        for scale, expected in (
            ("pilot", {"pilot": {}}),
            (bursar.Pilot(), {"pilot": {}}),
            (bursar.Pilot(0.2, 128), {"pilot": {"share": 0.2, "n_frequencies": 128}}),
            ("schema", {"schema": {}}),
            (np.float64(0.5), {"sigma": 0.5}),
        )
    ),
    *(
        (
            OURS.SketchKMeans(
                n_clusters=3,
                decoding=decoding,
                n_init=7,
                decoder_seed=11,
                columns=["y"],
                n_frequencies=40,
                frequencies_per_row=30,
                law="multiscale",
                structure="hadamard",
                signature="one_bit",
                units="bounds",
                scale=0.25,
                public_seed=2**64 - 1,
            ),
            {
                "columns": ["y"],
                "n_clusters": 3,
                "decoding": wire,
                "n_init": restarts,
                "public_seed": 11,
                "decode_on_client": True,
                "new_sketch": new_sketch(
                    n_frequencies=40,
                    frequencies_per_row=30,
                    law="FREQUENCY_LAW_MULTISCALE",
                    structure="FREQUENCY_STRUCTURE_HADAMARD",
                    signature="SIGNATURE_ONE_BIT",
                    units="COLUMN_UNITS_BOUNDS",
                    sigma=0.25,
                ),
            },
        )
        for decoding, wire, restarts in (
            ("kmeans", "DECODING_KMEANS", 7),
            ("mixture", "DECODING_MIXTURE", 7),
            ("none", "DECODING_KMEANS", 1),
        )
    ),
    *(
        (
            OURS.MRF(cliques=cliques, **change),
            {"estimator": f"MRF_ESTIMATOR_{estimator.upper()}", "estimate_on_client": True, **expected},
        )
        for estimator in ("cgm", "nlbp", "naive")
        for change in ({"estimator": estimator},)
        for cliques, expected in (
            ([("x", "y"), ["z"]], {"cliques": {"cliques": [{"columns": BOTH}, {"columns": ["z"]}]}}),
            ("tree", {"tree": {}}),
            ("independent", {"independent": {}}),
            (bursar.Chain(BOTH), {"chain": {"columns": BOTH}}),
            (bursar.Chain(BOTH, null="no"), {"chain": {"columns": BOTH, "null_category": "no"}}),
        )
    ),
    (
        OURS.MRF(
            cliques=[("x", "y"), ["z"]],
            columns=["z", "y", "x", "w"],
            precisions={("y", "x"): 4},
            estimator="naive",
            regularization=2,
            inference="loopy",
            unit_weights="shares",
            estimated_by="server",
        ),
        {
            "columns": ["z", "y", "x", "w"],
            "cliques": {"cliques": [{"columns": BOTH, "precision": 4}, {"columns": ["z"]}]},
            "estimator": "MRF_ESTIMATOR_NAIVE",
            "regularization": 2,
            "inference": "MRF_INFERENCE_LOOPY",
            "unit_weights": "UNIT_WEIGHTS_SHARES",
        },
    ),
    (OURS.MRF(cliques="tree", share=0.5), {"estimator": 1, "tree": {"share": 0.5}, "estimate_on_client": True}),
]
"""Requests, and the fields that they set; what is left out is left to the server."""


@each(("request_", "expected"), SENT)
def test_a_message_says_what_the_request_says(request_: bursar.Request, expected: dict[str, Any]) -> None:
    """Every set argument as it was set, and nothing else but the dataset, the spend and the request_id."""
    sent = kind_of(request_).message(request_, ASKED)
    assert sent == type(sent)(request_id="key", dataset="toy", spend=types_pb2.Spend(rho=0.1), **expected)


PAIR = types_pb2.EpsilonDelta(epsilon=0.3, delta=1e-9)


@each(
    ("spend", "sent"),
    [
        (bursar.rho(0.03), types_pb2.Spend(rho=0.03)),
        (bursar.pure(0.3), types_pb2.Spend(epsilon=0.3)),
        (
            bursar.epsilon_delta(0.3, 1e-9),
            types_pb2.Spend(epsilon_delta=PAIR),
        ),
        (bursar.what_is_left(), types_pb2.Spend(remaining=types_pb2.WhatIsLeft())),
    ],
)
def test_a_spend_is_sent_in_its_own_currency(spend: bursar.Spend, sent: types_pb2.Spend) -> None:
    """Neither rho for epsilon, nor one delta for another: each is what the caller decided to spend."""
    request = bursar.DPEM(n_components=1)
    assert kind_of(request).message(request, replace(ASKED, spend=spend)).spend == sent


def paths(message: Any, prefix: str = "") -> set[str]:
    """Names of the fields that are set, those inside of messages included."""
    found = set()
    for field, value in message.ListFields():
        found.add(f"{prefix}{field.name}")
        for one in value if field.is_repeated else (value,):
            if field.message_type is not None and field.name in _OURS:
                found |= paths(one, f"{prefix}{field.name}.")
    return found


def known(descriptor: Descriptor, prefix: str = "") -> set[str]:
    """Names of all fields, those inside of messages that only requests have included."""
    found = {f"{prefix}{field.name}" for field in descriptor.fields}
    for field in descriptor.fields:
        if field.message_type is not None and field.name in _OURS:
            found |= known(field.message_type, f"{prefix}{field.name}.")
    return found


_OURS = {"prior", "random", "given", "released", "new_sketch", "pilot", "cliques", "tree", "chain", "auto"}

FULL: dict[type[bursar.Request], tuple[dict[str, Any], ...]] = {
    bursar.DPEM: (
        {"n_components": 2, "start": 5},
        {"n_components": (2, 5)},
        {"n_components": 2, "start": bursar.RandomStart(3)},
        {"n_components": 2, "start": bursar.GivenStart([[1.0]], [1.0], [1.0])},
        {"n_components": 2, "covariance_type": "diag", "iterations": 3, "clip_radius": 2, "background": "off"},
        {"n_components": 2, "prior": bursar.GaussianPrior(1, 2, 3, 4), "transform": {"x": "log1p"}},
    ),
    bursar.SeparatedGMM: (
        {
            **BASES[bursar.SeparatedGMM][0],
            "radius": 1,
            "min_weight": 0.1,
            "separation": 1,
            "public_seed": 1,
            "transform": {"x": "log1p"},
        },
    ),
    bursar.GradientEM: (
        {"model": "symmetric_mixture", "centre": [1, 1], "paper_weights": True, "start": bursar.RandomStart(3)},
        {"model": "gaussian_mixture", "units": "bounds", "variant": "radial", "n_components": 2},
        {
            "model": "mixture_of_regressions",
            "target": "y",
            "symmetric": True,
            "fit_intercept": False,
            "heavy_tails": True,
            "start": bursar.GivenCoefficients([[1.0]], [1.0], [1.0]),
            **dict.fromkeys(("iterations", "averaged"), 2),
            **dict.fromkeys(("step_size", "noise_std", "scale", "zeta", "tau"), 0.5),
        },
    ),
    bursar.SketchKMeans: (
        {"n_clusters": 2, "sketch": 3},
        {"n_clusters": 2, "scale": 0.3, "foreign": [SKETCH], "n_init": 2, "decoder_seed": 3, "public_seed": 2},
        {"n_clusters": 2, "scale": 0.3, "transform": {"x": "log1p"}},
        {"n_clusters": 2, "scale": "schema", "n_frequencies": 20, "frequencies_per_row": 3},
        {"n_clusters": 2, "scale": bursar.Pilot(0.2, 32)},
    ),
    bursar.MRF: (
        {"workload": {("x", "y"): 2}},
        {"workload": "triples"},
        {"cliques": "tree", "share": 0.5, "held_out": 0.05},
        {"cliques": "independent", "columns": ["x"]},
        {"cliques": bursar.Chain(["x", "y"], null="no"), "reuse": [3], "regularization": 2, "unit_weights": "rows"},
        {"cliques": [("x", "y")], "precisions": {("x", "y"): 4}, "inference": "loopy"},
    ),
}
"""Requests that say everything together."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_message_comes_from_a_request(kind: type[bursar.Request]) -> None:
    """A field that the contract gets later is found here."""
    messages = [message(kind, values) for values in FULL[kind]]
    said = set().union(*map(paths, messages))
    # What refuses a useless fit is said beside the request: tests/client/test_useless.py.
    assert known(messages[0].DESCRIPTOR) - said == {"refuse_useless"}


def test_every_kind_has_its_place_in_the_contract() -> None:
    """Kinds are named as in previews of the contract; no fit of the contract is missing."""
    fields = fit_pb2.PreviewRequest.DESCRIPTOR.fields
    names = {field.name: field.message_type.name for field in fields if field.message_type is not None}
    assert {kind.name: f"{kind.method}Request" for kind in KINDS.values()} == names


def test_required_arguments_are_those_of_the_bases() -> None:
    """So that no base hides one."""
    for kind, bases in BASES.items():
        required = {one.name for one in arguments(kind) if one.default is REQUIRED}
        assert all(required <= set(base) for base in bases)


def test_what_is_no_request_is_refused() -> None:
    """The message says what would be one."""
    with pytest.raises(bursar.InvalidRequestError, match=r"must be one of bursar\.DPEM, .*, got str"):
        kind_of("dpem")
