"""Strategies for models of every kind, with numbers of all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import bursar
from bursar_models import (
    ClusterReport,
    Frequencies,
    GaussianMixture,
    GradientTrace,
    KMeans,
    LinearRegression,
    MarkovRandomField,
    MixtureOfRegressions,
    ReleasedTable,
    Separation,
    Sketch,
    SymmetricMixture,
    Variable,
)

NUMBERS = st.floats(-1e300, 1e300)


POSITIVE = st.floats(1e-150, 1e150)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


WHOLE = st.integers(0, 2**64 - 1)


def arrays(shape: tuple[int, ...], numbers: st.SearchStrategy[float] = NUMBERS) -> st.SearchStrategy[Any]:
    """Arrays of a shape."""
    size = int(np.prod(shape))
    return st.lists(numbers, min_size=size, max_size=size).map(lambda values: np.array(values).reshape(shape))


def weights(k: int) -> st.SearchStrategy[Any]:
    """Non-negative numbers that sum to 1."""
    return arrays((k,), st.floats(0.01, 1)).map(lambda values: values / values.sum())


PRICES = st.builds(bursar.Price, WHOLE, WHOLE, POSITIVE)


REMAINING = st.builds(
    bursar.Remaining, WHOLE, WHOLE, WHOLE, WHOLE, POSITIVE, POSITIVE | st.just(float("inf")), POSITIVE
)


RECEIPTS = st.builds(
    bursar.Receipt,
    dataset=TEXT,
    request_id=TEXT,
    entry=WHOLE,
    price=PRICES,
    remaining=REMAINING,
    ledger_head=TEXT,
    adjacency=st.sampled_from(bursar.NeighbouringRelation),
    allowance_remaining=st.none() | REMAINING,
    replayed=st.booleans(),
    free=st.booleans(),
)


NOISE = st.lists(st.builds(bursar.ReleaseNoise, TEXT, WHOLE, POSITIVE, POSITIVE, POSITIVE, WHOLE), max_size=2).map(
    tuple
)


def trace(k: int, p: int) -> st.SearchStrategy[GradientTrace]:
    """Two steps of k components of p numbers."""
    return st.builds(
        GradientTrace,
        variant=st.sampled_from(["recentred", "dp_em"]),
        iterates=arrays((3, k, p)),
        errors=arrays((k, p), POSITIVE),
        scales=arrays((2,), POSITIVE),
        step_size=POSITIVE,
        averaged=st.integers(1, 3),
    )


@st.composite
def sketches(draw: st.DrawFn) -> Sketch:
    """Sketches of two columns."""
    lower = draw(arrays((2,), st.floats(-100, 100)))
    m = draw(st.integers(2, 5))
    return Sketch(
        columns=draw(st.sampled_from([(), ("a", "b")])),
        centre=lower + 1,
        unit=np.ones(2),
        lower=lower,
        upper=lower + 2,
        frequencies=Frequencies(
            m, 2, draw(WHOLE), draw(st.floats(0.01, 1)), draw(st.sampled_from(["adapted_radius", "multiscale"]))
        ),
        signature=draw(st.sampled_from(["exponential", "one_bit"])),
        frequencies_per_row=2,
        sums=draw(arrays((2, m))),
        noise_std=draw(POSITIVE),
        n_rows=draw(NUMBERS),
        n_rows_std=draw(POSITIVE),
        receipt=draw(st.none() | RECEIPTS),
        pilot_sigma=draw(st.none() | POSITIVE),
    )


def released(k: int, p: int) -> dict[str, st.SearchStrategy[Any]]:
    """Return what models of k components with p numbers each share."""
    return {
        "receipt": st.none() | RECEIPTS,
        "noise": NOISE,
        "iterations": st.none() | WHOLE,
        "n_rows": st.none() | NUMBERS,
        "trace": st.none() | trace(k, p),
    }


def without_trace(shared: dict[str, st.SearchStrategy[Any]]) -> dict[str, st.SearchStrategy[Any]]:
    """Return models that gradient EM does not make."""
    return {name: strategy for name, strategy in shared.items() if name != "trace"}


COLUMNS = st.sampled_from([(), ("a", "\u00fc\n\u4e2d")])


FIELD = {
    "variables_": (Variable("a", ("low", "high"), (0.0, 0.1, 1.0)), Variable("b", ("yes", "no"))),
    "cliques_": (("a", "b"),),
}


MODELS: dict[Any, st.SearchStrategy[Any]] = {
    GaussianMixture: st.builds(
        GaussianMixture,
        weights_=weights(3),
        means_=arrays((3, 2)),
        covariances_=arrays((3, 2), POSITIVE),
        covariance_type=st.just("diag"),
        columns=COLUMNS,
        background_weight=st.floats(0, 0.99),
        bounds_=st.just(np.array([[-1e12, -1e12], [1e12, 0.5]])),
        sketch=st.none() | sketches(),
        separation=st.none()
        | st.builds(
            Separation,
            sought=st.integers(3, 9),
            mean_errors=arrays((3, 2), POSITIVE),
            weight_errors=arrays((3,), POSITIVE),
            covariance_errors=arrays((3,), POSITIVE),
        ),
        **released(3, 2),
    ),
    KMeans: st.builds(
        KMeans,
        cluster_centers_=arrays((2, 1)),
        weights_=weights(2),
        variances_=arrays((2,), POSITIVE),
        sketch=st.none() | sketches(),
        report=st.none()
        | st.builds(
            ClusterReport,
            counts=arrays((2,)),
            sums=arrays((2, 1)),
            squares=arrays((2, 1)),
            radii=arrays((2,), POSITIVE),
            count_std=POSITIVE,
            sum_std=POSITIVE,
            square_std=POSITIVE,
        ),
        **without_trace(released(2, 1)),
    ),
    SymmetricMixture: st.builds(
        SymmetricMixture,
        beta_=arrays((2,)),
        centre_=arrays((2,)),
        noise_std_=arrays((2,), POSITIVE),
        columns=COLUMNS,
        **released(2, 2),
    ),
    LinearRegression: st.builds(
        LinearRegression,
        coef_=arrays((2,)),
        intercept_=NUMBERS,
        noise_std_=POSITIVE,
        feature_means_=arrays((2,)),
        feature_std_=arrays((2,), POSITIVE),
        columns=COLUMNS,
        target=TEXT,
        **released(1, 3),
    ),
    MixtureOfRegressions: st.builds(
        MixtureOfRegressions,
        coef_=arrays((2, 1)),
        intercept_=arrays((2,)),
        weights_=weights(2),
        noise_std_=arrays((2,), POSITIVE),
        target=TEXT,
        **released(2, 2),
    ),
    MarkovRandomField: st.builds(
        MarkovRandomField,
        **{name: st.just(value) for name, value in FIELD.items()},
        log_potentials_=st.tuples(arrays((2, 2))),
        marginals_=st.tuples(arrays((2, 2), st.floats(0, 1))),
        log_partition_=NUMBERS,
        tables_=st.lists(
            st.builds(ReleasedTable, st.just(("a", "b")), arrays((2, 2)), POSITIVE, st.booleans(), st.none() | WHOLE),
            max_size=2,
        ),
        estimator=st.sampled_from(["cgm", "naive"]),
        inference=st.sampled_from(["exact", "loopy"]),
        unit_weights=st.sampled_from(["rows", "shares"]),
        null_category=st.none() | TEXT,
        unexplained=st.none() | POSITIVE,
        **without_trace(released(1, 1)),
    ),
}
