"""Totals, allowances and call limits: what is written, what is said, and what is refused."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click
import pytest

from bursar_ledger import Budget, BudgetExhaustedError, Ledger
from bursar_server.admin._shares import Share

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("25%", Fraction(1, 4)),
        ("0.1", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("1/3", Fraction(1, 3)),
        ("33.3%", Fraction(333, 1000)),
        ("0", Fraction(0)),
        ("100%", Fraction(1)),
    ],
)
def test_a_share_is_what_was_typed(text: str, share: Fraction) -> None:
    """Not the float nearest to it."""
    assert Share().convert(text, None, None) == share


@pytest.mark.parametrize(
    "text", ["", "%", ".", "nan", "inf", "-1", "1.1", "101%", "2/1", "1/0", "1e-9", "1/4%", "¼", "\u0660"]
)
def test_what_is_no_share_is_refused(text: str) -> None:
    """The message shows what one looks like."""
    with pytest.raises(click.BadParameter, match="write 25%"):
        Share().convert(text, None, None)


def test_a_raise_shows_what_it_changes_and_what_it_promises(admin: Admin) -> None:
    """The command shows before and after, and what both totals promise together; past debits are priced again."""
    admin.add()
    admin.spend("r1")
    output = admin.ok("budget", "set", "heights", "--epsilon", 3, "--yes", "--reason", "as planned")
    rows = [re.split(" {2,}", line.strip()) for line in output.splitlines()]
    for row in (
        ["total", "(1, 1e-06)", "(3, 1e-06)"],
        ["order", "21.9845", "8.9261"],
        ["spent", "epsilon 0.43 (20.6%)", "epsilon 0.43 (2.71%)"],
        ["left", "epsilon 0.885 (79.4%)", "epsilon 2.96 (97.2%)"],
    ):
        assert row in rows
    assert "the deltas add: (3, 2e-06)" in output
    entry = admin.entries()[-1]
    assert f"entry {entry.number}" in output
    assert (entry.kind, entry.details["reason"]) == ("budget", "as planned")
    account = admin.verified.accounts[0]
    assert (account.epsilon, account.delta, account.delta_fail_share) == (3.0, 1e-6, Fraction(0))


def test_what_is_left_out_stays_as_it_is(admin: Admin) -> None:
    """Also the share of approximate releases, which has a default for new accounts only."""
    admin.ok("import", *admin.table("heights"), "--epsilon", 1, "--delta", 1e-6, "--approximate-share", "1/2")
    admin.ok("budget", "set", "heights", "--delta", 1e-7)
    with Ledger.open(admin.state.ledger) as ledger:
        assert ledger.dataset("heights").budget == Budget(1.0, 1e-7, Fraction(1, 2))
    admin.ok("budget", "set", "heights", "--approximate-share", "0")
    with Ledger.open(admin.state.ledger) as ledger:
        assert ledger.dataset("heights").budget == Budget(1.0, 1e-7, Fraction(0))
    assert "at least one" in admin.refused("budget", "set", "heights")
    assert "already" in admin.refused("budget", "set", "heights", "--epsilon", 1)
    assert "epsilon" in admin.refused("budget", "set", "heights", "--epsilon", "nan")


def test_every_total_there_was_counts_for_what_they_promise_together(admin: Admin) -> None:
    """Three totals, three deltas; another share of delta is another filter, and so another one."""
    admin.add()
    assert "totals" not in admin.ok("budget", "show", "heights")
    admin.ok("budget", "set", "heights", "--epsilon", 3, "--yes")
    admin.ok("budget", "set", "heights", "--epsilon", 1, "--delta", 2e-6, "--yes")
    output = admin.ok("budget", "show", "heights")
    assert "(1, 1e-06) in entry" in output
    assert "holds for everything that is ever released: (1, 2e-06)" in output
    assert "the deltas add: (3, 4e-06)" in output
    admin.ok("budget", "set", "heights", "--approximate-share", "1/2")
    assert "the deltas add: (3, 6e-06)" in admin.ok("budget", "show", "heights")


def test_what_another_sets_meanwhile_is_not_undone(
    admin: Admin, at_a_terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An omitted option stays as shown; a delta that a colleague lowered while the question waited stays low."""
    admin.add()
    asked = click.confirm

    def lowered(*arguments: Any, **named: Any) -> bool:
        monkeypatch.setattr(click, "confirm", asked)
        with Ledger.open(admin.state.ledger) as ledger:
            ledger.set_budget("heights", Budget(1.0, 1e-9), actor="ben", reason="the board")
        return True

    monkeypatch.setattr(click, "confirm", lowered)
    output = admin.refused("budget", "set", "heights", "--epsilon", 3)
    assert "was changed meanwhile, to (1, 1e-09); nothing was done" in output
    account = admin.verified.accounts[0]
    assert (account.epsilon, account.delta) == (1.0, 1e-9)


