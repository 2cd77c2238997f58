"""A fake server for every test that asks one, and random mixtures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import bursar
from bursar.testing import Server, serve
from bursar_models import CovarianceType
from tests.client.line import Line
from tests.ports import free_port

_NUMBERS = itertools.count()

MakeMixture = Callable[..., bursar.GaussianMixture]


@pytest.fixture
def server(toys: Server) -> Line:
    """A line to the real server, of an analyst of its own."""
    name = f"analyst-{next(_NUMBERS)}"
    return Line(toys, name, toys.token(name))


@pytest.fixture
def client(server: Line) -> Iterator[bursar.Client]:
    """A client over that line."""
    with server.client() as one:
        yield one


@pytest.fixture
def toy(client: bursar.Client) -> bursar.Dataset:
    """The dataset that the server has."""
    return client.dataset("toy")


@pytest.fixture
def lone(toys: Server, client: bursar.Client) -> bursar.Dataset:
    """A dataset of its own like "toy", with a budget of (3, 1e-6), for tests that say what is left."""
    return client.dataset(toys.add_table(TOY.replace('"toy"', f'"lone-{next(_NUMBERS)}"')))


@pytest.fixture(scope="session")
def make_mixture() -> MakeMixture:
    """Makes a mixture with random parameters from a seed."""

    def make(seed: int, covariance_type: CovarianceType, k: int = 3, d: int = 2) -> bursar.GaussianMixture:
        rng = np.random.default_rng(seed)  # noqa: TID251 - random parameters, no release
        roots = rng.normal(size=(k, d, d))
        matrices = roots @ roots.swapaxes(1, 2) + 0.1 * np.eye(d)
        covariances = {
            "full": matrices,
            "tied": matrices[0],
            "diag": matrices.diagonal(axis1=1, axis2=2),
            "spherical": matrices[:, 0, 0],
        }[covariance_type]
        return bursar.GaussianMixture(
            rng.dirichlet(np.ones(k)), rng.normal(size=(k, d)) * 3, covariances, covariance_type
        )

    return make


@pytest.fixture
def free_address() -> str:
    """An address on which nothing listens."""
    return f"127.0.0.1:{free_port()}"


def height_and_weight(name: str, *, nullable: bool = False) -> str:
    """Manifest of a table with two numeric columns; a height may be null, if that is said."""
    return f"""
name = "{name}"
adjacency = "replace_one"
[[columns]]
name = "height"
kind = "numeric"
lower = 100.0
upper = 220.0
nullable = {str(nullable).lower()}
[[columns]]
name = "weight"
kind = "numeric"
lower = 30.0
upper = 150.0
"""


TOY = """
name = "toy"
description = "invented people"
adjacency = "replace_one"
public_rows = 1000
[[columns]]
name = "height"
kind = "numeric"
lower = 100.0
upper = 220.0
[[columns]]
name = "weight"
kind = "numeric"
lower = 30.0
upper = 150.0
bins = 4
[[columns]]
name = "group"
description = "arm of a trial"
kind = "categorical"
categories = ["control", "treated"]
[[columns]]
name = "spring"
description = "health in spring"
kind = "categorical"
categories = ["well", "ill", "unknown"]
[[columns]]
name = "summer"
description = "health in summer"
kind = "categorical"
categories = ["well", "ill", "unknown"]
[[columns]]
name = "autumn"
description = "health in autumn"
kind = "categorical"
categories = ["well", "ill", "unknown"]
"""


@pytest.fixture(scope="session")
def toys() -> Iterator[Server]:
    """A real server with the dataset "toy", shared by all tests; each takes a token of its own."""
    with serve(TOY, budget=bursar.epsilon_delta(1e5, 1e-6)) as server:
        yield server
