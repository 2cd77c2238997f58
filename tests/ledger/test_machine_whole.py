"""Any history of everything that may happen to a ledger, against a reference of ten lines.

Clients come at once, in threads and in processes that are killed; totals go up and down; allowances, call limits and
names come and go; some ask for the rest. After every step the ledger knows what the reference knows, nobody was let in
whom the reference would have refused, and nobody refused whom it would have let in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from bursar_ledger import (
    COST_UNIT,
    AccountConflictError,
    Adjacency,
    ApproximateEvent,
    Budget,
    BudgetExhaustedError,
    ConcentratedEvent,
    DatasetRetiredError,
    Debit,
    DebitRequest,
    DebitStatus,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    LedgerError,
    PureEvent,
    Registration,
    ReleaseExistsError,
    Remainder,
    RequestIdReusedError,
    RestRequest,
    SelectionEvent,
    _accounts,
    _administration,
    _debits,
    price,
    verify,
)
from tests.asking import debit_of

Events = tuple[Event, ...]
Amount = tuple[int, int]


@dataclass
class Reference:
    """Account that adds everything up each time. Amounts are (cost, delta) in units."""

    budget: Budget
    debits: list[tuple[str, Events]] = field(default_factory=list)
    allowances: dict[str, Fraction] = field(default_factory=dict)
    call: Fraction | None = None

    def spent(self, who: str | None = None) -> Amount:
        """Return the sum of one analyst's debits, or of all, priced at the order in force."""
        prices = [price(events, self.budget.order) for analyst, events in self.debits if who in (None, analyst)]
        return sum(paid.cost_units for paid in prices), sum(paid.delta_units for paid in prices)

    def room(self, who: str) -> Amount:
        """The most that one request may cost: the least of what is left of the total, the allowance and the call."""
        caps = self.budget.cap_cost_units, self.budget.cap_delta_units
        allowance, nothing = self.allowances.get(who, self.allowances.get("*")), (0, 0)
        limits = [(Fraction(1), self.spent()), (allowance, self.spent(who)), (self.call, nothing)]
        left = [[math.floor(share * caps[i]) - used[i] for share, used in limits if share is not None] for i in (0, 1)]
        return (min(left[0]), min(left[1])) if min(left[0] + left[1]) >= 0 else nothing  # overspent: closed


@dataclass(frozen=True)
class Ask:
    """One call of a client; `events` None asks for all that is left."""

    who: str
    number: int
    dataset: str
    events: Events | None

    @property
    def key(self) -> tuple[str, str]:
        """Return what makes two calls the same request, if their bodies are the same, too."""
        return self.who, str(self.number)

    @property
    def request(self) -> DebitRequest | RestRequest:
        """Return the request as the ledger is asked."""
        digest = hashlib.sha256(repr(self).encode()).digest()
        names = (self.dataset, self.who, str(self.number), digest, "Fit")
        if self.events is None:
            return RestRequest(*names, plan=lambda left: DebitRequest(*names, (everything(left),)))
        return DebitRequest(*names, self.events)


def everything(left: Remainder) -> Event:
    """The Gaussian release that costs exactly what is left."""
    rho = Fraction(left.cost_units) / (COST_UNIT * left.order)
    return GaussianEvent(2 * rho.numerator * rho.denominator, Fraction(rho.denominator))


EVENTS = st.lists(
    st.sampled_from(
        [
            GaussianEvent(1, Fraction(6)),
            GaussianEvent(3, Fraction(40)),
            LaplaceEvent(1, Fraction(12)),
            PureEvent(Fraction(1, 20)),
            SelectionEvent(1, Fraction(15), count=2),
            ConcentratedEvent(Fraction(1, 300)),
            ApproximateEvent(PureEvent(Fraction(1, 50)), Fraction(4, 10**8)),
        ]
    ),
    min_size=1,
    max_size=3,
).map(tuple)
SHARES = st.sampled_from([None, Fraction(0), Fraction(1, 4), Fraction(1, 3), Fraction(1)])
NAMES = ["people", "again", "cars"]
ASKS = st.builds(Ask, st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(NAMES), st.none() | EVENTS)