def test_a_total_below_what_was_spent_closes_the_account(admin: Admin) -> None:
    """It says so before it asks; nothing more is debited until it is raised."""
    admin.add()
    admin.spend("r1")
    admin.spend("r2", scale=8)
    assert "--yes" in admin.refused("budget", "set", "heights", "--epsilon", 0.5)
    output = admin.ok("budget", "set", "heights", "--epsilon", 0.5, "--yes")
    assert "is closed until it is raised" in output
    assert "epsilon 0 (0%), closed" in output
    assert "holds for everything" not in output
    assert "closed" in admin.ok("datasets")
    with pytest.raises(BudgetExhaustedError):
        admin.spend("r3", scale=1000)
    admin.ok("budget", "set", "heights", "--epsilon", 1, "--yes")
    admin.spend("r3", scale=1000)
    assert admin.verified.accounts[0].debits == 3


def test_a_lowering_that_closes_nothing_needs_no_confirmation(admin: Admin) -> None:
    """A raise does, of epsilon or of delta."""
    admin.add()
    admin.ok("budget", "set", "heights", "--epsilon", 0.9)
    for raised in (("--epsilon", 1), ("--delta", 2e-6), ("--epsilon", 0.5, "--delta", 2e-6)):
        assert "Raise the total?" in admin.refused("budget", "set", "heights", *raised)


def test_a_total_can_be_tried(admin: Admin, at_a_terminal: None) -> None:
    """A dry run asks nothing and writes nothing, and a no writes nothing either."""
    admin.add()
    before = admin.verified.head
    output = admin.ok("budget", "set", "heights", "--epsilon", 3, "--dry-run")
    assert output.startswith("dry run:")
    assert "0.18507" in output
    assert "it would be entry" in output
    assert "Aborted" in admin.refused("budget", "set", "heights", "--epsilon", 3, answer="n\n")
    assert admin.verified.head == before


def test_a_total_is_that_of_all_names_of_an_account(admin: Admin) -> None:
    """Set under one, it is shown under the other."""
    admin.add()
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    output = admin.ok("budget", "set", "again", "--epsilon", 2, "--yes")
    assert "account heights, shared by: heights, again" in output
    assert "(2, 1e-06)" in admin.ok("budget", "show", "heights")


def test_callers_of_an_identity_provider_have_allowances(admin: Admin) -> None:
    """The names are those of debits; in one spelling only, and never the server's own."""
    admin.add()
    words = ("allowance", "set", "heights", "--share", "1/4", "--new", "--analyst")
    assert "no token" not in admin.ok(*words, "oidc:ann@example.org")
    assert "differs from" in admin.refused(*words, "oidc:Ann@example.org")
    assert "name" in admin.refused(*words, "oidc:")
    assert "the server itself" in admin.refused(*words, "bursar-server")


def test_revoking_the_last_administrator_is_noted(admin: Admin) -> None:
    """The note has the command that makes another one."""
    admin.ok("token", "issue", "--name", "root", "--role", "admin")
    admin.ok("token", "issue", "--name", "second", "--role", "admin")
    for held in json.loads(admin.ok("token", "list", "--json")):
        if held["name"] not in ("root", "second") and held["role"] == "admin":
            admin.ok("token", "revoke", "--name", held["name"])
    assert "no administrator" not in admin.ok("token", "revoke", "--name", "second")
    assert "token issue --role admin" in admin.ok("token", "revoke", "--name", "root")


def test_allowances_bind_from_the_next_request_on(admin: Admin) -> None:
    """Earlier spending counts; the others are bound by everyone's, each for themselves."""
    admin.add()
    admin.ok("token", "issue", "--name", "alice", "--role", "analyst")
    admin.spend("r1")
    output = admin.ok("allowance", "set", "heights", "--analyst", "alice", "--share", "25%", "--reason", "her part")
    assert "alice may spend 1/4 of the account heights, epsilon 0.478 (25%)" in output
    assert "left of it: epsilon 0.192 (4.47%)" in output
    assert "no token" not in output
    admin.ok("allowance", "set", "heights", "--everyone", "--share", "0")
    for analyst in ("alice", "bob"):
        with pytest.raises(BudgetExhaustedError) as caught:
            admin.spend("r2", analyst=analyst)
        assert caught.value.limit == "allowance"
    admin.ok("allowance", "end", "heights", "--everyone")
    admin.spend("r2", analyst="bob")
    entry = next(entry for entry in admin.entries() if entry.kind == "allowance")
    assert (entry.details["share"], entry.details["reason"]) == ("1/4", "her part")
    assert admin.verified.accounts[0].allowances == {"alice": Fraction(1, 4)}


