"""Tokens, checkpoints, the list of acts, and what all of them are as JSON."""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from bursar_ledger import Ledger, adopt_copy
from bursar_ledger.checkpoints import VerifierKey, compare, parse_place
from bursar_server.access.auth import hash_token

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin


def _places(admin: Admin, *places: str) -> None:
    admin.state.config.write_text(f"[checkpoints]\nplaces = {list(places)}\n")


def test_tokens_are_issued_listed_and_revoked(admin: Admin) -> None:
    """The token is shown once, alone on standard output, or written to a file for its owner only."""
    result = admin.run("token", "issue", "--name", "alice", "--role", "analyst")
    token = result.stdout.removesuffix("\n")
    assert result.stderr == f"token of alice, shown this once: entry {admin.verified.entries}\n"
    eve = admin.files / "eve"
    admin.ok("token", "issue", "--name", "eve", "--role", "auditor", "--out", eve)
    assert eve.stat().st_mode & 0o777 == 0o600
    with Ledger.open(admin.state.ledger) as ledger:
        assert ledger.credential(hash_token(token)) is not None
        assert ledger.credential(hash_token(eve.read_text().strip())) is not None
    admin.ok("token", "revoke", "--name", "alice", "--reason", "left")
    listed = admin.ok("token", "list")
    assert "alice  analyst  revoked" in listed
    assert "eve    auditor  live" in listed
    assert admin.refused("token", "revoke", "--name", "alice")
    assert "name" in admin.refused("token", "issue", "--name", "a b", "--role", "analyst")


def test_a_token_that_is_refused_overwrites_no_file(admin: Admin) -> None:
    """The file of the one in force stays."""
    file = admin.files / "alice"
    words = ("token", "issue", "--name", "alice", "--role", "analyst", "--out", file)
    admin.ok(*words)
    before = file.read_text()
    assert "in force" in admin.refused(*words)
    assert file.read_text() == before


def test_a_dry_run_shows_no_token(admin: Admin) -> None:
    """There is none to show, and none is written."""
    before = admin.verified.head
    output = admin.ok(
        "token", "issue", "--name", "alice", "--role", "analyst", "--out", admin.files / "alice", "--dry-run"
    )
    assert "it would be entry" in output
    assert "bursar_analyst_" not in output
    assert not (admin.files / "alice").exists()
    admin.ok("token", "revoke", "--name", "admin", "--dry-run")
    assert admin.verified.head == before


def test_every_act_is_witnessed_by_a_checkpoint(admin: Admin) -> None:
    """The place of the settings gets one of the new entry, under the key that auditors pin."""
    admin.add()
    admin.ok("budget", "set", "heights", "--epsilon", 0.9)
    admin.ok("allowance", "set", "heights", "--everyone", "--share", "1/4")
    key = VerifierKey.parse(admin.ok("checkpoint", "key"))
    notes = parse_place("file:checkpoints", admin.state.path).read()
    found = compare(admin.state.ledger, notes, key)
    assert found.ok
    assert found.witnessed == admin.verified.entries
    admin.ok("budget", "set", "heights", "--epsilon", 0.8, "--dry-run")
    assert parse_place("file:checkpoints", admin.state.path).read() == notes


def test_an_act_counts_even_if_its_checkpoint_cannot_be_written(admin: Admin) -> None:
    """The place is named, and the act stands: only asking for the checkpoint itself fails."""
    _places(admin, "file:checkpoints", f"file:{admin.files / 'no' / 'disk'}")
    result = admin.run("token", "revoke", "--name", "admin")
    assert result.exit_code == 0
    assert "no checkpoint was written" in result.stderr
    assert admin.entries()[-1].kind == "credential_revoked"
    assert "not every place" in admin.refused("checkpoint", "write")


def test_a_new_place_is_begun_by_asking(admin: Admin) -> None:
    """Acts never begin one: it may be a disk that is not mounted."""
    _places(admin, "file:checkpoints", "file:second")
    admin.run("token", "revoke", "--name", "admin")
    assert not (admin.state.path / "second").exists()
    assert "second" in admin.refused("checkpoint", "show")
    output = admin.ok("checkpoint", "write")
    assert admin.verified.head.hex() in output
    assert "file:second: 1 checkpoints, of entry 4 at most" in admin.ok("checkpoint", "show")


