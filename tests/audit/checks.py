"""The tests of the audit, each on its own: sample or target in, finding out. `docs/audit.md` has the question of each.

Every p-value is at most the chance of a result at least as bad if releases have the debited law and sensitivity.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray
from scipy import stats

from bursar_ledger import COST_UNIT, Adjacency, Event, GaussianEvent, LaplaceEvent, SelectionEvent
from bursar_models.arrays import FloatArray
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
from tests.audit.target import COARSE, ORDER, Choices, Observation, Sample, Target, observe, on_integers

ALPHA = 1e-4
"""Chance of a false alarm of one test on one sample; a verdict needs two (`harness.verdict`)."""

WASTE = 1e-6


@dataclass(frozen=True)
class Finding:
    """Finding of one test.

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
    told = f"largest gap {sample.gap:.2g} scales of noise"
    return Finding("T0 agreement", 1.0 if sample.gap <= 0.01 else 0.0, told)


def distinguish(sample: Sample) -> Finding:
    """T2: errors of the likelihood ratio test between D and D' against the least that the debit allows any test.

    The adversary knows the code that ran. Gaussian: releases with mu^2 = sum of claimed D2^2 / scale^2 are mu-GDP,
    so the mean error of any test is at least Phi(-mu / 2) (Dong, Roth and Su 2022); the number of errors of independent
    runs with unequal chances has a lower tail below the binomial's (Hoeffding 1956). Laplace, or Gaussian on few
    integers: the error of the claimed product law at the observed shifts, each cut to the claimed length. A choice of
    bounded range eta is eta-DP: it tells no more than a truthful answer in e^-eta lies (Kairouz and others 2015).
    """
    loss = _loss(sample.laplace, sample.here, sample.there) + _choice_loss(sample.choices, len(sample.here))
    errors, runs = int((loss < 0).sum()), len(sample.here)
    return _against_least("T2 distinguish", errors, runs, _least_error(sample))


def _loss(laplace: NDArray[np.bool_], here: FloatArray, there: FloatArray) -> FloatArray:
    """Log likelihood of the run's table over the other's, under unit noise."""
    return np.asarray(np.where(laplace, np.abs(there) - np.abs(here), (there**2 - here**2) / 2).sum(axis=1))


def _against_least(test: str, errors: int, runs: int, least: float) -> Finding:
    p = float(stats.binom.cdf(errors, runs, least))
    return Finding(test, p, f"error {errors / runs:.4f}, least {least:.4f}")


def _choice_loss(choices: Choices, runs: int) -> FloatArray:
    """Log likelihood of the run's table over the other's, of what was chosen under the claimed law; (runs,)."""
    if choices.eta.size == 0:
        return np.zeros(runs)
    here, there = (np.log(_chances(scores)) for scores in (choices.here, choices.there))
    return np.asarray(np.take_along_axis(here - there, choices.chosen[..., None], axis=2).sum(axis=(1, 2)))


def _chances(scores: FloatArray) -> FloatArray:
    """Softmax over the last axis; tiny, not zero, for what was not available."""
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(np.maximum(raised / raised.sum(axis=-1, keepdims=True), 1e-300))


def _least_error(sample: Sample) -> float:
    if not sample.laplace.any() and (sample.scale >= COARSE).all():
        return _least_error_of_gaussians(float(np.sqrt((sample.limit**2).sum())), sample.choices.eta)
    return _least_error_by_simulation(sample)


def _least_error_of_gaussians(mu: float, eta: FloatArray) -> float:
    """Mean error of the likelihood ratio test on a shift of mu and one answer of randomised response for each eta."""
    error = 0.0
    for truths in itertools.product((1, -1), repeat=len(eta)):
        signs = np.array(truths)
        chance = np.prod(1 / (1 + np.exp(-signs * eta)))
        error += chance * stats.norm.cdf(-mu / 2 - (signs * eta).sum() / mu)
    return float(error)


def _least_error_by_simulation(sample: Sample, draws: int = 40) -> float:
    """Mean error under claimed noise with the shifts that were seen, none longer than claimed; less four deviations."""
    rng = np.random.default_rng()  # noqa: TID251 - the claimed law, simulated by the adversary
    shift = sample.there - sample.here
    for i, limit in enumerate(sample.limit):
        mine = sample.release == i
        norms = np.linalg.norm(shift[:, mine], ord=1 if sample.laplace[mine].all() else 2, axis=1)
        shift[:, mine] *= np.minimum(1.0, limit / np.maximum(norms, 1e-300))[:, None]
    wrong, eta = [], sample.choices.eta
    for _ in range(draws):
        noise = np.where(sample.laplace, rng.laplace(size=shift.shape), rng.normal(size=shift.shape))
        for place in np.flatnonzero(sample.scale < COARSE).tolist():
            k, chances = on_integers(bool(sample.laplace[place]), float(sample.scale[place]))
            noise[:, place] = rng.choice(k, p=chances, size=len(shift)) / sample.scale[place]
        truths = rng.uniform(size=(len(shift), len(eta))) < 1 / (1 + np.exp(-eta))
        loss = _loss(sample.laplace, noise, noise + shift) + np.where(truths, eta, -eta).sum(axis=1)
        wrong.append((loss < 0).mean())
    return max(0.0, float(np.mean(wrong) - 4 * np.std(wrong) / draws**0.5))


