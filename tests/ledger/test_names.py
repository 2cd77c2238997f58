"""Names that differ in case only are refused, whatever way they would come into the ledger."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from bursar_ledger import BudgetExhaustedError, DebitRequest, LastAdministratorError, Ledger, NameConflictError, Role

Ask = Callable[..., DebitRequest]
NOW, LATER = "2026-11-23T09:00:00Z", "2027-11-23T09:00:00Z"


def issue(ledger: Ledger, name: str, role: Role = Role.ANALYST, expires: str | None = None) -> None:
    """Issue a credential."""
    token = name.encode().ljust(32, b".")
    ledger.issue_credential(name, role, token, actor="owner", reason="", expires=expires)


def allow(ledger: Ledger, analyst: str) -> None:
    """Set an allowance of a tenth."""
    ledger.set_allowance("people", analyst, Fraction(1, 10), actor="owner", reason="")


def test_no_credential_looks_like_another(ledger: Ledger) -> None:
    """Neither beside it nor after it was revoked: debits keep the name. The same spelling may have a new one."""
    issue(ledger, "alice")
    for name in ("ALICE", "Alice"):
        with pytest.raises(NameConflictError, match="'alice'"):
            issue(ledger, name)
    ledger.revoke_credential("alice", actor="owner", reason="")
    with pytest.raises(NameConflictError):
        issue(ledger, "aLice")
    ledger.issue_credential("alice", Role.ANALYST, b"2" * 32, actor="owner", reason="")
    issue(ledger, "alicia")


def test_an_allowance_is_for_the_name_as_it_is_spelt(ledger: Ledger) -> None:
    """Else the owner would believe that it binds somebody."""
    issue(ledger, "alice")
    with pytest.raises(NameConflictError):
        allow(ledger, "Alice")
    allow(ledger, "alice")
    allow(ledger, "oidc:bob@example.org")
    with pytest.raises(NameConflictError):
        allow(ledger, "oidc:Bob@example.org")
    ledger.set_allowance("people", "*", Fraction(1, 2), actor="owner", reason="")


def test_another_spelling_has_no_allowance_of_its_own(ledger: Ledger, ask: Ask) -> None:
    """An identity provider where people choose the case of their names would hand out everyone's share each time."""
    ledger.set_allowance("people", "*", Fraction(1, 5), actor="owner", reason="")
    ledger.debit(ask("first", principal="oidc:ann"))
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(ask("second", principal="oidc:ann"))
    before = ledger.newest()
    for name in ("oidc:Ann", "oidc:ANN"):
        with pytest.raises(NameConflictError):
            ledger.debit(ask("second", principal=name))
    allow(ledger, "oidc:eve")
    with pytest.raises(NameConflictError):
        ledger.debit(ask("third", principal="oidc:Eve"))
    assert ledger.newest()[0] == before[0] + 1
    ledger.debit(ask("first", principal="oidc:bob"))


def test_the_last_administrator_stays_if_the_caller_wants_it(ledger: Ledger) -> None:
    """One whose credential ended, or was revoked, or who is an auditor, does not count."""
    issue(ledger, "auditor", Role.AUDITOR)
    issue(ledger, "ended", Role.ADMIN, NOW)
    issue(ledger, "root", Role.ADMIN, LATER)
    issue(ledger, "second", Role.ADMIN)
    assert ledger.administrators(NOW) == ("root", "second")
    ledger.revoke_credential("second", actor="root", reason="", keep_admin_at=NOW)
    before = ledger.newest()
    with pytest.raises(LastAdministratorError):
        ledger.revoke_credential("root", actor="root", reason="", keep_admin_at=NOW)
    assert ledger.newest() == before
    ledger.revoke_credential("ended", actor="root", reason="", keep_admin_at=NOW)
    ledger.revoke_credential("auditor", actor="root", reason="", keep_admin_at=NOW)
    ledger.revoke_credential("root", actor="owner", reason="")
    assert ledger.administrators(NOW) == ()


def test_nothing_left_is_said_so(ledger: Ledger, ask: Ask) -> None:
    """Instead of an amount such as rho = 7e-13, which nobody could spend; what can be spent is told as an amount."""

    def refusal(request: DebitRequest) -> str:
        with pytest.raises(BudgetExhaustedError) as caught:
            ledger.debit(request)
        return str(caught.value)

    allow(ledger, "ann")
    assert "is left of your allowance; ask for less. Nothing was debited" in refusal(ask("a"))
    ledger.set_allowance("people", "ann", Fraction(0), actor="owner", reason="")
    assert refusal(ask("a")) == "nothing is left of your allowance, so no request fits. Nothing was debited"
    ledger.set_allowance("people", "ann", None, actor="owner", reason="")
    ledger.set_call_limit("people", Fraction(0), actor="owner", reason="")
    assert refusal(ask("a")) == "one request may cost nothing, so no request fits. Nothing was debited"
    ledger.set_call_limit("people", None, actor="owner", reason="")
    scale = 2
    for i in range(60):
        try:
            ledger.debit(ask(f"b{i}", scale=scale))
        except BudgetExhaustedError as error:
            scale *= 2
            told = str(error)
    assert told == "nothing is left of the budget, so no request fits. Nothing was debited"