def test_places_that_cannot_be_read_are_said_to_be_so(admin: Admin) -> None:
    """Standard output remembers nothing."""
    _places(admin, "stdout")
    assert "stdout: cannot be read again" in admin.ok("checkpoint", "show")


def test_a_ledger_that_was_put_back_is_shown(admin: Admin) -> None:
    """The copy verifies, and the checkpoint does not agree with it."""
    admin.ok("backup", admin.files / "copy")
    admin.add()
    for file in admin.state.path.glob("ledger.sqlite*"):
        file.unlink()
    (admin.files / "copy").rename(admin.state.ledger)
    adopt_copy(admin.state.ledger)
    assert admin.verified.ok
    assert "do not agree" in admin.refused("checkpoint", "show")


def test_a_new_key_is_an_entry_that_the_old_one_vouches_for(admin: Admin) -> None:
    """Auditors who pinned the old key can follow; a dry run changes nothing, and a running server forbids it."""
    old = VerifierKey.parse(admin.ok("checkpoint", "key"))
    assert "--yes" in admin.refused("checkpoint", "rotate")
    assert str(old) in admin.ok("checkpoint", "rotate", "--dry-run")
    assert VerifierKey.parse(admin.ok("checkpoint", "key")) == old
    with admin.state.serving():
        assert "stop it first" in admin.refused("checkpoint", "rotate", "--yes")
    result = admin.run("checkpoint", "rotate", "--yes", "--reason", "a laptop was stolen")
    new = VerifierKey.parse(result.stdout)
    entry = admin.entries()[-1]
    assert (entry.kind, entry.details["reason"]) == ("checkpoint_key", "a laptop was stolen")
    assert entry.details["verifier_key"] == str(new) != str(old)
    notes = parse_place("file:checkpoints", admin.state.path).read()
    for key in (old, new):
        assert compare(admin.state.ledger, notes, key).ok


def test_all_acts_are_listed_in_words(admin: Admin) -> None:
    """Every kind but debits and releases, with who did it and why."""
    admin.add()
    admin.spend("r1")
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights", "--reason", "other name")
    admin.ok("budget", "set", "heights", "--epsilon", 2, "--yes", "--reason", "planned")
    admin.ok("allowance", "set", "heights", "--analyst", "alice", "--new", "--share", "1/4")
    admin.ok("allowance", "end", "heights", "--analyst", "alice")
    admin.ok("call-limit", "set", "heights", "--share", "1/4")
    admin.ok("call-limit", "end", "heights")
    admin.ok("snapshot", *admin.table("heights", "height\n1\n"), "--yes")
    admin.ok("retire", "again", "--yes", "--reason", "over")
    admin.ok("token", "revoke", "--name", "admin")
    output = admin.ok("acts")
    for words in (
        "  genesis ",
        "admin (admin, until ",
        "  checkpoint_key ",
        "(epsilon, delta) = (1, 1e-06)",
        "joins account heights: other name",
        "new total (epsilon, delta) = (2, 1e-06), before (epsilon, delta) = (1, 1e-06): planned",
        "alice: at most 1/4 of the total",
        "alice: no allowance any more",
        "one call costs at most 1/4 of the total",
        "no limit for one call any more",
        "new rows of the same people",
        "no new debits: over",
        "admin (revoked)",
    ):
        assert words in output
    assert "FitDPEM" not in output
    assert len(output.splitlines()) == len(admin.entries()) - 1 + 1  # without the debit, with the header
    assert output.splitlines()[0].split() == ["entry", "time", "who", "kind", "dataset", "what", "and", "why"]
    of_again = admin.ok("acts", "--dataset", "again", "--last", "1").splitlines()
    assert len(of_again) == 2
    assert of_again[1].endswith("retirement  again    no new debits: over")
    assert "local:" in of_again[1]


def _json(admin: Admin, *words: str) -> Any:
    return json.loads(admin.run(*words, "--json").stdout)