def choices(sample: Sample) -> list[Finding]:
    """T8: blocks are chosen as often as the exponential mechanism's claimed law says, on the run's own table.

    By the scores of what was chosen, above their mean (too little noise) or below it (wasted accuracy), and block by
    block. Bounds are those of martingales (Freedman 1975), since later choices depend on earlier ones.
    """
    made, chances = sample.choices, _chances(sample.choices.here)
    scores = np.where(np.isfinite(made.here), made.here, 0.0)
    means = (chances * scores).sum(axis=2)
    gains = np.take_along_axis(scores, made.chosen[..., None], axis=2)[..., 0] - means
    spread = float((chances * (scores - means[..., None]) ** 2).sum())
    widest = float(np.where(np.isfinite(made.here), np.abs(scores - means[..., None]), 0.0).max())
    text = f"scores of what was chosen above their mean: {gains.sum():+.1f}, spread {spread**0.5:.1f}"
    told = made.chosen[..., None] == np.arange(chances.shape[2])
    excess, variances = (told - chances).sum(axis=0).ravel(), (chances * (1 - chances)).sum(axis=0).ravel()
    law = min(_rare(abs(a), v, 1.0) for a, v in zip(excess.tolist(), variances.tolist(), strict=True))
    return [
        Finding("T8 choices", _rare(float(gains.sum()), spread, widest), text),
        Finding("T8 waste", _rare(-float(gains.sum()), spread, widest), text, WASTE),
        Finding("T8 law", min(1.0, 2 * excess.size * law), f"{excess.size} frequencies of choices"),
    ]


def _rare(excess: float, variance: float, step: float) -> float:
    """The most chance for a sum of martingale steps of at most `step`, with this variance, to be `excess` or more."""
    if not excess > 0:
        return 1.0
    return float(np.exp(-(excess**2) / (2 * (variance + step * excess / 3))))


