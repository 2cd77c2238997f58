"""Planted bugs of FitMRF, and the tests of the audit that must see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from bursar_ledger import GaussianEvent
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import types_pb2
from bursar_server.fits import mrf
from bursar_server.vault import (
    Candidates,
    Noise,
    OpenDPNoise,
    SelectionNoise,
    Session,
    Statistic,
    SyntheticBudget,
    exact_sum,
)
from tests.audit.faults import (
    Blind,
    Common,
    Integers,
    Mutant,
    Raw,
    Reused,
    Seeded,
    mispriced,
    planted,
    scaled,
    stopping,
    tampering,
    telling_true_n,
    uncapped,
    unpaid,
)
from tests.audit.mrf import (
    ALL_PAIRS,
    ALONE,
    AR,
    AUTO,
    CHAIN,
    CUBE,
    NULLS,
    PAIRS_OF_TRIPLES,
    RO,
    ROWS,
    TABLES,
    TREE,
    TRIPLES,
    Fields,
    cliques,
    fit_mrf,
    planned,
    pure,
    released,
)
from tests.audit.mrf_choices import OneChoice, one_choice, priced_for
from tests.audit.mrf_reference import BuggyKernel, Pieces, Reference, Said, states
from tests.audit.target import Target

ALIKE: Fields = {"cliques": cliques("ax", "ab"), "spend": types_pb2.Spend(rho=0.05)}
"""Two tables of one shape and one noise, of some rows."""


# Sources of noise


class OccupiedOnly(OpenDPNoise):
    """Noise on the cells that have rows, as where the domain is read off the data."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return np.where(sums == 0, 0, super().add(sums, noise))


class BoldChoices(OpenDPNoise):
    """Choices with half of the noise that was asked for."""

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        return super().argmax(scores, SelectionNoise(noise.scale / 2))


class BareChoices(OpenDPNoise):
    """Choices of the largest score."""

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        return int(scores.argmax())


# Sessions that tamper


def with_pieces(said: Said, **pieces: Any) -> Callable[..., Session]:
    """Sessions whose statistics are the reference's, with some of its pieces replaced."""
    reference = Reference(said, Pieces(**pieces))

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        return replace(statistic, kernel=BuggyKernel(reference, statistic)), noise

    return tampering(change)


def with_noise(factors: Sequence[float]) -> Callable[..., Session]:
    """Sessions that take other noise than asked for, by the order of the releases, and know it."""

    class Tampered(Session):
        """See `with_noise`."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.left = list(factors)

        def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
            """See `Session`."""
            return super().noisy_sum(statistic, type(noise)(noise.scale * self.left.pop(0)))

    return Tampered


class TargetsFromRows(Session):
    """Pairs are compared with the raw margins, not the released ones."""

    def choose(self, candidates: Candidates, available: Sequence[int], noise: SelectionNoise) -> int:
        """See `Session`."""
        exact = exact_sum(candidates.statistic, self._rows, self._columns).ravel()
        targets = candidates.targets.copy()
        for start, stop in candidates.blocks:
            targets[start : stop - 1] = exact[start : stop - 1].sum() // (stop - 1 - start)
        return super().choose(replace(candidates, targets=targets), available, noise)


class FreeChoices(Session):
    """Choices that no meter counts."""

    def choose(self, candidates: Candidates, available: Sequence[int], noise: SelectionNoise) -> int:
        """See `Session`."""
        meter, self._meter = self._meter, Blind(SyntheticBudget(Fraction(2), 0))
        try:
            return super().choose(candidates, available, noise)
        finally:
            self._meter = meter


class OfferedByRows(Session):
    """One pair is offered where there are rows enough, all of them elsewhere."""

    def choose(self, candidates: Candidates, available: Sequence[int], noise: SelectionNoise) -> int:
        """See `Session`."""
        rows = exact_sum(candidates.statistic, self._rows, self._columns).ravel()[slice(*candidates.blocks[0])].sum()
        return super().choose(candidates, available[:1] if rows > 10 else available, noise)


class DiscountsFromRows(Session):
    """Planted bug: the noise that a table's distance is said to have is read off the rows."""

    def choose(self, candidates: Candidates, available: Sequence[int], noise: SelectionNoise) -> int:
        """See `Session`."""
        exact = exact_sum(candidates.statistic, self._rows, self._columns).ravel()
        discounts = tuple(int(exact[slice(*block)].max()) for block in candidates.blocks)
        return super().choose(replace(candidates, discounts=discounts), available, noise)


