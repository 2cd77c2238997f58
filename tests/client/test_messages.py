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
from bursar_proto.v1 import fit_pb2
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
