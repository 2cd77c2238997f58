"""The tests of the audit, each on its own: sample or target in, finding out. `docs/audit.md` says what each one sees.

Every p-value is at most the chance of a result at least as bad if releases have the debited law and sensitivity.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bursar_ledger import COST_UNIT, Adjacency, Event, GaussianEvent, LaplaceEvent, SelectionEvent
from bursar_server.vault import (
    ArrayRows,
    Choice,
    Noise,
    NoiseSource,
    Release,
    SelectionNoise,
    Statistic,
    event_of,
    exact_sum,
    sensitivity,
)
from tests.audit.target import ORDER, FloatArray, Observation, Sample, Target, observe

ALPHA = 1e-4
"""Chance of a false alarm of one test on one sample; a verdict needs two (`harness.verdict`)."""

WASTE = 1e-6


@dataclass(frozen=True)
class Finding:
    """What one test found.

    Attributes:
        test: its name.
        p: its p-value; 0 or 1 for tests that are not statistical.
        detail: in words.
        limit: below it the test rejects.
    """

    test: str
    p: float
    detail: str
    limit: float = ALPHA

    @property
    def rejects(self) -> bool:
        """Something is wrong. NaN rejects."""
        return not self.p >= self.limit


def energy(sample: Sample) -> list[Finding]:
    """T1: sum of squared (Laplace: absolute) residuals against its chi-square law, by tails and between the tables.

    The lower tail means less noise than debited, the upper tail wasted accuracy, a difference noise that follows data.
    """
    terms = np.where(sample.laplace, 2 * np.abs(sample.residual), sample.residual**2)
    freedom = int((1 + sample.laplace).sum())
    total, count = float(terms.sum()), len(terms)
    sides = [float(terms[sample.other == side].sum()) for side in (False, True)]
    ratio = sides[0] / sides[1] if sides[1] > 0 else np.nan
    law = stats.f(freedom * count // 2, freedom * count // 2)
    ratio_text = f"noise energy on D over D' {ratio:.4f}"
    mean_text = f"noise energy over claimed {total / (freedom * count):.4f}"
    return [
        Finding("T1 energy", float(stats.chi2.cdf(total, freedom * count)), mean_text),
        Finding("T1 waste", float(stats.chi2.sf(total, freedom * count)), mean_text, WASTE),
        Finding("T1 sides", float(2 * min(law.cdf(ratio), law.sf(ratio))), ratio_text),
    ]


def agreement(sample: Sample) -> Finding:
    """T0: what the code sums is what the independent reference sums, to a hundredth of the noise."""
    gap = float(np.abs(sample.residual - sample.here).max())
    return Finding("T0 agreement", 1.0 if gap <= 0.01 else 0.0, f"largest gap {gap:.2g} scales of noise")


def distinguish(sample: Sample) -> Finding:
    """T2: errors of the likelihood ratio test between D and D' against the least that the debit allows any test.

    The adversary knows the code that ran. Gaussian: releases with mu^2 = sum of claimed D2^2 / scale^2 are mu-GDP,
    so the mean error of any test is at least Phi(-mu / 2) (Dong, Roth and Su 2022); the number of errors of independent
    runs with unequal chances has a lower tail below the binomial's (Hoeffding 1956). Laplace: the error of the claimed
    product law at the observed shifts, each cut to the claimed L1.
    """
    errors, runs = int((_loss(sample.laplace, sample.here, sample.there) < 0).sum()), len(sample.here)
    return _against_least("T2 distinguish", errors, runs, _least_error(sample))


def _loss(laplace: NDArray[np.bool_], here: FloatArray, there: FloatArray) -> FloatArray:
    """Log likelihood of the run's table over the other's, under unit noise."""
    return np.asarray(np.where(laplace, np.abs(there) - np.abs(here), (there**2 - here**2) / 2).sum(axis=1))


def _against_least(test: str, errors: int, runs: int, least: float) -> Finding:
    p = float(stats.binom.cdf(errors, runs, least))
    return Finding(test, p, f"error {errors / runs:.4f}, least {least:.4f}")


def _least_error(sample: Sample) -> float:
    if not sample.laplace.any():
        return float(stats.norm.cdf(-np.sqrt((sample.limit**2).sum()) / 2))
    return _least_error_by_simulation(sample)


def _least_error_by_simulation(sample: Sample, draws: int = 40) -> float:
    """Mean error under claimed noise with the shifts that were seen, none longer than claimed; less four deviations."""
    rng = np.random.default_rng()  # noqa: TID251 - the claimed law, simulated by the adversary
    shift = sample.there - sample.here
    for i, limit in enumerate(sample.limit):
        mine = sample.release == i
        norms = np.linalg.norm(shift[:, mine], ord=1 if sample.laplace[mine].all() else 2, axis=1)
        shift[:, mine] *= np.minimum(1.0, limit / np.maximum(norms, 1e-300))[:, None]
    wrong = []
    for _ in range(draws):
        noise = np.where(sample.laplace, rng.laplace(size=shift.shape), rng.normal(size=shift.shape))
        wrong.append((_loss(sample.laplace, noise, noise + shift) < 0).mean())
    return max(0.0, float(np.mean(wrong) - 4 * np.std(wrong) / draws**0.5))


def whiteness(sample: Sample) -> Finding:
    """T3: signs of residuals are fair coins: one by one, between releases, between runs, between coordinates.

    Signs have exact binomial laws whatever the noise's tails. Noise that is used again, seeded or one-sided shows here
    and may show nowhere else.
    """
    signs = np.sign(sample.residual)
    found = {name: _fair(abs(product.sum()), product.size) for name, product in _products(sample, signs).items()}
    found["a coordinate's mean"] = signs.shape[1] * _fair(np.abs(signs.sum(axis=0)).max(), len(signs))
    if (pairs := signs.shape[1] * (signs.shape[1] - 1) // 2) > 0:
        excess = np.abs(np.where(np.eye(signs.shape[1]), 0.0, signs.T @ signs)).max()
        found["between two coordinates"] = pairs * _fair(excess, len(signs))
    name = min(found, key=lambda key: found[key])
    return Finding("T3 whiteness", min(1.0, len(found) * found[name]), f"signs {name}")


def _products(sample: Sample, signs: FloatArray) -> dict[str, FloatArray]:
    """Signs, and products of signs that should be as fair."""
    runs = [signs[sample.other == side] for side in (False, True)]
    products = {"alone": signs, "between runs": np.vstack([side[1:] * side[:-1] for side in runs])}
    parts = [signs[:, sample.release == i] for i in range(len(sample.limit))]
    for i, j in itertools.combinations(range(len(parts)), 2):
        if parts[i].shape == parts[j].shape:
            products[f"between releases {i} and {j}"] = parts[i] * parts[j]
    return products


def _fair(excess: float, tosses: int) -> float:
    """Two-sided chance that heads minus tails of fair coins is at least `excess` in absolute value."""
    return min(1.0, float(2 * stats.binom.sf(np.ceil((tosses + excess) / 2) - 1, tosses, 0.5)))


@dataclass(frozen=True)
class Reach:
    """The largest change found by search, over the claimed sensitivity (in norm, 1 at the claim)."""

    ratio: float
    exceeded: bool


def sensitivity_search(target: Target, seen: Observation, *, rounds: int = 6, width: int = 24) -> tuple[Finding, float]:
    """T4: rows that change a release more than was debited, from extremes by random improvement; and how near it came.

    Contributions come from the statistic that really ran, one row at a time, in integers, at the target's places.
    """
    found = [
        _search(target, release.statistic, claim, place, rounds, width)
        for release, claim in zip(seen.releases, target.claims, strict=False)
        for place in target.places
    ]
    reach = max((one.ratio for one in found), default=0.0)
    bad = any(one.exceeded for one in found)
    return Finding("T4 sensitivity", 0.0 if bad else 1.0, f"largest change over claim {reach:.6f}"), reach


def _search(
    target: Target, statistic: Statistic, claim: GaussianEvent | LaplaceEvent, place: int, rounds: int, width: int
) -> Reach:
    rng = np.random.default_rng()  # noqa: TID251 - the adversary's rows
    claimed, norm = (claim.l1 * claim.groups, 1) if isinstance(claim, LaplaceEvent) else (claim.l2_squared, 2)
    rows, best = target.extremes, 0
    null = np.full((len(rows), 1), np.nan)
    for _ in range(rounds):
        rows = np.hstack([rows, null])
        pair, change = _worst_pair(statistic, rows, place, target.adjacency, norm)
        best = max(best, change * target.unit_cap**norm)
        steps = rng.normal(size=(len(rows), width)) * rng.choice([1e-3, 0.03, 0.3, 3.0], size=width)
        rows = np.hstack([rows[:, pair], np.tile(rows[:, pair], width // 2) + steps])
    return Reach(ratio=float(Fraction(best, claimed)) ** (1 / norm), exceeded=best > claimed)


def _worst_pair(
    statistic: Statistic, rows: FloatArray, place: int, adjacency: Adjacency, norm: int
) -> tuple[list[int], int]:
    """The two rows that lie furthest apart, and how far, exactly; the last row stands for one that is absent.

    If only absence is a neighbour, it is one of the two.
    """
    values = np.array([contribution(statistic, row, place) for row in rows.T])
    values[-1] = 0
    others = values if adjacency is Adjacency.REPLACE_ONE else values[-1:]
    distances = (np.abs(values[:, None, :].astype(float) - others[None, :, :]) ** norm).sum(axis=2)
    i, j = (int(index) for index in np.unravel_index(np.argmax(distances), distances.shape))
    change = sum(abs(a - b) ** norm for a, b in zip(values[i].tolist(), others[j].tolist(), strict=True))
    return [i, j if len(others) > 1 else i], change


def placement(target: Target, seen: Observation) -> Finding:
    """T4: the same rows in other slots give the same sums.

    Where a unit comes or goes the rows after it move up or down (`server/bursar_server/tables/_snapshot.md`), so a row
    that counts differently in another slot makes others count differently, too.
    """
    columns, n = target.rows.columns, target.rows.slots
    present = np.ones(n, dtype=np.bool_) if target.rows.present is None else target.rows.present
    for release in seen.releases:
        there = exact_sum(release.statistic, target.rows, len(columns))
        for places in (np.arange(n) + 1, np.arange(n)[::-1], 37 * np.arange(n) + 8000):
            moved, filled = np.zeros((len(columns), places.max() + 1)), np.zeros(places.max() + 1, dtype=np.bool_)
            moved[:, places], filled[places] = columns, present
            if not np.array_equal(exact_sum(release.statistic, ArrayRows(moved, filled), len(columns)), there):
                return Finding("T4 placement", 0.0, f"{release.statistic.name} depends on the slots of its rows")
    return Finding("T4 placement", 1.0, "sums do not depend on the slots of rows")


def contribution(statistic: Statistic, row: FloatArray, place: int = 0) -> NDArray[np.int64]:
    """What one row, alone in a table at this slot, adds to a statistic, in lattice units."""
    columns, present = np.zeros((len(row), place + 1)), np.zeros(place + 1, dtype=np.bool_)
    columns[:, place], present[place] = row, True
    return exact_sum(statistic, ArrayRows(columns, present), len(row)).ravel()


def arithmetic(target: Target, seen: Observation) -> Finding:
    """T5: the debit equals the price of what was released, recomputed from statistics and noise in fractions.

    The sensitivity is taken again for the dataset's adjacency and cap, so that a release priced for another one shows.
    """
    bounds = [release.statistic.bounds for release in seen.releases]
    bounds += [choice.candidates.block_bounds for choice in seen.choices]
    done: list[Release | Choice] = [*seen.releases, *seen.choices]
    events = [
        event_of(sensitivity(one, target.adjacency, target.unit_cap), of.noise)
        for one, of in zip(bounds, done, strict=True)
    ]
    price = sum((_price(event) for event in events), Fraction(0)) * COST_UNIT
    detail = f"released {float(price):.1f} units of {target.debited} debited"
    short, dear = price > target.debited, target.debited - price >= 1 + price / 10**9
    told = [one.event for one in done] == events
    return Finding("T5 arithmetic", 0.0 if short or dear or not told else 1.0, detail)


def _price(event: Event) -> Fraction:
    """Renyi divergence of one release at `ORDER`, by hand: order * D2^2 / (2 scale^2) for Gaussian noise.

    For discrete Laplace noise, with u = l1 / scale and p = exp(-1 / scale), the sum over the integers has the closed
    form e^((a-1)u) (w + (1-w) e^(-(2a-1)u)) with w = (1 - p^2a) / ((1 + p) (1 - p^(2a-1))). Rounded down. A choice of
    bounded range eta: order * eta^2 / 8, or randomised response's at eta if that is less.
    """
    if isinstance(event, GaussianEvent):
        return ORDER * event.l2_squared / (2 * event.scale**2)
    if isinstance(event, SelectionEvent):
        eta = 2 * event.sensitivity / event.scale
        return min(ORDER * eta**2 / 8, _randomised_response(eta))
    if not isinstance(event, LaplaceEvent):
        raise NotImplementedError(f"no price by hand for {type(event).__name__}")
    with localcontext(prec=60):
        a, b = Decimal(int(ORDER)), Decimal(event.scale.numerator) / event.scale.denominator
        u, p = event.l1 / b, (-1 / b).exp()
        w = (1 - p ** (2 * a)) / ((1 + p) * (1 - p ** (2 * a - 1)))
        divergence = u + (w + (1 - w) * (-(2 * a - 1) * u).exp()).ln() / (a - 1)
        return Fraction(event.groups * divergence * (1 - Decimal(10) ** -30))


def _randomised_response(epsilon: Fraction) -> Fraction:
    """Renyi divergence at `ORDER` of one truthful answer in e^-epsilon lies, from its two outcomes. Rounded down."""
    with localcontext(prec=60):
        a, e = Decimal(int(ORDER)), Decimal(epsilon.numerator) / epsilon.denominator
        truth, lie = 1 / (1 + (-e).exp()), (-e).exp() / (1 + (-e).exp())
        divergence = (truth**a * lie ** (1 - a) + lie**a * truth ** (1 - a)).ln() / (a - 1)
        return Fraction(divergence * (1 - Decimal(10) ** -30))


def black_box(train: Sample, test: Sample) -> Finding:
    """T6: the best linear test on all that leaves, learnt on one sample, held to the debit's least error on another.

    For runs of one release: it sees whether noised or raw numbers reach the model.
    """
    direction, threshold = _discriminant(train.features, train.other)
    guess = test.features @ direction > threshold
    errors, runs = int((guess != test.other).sum()), len(guess)
    least = _least_error(test)
    return Finding(
        "T6 black box", float(stats.binom.cdf(errors, runs, least)), f"error {errors / runs:.4f}, least {least:.4f}"
    )


def _discriminant(features: FloatArray, other: NDArray[np.bool_]) -> tuple[FloatArray, float]:
    """Fisher's linear discriminant, in standard deviations of each feature, with a little ridge."""
    centre, spread = np.median(features, axis=0), np.std(features, axis=0)
    scale = 1 / np.where(spread > 1e-12 * (1 + np.abs(centre)), spread, np.inf)
    scaled = (features - centre) * scale
    means = [scaled[other == side].mean(axis=0) for side in (False, True)]
    within = np.cov(np.vstack([scaled[other == side] - means[int(side)] for side in (False, True)]), rowvar=False)
    within = np.atleast_2d(within)
    direction = np.linalg.solve(within + 1e-9 * np.eye(len(within)), means[1] - means[0]) * scale
    return direction, float(direction @ (centre + (means[0] + means[1]) / 2 / np.where(scale > 0, scale, 1.0)))