@dataclass(frozen=True, eq=False)
class DoubleScores(Candidates):
    """Scores that a row changes twice as much as was priced."""

    def scores(self, sums: Integers) -> Integers:
        """See `Candidates`."""
        return 2 * super().scores(sums)


class Doubling(Session):
    """Chooses by `DoubleScores`."""

    def choose(self, candidates: Candidates, available: Sequence[int], noise: SelectionNoise) -> int:
        """See `Session`."""
        return super().choose(DoubleScores(**vars(candidates)), available, noise)


# Pieces of a row's contribution


def without_k(said: Said, row: FloatArray) -> int:
    """Every row counts 1."""
    return 1


def either_sign(said: Said, row: FloatArray) -> int:
    """Rows in the first state of the first column count -1."""
    return -1 if states(said, row)[0] == 0 else 1


def rounded_up(said: Said, unit: int, divisor: int) -> int:
    """Shares that are not cut."""
    return -(-unit // divisor)


def rounded(said: Said, unit: int, divisor: int) -> int:
    """Shares to the nearest lattice point."""
    return round(unit * float(np.float32(1 / divisor)))


def imputed(said: Said, path: list[int]) -> list[list[int]]:
    """A missing value counts in every bin of its column, the first one."""
    size = said.columns[0].size
    return [[bin_, *path[1:]] for bin_ in range(size - 1)] if path[0] == size - 1 else [path]


def undivided(said: Said, path: list[int]) -> int:
    """Every transition counts 1."""
    return 1


def steps_with_nulls(said: Said, path: list[int]) -> list[tuple[int, int]]:
    """All transitions, those from null to null, too."""
    return list(pairwise(path))


def counted(said: Said, path: list[int]) -> int:
    """Return how many transitions are not from null to null."""
    return max(1, sum(step != (said.null, said.null) for step in pairwise(path)))


def all_steps(said: Said, path: list[int]) -> int:
    """Return how many transitions there are, null or not."""
    return len(path) - 1


# Runs that do something else


def twice(target: Target) -> Target:
    """Every table is released twice, and paid for once."""

    def run(session: Session) -> object:
        target.run(session)
        return target.run(session)

    return replace(target, run=run, meter=Blind)


def round_twice(target: Target, fields: Fields) -> Target:
    """One round more than was paid for, as if what the first had left were there again."""
    settings = planned(target.adjacency, **fields).plan.settings
    pairs = settings.pairs
    if pairs is None:
        raise TypeError("expected a fit that chooses pairs")
    more = replace(pairs, selection=replace(pairs.selection, times=pairs.selection.times + 1))
    made = replace(planned(target.adjacency, **fields).plan, settings=replace(settings, pairs=more))
    return replace(target, run=lambda session: mrf.run(made, session), meter=Blind)


def few_rows(columns: FloatArray) -> bool:
    """Return whether few rows are beyond the first state."""
    return bool((columns[0] >= 1).sum() <= 3)


@cache
def mutants() -> tuple[Mutant, ...]:
    """Every planted bug of FitMRF."""
    return (*wrong_sizes(), *wrong_sensitivities(), *wrong_shares(), *wrong_laws(), *wrong_choices(), *wrong_flows())


def wrong_sizes() -> list[Mutant]:
    """Too little noise, too much, or more releases than were paid for."""
    there, apart, laplace = fit_mrf(AR, **CUBE), fit_mrf(RO, **CUBE), fit_mrf(RO, spend=pure(2), **CUBE)
    tables, chain = fit_mrf(AR, **TABLES), fit_mrf(AR, **CHAIN)
    beside = fit_mrf(AR, earlier=released(), reuse=[1], **TABLES)
    told = ("T5 arithmetic", "form")
    pooled = replace(chain, session=with_noise(roots_of_shares(chain)), meter=Blind)
    favoured = replace(tables, session=with_noise([0.5, 1.0, 1.0]), meter=Blind)
    return [
        planted("noise x 0.5", scaled(there, 0.5), "T1 energy", n=20),
        planted("noise x 0.7", scaled(apart, 0.7), "T1 energy", n=20),
        planted("variance for deviation", scaled(there, 0.5**0.5), "T1 energy", n=20),
        planted("noise x 1.5", scaled(there, 1.5), "T1 waste", n=20),
        planted("Laplace noise x 0.7", scaled(laplace, 0.7), "T1 energy", n=20),
        planted("empty cells not noised", replace(there, source=OccupiedOnly), "T1 energy", n=90),
        planted("a clique's precision not paid for", favoured, "T1 energy", "T5 arithmetic", n=70),
        planted("pooled chain priced as one table of two", pooled, "T1 energy", "T5 arithmetic", n=60),
        planted("first states not paid for", unpaid(chain, 0), *told, n=2),
        planted("a table beside an earlier one not paid for", unpaid(beside, -1), *told, n=2),
        planted("tables released twice for one price", twice(tables), *told, n=2),
    ]


def wrong_sensitivities() -> list[Mutant]:
    """Rows that change a table more than was debited."""
    seen = ("T2 distinguish", "T4 sensitivity", "T5 arithmetic")
    cheap, paid = fit_mrf(AR, **ALONE), fit_mrf(RO, **ALONE)
    signed = fit_mrf(RO, spend=pure(6), **TABLES)
    signs = replace(signed, session=with_pieces(planned(RO, **TABLES).said, share=either_sign))
    nulls = replace(fit_mrf(RO, **NULLS), session=with_pieces(planned(RO, **NULLS).said, places=imputed))
    return [
        planted("add-remove sensitivity on a replace pair", mispriced(cheap, paid), *seen, n=140),
        planted("unit cap ignored", uncapped(cheap, fit_mrf(AR, cap=3, **ALONE, **ROWS)), *seen, n=120),
        planted("rows priced as shares", priced_as_shares(), "T2 distinguish", "T4 sensitivity", n=120),
        planted("counts of either sign priced as tables", signs, "T0 agreement", "T4 sensitivity", n=2),
        planted("a missing value counts in every bin", nulls, "T0 agreement", "T4 sensitivity", n=2),
    ]


def wrong_shares() -> list[Mutant]:
    """Rows and transitions of a unit that count more than 1 together."""
    shares, chain, both = (
        fit_mrf(AR, cap=3, **ALONE),
        fit_mrf(AR, **CHAIN),
        fit_mrf(AR, cap=3, **CHAIN),
    )
    of_rows, of_chain = planned(AR, cap=3, **ALONE).said, planned(AR, **CHAIN).said
    of_both = planned(AR, cap=3, **CHAIN).said
    kept = with_pieces(of_chain, transitions=steps_with_nulls, count=counted)
    seen = ("T0 agreement", "T2 distinguish", "T4 sensitivity")
    return [
        planted("K not applied", replace(shares, session=with_pieces(of_rows, share=without_k)), *seen, n=60),
        planted("shares rounded up", replace(shares, session=with_pieces(of_rows, added=rounded_up)), seen[2], n=2),
        planted("shares in float32", replace(both, session=with_pieces(of_both, added=rounded)), seen[2], n=2),
        planted("transitions from null to null", replace(chain, session=kept), *seen[::2], n=2),
        planted(
            "transitions undivided", replace(chain, session=with_pieces(of_chain, count=undivided)), *seen[::2], n=2
        ),
        planted("K counts nulls", replace(chain, session=with_pieces(of_chain, count=all_steps)), seen[0], n=2),
    ]


def wrong_laws() -> list[Mutant]:
    """Noise of the right size that is not independent."""
    alike = fit_mrf(AR, **ALIKE)
    return [
        planted("one draw for all tables", replace(alike, source=Reused), "T3 whiteness", n=40),
        planted("noise from a seed", replace(alike, source=Seeded), "T3 whiteness", n=40),
        planted("one draw for all cells", replace(alike, source=Common), "T3 whiteness", n=40),
    ]


def wrong_choices() -> list[Mutant]:
    """Edges of a tree that are chosen too well, from rows, or for nothing."""
    tree, rounds = fit_mrf(RO, **TREE), fit_mrf(RO, **AUTO)
    cheap, few = mispriced(fit_mrf(AR, **TREE), tree), mispriced(fit_mrf(AR, **AUTO), rounds)
    more, direct = round_twice(rounds, AUTO), fit_mrf(AR, **ALL_PAIRS)
    triples, tested = fit_mrf(RO, **TRIPLES), fit_mrf(RO, held_out=0.3, **TABLES)
    cheap_triples = mispriced(fit_mrf(AR, **TRIPLES), triples)
    unpriced = replace(tree, events=tree.claims, session=FreeChoices)
    instead = fit_mrf(AR, **PAIRS_OF_TRIPLES)
    told = ("T5 arithmetic", "form")
    return [
        planted("choices not paid for", unpriced, *told, n=2),
        planted("one choice not paid for", unpaid(tree, len(tree.events) // 2), *told, n=2),
        planted("choices of add-remove sensitivity", cheap, "T4 sensitivity", "T5 arithmetic", n=2),
        # noise is not large either, so that it takes many runs to tell
        planted("choices without noise", replace(tree, source=BareChoices), "T8 choices", n=250, slow=True),
        planted("targets from the rows", replace(tree, session=TargetsFromRows), "T7 replay", n=2),
        planted("pairs offered by the number of rows", replace(tree, session=OfferedByRows), "T7 replay", n=2),
        planted("a round not paid for", unpaid(rounds, len(rounds.events) - 2), *told, n=2),
        planted("tables of all pairs not paid for", unpaid(direct, -1), *told, n=2),
        planted("tables of all pairs priced as one", priced_as_one(direct), "T4 sensitivity", n=2, slow=True),
        planted("pairs in place of triples not paid for", unpaid(instead, -1), *told, n=2),
        planted("pairs in place of triples priced as one", priced_as_one(instead), "T4 sensitivity", n=2, slow=True),
        planted("rounds of add-remove sensitivity", few, "T4 sensitivity", "T5 arithmetic", n=2, slow=True),
        planted(
            "rounds of triples of add-remove sensitivity",
            cheap_triples,
            "T4 sensitivity",
            "T5 arithmetic",
            n=2,
            slow=True,
        ),
        planted("rounds of triples against the rows", replace(triples, session=TargetsFromRows), "T7 replay", n=2),
        planted("rounds against the rows", replace(rounds, session=TargetsFromRows), "T7 replay", n=2),
        planted("discounts from the rows", replace(rounds, session=DiscountsFromRows), "T7 replay", n=2),
        planted("pairs of rounds offered by rows", replace(rounds, session=OfferedByRows), "T7 replay", n=2),
        planted("the table held out not paid for", unpaid(tested, -1), *told, n=2),
        planted("the choice of the pair held out that no one paid for", unpaid(tested, -2), *told, n=2),
        planted("the pair held out against the rows", replace(tested, session=TargetsFromRows), "T7 replay", n=2),
        planted("what is left spent twice", more, *told, n=2),
        planted("the number of rounds from the rows", stopping(rounds, more, few_rows), "T7 replay", n=2),
    ]


def wrong_flows() -> list[Mutant]:
    """True values that reach the model, or decide what is done."""
    one = fit_mrf(AR, whole=True, spend=types_pb2.Spend(rho=0.3), **ALONE)
    fewer = fit_mrf(AR, cliques=cliques("ax", "ab"))
    halting = stopping(fit_mrf(AR, **TABLES), fewer, few_rows)
    return [
        planted("raw table returned", replace(one, session=Raw), "T6 black box", "T7 replay", n=25),
        planted("the true n", telling_true_n(one), "T6 black box", "T7 replay", n=25),
        planted("a table left out by the rows", halting, "T7 replay", n=2),
    ]


SINGLE_CHOICES: dict[str, Callable[[], OneChoice]] = {
    "half the noise": lambda: replace(one_choice(RO), source=BoldChoices),
    "twice the scores": lambda: replace(one_choice(RO), session=Doubling),
    "add-remove sensitivity on a replace pair": lambda: priced_for(RO, AR),
}
"""Single choices that change the odds more than was debited. Made when asked for: the worst tables take a second."""

CHOICE_RUNS = 800
"""Runs on each table: of 250, half the noise passes 3 in 100; 7 standard deviations are left here."""


def roots_of_shares(target: Target) -> list[float]:
    """Return the divisors of the noise if every release takes the whole spend, for Gaussian noise."""
    costs = [float(one.l2_squared / one.scale**2) for one in target.claims if isinstance(one, GaussianEvent)]
    return [(cost / sum(costs)) ** 0.5 for cost in costs]


def priced_as_one(target: Target) -> Target:
    """The tables of all pairs under the bounds of one of them."""

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        one = replace(statistic.bounds, l1=1, l2_squared=1, l1_distance=2, l2_squared_distance=2)
        return replace(statistic, bounds=one), noise

    *others, last = target.events
    if not isinstance(last, GaussianEvent):
        raise TypeError("expected tables of all pairs as the last release")
    return replace(target, events=(*others, replace(last, l2_squared=1)), session=tampering(change))


def priced_as_shares() -> Target:
    """Units of three rows that count 1 each, under bounds that say that they share 1."""

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        return replace(statistic, bounds=replace(statistic.bounds, per_unit=True)), noise

    single = fit_mrf(AR, **ALONE)
    target = fit_mrf(AR, cap=3, **ALONE, **ROWS)
    return replace(target, run=single.run, events=single.events, session=tampering(change))
