"""Purses to attack: bursar's ledger, and small copies of purses of others with the defect that was seen there.

A purse answers requests that cost a share of its promise. `loss` is what its callers really learnt: the sum of the
prices of all different answers that they hold. An attack on privacy has succeeded if `loss` is more than 1.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from bursar_ledger import COST_UNIT, BudgetExhaustedError, DebitRequest, GaussianEvent, Ledger

Share = Fraction | float


@dataclass(frozen=True)
class Ask:
    """A request for `share` of the promise. Equal ones with one `request_id` are repetitions."""

    share: Share
    who: str = "ann"
    request_id: str = "r"
    dataset: str = "people"


class Purse(ABC):
    """Keeps what its callers saw, which no purse can take back."""

    def __init__(self) -> None:
        self.seen: dict[bytes, Fraction] = {}
        self._ids = itertools.count()

    def ask(
        self, share: Share, *, who: str = "ann", request_id: str | None = None, dataset: str = "people"
    ) -> bytes | None:
        """The answer to a request, None if it was refused. Without a `request_id` every request is a new one."""
        name = f"n{next(self._ids)}" if request_id is None else request_id
        answer = self._answer(Ask(share, who, name, dataset))
        if answer is not None:
            self.seen.setdefault(answer, Fraction(share))
        return answer

    @property
    def loss(self) -> Fraction:
        """Return what all answers that were seen cost together, in promises."""
        return sum(self.seen.values(), Fraction(0))

    @property
    @abstractmethod
    def spent(self) -> Fraction:
        """Return what the purse says was spent, in promises."""

    @abstractmethod
    def _answer(self, ask: Ask) -> bytes | None: ...


def draw() -> bytes:
    """One fresh noisy answer; no two are equal."""
    return secrets.token_bytes(16)


class Bursar(Purse):
    """The real ledger. A share of its cap is the price of one Gaussian release, exactly."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    @property
    def spent(self) -> Fraction:
        """Return the sum as the ledger's newest debit has it."""
        state = self.ledger.dataset("people")
        return Fraction(state.spent_cost_units, state.cap_cost_units)

    @property
    def left(self) -> Fraction:
        """The exact remainder."""
        left = self.ledger.dataset("people").remaining
        return Fraction(left.cost_units, left.cap_cost_units)

    def request(self, ask: Ask) -> DebitRequest:
        """The debit that a request of this share wants."""
        state = self.ledger.dataset(ask.dataset)
        rho = Fraction(ask.share) * state.cap_cost_units / (COST_UNIT * state.order)
        # l2_squared / (2 scale^2) = n / d with integers: l2_squared = 2 n d, scale = d.
        event = GaussianEvent(2 * rho.numerator * rho.denominator, Fraction(rho.denominator))
        digest = hashlib.sha256(repr((Fraction(ask.share), ask.dataset)).encode()).digest()
        return DebitRequest(ask.dataset, ask.who, ask.request_id, digest, "FitDPEM", (event,))

    def _answer(self, ask: Ask) -> bytes | None:
        try:
            debit = self.ledger.debit(self.request(ask))
        except BudgetExhaustedError:
            return None
        if debit.release is None:
            self.ledger.store_release(debit.entry, draw())
        return self.ledger.release(debit.entry)


class Rival(Purse):
    """Shared parts of all rivals here: a sum in memory, checked and added to before an answer is drawn.

    Without its defect a rival is sound: every request is paid, and nobody gets more than the promise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total: float = 0.0

    @property
    def spent(self) -> Fraction:
        """The sum."""
        return Fraction(self.total)

    def _answer(self, ask: Ask) -> bytes | None:
        if not self.total + ask.share <= 1:
            return None
        self.total += float(ask.share)
        return draw()


class AnythingLeft(Rival):
    """Asks whether anything is left instead of whether enough is (Jeddak-DPSQL)."""

    def _answer(self, ask: Ask) -> bytes | None:
        if not self.total < 1:
            return None
        self.total += float(ask.share)
        return draw()


class Suicidal(Rival):
    """A request over the budget ends the filter for everybody (OpenDP's filters as queryables)."""

    def _answer(self, ask: Ask) -> bytes | None:
        answer = super()._answer(ask)
        if answer is None:
            self.total = math.inf
        return answer


class NegatedComparison(Rival):
    """Refuses if sum > cap. A comparison with NaN is false, so NaN passes (the shape of openmed #2457)."""

    def _answer(self, ask: Ask) -> bytes | None:
        if self.total + ask.share > 1:
            return None
        self.total += float(ask.share)
        return draw()


class FloatSum(Rival):
    """Adds floats, as most do: what is small against the sum is free, and tenths do not add up to one."""


class PerAnalyst(Rival):
    """One budget for each analyst, none for the dataset (Lomas; Snowflake has one for each account)."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: defaultdict[str, float] = defaultdict(float)

    def _answer(self, ask: Ask) -> bytes | None:
        self.total = self.totals[ask.who]
        answer = super()._answer(ask)
        self.totals[ask.who] = self.total
        return answer


class PerName(PerAnalyst):
    """A budget goes with a dataset's name; the same rows under a new name have a new one (new views in BigQuery)."""

    def _answer(self, ask: Ask) -> bytes | None:
        return super()._answer(Ask(ask.share, ask.dataset, ask.request_id, ask.dataset))


class Refreshed(Rival):
    """The sum falls to zero when the calendar says so (Snowflake's and AWS Clean Rooms' windows, Jeddak's cycle)."""

    def __init__(self, clock: Callable[[], float] = time.time, window: float = 30 * 86_400) -> None:
        super().__init__()
        self._clock, self._window, self._since = clock, window, clock()

    def _answer(self, ask: Ask) -> bytes | None:
        if not self._clock() - self._since < self._window:
            self.total, self._since = 0.0, self._clock()
        return super()._answer(ask)


class PaysTwice(Rival):
    """Knows no request ids: a retry is a new request, with a new price and new noise (all peers but two)."""


class FreshNoise(Rival):
    """Recognises a retry and takes no price for it, but draws again."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[tuple[str, str]] = set()

    def _answer(self, ask: Ask) -> bytes | None:
        key = (ask.who, ask.request_id)
        if key in self._known:
            return draw()
        answer = super()._answer(ask)
        if answer is not None:
            self._known.add(key)
        return answer


class ForgetsTheCaller(Rival):
    """Stored answers by request id alone: whoever knows an id has the answer, whatever he asked."""

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[str, bytes] = {}

    def _answer(self, ask: Ask) -> bytes | None:
        if ask.request_id not in self._stored:
            answer = super()._answer(ask)
            if answer is None:
                return None
            self._stored[ask.request_id] = answer
        return self._stored[ask.request_id]


class ReadThenWrite(Rival):
    """Reads the sum, thinks, writes the sum (Lomas' `set_query_result`, Jeddak's UPDATE, PySyft's counter).

    Args:
        thinking: what happens between the two; the tests put the other caller there.
    """

    def __init__(self, thinking: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.thinking = thinking

    def _answer(self, ask: Ask) -> bytes | None:
        read = self.total
        if not read + ask.share <= 1:
            return None
        self.thinking()
        self.total = read + float(ask.share)
        return draw()
