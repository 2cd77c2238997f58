"""Released messages with one fault each: what is no model is the server's error, not a model that answers nonsense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import bursar
from bursar._fits import kind_of
from bursar.testing import Server
from bursar_proto.v1 import fit_pb2, types_pb2
from tests.client.line import Line, tensor, to_model
from tests.each import each

PAIRS = [("group", "weight"), ("spring", "weight")]
REQUESTS: Mapping[str, bursar.Request] = {
    "symmetric": bursar.GradientEM(model="symmetric_mixture"),
    "gaussians": bursar.GradientEM(model="gaussian_mixture"),
    "lines": bursar.GradientEM(model="mixture_of_regressions", target="weight"),
    "line": bursar.GradientEM(model="missing_covariates", target="weight"),
    "separated": bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=20),
    "sketch": bursar.SketchKMeans(n_clusters=2, n_init=1),
    "learnt here": bursar.MRF(cliques=PAIRS),
    "learnt there": bursar.MRF(cliques=PAIRS, estimated_by="server"),
}


@pytest.fixture(scope="module")
def released(toys: Server) -> dict[str, Any]:
    """The message of each, as it came over the line."""
    line = Line(toys, "spoiler", toys.token("spoiler"))
    found: dict[str, Any] = {}
    with line.client() as client:
        for name, request in REQUESTS.items():
            client.dataset("toy").fit(request, spend=bursar.rho(0.1))
            found[name] = line.model
    return found


def cut(tensor: types_pb2.Tensor) -> None:
    """Take the last number away."""
    del tensor.values[-1]


def clear(*names: str) -> list[Callable[[Any], object]]:
    """Leave fields out, one by one."""
    return [lambda model, name=name: model.ClearField(name) for name in names]  # type: ignore[misc]


def set_sketch(**values: Any) -> Callable[[Any], object]:
    """Set fields of the sketch, or of its frequencies."""

    def change(model: fit_pb2.SketchModel) -> None:
        for name, value in values.items():
            message = model.sketch if name in fit_pb2.Sketch.DESCRIPTOR.fields_by_name else model.sketch.frequencies
            setattr(message, name, value)

    return change


OF_GRADIENT_EM = [
    *clear("model", "variant", "coefficients", "noise_std", "iterates", "averaged"),
    lambda model: cut(model.coefficients),
    lambda model: cut(model.noise_std),
    lambda model: model.columns.append("age"),
    lambda model: model.scales.CopyFrom(tensor([1.0])),
    lambda model: model.radii.counts.CopyFrom(tensor([1.0])),
    lambda model: model.coefficient_errors.CopyFrom(tensor([[np.nan]])),
    lambda model: model.coefficients.CopyFrom(tensor(np.zeros((3, 1)))),
    lambda model: model.noise_std.CopyFrom(tensor(np.zeros((0, 2)))),
]
OF_SEPARATED = [
    *clear("found", "covariance_type", "weights", "means", "covariances"),
    *clear("mean_errors", "weight_errors", "covariance_errors"),
    lambda model: model.means.CopyFrom(types_pb2.Tensor(values=[1.0])),
    lambda model: model.mean_errors.values.__setitem__(0, -1.0),
    lambda model: model.columns.append("age"),
    lambda model: cut(model.means),
    lambda model: setattr(model, "covariance_type", 99),
]
OF_FIELDS = [
    *clear("estimator", "unit_weights", "variables"),
    lambda model: setattr(model, "inference", 9),
    lambda model: model.variables[1].states.append("control"),
    lambda model: model.variables[1].states.append("another"),
    lambda model: cut(model.tables[0].counts),
    lambda model: setattr(model.tables[0], "noise_std", -1.0),
]
OF_LEARNT_THERE = [
    *clear("inference"),
    lambda model: cut(model.potentials[0].marginal),
    lambda model: setattr(model, "log_partition", float("nan")),
]
OF_LEARNT_HERE = [
    *clear("tables"),
    lambda model: model.potentials[0].columns.append("nobody"),
    lambda model: model.tables[0].columns.pop(),
    lambda model: setattr(model, "homogeneous_chain", True),
    lambda model: setattr(model.unestimated, "regularization", float("nan")),
    lambda model: model.variables[0].states.extend(map(str, range(2**21))),  # more memory than a server has
]
SPOILT: list[tuple[str, Callable[[Any], object], str]] = [
    *((name, spoil, "") for name in ("symmetric", "gaussians", "lines", "line") for spoil in OF_GRADIENT_EM),
    *(("separated", spoil, "") for spoil in OF_SEPARATED),
    *((name, spoil, "") for name in ("learnt here", "learnt there") for spoil in OF_FIELDS),
    *(("learnt there", spoil, "") for spoil in OF_LEARNT_THERE),
    *(("learnt here", spoil, "") for spoil in OF_LEARNT_HERE),
    *(
        # Frequencies that this client draws otherwise above all: everything decoded from them would be wrong.
        ("sketch", spoil, message)
        for spoil, message in (
            (clear("sketch")[0], "no sketch, nor what was to be decoded"),
            (set_sketch(digest=bytes(32)), "draws other frequencies for the public seed"),
            (set_sketch(digest=b""), "draws other frequencies for the public seed"),
            (set_sketch(m=63), "draws other frequencies for the public seed"),
            (set_sketch(d=2**31), "no valid sketch: frequencies.d: expected 2"),
            (set_sketch(m=0), "no valid sketch: m: expected"),
            (set_sketch(law=0), "install a newer bursar"),
            (set_sketch(structure=9), "install a newer bursar"),
            (set_sketch(signature=0), "install a newer bursar"),
            (set_sketch(noise_std=-1.0), "no valid sketch: noise_std"),
            (lambda model: model.sketch.sums.values.pop(), "values for an array of shape"),
            (lambda model: model.sketch.unit.values.__setitem__(0, 0.0), "no valid sketch: unit"),
        )
    ),
]


@each(("name", "spoil", "message"), SPOILT)
def test_what_is_no_model_is_the_servers_error(
    released: dict[str, Any], name: str, spoil: Callable[[Any], object], message: str
) -> None:
    """A field that is missing, of another size, or without sense; a larger table than any server has."""
    request, model = REQUESTS[name], type(released[name])()
    model.CopyFrom(released[name])
    kind_of(request).result(request, model, None)
    spoil(model)
    with pytest.raises(bursar.ServerError) as caught:
        kind_of(request).result(request, model, None)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["gaussians", "separated", "sketch", "learnt here"])
def test_so_it_is_where_the_answer_arrives(server: Line, toy: bursar.Dataset, name: str) -> None:
    """A fit raises it."""
    method = f"FitService/{kind_of(REQUESTS[name]).method}"
    server.changes[method] = to_model(lambda model: model.Clear())
    with pytest.raises(bursar.ServerError):
        toy.fit(REQUESTS[name], spend=bursar.rho(0.1))
