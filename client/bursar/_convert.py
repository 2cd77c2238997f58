"""Conversions between wire messages and this package's values. No generated type passes beyond the callers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from bursar._errors import ServerError
from bursar_models import (
    ClusterReport,
    ComponentChoice,
    Estimate,
    Frequencies,
    GaussianMixture,
    KMeans,
    MarkovRandomField,
    RadiusCounts,
    ReleasedTable,
    Sketch,
    StartCells,
    Trajectory,
    TrajectoryStep,
    Variable,
)
from bursar_models.arrays import FloatArray
from bursar_models.budget import (
    EpsilonDelta,
    Limits,
    NeighbouringRelation,
    Price,
    Pure,
    Receipt,
    ReleaseNoise,
    Remaining,
    Rho,
    Spend,
    WhatIsLeft,
)
from bursar_models.errors import InvalidRequestError
from bursar_models.mrf import Learning
from bursar_models.mrf._variables import ordered_of
from bursar_models.transforms import Transform
from bursar_proto.filling import message_of
from bursar_proto.v1 import admin_pb2, catalog_pb2, fit_pb2, types_pb2

Value = TypeVar("Value")


def _names(enum: Any) -> dict[str, Any]:
    """Return the values of an enumeration of the contract by the names that people write: "full" for a ..._FULL."""
    prefix = enum.keys()[0].removesuffix("UNSPECIFIED")
    return {name.removeprefix(prefix).lower(): value for name, value in enum.items() if value}


COVARIANCE_TYPES = _names(fit_pb2.CovarianceType)
FREQUENCY_LAWS = _names(fit_pb2.FrequencyLaw)
FREQUENCY_STRUCTURES = _names(fit_pb2.FrequencyStructure)
SIGNATURES = _names(fit_pb2.Signature)
MRF_ESTIMATORS = _names(fit_pb2.MRFEstimator)
MRF_INFERENCES = {"auto": fit_pb2.MRF_INFERENCE_UNSPECIFIED, **_names(fit_pb2.MRFInference)}
UNIT_WEIGHTS = _names(fit_pb2.UnitWeights)
LATENT_MODELS = _names(fit_pb2.LatentModel)
GRADIENT_VARIANTS = _names(fit_pb2.GradientVariant)
TRANSFORMS: dict[Transform, types_pb2.Transform.ValueType] = {
    "none": types_pb2.TRANSFORM_NONE,
    "log1p": types_pb2.TRANSFORM_LOG1P,
}
ROLES = _names(admin_pb2.Role)
ADJACENCIES = {
    NeighbouringRelation.REPLACE_ONE: types_pb2.ADJACENCY_REPLACE_ONE,
    NeighbouringRelation.ADD_REMOVE_ONE: types_pb2.ADJACENCY_ADD_REMOVE_ONE,
}


def choice(field: str, value: str, table: Mapping[str, Value]) -> Value:
    """Return the wire's value for one of a field's names. Raises InvalidRequestError for any other name."""
    if value not in table:
        raise InvalidRequestError.of(field, f"must be one of {', '.join(map(repr, table))}, got {value!r}")
    return table[value]


def named(table: Mapping[Value, Any], wire: object) -> Value:
    """Return the name of a wire's value. Raises ServerError for a value that this client does not know."""
    for name, value in table.items():
        if value == wire:
            return name
    raise ServerError(f"the server sent {wire!r} where this client knows {list(table)}: install a newer bursar")


def tensor_from(message: types_pb2.Tensor) -> FloatArray:
    """Return an array of the shape that the message says.

    Raises:
        ServerError: the shape does not fit the number of values.
    """
    shape = tuple(message.shape)
    if math.prod(shape) != len(message.values):
        raise ServerError(f"the server sent {len(message.values)} values for an array of shape {shape}")
    return np.array(message.values, dtype=np.float64).reshape(shape)


def value_of(kind: Callable[..., Value], message: Any, **found: Any) -> Value:
    """Return a value of what is found, and of the message's fields that its other fields are named after.

    Raises:
        ServerError: an array has another shape than it says.
        ValueError: the class refuses a number.
    """
    of_class: Any = kind
    for name in [field.name for field in fields(of_class) if field.name not in found]:
        found[name] = _received(getattr(message, name))
    return kind(**found)


