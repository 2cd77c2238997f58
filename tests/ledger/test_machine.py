"""Any history of debits, repetitions, releases, refusals and restarts against a reference of a few lines."""

from __future__ import annotations

import hashlib
import tempfile
from fractions import Fraction
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from bursar_ledger import (
    Adjacency,
    Budget,
    BudgetExhaustedError,
    Debit,
    DebitRequest,
    DebitStatus,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    PureEvent,
    Registration,
    ReleaseExistsError,
    RequestIdReusedError,
    cost_units,
    verify,
)

EVENTS = st.lists(
    st.sampled_from([GaussianEvent(1, Fraction(6)), LaplaceEvent(1, Fraction(4)), PureEvent(Fraction(1, 3))]),
    min_size=1,
    max_size=4,
).map(tuple)
BUDGET = Budget(1, 1e-6)


class LedgerMachine(RuleBasedStateMachine):
    """The ledger against a dictionary of what was admitted."""

    debits = Bundle("debits")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ledger.db"
        self.ledger = Ledger.create(self.path, actor="owner")
        registration = Registration("d", Adjacency.REPLACE_ONE, BUDGET, b"t")
        self.ledger.register_dataset(registration, actor="owner", reason="")
        self.spent = 0
        self.admitted: dict[tuple[str, str], tuple[DebitRequest, Debit]] = {}
        self.released: dict[int, bytes] = {}

    @rule(target=debits, principal=st.sampled_from("ab"), number=st.integers(0, 5), events=EVENTS)
    def debit(self, principal: str, number: int, events: tuple[GaussianEvent, ...]) -> object:
        """New requests, repetitions and ids used again, as chance has it."""
        digest = hashlib.sha256(repr(events).encode()).digest()
        request = DebitRequest("d", principal, str(number), digest, "Fit", events)
        cost = cost_units(events, BUDGET.order)
        first = self.admitted.get((principal, str(number)))
        try:
            debit = self.ledger.debit(request)
        except RequestIdReusedError:
            assert first is not None
            assert first[0] != request
            return multiple()
        except BudgetExhaustedError as refusal:
            assert first is None
            assert self.spent + cost > BUDGET.cap_cost_units
            self._check_left(refusal)
            return multiple()
        if first is None:
            self.spent += cost
            assert (debit.status, debit.price.cost_units) == (DebitStatus.NEW, cost)
            self.admitted[principal, str(number)] = (request, debit)
        else:
            self._check_repetition(first, request, debit)
        return debit.entry

    def _check_left(self, refusal: BudgetExhaustedError) -> None:
        assert refusal.remaining.cost_units == BUDGET.cap_cost_units - self.spent

    def _check_repetition(self, first: tuple[DebitRequest, Debit], request: DebitRequest, debit: Debit) -> None:
        stored = self.released.get(debit.entry)
        assert first[0] == request
        assert debit.status is (DebitStatus.INTERRUPTED if stored is None else DebitStatus.RELEASED)
        assert debit.release == stored
        values = debit.entry, debit.price, debit.remaining, debit.head
        assert values == (first[1].entry, first[1].price, first[1].remaining, first[1].head)

    @rule(entry=debits, content=st.sampled_from([b"", b"one", b"two"]))
    def release(self, entry: int, content: bytes) -> None:
        """The first bytes stay."""
        try:
            self.ledger.store_release(entry, content)
        except ReleaseExistsError:
            assert self.released[entry] != content
        else:
            assert self.released.setdefault(entry, content) == content

    @rule()
    def restart(self) -> None:
        """Closing and opening changes nothing."""
        self.ledger.close()
        self.ledger = Ledger.open(self.path)

    @invariant()
    def sums_agree_and_stay_below_the_cap(self) -> None:
        """Check that the ledger's sum is that of the admitted debits."""
        state = self.ledger.dataset("d")
        assert state.spent_cost_units == self.spent <= state.cap_cost_units
        assert len(self.ledger.releases()) == len(self.admitted)

    def teardown(self) -> None:
        """Every history verifies."""
        self.ledger.close()
        found = verify(self.path)
        self.folder.cleanup()
        assert found.problems == ()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=30, stateful_step_count=25)
