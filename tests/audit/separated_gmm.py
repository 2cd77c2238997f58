"""FitSeparatedGMM under audit: operations on parts, with an account of who is in which part that is written again here.

Which operations there are depends on what was released, so a debit says nothing of them one by one; what is audited is
each operation against its own price, and the sum over the parts that a row was in against the debit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from bursar_ledger import Adjacency, GaussianEvent, cost_units
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, separated_gmm
from bursar_server.fits.mixtures.radius_statistics import _RadiusKernel
from bursar_server.fits.separated_gmm._statistics import Round, Slab
from bursar_server.vault import (
    ArrayRows,
    BlockEstimator,
    Forest,
    Meter,
    Node,
    Noise,
    NoiseSource,
    OpenDPNoise,
    PartRelease,
    PartSearch,
    Release,
    Scores,
    SearchSource,
    SelectionNoise,
    Session,
    Statistic,
    SyntheticBudget,
    exact_sum,
)
from tests.audit import checks, moments
from tests.audit.harness import BIT_PATTERNS, extremes
from tests.audit.target import ORDER, Observation, Sample, Target

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE
RHO = Fraction(1, 2)
BOUND = 100.0
OFF = 6.0
"""Distance of the unit's rows from the middle of a cluster, in deviations: outside of it, and nobody beyond."""

Mask = NDArray[np.bool_]
Operation = PartRelease | PartSearch
RunFit = Callable[[Any, Session], fit_pb2.SeparatedGMM]

BALLS = fit_pb2.SEPARATED_SEARCH_BALLS
CLUSTERS = fit_pb2.SEPARATED_ESTIMATOR_CLUSTERS
EASY = fit_pb2.SEPARATED_VARIANT_EASY


@dataclass(frozen=True)
class Audited:
    """A plan, and two neighbouring tables whose first `cap` slots are the unit's; without them where it is absent."""

    plan: separated_gmm.SeparatedPlan
    adjacency: Adjacency
    cap: int
    rows: ArrayRows
    neighbour: ArrayRows


@dataclass(frozen=True)
class Seen:
    """One run: its operations after noise, the model, what was said of the progress, and the blocks of estimates.

    Attributes:
        operations: in their order.
        model: that left.
        steps: that were reported.
        blocks: how many there were, and of how many rows at most, each time that estimates were asked for.
    """

    operations: tuple[Operation, ...]
    model: fit_pb2.SeparatedGMM
    steps: tuple[tuple[int, int], ...]
    blocks: tuple[tuple[int, int], ...] = ()


