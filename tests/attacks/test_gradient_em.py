"""Attacks on gradient EM: noise that repeats, tables that show past it, nulls, and requests that ask too much."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import gradient_em
from bursar_server.vault import Session
from tests.attacks.asking import differs, heard, told_alike
from tests.attacks.conftest import Pair, PersonsWith, pair_of
from tests.attacks.deaf import Deaf, Seeded
from tests.audit.wire import Miswired

METHOD = "FitGradientEM"
_IDS = itertools.count()

SCHEMA = """
name = "{name}"
adjacency = "add_remove_one"
unit = {{column = "who", max_rows = 3}}
[[columns]]
name = "m"
kind = "numeric"
lower = -2.0
upper = 2.0
nullable = true
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
[[columns]]
name = "y"
kind = "numeric"
lower = 0.0
upper = 10.0
"""
"""Persons of three rows at most; one column may be null."""

HEADER = "who,m,x,y\n"
HERE = HEADER + "".join(f"u{i // 2},{0.1 * (i % 7)},{0.5 - i % 2 + 1e-3 * i},{2.5 + 5 * (i % 2)}\n" for i in range(60))
THERE = HEADER + "".join(
    f"w{i // 7},{('', 'nan', 9)[i % 3]},{(1e300, 0.25, 0.25)[i % 3]},{(7, -1e308, 0)[i % 3]}\n" for i in range(151)
)

TABLES = {"here": HERE, "there": THERE}

SYMMETRIC: dict[str, Any] = {"model": fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE, "columns": ["x", "y"]}
MIXTURE: dict[str, Any] = {"model": fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE, "columns": ["x", "y"]}
REGRESSIONS: dict[str, Any] = {
    "model": fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS,
    "columns": ["x"],
    "target": "y",
}
MISSING: dict[str, Any] = {"model": fit_pb2.LATENT_MODEL_MISSING_COVARIATES, "columns": ["m", "x"], "target": "y"}


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The same behind the real fit under noise that is equal for all tables, and so loud that no row is heard."""
    fit = Miswired(Deaf(), fit=gradient_em)
    with pair_of(tmp_path_factory.mktemp("persons"), fit, METHOD, schema=SCHEMA, tables=TABLES) as served:
        yield served


def asked(dataset: str, **fields: Any) -> fit_pb2.FitGradientEMRequest:
    """A request under an id of its own."""
    defaults: dict[str, Any] = {"spend": types_pb2.Spend(rho=0.1), "iterations": 3}
    defaults |= {} if "model" in fields else SYMMETRIC
    return fit_pb2.FitGradientEMRequest(request_id=f"gradient-{next(_IDS)}", dataset=dataset, **(defaults | fields))


