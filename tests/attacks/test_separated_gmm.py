"""Attacks on separated mixtures: what their parts, numbers of steps and failures could say of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import separated_gmm
from bursar_server.vault import Session
from tests.attacks.asking import differs, heard
from tests.attacks.conftest import Pair, PersonsWith, pair_of
from tests.attacks.deaf import Deaf
from tests.attacks.fixed_search import deafly
from tests.audit.wire import Miswired

METHOD = "FitSeparatedGMM"
_IDS = itertools.count()

SCHEMA = """
name = "{name}"
adjacency = "add_remove_one"
unit = {{column = "who", max_rows = 3}}
[[columns]]
name = "x"
kind = "numeric"
lower = -100.0
upper = 100.0
[[columns]]
name = "y"
kind = "numeric"
lower = -100.0
upper = 100.0
"""
"""Persons of three rows at most."""

HEADER = "who,x,y\n"
HERE = HEADER + "".join(f"u{i // 2},{40 * (i % 3) - 40 + 1e-2 * i},{30 * (i % 2)}\n" for i in range(90))
THERE = HEADER + "".join(f"w{i // 7},{('nan', 1e300, 7)[i % 3]},{(7, -1e308, 7)[i % 3]}\n" for i in range(401))
TABLES = {"here": HERE, "there": THERE}


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The same behind the real fit under noise and choices that are equal for all tables."""
    fit = Miswired(Deaf(), deafly, separated_gmm)
    with pair_of(tmp_path_factory.mktemp("persons"), fit, METHOD, schema=SCHEMA, tables=TABLES) as served:
        yield served


def asked(dataset: str, **fields: Any) -> fit_pb2.FitSeparatedGMMRequest:
    """A request under an id of its own."""
    defaults: dict[str, Any] = {
        "spend": types_pb2.Spend(rho=0.5),
        "n_components": 3,
        "sigma_min": 0.3,
        "sigma_max": 3.0,
        "columns": ["x", "y"],
    }
    return fit_pb2.FitSeparatedGMMRequest(request_id=f"apart-{next(_IDS)}", dataset=dataset, **(defaults | fields))


def differ(pair: Pair, **fields: Any) -> bool:
    """Return whether anything but the noisy sums and choices tells "here" from "there"."""
    return differs(pair, METHOD, "separated_gmm", lambda name: asked(name, **fields))


REQUESTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "balls, clusters": {
        "search": fit_pb2.SEPARATED_SEARCH_BALLS,
        "estimator": fit_pb2.SEPARATED_ESTIMATOR_CLUSTERS,
    },
    "easy, spheres": {
        "variant": fit_pb2.SEPARATED_VARIANT_EASY,
        "covariance_type": fit_pb2.COVARIANCE_TYPE_SPHERICAL,
        "n_components": 6,
    },
    "sample and aggregate": {"variant": fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_under_equal_noise_all_tables_have_one_model(deaf: Pair, name: str) -> None:
    """Compare all that two utterly different tables give when noise and choices are equal: found, errors, progress."""
    assert not differ(deaf, **REQUESTS[name])


def shorter(plan: Any, session: Session) -> Message:
    """A fit that reports as many steps as its rows needed."""
    model = deafly(plan, session)
    model.iterations -= session._rows.slots // 100
    return model


def test_a_rival_that_says_more_is_heard(persons_with: PersonsWith) -> None:
    """The same comparison finds what comes from the table."""
    assert differ(persons_with(Miswired(Deaf(), shorter, separated_gmm)))


EXTREME: dict[str, dict[str, Any]] = {
    "much is spent": {"spend": types_pb2.Spend(rho=50.0)},
    "hardly any": {"spend": types_pb2.Spend(rho=2e-7), "n_components": 8},
    "one column, and a deviation that fits hardly": {"columns": ["x"], "sigma_min": 0.33},
    "deviations as wide as the bounds": {"sigma_min": 140.0, "sigma_max": 141.0},
    "the finest deviations": {"sigma_min": 1e-5, "sigma_max": 100.0, "spend": types_pb2.Spend(rho=20.0)},
    "means in one point": {"radius": 0.3},
}


@pytest.mark.parametrize("name", EXTREME)
def test_no_request_that_is_paid_for_fails(persons: Pair, name: str) -> None:
    """A fit that fails for some rows tells of them: every paid request has a model, all of whose numbers are finite."""
    for table in ("here", "there"):
        model = heard(persons, asked(table, **EXTREME[name]))[-1].model
        assert 1 <= model.found == len(model.weights.values)
        for tensor in (model.weights, model.means, model.covariances, model.mean_errors, model.covariance_errors):
            assert np.isfinite(tensor.values).all()