def _received(value: Any) -> Any:
    """Return a value of a message's field: tensors as arrays, repeated fields as tuples."""
    match value:
        case types_pb2.Tensor():
            return tensor_from(value)
        case types_pb2.Price():
            return price_from(value)
        case types_pb2.ReleaseNoise():
            return noise_from(value)
        case str() | bytes():
            return value
        case Sequence():
            return tuple(map(_received, value))
    return value


def spend_to(spend: Spend | None) -> types_pb2.Spend:
    """Return the message of a spend. Raises InvalidRequestError for something else than a spend."""
    match spend:
        case Rho():
            return types_pb2.Spend(rho=spend.value)
        case EpsilonDelta():
            return types_pb2.Spend(
                epsilon_delta=types_pb2.EpsilonDelta(epsilon=spend.epsilon, delta=spend.delta),
            )
        case Pure():
            return types_pb2.Spend(epsilon=spend.epsilon)
        case WhatIsLeft():
            return types_pb2.Spend(remaining=types_pb2.WhatIsLeft())
    raise InvalidRequestError.of(
        "spend",
        "must be bursar.rho(...), bursar.epsilon_delta(...), bursar.pure(...), bursar.percent(...) or "
        f"bursar.what_is_left(), got {spend!r}",
    )


def price_from(message: types_pb2.Price) -> Price:
    """Return a cost as the ledger counts it."""
    epsilon = message.epsilon if message.HasField("epsilon") else math.inf
    share = message.share if message.HasField("share") else math.inf
    return Price(message.cost_units, message.delta_units, message.rho, epsilon, share)


def remaining_from(message: types_pb2.Remaining, dataset: types_pb2.Remaining) -> Remaining:
    """Return the remaining budget of a message; `dataset` is that of the whole dataset."""
    return value_of(Remaining, message, budget_cost_units=dataset.cap_cost_units)


def limits_from(message: catalog_pb2.Dataset) -> Limits:
    """Return the limits of a request of the caller."""
    return Limits(
        dataset=remaining_from(message.remaining, message.remaining),
        allowance=allowance_from(message),
        call=remaining_from(message.call_limit, message.remaining) if message.HasField("call_limit") else None,
        available=remaining_from(message.available, message.remaining),
    )


def allowance_from(message: catalog_pb2.Dataset | types_pb2.Receipt) -> Remaining | None:
    """Return the remaining allowance of a message; None without one."""
    given = message.HasField("allowance_remaining")
    return remaining_from(message.allowance_remaining, message.remaining) if given else None


def receipt_from(message: types_pb2.Receipt, *, replayed: bool) -> Receipt:
    """Return the receipt of a message. Raises ServerError for an adjacency that this client does not know."""
    return value_of(
        Receipt,
        message,
        remaining=remaining_from(message.remaining, message.remaining),
        ledger_head=message.ledger_head.hex(),
        adjacency=named(ADJACENCIES, message.adjacency),
        allowance_remaining=allowance_from(message),
        replayed=replayed,
    )


def radii_from(message: fit_pb2.GradientEMModel | fit_pb2.SeparatedGMM) -> RadiusCounts | None:
    """Return counts of rows by radius; None if a model has none. Raises ValueError."""
    return _part_of(RadiusCounts, message, "radii")


def noise_from(message: types_pb2.ReleaseNoise) -> ReleaseNoise:
    """Return the noise of one kind of release."""
    return value_of(ReleaseNoise, message)


def _part_of(kind: Callable[..., Value], message: Any, name: str) -> Value | None:
    """Return a part that a message may have, of a class with its fields; None if it has none."""
    return value_of(kind, getattr(message, name)) if message.HasField(name) else None


def transforms_to(by_column: Mapping[str, Transform] | None) -> list[types_pb2.ColumnTransform]:
    """Return the transforms that a request asks for."""
    asked = (by_column or {}).items()
    return [types_pb2.ColumnTransform(column=name, transform=TRANSFORMS[one]) for name, one in asked]


def transforms_from(values: Sequence[types_pb2.Transform.ValueType]) -> tuple[Transform, ...]:
    """Return the transforms of a model's columns. Raises ServerError for one that this version does not know."""
    names = {value: name for name, value in TRANSFORMS.items()}
    if unknown := [value for value in values if value not in names]:
        raise ServerError(f"the server sent a transform that this version does not know: {unknown[0]}; upgrade bursar")
    return tuple(names[value] for value in values)