def audited(
    adjacency: Adjacency,
    n: int = 400,
    *,
    d: int = 2,
    truth: int = 3,
    cap: int = 1,
    rho: Fraction = RHO,
    seed: int = 5,
    apart: float = 30.0,
    **fields: Any,
) -> Audited:
    """Clusters of rows, some broken ones, and a unit with rows by a cluster that go, or come to another one."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - the audit's tables are fixed
    means = apart * np.stack([np.cos(2.1 * np.arange(truth)[:, None] + i) for i in range(d)], axis=1)[:, :, 0]
    rows = means[np.arange(n) % truth] + rng.standard_normal((n, d))
    broken = np.resize(np.array([np.nan, 1e308, -np.inf, 5e-324]), (min(n, 3), d))
    here, there = np.tile(means[:1] + OFF, (cap, 1)), np.tile(means[-1:] - OFF, (cap, 1))
    fixed = np.concatenate([rows, broken])
    ours, theirs = (np.ascontiguousarray(np.concatenate([unit, fixed]).T) for unit in (here, there))
    pair = ArrayRows(ours), ArrayRows(theirs if adjacency is RO else ours[:, cap:])
    columns = tuple(BoundedColumn(f"x{i}", -BOUND, BOUND) for i in range(d))
    public = PublicTable("audit", columns, adjacency, cap, ours.shape[1] if adjacency is RO else None)
    request = fit_pb2.FitSeparatedGMMRequest(
        **(
            {"spend": types_pb2.Spend(rho=float(rho)), "n_components": 3, "sigma_min": 0.3, "sigma_max": 3.0} | fields  # type: ignore[arg-type] # checked by protobuf
        )
    )
    return Audited(separated_gmm.plan(request, public, lambda entry: None), adjacency, cap, *pair)


def observe(
    audit: Audited,
    rows: ArrayRows | None = None,
    *,
    source: NoiseSource | None = None,
    search_source: SearchSource | None = None,
    run: RunFit = separated_gmm.run,
) -> Seen:
    """Run the fit once, on the first table unless said otherwise."""
    operations: list[Operation] = []
    steps: list[tuple[int, int]] = []
    blocks: list[tuple[int, int]] = []
    rows = rows or audit.rows

    class Watched(Session):
        """A session whose blocks are noted."""

        def blocks(self, rho: Fraction, estimator: BlockEstimator) -> Forest:
            """See `Session`."""
            blocks.append((estimator.blocks, estimator.capacity))
            return super().blocks(rho, estimator)

    session = Watched(
        rows=rows,
        columns=len(rows.columns),
        adjacency=audit.adjacency,
        unit_cap=audit.cap,
        meter=Meter(SyntheticBudget(ORDER, cost_units(audit.plan.events, ORDER))),
        source=source or OpenDPNoise(),
        search_source=search_source,
        progress=lambda step, of: steps.append((step, of)),
        part_tap=operations.append,
    )
    model = run(audit.plan, session)
    return Seen(tuple(operations), model, tuple(steps), tuple(blocks))


# Who is in a part, written again: the lattice by the formula, projections in 64-bit integers


def points(frame: Any, columns: FloatArray) -> NDArray[np.int64]:
    """Rows on the lattice of 2^-29 of the public ball, (d, n); columns beyond the frame's are not looked at."""
    columns = columns[: len(frame.centre)]
    with np.errstate(all="ignore"):
        x = (columns - frame.centre[:, None]) * (1.0 / frame.scale)[:, None]
        finite = np.abs(x) < 1e100
    x = np.where(finite, x, 0.0)
    squares = np.zeros(columns.shape[1])
    for coordinate in x:
        squares += coordinate * coordinate
    lengths = finite.all(axis=0) * (2.0**29 * (1.0 - 2.0**-30)) / np.sqrt(np.maximum(squares, 1.0))
    return np.asarray(np.trunc(x * lengths), dtype=np.int64)


