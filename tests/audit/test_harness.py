"""The audit itself, on a toy: it stays silent where all is well, its arithmetic is right, and its rule is kept."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent, PureEvent, SelectionEvent, rdp
from bursar_models.arrays import FloatArray
from bursar_server.vault import Candidates, SelectionNoise, Session, Statistic
from tests.audit import checks, harness
from tests.audit.checks import ALPHA, Finding
from tests.audit.faults import Blind
from tests.audit.harness import round_of_tests, verdict
from tests.audit.target import ORDER, Choices, Sample, Target, collect, observe, on_integers, smoothed
from tests.audit.toy import UNIT, statistic_about, toy

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE


def made(residual: FloatArray, *, laplace: bool = False, shift: float = 0.0, limit: float = 1.0) -> Sample:
    """A sample of one release with these residuals, half of the runs on each table."""
    runs, size = residual.shape
    return Sample(
        residual=residual,
        gap=0.0,
        here=residual,
        there=residual + shift,
        other=np.arange(runs) >= runs // 2,
        release=np.zeros(size, dtype=np.int64),
        laplace=np.full(size, laplace),
        scale=np.full(size, 1e6),
        limit=np.array([limit]),
        features=residual,
    )


@pytest.mark.parametrize("adjacency", [AR, RO])
@pytest.mark.parametrize(
    "options", [{}, {"steps": 1}, {"laplace": True, "rho": 6.0}], ids=["three steps", "one step", "laplace"]
)
def test_a_correct_fit_is_not_condemned(adjacency: Adjacency, options: dict[str, float]) -> None:
    """The smallest fit passes every test, and the search comes near its sensitivity."""
    said = verdict(toy(adjacency, **options), 150)  # type: ignore[arg-type] # options of toy
    assert said.condemned == frozenset()
    assert 0.95 <= said.reach <= 1.0


def test_a_single_rejection_does_not_condemn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first rejection is repeated on four times as many runs; only what rejects again is condemned."""
    asked: list[int] = []

    def chance(target: object, n: int) -> tuple[tuple[Finding, ...], float]:
        asked.append(n)
        return (Finding("always", 0.0, ""), Finding("once", 1.0 if len(asked) > 1 else 0.0, "")), 1.0

    monkeypatch.setattr(harness, "round_of_tests", chance)
    assert verdict(toy(AR), 10).condemned == {"always"}
    assert asked == [10, 40]


def test_a_finding_that_is_not_a_number_rejects() -> None:
    """NaN is never evidence that all is well."""
    assert Finding("x", float("nan"), "").rejects
    assert Finding("x", ALPHA / 2, "").rejects
    assert not Finding("x", ALPHA, "").rejects


@pytest.mark.parametrize("laplace", [False, True])
def test_p_values_of_the_energy_are_uniform(laplace: bool) -> None:
    """The p-values of T1 are uniform under the claimed law, for both laws."""
    rng = np.random.default_rng(3)  # noqa: TID251 - simulated residuals
    law = rng.laplace if laplace else rng.normal
    found = [checks.energy(made(law(size=(40, 5)), laplace=laplace)) for _ in range(400)]
    for place in range(3):
        assert stats.kstest([findings[place].p for findings in found], "uniform").pvalue > 1e-6


@pytest.mark.parametrize("laplace", [False, True])
def test_whiteness_rarely_rejects_fair_signs(laplace: bool) -> None:
    """T3 says 1 % or less about once in a hundred, whatever the tails of the noise."""
    rng = np.random.default_rng(4)  # noqa: TID251 - simulated residuals
    law = rng.laplace if laplace else rng.normal
    assert sum(checks.whiteness(made(law(size=(60, 6)))).p < 0.01 for _ in range(400)) <= 15


def test_the_least_error_of_a_gaussian_pair_is_reached() -> None:
    """A pair that differs by the whole sensitivity is told apart as often as mu-GDP allows, no more and no less."""
    rng = np.random.default_rng(5)  # noqa: TID251 - simulated residuals
    found = checks.distinguish(made(rng.normal(size=(20_000, 1)), shift=2.0, limit=2.0))
    assert 1e-3 < found.p < 1 - 1e-3