class WholeLedgerMachine(RuleBasedStateMachine):
    """A ledger with two accounts, one of which has two names, against two references."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.path = Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "ledger.db"
        self.ledger = self.stack.enter_context(Ledger.create(self.path, actor="owner"))
        people, cars = Reference(Budget(1, 1e-6, Fraction(1, 10))), Reference(Budget(2, 1e-9))
        self.of = {"people": people, "again": people, "cars": cars}
        for name, tag in (("people", b"rows"), ("again", b"rows"), ("cars", b"others")):
            budget, same = (None, "people") if name == "again" else (self.of[name].budget, None)
            made = Registration(name, Adjacency.REPLACE_ONE, budget, tag, same_people_as=same)
            self.ledger.register_dataset(made, actor="owner", reason="")
        self.retired: set[str] = set()
        self.admitted: dict[tuple[str, str], tuple[Ask, Debit]] = {}
        self.released: dict[int, bytes] = {}

    @rule(asks=st.lists(ASKS, min_size=1, max_size=6))
    def clients_at_once(self, asks: list[Ask]) -> None:
        """Check that admitted clients fitted in the order of the entries, and that refused ones fit nowhere."""
        with ThreadPoolExecutor(len(asks)) as pool:
            answers = list(pool.map(self._asked, asks))
        new = {answer.entry: ask for ask, answer in zip(asks, answers, strict=True) if isinstance(answer, Debit)}
        for entry in sorted(new.keys() - {debit.entry for _, debit in self.admitted.values()}):
            self._admit(new[entry], self.ledger.debit_entry(entry).request.events)
        for ask, answer in zip(asks, answers, strict=True):
            self._judge(ask, answer)

    def _asked(self, ask: Ask) -> Debit | Exception:
        try:
            return self.ledger.debit(ask.request)
        except (BudgetExhaustedError, RequestIdReusedError, DatasetRetiredError) as refusal:
            return refusal

    def _admit(self, ask: Ask, events: Events) -> None:
        account = self.of[ask.dataset]
        cost, room = price(events, account.budget.order), account.room(ask.who)
        assert ask.key not in self.admitted
        assert ask.dataset not in self.retired
        assert cost.cost_units <= room[0]
        assert cost.delta_units <= room[1]
        assert ask.events in (None, events)
        assert ask.events is not None or cost.cost_units == room[0]
        account.debits.append((ask.who, events))
        self.admitted[ask.key] = ask, self.ledger.debit(ask.request)

    def _judge(self, ask: Ask, answer: Debit | Exception) -> None:
        first = self.admitted.get(ask.key)
        if isinstance(answer, Debit):
            assert first is not None
            assert first[0] == ask
            same = ("entry", "price", "remaining", "allowance", "head")
            assert all(getattr(answer, name) == getattr(first[1], name) for name in same)
            assert answer.release == (self.released.get(answer.entry) if answer.status is not DebitStatus.NEW else None)
        elif isinstance(answer, RequestIdReusedError):
            assert first is not None
            assert first[0] != ask
        elif isinstance(answer, DatasetRetiredError):
            assert ask.dataset in self.retired
        else:
            room = self.of[ask.dataset].room(ask.who)
            cost = price(ask.events or (), self.of[ask.dataset].budget.order)
            assert first is None or first[0] != ask
            fits = cost.cost_units <= room[0] and cost.delta_units <= room[1]
            assert not fits if ask.events else room[0] == 0

    @rule(ask=ASKS, stores=st.booleans())
    def a_process_is_killed(self, ask: Ask, stores: bool) -> None:
        """Another process debits, stores its release or does not, and dies on the spot. What it did stays done."""
        child = os.fork()
        if child == 0:
            _die(self.path, ask, stores)
        os.waitpid(child, 0)
        found = debit_of(self.ledger, *ask.key)
        if found is None:
            return self._judge(ask, self._asked(ask)) if ask.key in self.admitted else None
        if ask.key not in self.admitted:
            self._admit(ask, found.request.events)
        if stores and self.admitted[ask.key][0] == ask:
            self.released.setdefault(found.entry, b"from the grave")
        return None

    @precondition(lambda self: self.admitted)
    @rule(which=st.integers(0, 99), content=st.sampled_from([b"", b"one", b"two"]))
    def release(self, which: int, content: bytes) -> None:
        """The first bytes stay; replays get them."""
        ask, debit = list(self.admitted.values())[which % len(self.admitted)]
        try:
            self.ledger.store_release(debit.entry, content)
        except ReleaseExistsError:
            assert self.released[debit.entry] != content
        else:
            assert self.released.setdefault(debit.entry, content) == content
        again = self.ledger.debit(ask.request)
        assert (again.status, again.release) == (DebitStatus.RELEASED, self.released[debit.entry])

    @rule(name=st.sampled_from(NAMES), epsilon=st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]))
    def a_total_changes(self, name: str, epsilon: float) -> None:
        """Up or down; the same total again is refused."""
        account, budget = self.of[name], Budget(epsilon, self.of[name].budget.delta, Fraction(1, 10))
        try:
            self.ledger.set_budget(name, budget, actor="owner", reason="")
        except AccountConflictError:
            assert budget == account.budget
        account.budget = budget

    @rule(name=st.sampled_from(NAMES), who=st.sampled_from("ab*"), share=SHARES)
    def an_allowance_changes(self, name: str, who: str, share: Fraction | None) -> None:
        """Set, changed or ended."""
        self.ledger.set_allowance(name, who, share, actor="owner", reason="")
        self.of[name].allowances.pop(who, None)
        if share is not None:
            self.of[name].allowances[who] = share

    @rule(name=st.sampled_from(NAMES), share=SHARES)
    def the_call_limit_changes(self, name: str, share: Fraction | None) -> None:
        """Set, changed or ended."""
        self.ledger.set_call_limit(name, share, actor="owner", reason="")
        self.of[name].call = share

    @rule(name=st.sampled_from(NAMES), tag=st.integers(0, 3))
    def new_rows(self, name: str, tag: int) -> None:
        """A snapshot spends nothing and gives nothing back, whatever its tag."""
        with contextlib.suppress(DatasetRetiredError):
            self.ledger.new_snapshot(name, b"rows%d" % tag, {}, actor="owner", reason="")

    @precondition(lambda self: len(self.retired) < 2)
    @rule(name=st.sampled_from(["again", "cars"]))
    def a_name_is_retired(self, name: str) -> None:
        """Retire a name, once."""
        try:
            self.ledger.retire_dataset(name, actor="owner", reason="")
        except DatasetRetiredError:
            assert name in self.retired
        self.retired.add(name)

    @rule(name=st.sampled_from(NAMES))
    def a_dry_run(self, name: str) -> None:
        """Shows an entry and writes none."""
        head = self.ledger.head()
        self.ledger.set_allowance(name, "a", Fraction(1, 7), actor="owner", reason="", dry_run=True)
        assert self.ledger.head() == head

    @rule(closed=st.booleans())
    def a_restart(self, closed: bool) -> None:
        """Closing and opening, or opening anew while the old one lies about, changes nothing."""
        if closed:
            self.ledger.close()
        self.ledger = self.stack.enter_context(Ledger.open(self.path))

    @invariant()
    def the_ledger_knows_what_the_reference_knows(self) -> None:
        """Sums at the order in force, what is left for everybody, and who was let in."""
        for name, account in self.of.items():
            state = self.ledger.dataset(name)
            assert (state.spent_cost_units, state.spent_delta_units) == account.spent()
            assert (state.budget, state.retired) == (account.budget, name in self.retired)
            for who in "abc":
                left = self.ledger.limits(name, who).available
                assert (left.cost_units, left.delta_units) == account.room(who)
        listed = {(line.principal, line.request_id): line.released for line in self.ledger.releases()}
        assert listed == {key: debit.entry in self.released for key, (_, debit) in self.admitted.items()}

    def teardown(self) -> None:
        """Every history verifies, gives the same sums, and has one release at most for each debit."""
        entries = list(self.ledger.entries())
        self.ledger.close()
        found = verify(self.path)
        self.stack.close()
        assert found.problems == ()
        for totals in found.accounts:
            account = self.of[totals.name]
            assert (totals.spent_cost_units, totals.spent_delta_units) == account.spent()
            assert dict(totals.analysts) == {who: account.spent(who) for who, _ in account.debits}
        releases = Counter(entry.details["debit"] for entry in entries if entry.kind == "release")
        assert dict(releases) == dict.fromkeys(self.released, 1)


def _die(path: Path, ask: Ask, stores: bool) -> None:
    """Debit in a child process, perhaps store a release, and be killed. Never returns."""
    signal.alarm(120)
    try:
        with contextlib.suppress(Exception):
            ledger = Ledger.open(path)
            debit = ledger.debit(ask.request)
            if stores:
                ledger.store_release(debit.entry, b"from the grave")
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


TestWholeLedgerMachine = pytest.mark.slow(WholeLedgerMachine.TestCase)
TestWholeLedgerMachine.settings = settings(max_examples=15, stateful_step_count=25)


def _without(**missing: Any) -> Callable[..., Any]:
    """Limits of an analyst, less one of them."""
    return lambda *given: dataclasses.replace(_accounts.bounds(*given), **missing)


BUGS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "allowances are forgotten": (_debits, "bounds", _without(allowance=None)),
    "call limits are forgotten": (_debits, "bounds", _without(call=None)),
    "a new total forgets what was spent": (_administration, "cost_units", lambda events, order: 1),
    "whatever was asked before is asked anew": (_debits, "_earlier", lambda *given: None),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger with a defect does not get through; where the machine does not notice first, the file's rules do."""
    monkeypatch.setattr(*BUGS[bug])
    # Without shrinking, and in the same order each time: a bug is to be found, not explained.
    searching = settings(
        max_examples=200, stateful_step_count=25, phases=[Phase.generate], derandomize=True, database=None
    )
    with pytest.raises((AssertionError, LedgerError, ExceptionGroup)):
        run_state_machine_as_test(WholeLedgerMachine, settings=searching)