def iterates(answer: list[Any]) -> list[float]:
    """All released parameters but the start."""
    tensor = answer[-1].model.iterates
    return list(tensor.values[len(tensor.values) // tensor.shape[0] :])


def test_two_requests_have_two_draws(persons: Pair) -> None:
    """Ask twice with the same public seed, in hope of the same noise: no number agrees."""
    # Enough that no step is cut off at the edge of the public region, where two draws would agree.
    same: dict[str, Any] = {"random": fit_pb2.StartAtRandom(public_seed=7), "spend": types_pb2.Spend(rho=20.0)}
    first, second = (heard(persons, asked("here", **same)) for _ in range(2))
    assert all(a != b for a, b in zip(iterates(first), iterates(second), strict=True))
    assert first[-1].model.n_rows != second[-1].model.n_rows


def test_the_rivals_have_one(persons_with: PersonsWith) -> None:
    """The same attack on seeded noise."""
    pair = persons_with(Miswired(Seeded(), fit=gradient_em))
    first, second = (iterates(heard(pair, asked("here"))) for _ in range(2))
    assert first == second


REQUESTS: dict[str, dict[str, Any]] = {
    "symmetric": SYMMETRIC,
    "truncated": SYMMETRIC | {"variant": fit_pb2.GRADIENT_VARIANT_TRUNCATED},
    "mixture": MIXTURE | {"n_components": 3, "spend": types_pb2.Spend(epsilon=1.0)},
    "dp_em": MIXTURE | {"variant": fit_pb2.GRADIENT_VARIANT_DP_EM},
    "regressions": REGRESSIONS,
    "symmetric regressions": REGRESSIONS | {"symmetric": True, "variant": fit_pb2.GRADIENT_VARIANT_CLIPPED},
    "missing": MISSING,
    "missing, radial": MISSING | {"variant": fit_pb2.GRADIENT_VARIANT_RADIAL, "iterations": 0},
}


def differ(pair: Pair, **fields: Any) -> bool:
    """Return whether anything but the noisy sums tells "here" from "there"."""
    return differs(pair, METHOD, "gradient_em", lambda name: asked(name, **fields))


@pytest.mark.parametrize("name", REQUESTS)
def test_under_equal_noise_all_tables_have_one_model(deaf: Pair, name: str) -> None:
    """Compare all that two utterly different tables give when noise is equal, and so loud that nothing else is heard.

    Starts, scales, radii, noise levels, means of what is missing, numbers of rows and of steps: nothing came past the
    noise. The paper's own preparation takes centre, noise level and radius from the rows (appendix J).
    """
    assert not differ(deaf, **REQUESTS[name])


def counting_rows(plan: Any, session: Session) -> Message:
    """A fit that adds the number of rows to what it tells."""
    model = gradient_em.run(plan, session)
    model.n_rows += session._rows.slots
    return model


def shorter(plan: Any, session: Session) -> Message:
    """A fit that reports as many steps as its rows needed."""
    model = gradient_em.run(plan, session)
    model.iterations -= session._rows.slots // 100
    return model


@pytest.mark.parametrize("run", [counting_rows, shorter])
def test_a_rival_that_says_more_is_heard(persons_with: PersonsWith, run: Any) -> None:
    """The same comparison finds what comes from the table."""
    assert differ(persons_with(Miswired(Deaf(), run, gradient_em)))


def test_without_that_deafness_tables_differ(persons: Pair) -> None:
    """The comparison sees two tables with the real noise, so that its silence above means something."""
    assert differ(persons)


NAN, INF = math.nan, math.inf


def tensor(*values: float, shape: tuple[int, ...] | None = None) -> types_pb2.Tensor:
    """A vector, or what is called one."""
    return types_pb2.Tensor(shape=shape or (len(values),), values=values)


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": 0, "columns": ["x"]}, "model"),
    "another model": ({"model": 99, "columns": ["x"]}, "model"),
    "another variant": ({"variant": 99}, "variant"),
    "no spend": ({"spend": types_pb2.Spend()}, "spend"),
    "a spend that is no number": ({"spend": types_pb2.Spend(rho=NAN)}, "spend"),
    "a spend below nothing": ({"spend": types_pb2.Spend(epsilon=-1.0)}, "spend"),
    "a spend without end": ({"spend": types_pb2.Spend(rho=INF)}, "spend"),
    "a spend of next to nothing": ({"spend": types_pb2.Spend(rho=5e-324)}, "spend"),
    "the target among the features": (MISSING | {"columns": ["x", "y"]}, "columns"),
    "no target": (MISSING | {"target": ""}, "target"),
    "no intercept for what is missing": (MISSING | {"without_intercept": True}, "without_intercept"),
    "a target of points": (SYMMETRIC | {"target": "y"}, "target"),
    "a column that is not there": (SYMMETRIC | {"columns": ["x", "z"]}, "columns"),
    "a column twice": (SYMMETRIC | {"columns": ["x", "x"]}, "columns"),
    "the column of persons": (SYMMETRIC | {"columns": ["who"]}, "columns"),
    "more steps than there may be": ({"iterations": 10**6}, "iterations"),
    "more components than there may be": (MIXTURE | {"n_components": 10**6}, "n_components"),
    "an average of more than there are": ({"averaged": 4}, "averaged"),
    "steps that are no number": ({"step_size": NAN}, "step_size"),
    "steps backwards": ({"step_size": -1.0}, "step_size"),
    "a scale that is no number": (SYMMETRIC | {"variant": fit_pb2.GRADIENT_VARIANT_CLIPPED, "scale": NAN}, "scale"),
    "a scale below nothing": (SYMMETRIC | {"variant": fit_pb2.GRADIENT_VARIANT_CLIPPED, "scale": -1.0}, "scale"),
    "a scale of a default that follows": (SYMMETRIC | {"scale": 1.0}, "scale"),
    "a tau that is no number": (SYMMETRIC | {"variant": fit_pb2.GRADIENT_VARIANT_TRUNCATED, "tau": NAN}, "tau"),
    "a zeta of all": (SYMMETRIC | {"variant": fit_pb2.GRADIENT_VARIANT_TRUNCATED, "zeta": 1.0}, "zeta"),
    "a noise that is no number": ({"noise_std": NAN}, "noise_std"),
    "a noise of nothing": ({"noise_std": 1e-300}, "noise_std"),
    "a centre far away": ({"centre": tensor(1e9, 0.0)}, "centre"),
    "a centre that is no number": ({"centre": tensor(NAN, 0.0)}, "centre"),
    "a start that is no number": (
        {"given": {"coefficients": tensor(NAN, 0.0, shape=(1, 2))}},
        "start.given.coefficients",
    ),
    "a start of another shape": ({"given": {"coefficients": tensor(0.0, shape=(1, 1))}}, "start.given.coefficients"),
}
"""Wrong requests, and the field that must be named."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_is_wrong_is_refused_before_the_debit_alike_for_all_tables(persons: Pair, name: str) -> None:
    """Ask for what cannot be: the same refusal for two utterly different tables, by the field, and no debit."""
    fields, field = IMPOSSIBLE[name]
    told_alike(persons, lambda table: asked(table, **fields), field)


EXTREME: dict[str, dict[str, Any]] = {
    "an enormous spend": SYMMETRIC | {"spend": types_pb2.Spend(rho=50.0)},
    "hardly any": MIXTURE | {"spend": types_pb2.Spend(rho=1e-9), "n_components": 8},
    "a scale that all rows exceed": SYMMETRIC | {"variant": fit_pb2.GRADIENT_VARIANT_CLIPPED, "scale": 1e-9},
    "a scale that none does": REGRESSIONS | {"variant": fit_pb2.GRADIENT_VARIANT_TRUNCATED, "scale": 1e9},
    "the smallest noise": MISSING | {"noise_std": 1e-5, "spend": types_pb2.Spend(rho=1e-4)},
    "a start far away": REGRESSIONS
    | {"n_components": 1, "given": {"coefficients": tensor(1e99, shape=(1, 1)), "intercepts": tensor(-1e99)}},
}


@pytest.mark.parametrize("name", EXTREME)
def test_no_request_that_is_paid_for_fails(persons: Pair, name: str) -> None:
    """A fit that fails for some rows tells of them: every paid request has a model, all of whose numbers are finite."""
    for table in ("here", "there"):
        model = heard(persons, asked(table, **EXTREME[name]))[-1].model
        numbers = [*model.iterates.values, *model.coefficients.values, *model.noise_std.values]
        assert len(model.scales.values) == model.iterations == 3
        assert np.isfinite(numbers).all()


def test_the_number_of_rows_comes_from_noisy_counts(persons: Pair) -> None:
    """Ask for n over and over: it is another each time."""
    answers = [heard(persons, asked("here", spend=types_pb2.Spend(rho=0.5)))[-1].model.n_rows for _ in range(8)]
    assert len(set(answers)) == len(answers)
    assert float(np.std(answers)) > 0.3