def test_a_shift_beyond_the_claim_is_seen() -> None:
    """A pair that differs by 1.5 sensitivities is told apart too well, under both laws."""
    rng = np.random.default_rng(6)  # noqa: TID251 - simulated residuals
    assert checks.distinguish(made(rng.normal(size=(2000, 1)), shift=3.0, limit=2.0)).rejects
    assert checks.distinguish(made(rng.laplace(size=(4000, 1)), laplace=True, shift=3.0, limit=2.0)).rejects


def test_a_statistic_unlike_its_reference_is_seen() -> None:
    """T0 rejects when the code sums something else than the reference says."""
    target = replace(toy(AR), reference=lambda statistic, rows: toy(AR).reference(statistic, rows) * 1.02)
    sample = collect(target, 2)
    assert isinstance(sample, Sample)
    assert checks.agreement(sample).rejects


def test_a_fit_that_depends_on_unreleased_rows_is_seen() -> None:
    """T7 rejects a statistic whose centre was computed from raw rows."""

    def peeking(session: Session) -> FloatArray:
        centre = np.nan_to_num(session._rows.columns[:, -1])  # type: ignore[attr-defined] # the bug
        return session.noisy_sum(statistic_about(centre), observe(toy(AR), toy(AR).rows).releases[0].noise)

    target = replace(toy(AR, steps=3), run=peeking)
    finding = checks.replay(target, observe(target, target.rows), [target.neighbour], target.neighbour)
    assert finding.rejects
    assert finding.detail.startswith("a statistic")


def test_releases_that_were_not_debited_are_seen() -> None:
    """A run with another number of releases, or of other sizes from run to run, is condemned for its form."""
    short = replace(toy(AR), events=toy(AR, steps=2).events, meter=Blind)
    assert "form" in {finding.test for finding in round_of_tests(short, 2)[0] if finding.rejects}


def test_the_price_by_hand_is_the_ledgers() -> None:
    """T5's own arithmetic agrees with the ledger's, which it must not exceed."""
    for event in (
        GaussianEvent(12, Fraction(7, 3)),
        LaplaceEvent(5, Fraction(9)),
        LaplaceEvent(2**37, Fraction(2**36)),
        SelectionEvent(3, Fraction(100)),
        SelectionEvent(3, Fraction(2)),
    ):
        by_hand, ledger = checks._price(event), rdp(event, ORDER)
        assert by_hand <= ledger <= by_hand * (1 + Fraction(1, 10**9))


def choosing(*, by_rows: bool = False, sensitivity: int = 0) -> Target:
    """A fit that asks which of the toy's two sums is furthest from targets: public ones, or read off the rows."""
    statistic, noise = statistic_about(np.zeros(2)), SelectionNoise(float(UNIT))

    def run(session: Session) -> FloatArray:
        raw = session._rows.columns[:, -1] if by_rows else np.zeros(2)  # type: ignore[attr-defined] # the bug
        targets = np.array([0, *np.nan_to_num(raw)]).astype(np.int64)
        candidates = Candidates(statistic, ((1, 2), (2, 3)), targets, statistic.bounds)
        return np.array([session.choose(candidates, offered, noise) for offered in ([0, 1], [1, 0])], dtype=float)

    events = (SelectionEvent(sensitivity or statistic.bounds.l1, Fraction(noise.scale), 2),)
    return replace(toy(AR), events=events, run=run)


def chosen(runs: int, *, factor: float = 1.0, steps: int = 2) -> Sample:
    """A sample of choices among three blocks whose scores differ by some scales; with noise of another size."""
    rng = np.random.default_rng(12)  # noqa: TID251 - simulated choices
    scores = rng.normal(scale=1.5, size=(runs, steps, 3))
    scores[:, 1, 2] = -np.inf  # not available
    made = (scores + factor * rng.gumbel(size=scores.shape)).argmax(axis=2)
    there = scores + np.array([0.5, -0.5, 0.0])
    return replace(made_of_nothing(runs), choices=Choices(scores, there, made, np.full(steps, 1.0)))


def made_of_nothing(runs: int) -> Sample:
    """A sample of no residuals."""
    return made(np.empty((runs, 0)))


def test_choices_of_the_claimed_law_pass() -> None:
    """T8 does not reject the exponential mechanism at its own scale, nor T2 what a bounded range allows."""
    sample = chosen(400)
    assert not any(finding.rejects for finding in [*checks.choices(sample), checks.distinguish(sample)])