def odds(here: NDArray[np.int64], there: NDArray[np.int64], eta: float) -> Finding:
    """T8: how often each of two blocks was chosen on D and D', against the most that a bounded range of eta allows.

    Given the margins, counts of a fourfold table follow Fisher's noncentral law, with odds of at most e^eta.

    Args:
        here: (2,) counts of the two blocks on D.
        there: (2,) the same on D'.
        eta: debited bounded range.
    """
    total, first, drawn = int(here.sum() + there.sum()), int(here[0] + there[0]), int(here.sum())
    law = stats.nchypergeom_fisher(total, first, drawn, float(np.exp(eta)))
    ratio = here[0] * there[1] / max(1, here[1] * there[0])
    return Finding("T8 odds", float(law.sf(here[0] - 1)), f"odds ratio {ratio:.2f}, most {np.exp(eta):.2f}", WASTE)


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

    Contributions come from the statistic that really ran, one row at a time, in integers, at the target's places. Small
    blocks find the worst pair of a round; what it changes is taken from a table.
    """
    claims = [_claim(release.statistic, claim) for release, claim in zip(seen.releases, target.claims, strict=False)]
    # Choices among the same blocks are searched once.
    scored = {
        (id(choice.candidates), event.sensitivity): choice.candidates
        for choice, event in zip(seen.choices, target.chosen, strict=False)
    }
    for (_, most), candidates in scored.items():
        claims += [_Claim(candidates.statistic, slice(*block), 1, most) for block in candidates.blocks]
    found = [_search(target, claim, place, rounds, width) for claim in claims for place in target.places]
    reach = max((one.ratio for one in found), default=0.0)
    bad = any(one.exceeded for one in found)
    return Finding("T4 sensitivity", 0.0 if bad else 1.0, f"largest change over claim {reach:.6f}"), reach


@dataclass(frozen=True)
class _Claim:
    """Largest change by a privacy unit according to a debit.

    Attributes:
        statistic: that reads rows.
        part: of its flat sum.
        norm: 1 or 2.
        most: largest change in this norm, squared for 2.
        side: largest L1 change that only adds or only takes away; None where nothing is said about it.
    """

    statistic: Statistic
    part: slice
    norm: int
    most: int
    side: int | None = None


def _claim(statistic: Statistic, claim: GaussianEvent | LaplaceEvent) -> _Claim:
    if isinstance(claim, GaussianEvent):
        return _Claim(statistic, slice(None), 2, claim.l2_squared)
    if claim.groups > 2:
        raise NotImplementedError("the audit knows of two groups of coordinates, what comes and what leaves")
    return _Claim(statistic, slice(None), 1, claim.groups * claim.l1, claim.l1)


def _search(target: Target, claim: _Claim, place: int, rounds: int, width: int) -> Reach:
    rng = np.random.default_rng()  # noqa: TID251 - the adversary's rows
    columns, factor = len(target.extremes), 1 if target.unit_rows is not None else target.unit_cap
    units, most, exceeded = _units(target, target.extremes), 0, False
    for _ in range(rounds):
        values = [_in_few_slots(claim.statistic, unit, place)[claim.part] for unit in units]
        absent = np.zeros_like(values[0])
        pair, _, side = _worst_pair(np.array([*values, absent]), target.adjacency, claim.norm)
        worst = [units[index] for index in pair if index < len(units)]
        exact = [contribution(claim.statistic, unit, place)[claim.part] for unit in worst]
        _, change, _ = _worst_pair(np.array([*exact, absent]), target.adjacency, claim.norm)
        most = max(most, change * factor**claim.norm)
        exceeded |= claim.side is not None and side * factor > claim.side
        steps = rng.choice([1e-3, 0.03, 0.3, 3.0], size=width)
        near = [worst[i % len(worst)] + _step(target, rng.normal(size=(columns, 1)) * steps[i]) for i in range(width)]
        units = [*worst, *near]
    ratio = float(Fraction(most, claim.most)) ** (1 / claim.norm)
    return Reach(ratio=ratio, exceeded=exceeded or most > claim.most)


def _units(target: Target, rows: FloatArray) -> list[FloatArray]:
    """Rows (columns, 1), each alone; where units are bounded, units (columns, c) of several of them besides."""
    rng = np.random.default_rng()  # noqa: TID251 - the adversary's units
    units = [rows[:, i : i + 1] for i in range(rows.shape[1])]
    if target.unit_rows is None:
        return units
    for count in range(1, target.unit_cap + 1):
        alike = [np.repeat(row, count, axis=1) for row in units[: rows.shape[1]]]
        mixed = [rows[:, rng.integers(rows.shape[1], size=count)] for _ in range(rows.shape[1] * (count > 1))]
        for unit in (*alike, *mixed):
            unit[target.unit_rows] = count
            units.append(unit)
    return units


def _step(target: Target, step: FloatArray) -> FloatArray:
    """A step that leaves the number of rows of the unit as it is."""
    if target.unit_rows is not None:
        step[target.unit_rows] = 0.0
    return step


_FEW = 512
"""Slots of a block in which a search tries units: a multiple of the slices that kernels cut blocks into."""


def _in_few_slots(statistic: Statistic, unit: FloatArray, place: int) -> NDArray[np.int64]:
    """Return what `contribution` does, from a block with a sixteenth of the slots, if the unit has its place there."""
    end = place + unit.shape[1]
    if end > _FEW:
        return contribution(statistic, unit, place)
    block, present = np.zeros((len(unit), _FEW)), np.zeros(_FEW, dtype=np.bool_)
    block[:, place:end], present[place:end] = unit, True
    out = np.zeros(statistic.size, dtype=np.int64)
    statistic.kernel(block, present, out)
    return out


def _worst_pair(values: NDArray[np.int64], adjacency: Adjacency, norm: int) -> tuple[list[int], int, int]:
    """The two units that lie furthest apart, how far, exactly, and how far any two in one direction in L1.

    The last unit stands for one that is absent. If only absence is a neighbour, it is one of the two.
    """
    others = values if adjacency is Adjacency.REPLACE_ONE else values[-1:]
    changes = values[:, None, :].astype(float) - others[None, :, :]
    distances = (np.abs(changes) ** norm).sum(axis=2)
    i, j = (int(index) for index in np.unravel_index(np.argmax(distances), distances.shape))
    change = sum(abs(a - b) ** norm for a, b in zip(values[i].tolist(), others[j].tolist(), strict=True))
    side = max(np.maximum(changes, 0.0).sum(axis=2).max(), np.maximum(-changes, 0.0).sum(axis=2).max())
    return [i, j if len(others) > 1 else i], change, int(side)


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
    """Return what one row, or the rows of a unit (columns, c), alone in a table from this slot on, add to a statistic.

    In lattice units.
    """
    unit = row.reshape(len(row), -1)
    columns, present = np.zeros((len(row), place + unit.shape[1])), np.zeros(place + unit.shape[1], dtype=np.bool_)
    columns[:, place:], present[place:] = unit, True
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
    """T7: the same releases, forced upon other tables, give the same statistics, noise, releases, progress and model.

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
        "the progress": seen.steps,
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
                choice.candidates.discounts,
                choice.candidates.weights,
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
        # Fields that no test counts as numbers leave, too.
        "a message": seen.model.SerializeToString(deterministic=True) if isinstance(seen.model, Message) else b"",
    }
