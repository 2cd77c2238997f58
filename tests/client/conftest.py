"""A fake server for every test that asks one, and random mixtures."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import bursar
from bursar.models import CovarianceType
from bursar.testing import FakeServer, fake_server

MakeMixture = Callable[..., bursar.GaussianMixture]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A fake server of its own."""
    with fake_server() as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[bursar.Client]:
    """A client of that server."""
    with server.client(token="secret-token") as one:
        yield one


@pytest.fixture
def toy(client: bursar.Client) -> bursar.Dataset:
    """The dataset that the fake server has."""
    return client.dataset("toy")


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