@pytest.mark.parametrize(("factor", "seen"), [(0.5, "T8 choices"), (0.0, "T8 choices"), (2.0, "T8 waste")])
def test_choices_of_another_law_are_seen(factor: float, seen: str) -> None:
    """T8 rejects choices with half the noise, none, or twice as much."""
    assert seen in {finding.test for finding in checks.choices(chosen(900, factor=factor)) if finding.rejects}


def test_choices_from_a_seed_are_seen() -> None:
    """T8 rejects choices that are the same in every run, though each may be likely."""
    sample = chosen(200)
    even = replace(sample.choices, here=np.zeros_like(sample.choices.here), chosen=np.zeros((200, 2), dtype=np.int64))
    assert {"T8 law"} == {one.test for one in checks.choices(replace(sample, choices=even)) if one.rejects}


def test_odds_beyond_the_claim_are_seen() -> None:
    """T8 rejects odds that changed by e^2 where a bounded range of 1 was debited, and passes those by e."""
    here, there = np.array([300, 300]), np.array([300, 300 * 7])
    assert checks.odds(here, there, 1.0).rejects
    assert not checks.odds(here, there, 2.0).rejects


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
def test_residuals_on_few_integers_are_smoothed(laplace: bool, scale: float) -> None:
    """Residuals of discrete noise have the continuous law, by energy and sign."""
    k, chances = on_integers(laplace, scale)
    rng = np.random.default_rng(13)  # noqa: TID251 - simulated noise
    claim: GaussianEvent | LaplaceEvent = (LaplaceEvent if laplace else GaussianEvent)(1, Fraction(scale))
    drawn = rng.choice(k, p=chances, size=(4000, 1)).astype(float)
    sample = made(smoothed(drawn, claim), laplace=laplace)
    assert not any(finding.rejects for finding in [*checks.energy(sample), checks.whiteness(sample)])
    law = stats.laplace if laplace else stats.norm
    assert stats.kstest(sample.residual.ravel(), law.cdf).pvalue > 1e-6


def test_shifts_on_few_integers_are_held_to_their_own_law() -> None:
    """Noise of half an integer tells more than Gaussian noise of its size; that is what was debited."""
    k, chances = on_integers(False, 0.5)
    rng = np.random.default_rng(14)  # noqa: TID251 - simulated noise
    noise = rng.choice(k, p=chances, size=(3000, 1)) / 0.5
    sample = replace(made(noise, shift=2.0, limit=2.0), scale=np.array([0.5]))
    assert not checks.distinguish(sample).rejects
    assert checks.distinguish(replace(sample, scale=np.array([1e6]))).rejects


def test_choices_have_a_price_by_hand() -> None:
    """T5 holds the debit of choices to what was chosen with: exactly that passes, a lattice unit less does not."""
    passing = choosing()
    assert not checks.arithmetic(passing, observe(passing, passing.rows)).rejects
    short = replace(choosing(sensitivity=statistic_about(np.zeros(2)).bounds.l1 - 1), meter=Blind)
    assert checks.arithmetic(short, observe(short, short.rows)).rejects


def test_choices_are_replayed() -> None:
    """T7 forces the same choices upon another table, and rejects targets that come from its rows."""
    target = choosing()
    seen = observe(target, target.rows)
    assert len(seen.choices) == 2
    assert not checks.replay(target, seen, [target.neighbour] * 20, target.neighbour).rejects
    peeking = choosing(by_rows=True)
    finding = checks.replay(peeking, observe(peeking, peeking.rows), [peeking.neighbour], peeking.neighbour)
    assert finding.rejects
    assert finding.detail.startswith("a choice")


def test_an_event_without_a_test_is_refused() -> None:
    """A fit with a mechanism that the audit has no residuals for cannot pass by default."""
    with pytest.raises(NotImplementedError, match="PureEvent"):
        _ = replace(toy(AR), events=(PureEvent(Fraction(1)),)).claims


def test_a_clip_beyond_the_claim_is_found_by_search() -> None:
    """T4 finds the row that changes a sum by more than was debited, in integers."""

    def wide(statistic: Statistic) -> Statistic:
        return replace(statistic_about(statistic.kernel.centre, clip=1.01), bounds=statistic.bounds)  # type: ignore[attr-defined]

    target = toy(RO)
    seen = observe(target, target.rows)
    stretched = replace(seen, releases=tuple(replace(one, statistic=wide(one.statistic)) for one in seen.releases))
    assert not checks.sensitivity_search(target, seen)[0].rejects
    assert checks.sensitivity_search(target, stretched)[0].rejects