def projected(view: Any, p: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what is seen of points: from an origin, along a basis if there is one."""
    moved = p - view.origin.astype(np.int64)[:, None]
    return np.asarray((view.basis.astype(np.int64) @ moved) // 2**16 if len(view.basis) else moved, dtype=np.int64)


def labels(rule: Any, columns: FloatArray) -> NDArray[np.int64]:
    """Return the child of a part into which each row goes."""
    p = points(rule.frame, columns)
    if isinstance(rule, Slab):
        v = rule.direction.astype(np.int64) @ (p - rule.origin.astype(np.int64)[:, None])
        return np.asarray((int(rule.low) <= v) & (v < int(rule.high)), dtype=np.int64)
    if isinstance(rule, Round):
        squares = np.zeros(p.shape[1])
        for coordinate, centre in zip(projected(rule.view, p), rule.centre, strict=True):
            squares += (coordinate - centre) * (coordinate - centre)
        return np.asarray(squares < rule.limit, dtype=np.int64)
    raise NotImplementedError(f"the audit does not know {type(rule).__name__}; write its rule again here")


def members(node: Node, rows: ArrayRows) -> Mask:
    """Return which rows of a table are in a part."""
    inside = np.ones(rows.slots, dtype=np.bool_) if rows.present is None else rows.present.copy()
    here: Node | None = node
    while here is not None and here.rule is not None:
        inside &= labels(here.rule, rows.columns) == here.label
        here = here.parent
    return inside


def part(node: Node, rows: ArrayRows) -> ArrayRows:
    """A table of which the rows outside of a part are null."""
    return ArrayRows(rows.columns, members(node, rows))


def expected(release: PartRelease, rows: ArrayRows) -> FloatArray:
    """The sum that a release has beneath its noise, by the reference."""
    kernel: Any = release.statistic.kernel
    mine, seen = part(release.node, rows), len(kernel.frame.centre)
    if isinstance(kernel, _RadiusKernel):
        return moments.by_radius(release.statistic, replace(mine, columns=mine.columns[:seen]))
    if release.statistic.factors:
        return moments.reference(release.statistic, replace(mine, columns=mine.columns[:seen]))
    inside = rows.columns[:seen, members(release.node, rows)]
    inside = inside[:, (np.abs(inside) < 1e100).all(axis=0)]
    p = points(kernel.frame, inside)
    if hasattr(kernel, "direction"):
        v = kernel.direction.astype(np.int64) @ (p - kernel.origin.astype(np.int64)[:, None])
        low, inner, outer, high = (float(edge) for edge in kernel.edges)
        counts = [((inner <= v) & (v < outer)).sum(), ((v < low) | (v >= high)).sum()]
    else:
        squares = np.zeros(p.shape[1])
        for coordinate, centre in zip(projected(kernel.view, p), kernel.centre, strict=True):
            squares += (coordinate - centre) * (coordinate - centre)
        counts = [(squares < kernel.edges[0]).sum(), (squares >= kernel.edges[1]).sum()]
    return np.array([*counts, p.shape[1] - sum(counts)], dtype=np.float64)


# The checks: each returns a sentence where it rejects


def law(audit: Audited, runs: list[Seen]) -> str | None:
    """T1: what was released, less the reference's sums, is noise of the size that was charged for; 1e-8 of the time."""
    standard = [np.empty(0)]
    for seen in runs:
        for one in seen.operations:
            if isinstance(one, PartRelease):
                scale = math.sqrt(squared_change(audit, one) / (2 * one.rho))
                standard.append((one.noisy - expected(one, audit.rows)).ravel() / scale)
    z = np.concatenate(standard)
    spread = float((z**2).sum())
    tails = [stats.chi2.sf(spread, z.size), stats.chi2.cdf(spread, z.size), stats.kstest(z, "norm").pvalue]
    tails += [z.size * 2 * stats.norm.sf(np.abs(z).max())]
    return None if min(tails) > 1e-9 else f"residuals are not the noise that was charged: {tails}"


def squared_change(audit: Audited, one: PartRelease) -> Fraction:
    """Squared L2 sensitivity of a release on a part, computed again: what comes or goes alone pays half at most."""
    bounds = one.statistic.bounds
    norm, distance = Fraction(bounds.l2_squared), Fraction(bounds.l2_squared_distance)
    if bounds.non_negative:
        distance = min(distance, 2 * norm)
    return audit.cap**2 * (norm if audit.adjacency is AR else max(distance, 2 * norm))


def arithmetic(audit: Audited, seen: Seen) -> str | None:
    """T5: every operation was charged what its statistic, or scores, and its noise cost, in fractions."""
    for one in seen.operations:
        if isinstance(one, PartRelease):
            price = squared_change(audit, one) / (2 * Fraction(one.noise.scale) ** 2)
        else:
            ranges = one.family.bounds
            squared = max(ranges.range_replaced**2, 2 * ranges.range_one**2)
            squared = ranges.range_one**2 if audit.adjacency is AR else squared
            price = Fraction(audit.cap**2 * squared) / (8 * Fraction(one.noise.scale) ** 2)
        if price != one.rho:
            return f"an operation that costs {float(price):.6g} was charged {float(one.rho):.6g}"
    return None


def odometer(audit: Audited, seen: Seen, rows: ArrayRows) -> Fraction:
    """The most that any row, of a table or elsewhere, paid along its path."""
    paid = [Fraction(0)] * rows.slots
    inside: dict[Node, Mask] = {}
    for one in seen.operations:
        mask = inside.setdefault(one.node, members(one.node, rows))
        for place in np.flatnonzero(mask):
            paid[place] += one.rho
    return max(paid, default=Fraction(0))


def probes(audit: Audited) -> ArrayRows:
    """Both tables, rows all over the bounds, and rows of all bit patterns."""
    d = len(audit.rows.columns)
    rng = np.random.default_rng(9)  # noqa: TID251 - public rows
    broad = rng.uniform(-BOUND, BOUND, size=(d, 200))
    patterns = np.array([np.roll(BIT_PATTERNS, i) for i in range(d)])
    return ArrayRows(np.concatenate([audit.rows.columns, audit.neighbour.columns, broad, patterns], axis=1))


def changes(audit: Audited, seen: Seen) -> Iterator[tuple[float, float]]:
    """(what an operation tells of the pair, what the unit's share of its price allows), one after another.

    By the code's own sums: what the row can do, not what the bounds say.
    """
    holders = (audit.rows, audit.neighbour) if audit.adjacency is RO else (audit.rows,)
    for one in seen.operations:
        mine, theirs = (part(one.node, rows) for rows in (audit.rows, audit.neighbour))
        touched = sum(int(members(one.node, rows)[: audit.cap].sum()) for rows in holders)
        share = Fraction(touched, audit.cap * (2 if audit.adjacency is RO else 1))
        if isinstance(one, PartRelease):
            ours, other = (exact_sum(one.statistic, rows, len(rows.columns)).astype(object) for rows in (mine, theirs))
            tells = float(Fraction(int(((ours - other) ** 2).sum())) / (2 * Fraction(one.noise.scale) ** 2))
        else:
            change = scores_of(one, mine) - scores_of(one, theirs)
            tells = float(Fraction(int(np.ptp(change)) ** 2) / (8 * Fraction(one.noise.scale) ** 2))
        yield tells, float(share * one.rho)


def scores_of(one: PartSearch, rows: ArrayRows) -> NDArray[np.int64]:
    """Scores of all candidates."""
    family, made = one.family, []
    for first in range(0, family.groups, family.batch):
        stop = min(first + family.batch, family.groups)
        sums = exact_sum(family.statistic(first, stop), rows, len(rows.columns))
        made += [family.scores(group, sums[group - first]) for group in range(first, stop)]
    return np.concatenate(made)


def told(audit: Audited, seen: Seen, *, other: bool = False) -> float:
    """T2: log likelihood of the run's table over the other's, of all that was released under the claimed laws."""
    mine, theirs = (audit.neighbour, audit.rows) if other else (audit.rows, audit.neighbour)
    total = 0.0
    for one in seen.operations:
        here, there = (part(one.node, rows) for rows in (mine, theirs))
        if isinstance(one, PartRelease):
            sums = [exact_sum(one.statistic, rows, len(rows.columns)) for rows in (there, here)]
            far, near = (float((((one.noisy - x) / one.noise.scale) ** 2).sum()) for x in sums)
            total += (far - near) / 2.0
        else:
            place = place_of(one)
            logs = [scores_of(one, rows) / one.noise.scale for rows in (here, there)]
            near, far = (float(x[place] - np.logaddexp.reduce(x)) for x in logs)
            total += near - far
    return total


def place_of(one: PartSearch) -> int:
    """Position of what was chosen among all candidates."""
    family, (chosen, index) = one.family, one.chosen
    empty = np.zeros(family.statistic(0, 1).shape, dtype=np.int64)[0]
    return sum(len(family.scores(group, empty)) for group in range(chosen)) + index


def least_error(rho: Fraction) -> float:
    """Return the least error of any test between two tables whose releases are rho-zCDP, mean of both errors.

    Renyi divergences of the test's answer are at most a rho for all orders a > 1, both ways, and what these allow is
    convex and symmetric in the two errors, so that their least sum has both alike. Generous: mu-GDP would leave more.
    """
    orders = 1.0 + np.geomspace(1e-3, 1e3, 2000)

    def exceeds(e: float) -> float:
        right, wrong = np.log1p(-e), np.log(e)
        two = np.logaddexp(orders * right + (1 - orders) * wrong, orders * wrong + (1 - orders) * right)
        return float((two - orders * (orders - 1) * float(rho)).max())

    return float(optimize.brentq(exceeds, 1e-12, 0.5 - 1e-9))


def distinguish(audit: Audited, runs: int, **faults: Any) -> str | None:
    """T2: the likelihood ratio test errs as often as the debit makes any test err; rejects by luck 1e-8 of the time.

    By the odds of half of that error to the least one, which pass 1e8 with that chance in any number of runs (Ville).
    """
    least, odds = least_error(audit.plan.settings.rho + audit.plan.settings.form), 0.0
    for run in range(runs):
        other = run % 2 == 1
        seen = observe(audit, audit.neighbour if other else audit.rows, **faults)
        errs = told(audit, seen, other=other) < 0
        odds += math.log(0.5 if errs else (1.0 - 0.5 * least) / (1.0 - least))
        if odds > math.log(1e8):
            return f"{run + 1} runs tell tables apart with an error below the least, {least:.4f}"
    return None


def whiteness(audit: Audited, runs: list[Seen]) -> str | None:
    """T3: signs of residuals are fair coins, alone, between runs and between the coordinates that all runs have."""
    residuals = [
        np.concatenate(
            [(one.noisy - expected(one, audit.rows)).ravel() for one in seen.operations if isinstance(one, PartRelease)]
        )
        for seen in runs
    ]
    shortest = min(len(one) for one in residuals)
    matrix = np.array([one[:shortest] for one in residuals])
    unseen = np.empty((len(runs), 0))
    finding = checks.whiteness(
        Sample(
            residual=matrix,
            gap=0.0,
            here=unseen,
            there=unseen,
            other=np.arange(len(runs)) % 2 == 1,
            release=np.zeros(shortest, dtype=np.int64),
            laplace=np.zeros(shortest, dtype=np.bool_),
            scale=np.ones(shortest),
            limit=np.ones(1),
            features=unseen,
        )
    )
    return finding.detail if finding.p < 1e-8 else None


def searched(audit: Audited, seen: Seen, adjacency: Adjacency, rounds: int = 3) -> tuple[str | None, float]:
    """T4: rows of any bits that change a release by more than it was priced for, and how near the search came.

    A replaced row may change as much as the price says. One that comes or goes alone may cost half of it then.
    """
    shares = {adjacency: 1, AR: 2 if audit.adjacency is RO else 1}
    most = 0.0
    for one in seen.operations:
        if not isinstance(one, PartRelease):
            continue
        claim = GaussianEvent(math.ceil(squared_change(audit, one) / shares[adjacency]), Fraction(one.noise.scale))
        target = Target(
            name="FitSeparatedGMM",
            adjacency=adjacency,
            rows=audit.rows,
            neighbour=audit.neighbour,
            events=(claim,),
            run=lambda session: None,
            reference=lambda statistic, rows: np.empty(0),
            features=lambda model: np.empty(0),
            extremes=extremes(len(audit.rows.columns), *audit.rows.columns.T[:3]),
            unit_cap=audit.cap,
        )
        observation = Observation((Release(one.statistic, one.noisy, one.noise, claim),), None)
        finding, reach = checks.sensitivity_search(target, observation, rounds=rounds, width=12)
        moved = checks.placement(target, observation)
        for found in (finding, moved):
            if found.rejects:
                return found.detail, reach
        most = max(most, reach)
    return None, most


def range_searched(audit: Audited, one: PartSearch, rows: int = 24) -> tuple[str | None, int]:
    """T4 of a search: no row of any bits changes the range of the scores by more than is paid for; the most it did."""
    d, most = len(audit.rows.columns), 0
    base = part(one.node, audit.rows)
    before = scores_of(one, base)
    rng = np.random.default_rng(13)  # noqa: TID251 - public rows
    own = audit.rows.columns.T[rng.integers(0, audit.rows.slots, rows // 2)]
    present = np.ones(audit.rows.slots, dtype=np.bool_) if base.present is None else base.present
    for row in [*own, *rng.uniform(-BOUND, BOUND, (rows // 2, d)), *np.resize(np.array(BIT_PATTERNS), (5, d))]:
        columns = np.concatenate([audit.rows.columns, np.asarray(row)[:, None]], axis=1)
        change = scores_of(one, ArrayRows(columns, np.append(present, True))) - before
        most = max(most, int(np.ptp(change)))
    bound = one.family.bounds.range_one
    return (f"scores change by {most}, {bound} were paid for" if most > bound else None), most


def path(audit: Audited, seen: Seen) -> str | None:
    """No row paid more than the debit; no operation told more of the pair than the unit's share of its price."""
    most, debit = odometer(audit, seen, probes(audit)), audit.plan.settings.rho + audit.plan.settings.form
    if not most <= debit:
        return f"a row paid {float(most):.6g} of {float(debit):.6g}"
    for tells, allowed in changes(audit, seen):
        if not tells <= allowed * (1 + 1e-12):
            return f"an operation tells {tells:.6g} where {allowed:.6g} were paid"
    return None


class ForcedParts:
    """Answers with recorded releases and choices, whatever it is asked; afterwards with zeros and the first."""

    def __init__(self, seen: Seen) -> None:
        self.noisy = [one.noisy for one in seen.operations if isinstance(one, PartRelease)]
        self.chosen = [one.chosen for one in seen.operations if isinstance(one, PartSearch)]

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """See `NoiseSource`."""
        recorded = self.noisy.pop(0) if self.noisy else np.zeros_like(sums)
        return np.resize(recorded, sums.shape)

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """See `NoiseSource`; no part is chosen in this way."""
        return 0

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`."""
        return self.chosen.pop(0) if self.chosen else (0, 0)


def others(audit: Audited) -> list[ArrayRows]:
    """Rubbish, rows all over, no rows, one row, and the neighbour."""
    d = len(audit.rows.columns)
    rng = np.random.default_rng(11)  # noqa: TID251 - public rows
    return [
        ArrayRows(np.resize(np.array(BIT_PATTERNS), (d, 91))),  # an odd number: the tables above have even ones
        ArrayRows(rng.uniform(-BOUND, BOUND, size=(d, 2000))),
        ArrayRows(np.zeros((d, 0))),
        ArrayRows(np.full((d, 1), 3.0)),
        audit.neighbour,
    ]


def replay(audit: Audited, seen: Seen, run: RunFit = separated_gmm.run, *, tables: int = 2) -> str | None:
    """T7: the same releases, forced upon other tables, give the same operations, progress and model."""
    first = account(audit, seen)
    for rows in others(audit)[:tables]:
        forced = ForcedParts(seen)
        again = account(audit, observe(audit, rows, source=forced, search_source=forced, run=run))
        for name, value in first.items():
            if again[name] != value:
                return f"{name} depends on rows beyond the releases"
    return None


def account(audit: Audited, seen: Seen) -> dict[str, object]:
    """All that may depend on releases only; what reads rows is compared by what it says of probe rows."""
    probe = probes(audit)
    some = ArrayRows(np.ascontiguousarray(probe.columns[:, :: max(1, probe.slots // 40)]))

    def says(statistic: Statistic) -> bytes:
        return exact_sum(statistic, some, len(some.columns)).tobytes()

    return {
        "how many operations there are": len(seen.operations),
        "a noise": [(one.noise, one.rho) for one in seen.operations],
        "a part": [members(one.node, probe).tobytes() for one in seen.operations],
        "a statistic": [
            (one.statistic.bounds, says(one.statistic)) for one in seen.operations if isinstance(one, PartRelease)
        ],
        "what is searched": [
            (one.family.bounds, one.family.groups, one.chosen, says(one.family.statistic(0, 1)))
            for one in seen.operations
            if isinstance(one, PartSearch)
        ],
        "the progress": seen.steps,
        "the number of blocks, or their size": seen.blocks,
        "the model": seen.model.SerializeToString(deterministic=True),
    }


def verdict(audit: Audited, runs: int = 1, *, tables: int = 1) -> dict[str, str]:
    """Return which checks reject, and what they say."""
    seen = [observe(audit) for _ in range(runs)]
    said = {
        "law": law(audit, seen),
        "arithmetic": next((found for one in seen if (found := arithmetic(audit, one))), None),
        "path": next((found for one in seen if (found := path(audit, one))), None),
        "replay": replay(audit, seen[0], tables=tables),
    }
    return {name: found for name, found in said.items() if found is not None}


_AUDITS: dict[str, Callable[[], Audited]] = {
    "three components, add or remove": lambda: audited(AR),
    "three components, replace": lambda: audited(RO),
    "more components than there are, units of three rows, replace": lambda: audited(RO, cap=3, truth=2),
    "hardly any rows, add or remove": lambda: audited(AR, 5),
    "balls, clusters, spheres, replace": lambda: audited(
        RO, search=BALLS, estimator=CLUSTERS, covariance_type=fit_pb2.COVARIANCE_TYPE_SPHERICAL
    ),
    "units of three rows, add or remove": lambda: audited(AR, 1500, cap=3),
    "five columns, easy, add or remove": lambda: audited(AR, 2000, d=5, variant=EASY),
    "five columns, principal directions, replace": lambda: audited(RO, 2000, d=5, rho=Fraction(8)),
    "five columns, balls, diagonal, replace": lambda: audited(
        RO, 2000, d=5, search=BALLS, rho=Fraction(8), covariance_type=fit_pb2.COVARIANCE_TYPE_DIAG
    ),
    "one component, replace": lambda: audited(RO, 300, n_components=1, truth=1),
    "six components asked of two, add or remove": lambda: audited(AR, 1000, truth=2, n_components=6, rho=Fraction(4)),
    "three components, much spend, replace": lambda: audited(RO, rho=Fraction(32)),
    "no rows but the unit's, replace": lambda: audited(RO, 0, cap=2),
    "one component of few rows, add or remove": lambda: audited(AR, 20, n_components=1, truth=1),
    "one component of few rows, replace": lambda: audited(RO, 20, n_components=1, truth=1),
    "two components of many rows, much spend, add or remove": lambda: audited(
        AR, 1000, truth=2, n_components=2, rho=Fraction(32)
    ),
    "three components of many rows, much spend, replace": lambda: audited(RO, 1000, rho=Fraction(32)),
    "six components that touch, polished, joined and halved, add or remove": lambda: audited(
        AR, 4000, truth=6, n_components=6, apart=3.0, rho=Fraction(200)
    ),
    "five columns, five components that touch, directions of parts, add or remove": lambda: audited(
        AR, 3000, d=5, truth=5, n_components=5, apart=3.0, rho=Fraction(64)
    ),
    "four components, eight columns, directions of parts, replace": lambda: audited(
        RO, 3000, d=8, truth=4, n_components=4, rho=Fraction(64)
    ),
    "clusters, hardly any spend, replace": lambda: audited(RO, 200, estimator=CLUSTERS, rho=Fraction(1, 2**20)),
}

NAMES = tuple(_AUDITS)
REACHING = tuple(name for name in NAMES if "many rows" in name)
"""Cases where balls leave far rows out: the search for a radius that does is worth it with many rows only."""
QUICK = (NAMES[0], NAMES[2], NAMES[4], REACHING[0])
FEW = tuple(name for name in NAMES if "few rows" in name)
"""The unit is much of such a table, and runs are short."""


@cache
def audit_of(name: str) -> Audited:
    """Return what an audit of FitSeparatedGMM covers."""
    return _AUDITS[name]()