def shared_by_models(message: Any, receipt: Receipt | None) -> dict[str, Any]:
    """Return the fields that models of numeric columns share. Raises ServerError for an unknown transform."""
    found = {"columns": tuple(message.columns), "receipt": receipt, "noise": tuple(map(noise_from, message.noise))}
    found |= {"iterations": message.iterations, "n_rows": message.n_rows}
    return found | ({"transforms": transforms_from(message.transforms)} if hasattr(message, "transforms") else {})


def tensor_if(message: Any, name: str) -> FloatArray | None:
    """Return an array that a message may have; None if it has none. Raises ServerError as `tensor_from`."""
    return tensor_from(getattr(message, name)) if message.HasField(name) else None


def mixture_from(message: fit_pb2.GaussianMixtureModel, receipt: Receipt | None) -> GaussianMixture | KMeans:
    """Return a released model, of the type that its mode says.

    Raises:
        ServerError: the parameters are not those of a model.
    """
    shared = shared_by_models(message, receipt) | {"weights_": tensor_from(message.weights)}
    means, covariances = tensor_from(message.means), tensor_from(message.covariances)
    try:
        if message.mode == fit_pb2.MODE_KMEANS:
            report = _part_of(ClusterReport, message, "report")
            return KMeans(cluster_centers_=means, variances_=covariances, report=report, **shared)
        # The mixed key type keeps mypy from seeing that the names are the literals of CovarianceType.
        covariance_type: Any = named(COVARIANCE_TYPES, message.covariance_type)
        return GaussianMixture(
            means_=means,
            covariances_=covariances,
            covariance_type=covariance_type,
            background_weight=message.background_weight,
            bounds_=tensor_if(message, "bounds"),
            trajectory=_trajectory_from(message.trajectory) if message.HasField("trajectory") else None,
            choice=_part_of(ComponentChoice, message, "choice"),
            cells=_part_of(StartCells, message, "cells"),
            **shared,
        )
    except ValueError as error:
        raise ServerError(f"the server sent no valid model: {error}") from error


def _trajectory_from(message: fit_pb2.MixtureTrajectory) -> Trajectory:
    """Return the releases of a mixture's last steps. Raises ValueError if they are none."""
    return value_of(Trajectory, message, steps=tuple(value_of(TrajectoryStep, step) for step in message.steps))


@dataclass(frozen=True)
class SketchModel:
    """Answer to a request for a sketch.

    Attributes:
        sketch: that was paid for; None if all sketches came with the request.
        decoded: from it; None if the server decoded nothing.
        noise: of the releases, the last one the sketch's; empty if the server decoded.
    """

    sketch: Sketch | None
    decoded: GaussianMixture | KMeans | None
    noise: tuple[ReleaseNoise, ...] = ()


def sketch_model_from(message: fit_pb2.SketchModel, receipt: Receipt | None) -> SketchModel:
    """Return a released sketch and what was decoded from it, which knows it.

    Raises:
        ServerError: the parameters are not those of a sketch or a model, or its frequencies are others here.
    """
    sketch = sketch_from(message.sketch, receipt) if message.HasField("sketch") else None
    decoded = mixture_from(message.decoded, receipt) if message.HasField("decoded") else None
    known = None if decoded is None else replace(decoded, sketch=sketch)
    return SketchModel(sketch, known, tuple(map(noise_from, message.noise)))


def sketch_to(sketch: Sketch, *, entry: int) -> fit_pb2.Sketch:
    """Return a sketch as it is sent and stored; entry 0 is for one that is merged or comes from elsewhere."""
    frequencies = message_of(fit_pb2.Frequencies, sketch.frequencies, digest=sketch.frequencies.digest())
    return message_of(fit_pb2.Sketch, sketch, frequencies=frequencies, entry=entry, dummy=sketch.dummy_)


def sketch_from(message: fit_pb2.Sketch, receipt: Receipt | None) -> Sketch:
    """Return a sketch from the wire or a file.

    Raises:
        ServerError: the parameters are not those of a sketch, or this version draws other frequencies from its seed.
    """
    signature: Any = named(SIGNATURES, message.signature)
    try:
        frequencies = _frequencies_from(message.frequencies, len(message.centre.values))
        return value_of(
            Sketch,
            message,
            frequencies=frequencies,
            signature=signature,
            receipt=receipt,
            pilot_sigma=message.pilot_sigma or None,
            dummy_=message.dummy,
            transforms=transforms_from(message.transforms),
        )
    except ValueError as error:
        raise ServerError(f"this is no valid sketch: {error}") from error


