"""Sample and aggregate passes the audit on the tables of its answers, and planted bugs are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2
from bursar_server.fits.separated_gmm import _aggregate
from bursar_server.vault import ArrayRows, PartSearch, Session
from bursar_server.vault import _blocks as blocks
from bursar_server.vault import _session as sessions
from bursar_server.vault._blocks import block_estimates
from tests.audit.mutants import Scaled
from tests.audit.separated_gmm import AR, RO, Audited, Seen, arithmetic, audited, law, observe, odometer, path, probes

SAMPLED = fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE
RHO = Fraction(8)


def asked(adjacency: Adjacency, cap: int = 1) -> Audited:
    """Rows of two components, of which a unit goes or comes."""
    return audited(adjacency, 900, truth=2, cap=cap, rho=RHO, n_components=2, variant=SAMPLED)


def of_answers(audit: Audited, rows: float) -> Audited:
    """The same, as what is released from sees it: tables of answers, those that the unit changed in front."""
    estimator = _aggregate.blocks_of(audit.plan.settings, rows)
    d = len(audit.rows.columns)
    tables = [block_estimates(table, d, estimator) for table in (audit.rows, audit.neighbour)]
    here, there = tables
    assert here.present is not None
    assert there.present is not None
    differs = (here.columns != there.columns).any(axis=0) | (here.present != there.present)
    order = np.argsort(~differs, kind="stable")
    sorted_tables = [ArrayRows(t.columns[:, order], None if t.present is None else t.present[order]) for t in tables]
    # The factors of the claim, written again: answers of a block, slots, and whether rows come and go.
    cap = 2 * audit.cap * (2 if audit.adjacency is RO else 1)
    assert differs.sum() <= cap
    settings = _aggregate.of_answers(audit.plan.settings)
    return replace(
        audit, plan=replace(audit.plan, settings=settings), adjacency=RO, cap=cap, rows=sorted_tables[0],
        neighbour=sorted_tables[1],
    )  # fmt: skip


def seen_answers(audit: Audited, **arguments: Any) -> tuple[Audited, Seen]:
    """One run, and what it did with the answers."""
    rows: list[float] = [float(audit.rows.slots)]
    counted = _aggregate._counted

    def remembering(settings: Any, session: Session) -> float:
        rows[0] = counted(settings, session)
        return rows[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_aggregate, "_counted", remembering)
        seen = observe(audit, **arguments)
    first = 0 if audit.adjacency is RO else 1  # the number of rows
    return of_answers(audit, rows[0]), replace(seen, operations=seen.operations[first:])


@pytest.mark.parametrize(("adjacency", "cap"), [(AR, 1), (RO, 1), (AR, 3)])
def test_sample_and_aggregate_is_not_condemned(adjacency: Adjacency, cap: int) -> None:
    """Noise is what was charged, prices are the operations', and no answer pays, or tells, more than the debit."""
    audit, seen = seen_answers(asked(adjacency, cap))
    assert any(isinstance(one, PartSearch) for one in seen.operations)
    assert law(audit, [seen]) is None
    assert arithmetic(audit, seen) is None
    assert path(audit, seen) is None
    assert odometer(audit, seen, probes(audit)) >= Fraction(1, 2) * audit.plan.settings.rho


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_noise_that_is_a_third_off_is_seen(factor: float) -> None:
    """Too little, and too much: about 1,200 numbers; it fails to see one time in 1e8."""
    found = [seen_answers(asked(RO), source=Scaled(factor)) for _ in range(60)]
    assert law(found[0][0], [seen for _, seen in found]) is not None


def one_block_for_two(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """A row that is replaced is taken to stay in its block."""
    monkeypatch.setattr(sessions, "estimates_cap", lambda estimates, adjacency, cap: estimates * cap)
    return arithmetic(*seen_answers(asked(RO)))


def one_row_for_all_of_a_unit(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """A unit's rows are taken to be in one block."""
    monkeypatch.setattr(sessions, "estimates_cap", lambda estimates, adjacency, cap: estimates)
    return arithmetic(*seen_answers(asked(AR, 3)))


def one_answer_of_a_block(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """A block is taken to have one answer."""
    monkeypatch.setattr(sessions, "estimates_cap", lambda estimates, adjacency, cap: cap)
    return arithmetic(*seen_answers(asked(AR)))


def blocks_by_turn(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Rows are dealt out in their order, so that those after one that goes move: more answers change than are paid."""

    def dealt(rows: Any, columns: int, estimator: Any) -> ArrayRows:
        kept = ArrayRows(np.ascontiguousarray(rows.columns[:, rows.present]))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(blocks, "row_hashes", lambda block: np.arange(block.shape[1], dtype=np.uint64))
            return block_estimates(kept, columns, estimator)

    audit = asked(AR)
    estimator = _aggregate.blocks_of(audit.plan.settings, 900.0)
    here, there = (dealt(table, 2, estimator) for table in (audit.rows, audit.neighbour))
    differ = int((here.columns != there.columns).any(axis=0).sum())
    return f"{differ} answers change where 2 are paid for" if differ > 2 else None


@pytest.mark.parametrize("bug", [one_block_for_two, one_row_for_all_of_a_unit, one_answer_of_a_block, blocks_by_turn])
def test_planted_bugs_are_seen(
    bug: Callable[[pytest.MonkeyPatch], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the check that is there for it."""
    assert bug(monkeypatch) is not None
