"""Attacks by being, or calling things, something else: colluding analysts, renamed tables, calendars, made-up names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from fractions import Fraction
from typing import TYPE_CHECKING

import grpc
import pytest

from bursar_proto.v1 import types_pb2
from tests.attacks.asking import Make, analyst, call
from tests.attacks.purses import Bursar, PerAnalyst, Purse, Refreshed, Suicidal

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal

Refused = Callable[[Callable[[], object]], "Refusal"]
MOST = Fraction(9, 10)


def collusion(purse: Purse) -> Fraction:
    """What five analysts learn together who ask for nine tenths each."""
    for i in range(5):
        purse.ask(MOST, who=f"analyst-{i}")
    return purse.loss


def test_analysts_together_learn_no_more_than_one(purse: Bursar) -> None:
    """Register five accounts and share what each of them gets (Lomas has budgets for users, Snowflake for accounts)."""
    assert collusion(purse) <= 1


def test_the_rivals_analysts_learn_five_times_as_much() -> None:
    """The same attack on budgets for each analyst."""
    assert collusion(PerAnalyst()) > 4


def test_new_tokens_and_new_names_have_no_new_budget(served: Harness, fit_request: Make, refused: Refused) -> None:
    """Revoke, issue again, under the same name and others: one sum (Lomas: users deleted and added are new ones)."""
    spend = types_pb2.Spend(rho=0.02)
    list(call(served, fit_request(spend=spend)))
    served.ledger.revoke_credential("the-analyst", actor="test", reason="")
    for name in ("the-analyst", "somebody-else"):
        bearer = analyst(served, name)
        refusal = refused(lambda b=bearer: list(call(served, fit_request(spend=spend, request_id="r2"), b)))  # type: ignore[misc]
        assert refusal.reason == "BUDGET_EXHAUSTED"


def two_years(purse: Purse, later: Callable[[float], object]) -> Fraction:
    """What is learnt by somebody who comes back every forty days for two years."""
    for day in range(0, 730, 40):
        later(day * 86_400.0)
        purse.ask(MOST)
    return purse.loss


def test_the_rival_refreshes_for_those_who_wait() -> None:
    """A window of thirty days hands out the whole promise again, eighteen times."""
    now = [0.0]
    assert two_years(Refreshed(clock=lambda: now[0]), lambda t: now.__setitem__(0, t)) > 10


class _Clock(datetime):
    """What the ledger's modules take for the time of day."""

    seconds = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Some days after the year 2000."""
        return datetime(2000, 1, 1, tzinfo=tz) + timedelta(seconds=cls.seconds)


def turn_clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], object]:
    """Every module of the ledger that has a clock gets ours, which goes as the test says."""
    modules = [module for name, module in sys.modules.items() if name.startswith("bursar_ledger")]
    clocked = [module for module in modules if getattr(module, "datetime", None) is datetime]
    for module in clocked:
        monkeypatch.setattr(module, "datetime", _Clock)
    assert clocked
    return lambda seconds: setattr(_Clock, "seconds", seconds)


def test_no_budget_comes_back_with_time(purse: Bursar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for two years, and set the clock back afterwards: what is spent stays spent, and entries keep their order.

    Snowflake, AWS Clean Rooms and Jeddak-DPSQL refresh budgets by the calendar, the last one by default.
    """
    clock = turn_clocks(monkeypatch)
    assert two_years(purse, clock) <= 1
    clock(-1e9)
    assert purse.ask(Fraction(1, 2)) is None
    assert purse.ask(Fraction(1, 100)) is not None
    years = [record.time[:4] for record in purse.ledger.releases()]
    assert years[0] == "2000" > years[-1]


def refused_forever(purse: Purse) -> bool:
    """Whether one request beyond everything leaves nothing for the others."""
    purse.ask(2)
    return purse.ask(Fraction(1, 2), who="honest") is None


def test_a_refusal_takes_nothing_from_others(purse: Bursar) -> None:
    """Ask for more than there is, to spoil what is left for everybody else (OpenDP: the filter is dead afterwards)."""
    head = purse.ledger.head()
    purse.ask(2)
    assert purse.ledger.head() == head
    assert not refused_forever(purse)


def test_the_rivals_filter_dies_of_a_refusal() -> None:
    """The same attack on a filter that does not survive it."""
    assert refused_forever(Suicidal())


CLAIMS = ("user-name", "x-user", "x-forwarded-user", "grpc-user", "principal", "x-goog-authenticated-user-email")


@pytest.mark.parametrize("header", CLAIMS)
def test_nobody_is_who_a_header_says(served: Harness, fit_request: Make, header: str) -> None:
    """Claim to be somebody in metadata, without a token and beside one (Lomas v0.4.1 believes `user-name`)."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call(served, fit_request(), ((header, "the-admin"),)))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    list(call(served, fit_request(), (*served.bearer(), (header, "the-admin"))))
    assert [record.principal for record in served.ledger.releases()] == ["the-analyst"]


@pytest.mark.parametrize("token", ["changethis", "admin", "info@openmined.org:changethis", "bursar_admin_" + "0" * 43])
def test_no_password_is_known_beforehand(served: Harness, fit_request: Make, token: str) -> None:
    """Try what servers are shipped with (PySyft: changethis; Lomas: a shared bootstrap secret)."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call(served, fit_request(), (("authorization", f"Bearer {token}"),)))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert served.entries("debit") == 0