@dataclass
class Forced:
    """A source that answers with recorded releases, whatever it is asked; afterwards with zeros."""

    recorded: list[NDArray[np.int64]]
    choices: list[Choice] = field(default_factory=list)

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return the next recorded release."""
        return self.recorded.pop(0).copy() if self.recorded else np.zeros_like(sums)

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the next recorded choice."""
        if not self.choices:
            return 0
        choice = self.choices.pop(0)
        return min(choice.available.index(choice.chosen), scores.size - 1)


def replay(target: Target, seen: Observation, others: list[ArrayRows], probe: ArrayRows) -> Finding:
    """T7: the same releases, forced upon other tables, give the same statistics, noise, number of releases and model.

    So whatever a step uses, and whatever leaves, is a function of released values, as adaptive composition assumes.
    """
    first = _account(target, seen, probe)
    for rows in others:
        source: NoiseSource = Forced([release.noisy for release in seen.releases], list(seen.choices))
        again = _account(target, observe(target, rows, source), probe)
        for name, value in first.items():
            if again[name] != value:
                return Finding("T7 replay", 0.0, f"{name} depends on rows beyond the releases")
    return Finding("T7 replay", 1.0, f"{len(others)} tables, {len(seen.releases)} releases")


def _account(target: Target, seen: Observation, probe: ArrayRows) -> dict[str, object]:
    """All that may depend on releases only: statistics are compared by what they say about probe rows."""
    return {
        "the number of releases": len(seen.releases),
        "a noise": [release.noise for release in seen.releases],
        "a sensitivity": [release.statistic.bounds for release in seen.releases],
        "a statistic": [
            contribution(release.statistic, row, place).tolist()
            for release in seen.releases
            for row in probe.columns.T
            for place in target.places
        ],
        "a choice": [
            (
                choice.candidates.blocks,
                choice.candidates.targets.tolist(),
                choice.available,
                choice.chosen,
                choice.noise,
            )
            for choice in seen.choices
        ],
        "what is scored": [
            (choice.candidates.block_bounds, contribution(choice.candidates.statistic, row, place).tolist())
            for choice in seen.choices
            for row in probe.columns.T
            for place in target.places
        ],
        "the model": target.features(seen.model).tobytes(),
    }