def test_what_is_listed_and_shown_is_there_as_json(admin: Admin) -> None:
    """The same facts as in words; amounts are exact in units, too."""
    assert _json(admin, "datasets") == []
    assert _json(admin, "allowance", "list") == []
    admin.add()
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    admin.spend("r1", scale=10)  # rho 0.005
    admin.ok("allowance", "set", "heights", "--analyst", "alice", "--new", "--share", "1/2")
    admin.ok("call-limit", "set", "heights", "--share", "1/4")
    first, again = _json(admin, "datasets")
    assert (first["name"], again["name"], again["account"]) == ("heights", "again", "heights")
    assert first["total"] == {"epsilon": 1.0, "delta": 1e-6}
    assert round(first["spent"]["rho"], 6) == 0.005
    with Ledger.open(admin.state.ledger) as ledger:
        state = ledger.dataset("heights")
    assert first["left"]["cost_units"] == state.remaining.cost_units
    shown = _json(admin, "budget", "show", "again")
    assert shown["datasets"] == ["heights", "again"]
    assert (
        shown["cap"]["cost_units"] == state.cap_cost_units == shown["spent"]["cost_units"] + shown["left"]["cost_units"]
    )
    assert [total["epsilon"] for total in shown["totals"]] == [1.0]
    hers, call = _json(admin, "allowance", "list")
    assert (hers["analyst"], hers["kind"], hers["share"]) == ("alice", "allowance", "1/2")
    assert hers["left"]["cost_units"] == hers["most"]["cost_units"] - state.spent_cost_units
    assert (call["kind"], call["analyst"], call["left"]) == ("call_limit", None, None)
    assert [held["name"] for held in _json(admin, "token", "list")] == ["admin"]
    acts = _json(admin, "acts", "--last", "1")
    assert acts[0]["details"]["share"] == "1/4"
    assert acts[0]["words"] in admin.ok("acts", "--last", "1")
    (place,) = _json(admin, "checkpoint", "show")
    assert (place["witnessed"], place["problems"]) == (admin.verified.entries, [])
    assert place["newest"] in admin.ok("checkpoint", "show")


def test_problems_of_a_place_are_json_and_an_exit_status(admin: Admin) -> None:
    """A script sees them both ways; a place that cannot be read again says so."""
    _places(admin, "stdout")
    assert _json(admin, "checkpoint", "show") == [{"place": "stdout", "readable": False}]
    _places(admin, "file:checkpoints")
    admin.ok("backup", admin.files / "copy")
    admin.add()
    for file in admin.state.path.glob("ledger.sqlite*"):
        file.unlink()
    (admin.files / "copy").rename(admin.state.ledger)
    adopt_copy(admin.state.ledger)
    result = admin.run("checkpoint", "show", "--json")
    (place,) = json.loads(result.stdout)
    assert place["problems"]
    assert result.exit_code == 1


def test_tables_fit_the_terminal_that_they_are_on(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long reasons are shortened there, names and numbers are not; a pipe gets everything."""
    admin.add()
    reason = "because of the second year of the study, as it was said in its plan " * 2
    admin.ok("call-limit", "set", "heights", "--share", "1/4", "--reason", reason)
    assert reason.strip() in admin.ok("acts")
    monkeypatch.setattr("bursar_server.admin._shares.terminal_width", lambda: 80)
    lines = admin.ok("acts").splitlines()
    assert max(map(len, lines)) <= 80
    assert re.match(rf"{admin.verified.entries} +\d{{4}}-\d\d-\d\d \d\d:\d\d  ", lines[-1])
    assert lines[-1].endswith("...")


def test_a_token_ends_and_may_be_for_some_datasets_only(admin: Admin) -> None:
    """The list says until when and for what; nobody lives longer than the settings allow, and auditors see all."""
    admin.add("people")
    admin.state.config.write_text("[tokens]\ndays = 40\n")
    admin.ok("token", "issue", "--name", "ann", "--role", "analyst", "--days", "30", "--dataset", "people")
    admin.ok("token", "issue", "--name", "bob", "--role", "analyst")
    listed = {line.split()[0]: line.split()[1:] for line in admin.ok("token", "list").splitlines()}
    day = datetime.datetime.now(datetime.UTC).date()
    assert listed["ann"] == ["analyst", "live", str(day + datetime.timedelta(days=30)), "people"]
    assert listed["bob"] == ["analyst", "live", str(day + datetime.timedelta(days=40)), "all"]
    for wrong in (["--days", "41"], ["--days", "-1"], ["--dataset", "nobody"]):
        admin.refused("token", "issue", "--name", "eve", "--role", "analyst", *wrong)
    assert "reads the whole ledger" in admin.refused(
        "token", "issue", "--name", "eve", "--role", "auditor", "--dataset", "people"
    )
    assert "eve" not in admin.ok("token", "list")
