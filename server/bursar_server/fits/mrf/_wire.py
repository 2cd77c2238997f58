"""Conversion of variables, tables and fitted fields to and from messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from bursar_models.mrf import ReleasedTable, Variable
from bursar_models.mrf._estimation import Estimator, Inference
from bursar_proto.filling import tensor_of
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import array_of
from bursar_server.fits.mrf._run import Measurement, MRFSettings, Result

ESTIMATORS: Mapping[fit_pb2.MRFEstimator.ValueType, Estimator] = {
    fit_pb2.MRF_ESTIMATOR_UNSPECIFIED: "cgm",
    fit_pb2.MRF_ESTIMATOR_CGM: "cgm",
    fit_pb2.MRF_ESTIMATOR_NAIVE: "naive",
    fit_pb2.MRF_ESTIMATOR_NLBP: "nlbp",
}
INFERENCES: Mapping[fit_pb2.MRFInference.ValueType, Inference] = {
    fit_pb2.MRF_INFERENCE_UNSPECIFIED: "auto",
    fit_pb2.MRF_INFERENCE_EXACT: "exact",
    fit_pb2.MRF_INFERENCE_LOOPY: "loopy",
}
"""Values of the contract -> words of the models; the last of several values is the one that is sent."""

Number = TypeVar("Number", bound=int)


def model_to(
    settings: MRFSettings, result: Result, null_category: str, noise: tuple[types_pb2.ReleaseNoise, ...]
) -> fit_pb2.MRFModel:
    """Return released tables and the learnt field, or its specification, as a message."""
    found, layout = result.estimate, settings.layout
    model = fit_pb2.MRFModel(
        variables=[fit_pb2.Variable(column=v.name, states=v.states, edges=v.edges) for v in layout.variables],
        potentials=[fit_pb2.Potential(columns=columns) for columns in result.learning.potentials],
        tables=[table_to(table) for table in result.tables],
        estimator=_number(ESTIMATORS, settings.estimator),
        noise=noise,
        homogeneous_chain=settings.chain,
        unit_weights=weights_of(layout.shares),
        null_category=null_category,
        unexplained=result.unexplained,
    )
    if found is None:
        model.inference = _number(INFERENCES, settings.inference)
        model.unestimated.regularization = settings.regularization or 0.0
        if settings.public_rows is not None:
            model.unestimated.public_rows = settings.public_rows
        return model
    for potential, theta, marginal in zip(model.potentials, found.log_potentials, found.marginals, strict=True):
        potential.log_potential.CopyFrom(tensor_of(theta))
        potential.marginal.CopyFrom(tensor_of(marginal))
    model.n_rows, model.log_partition, model.iterations = found.n_rows, found.log_partition, found.iterations
    model.inference = _number(INFERENCES, found.inference)
    return model


def weights_of(shares: bool) -> fit_pb2.UnitWeights.ValueType:
    """Return the weight of a row as a message."""
    return fit_pb2.UNIT_WEIGHTS_SHARES if shares else fit_pb2.UNIT_WEIGHTS_ROWS


def table_to(table: ReleasedTable) -> fit_pb2.NoisyTable:
    """Return a table as a message."""
    return fit_pb2.NoisyTable(
        columns=table.columns,
        counts=tensor_of(table.counts),
        noise_std=table.noise_std,
        laplace=table.laplace,
        entry=table.entry or 0,
        pooled=table.pooled,
        held_out=table.held_out,
    )


def table_from(message: fit_pb2.NoisyTable) -> ReleasedTable:
    """Return the table of a message that this server released."""
    return ReleasedTable(
        columns=tuple(message.columns),
        counts=array_of(message.counts),
        noise_std=message.noise_std,
        laplace=message.laplace,
        entry=message.entry,
        pooled=message.pooled,
    )


def variable_from(message: fit_pb2.Variable) -> Variable:
    """Return the variable of a message that this server released."""
    return Variable(message.column, tuple(message.states), tuple(message.edges))


def release_noise(measurement: Measurement) -> types_pb2.ReleaseNoise:
    """Return the noise of a table for people."""
    statistic = measurement.statistic
    return types_pb2.ReleaseNoise(name=statistic.name, size=statistic.size, count_std=measurement.std, times=1)


def table_noise(table: ReleasedTable) -> types_pb2.ReleaseNoise:
    """Return the noise of an earlier table for people."""
    name = f"table of {', '.join(table.columns)}"
    return types_pb2.ReleaseNoise(name=name, size=table.counts.size, count_std=table.noise_std, times=1)


def _number(table: Mapping[Number, str], name: str) -> Number:
    return max(number for number, word in table.items() if word == name)