def _frequencies_from(message: fit_pb2.Frequencies, d: int) -> Frequencies:
    """Return frequencies of a sketch of `d` columns. Raises ServerError, or ValueError for a number out of range."""
    # Before the matrix is drawn, which would be as large as a wrong message says.
    if message.d != d:
        raise ValueError(f"frequencies.d: expected {d}, one for each column, got {message.d}")
    law: Any = named(FREQUENCY_LAWS, message.law)
    structure: Any = named(FREQUENCY_STRUCTURES, message.structure)
    frequencies = Frequencies(message.m, d, message.public_seed, message.sigma, law, structure)
    if frequencies.digest() != message.digest:
        raise ServerError(
            f"this version of bursar draws other frequencies for the public seed {message.public_seed} than those of "
            "the sketch, which is worth nothing without its own: use the version that the sketch was made with"
        )
    return frequencies


def mrf_from(message: fit_pb2.MRFModel, receipt: Receipt | None) -> MarkovRandomField:
    """Return a Markov random field with the noisy tables that it was learnt from, or is learnt from now.

    Raises:
        ServerError: the parameters are not those of a model, or there is nothing that it could be learnt from.
    """
    # The mixed key types keep mypy from seeing that the names are the literals of the model.
    estimator: Any = named(MRF_ESTIMATORS, message.estimator)
    inference: Any = named(MRF_INFERENCES, message.inference)
    unit_weights: Any = named(UNIT_WEIGHTS, message.unit_weights)
    try:
        variables = tuple(Variable(v.column, tuple(v.states), tuple(v.edges)) for v in message.variables)
        tables = tuple(map(_table_from, message.tables))
        cliques = tuple(tuple(potential.columns) for potential in message.potentials)
        if message.HasField("unestimated"):
            learning = _learning_from(message, variables, cliques, estimator, inference)
            found, cliques = learning.learn(tables), learning.potentials
        else:
            found = Estimate(
                [tensor_from(potential.log_potential) for potential in message.potentials],
                [tensor_from(potential.marginal) for potential in message.potentials],
                message.log_partition,
                message.n_rows,
                message.iterations,
                inference,
            )
        return MarkovRandomField(
            variables_=variables,
            cliques_=cliques,
            log_potentials_=tuple(found.log_potentials),
            marginals_=tuple(found.marginals),
            log_partition_=found.log_partition,
            tables_=tables,
            n_rows=found.n_rows,
            estimator=estimator,
            inference=found.inference,
            homogeneous_chain=message.homogeneous_chain,
            null_category=message.null_category or None,
            unit_weights=unit_weights,
            receipt=receipt,
            noise=tuple(map(noise_from, message.noise)),
            iterations=found.iterations,
            unexplained=message.unexplained if message.HasField("unexplained") else None,
        )
    except ValueError as error:
        raise ServerError(f"the server sent no valid model: {error}") from error


def _learning_from(
    message: fit_pb2.MRFModel,
    variables: tuple[Variable, ...],
    cliques: tuple[tuple[str, ...], ...],
    estimator: Any,
    inference: Any,
) -> Learning:
    """Return the learning problem of a model's tables. Raises ValueError for tables that no server releases."""
    left, names = message.unestimated, tuple(variable.name for variable in variables)
    if message.homogeneous_chain and len(names) < 2:
        raise ValueError(f"variables: expected at least two for a chain, got {len(names)}")
    learning = Learning(
        names=names,
        sizes=tuple(len(variable.states) for variable in variables),
        cliques=() if message.homogeneous_chain else tuple(tuple(map(names.index, clique)) for clique in cliques),
        chain=message.homogeneous_chain,
        public_rows=left.public_rows if left.HasField("public_rows") else None,
        estimator=estimator,
        regularization=left.regularization or None,
        inference=inference,
        ordered=ordered_of(variables),
    )
    learning.check()
    return learning


def _table_from(message: fit_pb2.NoisyTable) -> ReleasedTable:
    return value_of(ReleasedTable, message, entry=message.entry or None)