def test_a_name_that_nobody_has_needs_to_be_meant(admin: Admin) -> None:
    """It may come later, and then it is said; once it has an allowance it is known. A name nobody can have is none."""
    admin.add()
    admin.ok("token", "issue", "--name", "alice", "--role", "analyst")
    before = admin.verified.head
    words = ("allowance", "set", "heights", "--share", "1/4", "--analyst")
    assert "no token in force has the name 'alcie'; did you mean 'alice'?" in admin.refused(*words, "alcie")
    assert admin.verified.head == before
    admin.ok(*words, "alcie", "--new")
    admin.ok(*words, "alcie")
    assert "name" in admin.refused(*words, "*", "--new")
    assert "name" in admin.refused(*words, "a b", "--new")


def test_whose_allowance_has_to_be_said(admin: Admin) -> None:
    """One analyst's or everyone's, and one that there is."""
    admin.add()
    for words in (("set", "heights", "--share", "1/4"), ("end", "heights")):
        assert "give one of" in admin.refused("allowance", *words)
        assert "give one of" in admin.refused("allowance", *words, "--everyone", "--analyst", "alice")
    assert "no allowance" in admin.refused("allowance", "end", "heights", "--analyst", "alice")
    assert "no call limit" in admin.refused("call-limit", "end", "heights")
    assert "no dataset" in admin.refused("allowance", "set", "widths", "--everyone", "--share", "1")


def test_a_call_limit_stops_the_accident(admin: Admin) -> None:
    """One request may not cost more than its share; ended, it may."""
    admin.add()
    output = admin.ok("call-limit", "set", "heights", "--share", "0.1")
    assert "one request may cost 1/10 of the account heights, epsilon 0.294 (10%)" in output
    with pytest.raises(BudgetExhaustedError) as caught:
        admin.spend("r1")
    assert caught.value.limit == "call"
    admin.ok("call-limit", "end", "heights")
    admin.spend("r1")


def test_limits_are_listed_with_what_is_left(admin: Admin) -> None:
    """The list is by account; a share follows the total, and an ended one is gone."""
    admin.add()
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    admin.add("other", "height\n0.5\n")
    assert admin.ok("allowance", "list") == "no limits but the totals\n"
    admin.ok("allowance", "set", "again", "--analyst", "alice", "--new", "--share", "1/2")
    admin.ok("allowance", "set", "again", "--analyst", "bob", "--new", "--share", "1/2")
    admin.ok("allowance", "set", "other", "--everyone", "--share", "1")
    admin.ok("call-limit", "set", "heights", "--share", "5%")
    admin.ok("allowance", "end", "heights", "--analyst", "bob")
    admin.spend("r1", scale=30)
    lines = [line.split() for line in admin.ok("allowance", "list").splitlines()]
    assert lines[1:] == [
        ["heights", "alice", "1/2", "epsilon", "0.691", "(50%)", "epsilon", "0.674", "(47.7%)"],
        ["heights", "one", "request", "1/20", "epsilon", "0.204", "(5%)"],
        ["other", "everyone", "else,", "each", "1", "epsilon", "1", "(100%)"],
    ]
    assert "other" not in admin.ok("allowance", "list", "again")


@pytest.mark.parametrize(
    "words",
    [
        ("allowance", "set", "heights", "--analyst", "alice", "--new", "--share", "1/5"),
        ("allowance", "end", "heights", "--analyst", "alice"),
        ("call-limit", "set", "heights", "--share", "1/5"),
        ("call-limit", "end", "heights"),
    ],
    ids=" ".join,
)
def test_limits_can_be_tried(admin: Admin, words: tuple[str, ...]) -> None:
    """The entry is shown and not written."""
    admin.add()
    admin.ok("allowance", "set", "heights", "--analyst", "alice", "--new", "--share", "1/4")
    admin.ok("call-limit", "set", "heights", "--share", "1/4")
    before = admin.verified
    output = admin.ok(*words, "--dry-run", "--reason", "only a try")
    assert output.startswith("dry run:")
    assert f"it would be entry {before.entries + 1}" in output
    assert '"reason": "only a try"' in output
    assert admin.verified.head == before.head
