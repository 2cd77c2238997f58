"""The three verdicts, causes instead of a list of findings, and what is still certain."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bursar_ledger import Ledger
from bursar_ledger.audit._checks import Findings, examine_file
from bursar_ledger.audit._verdict import Standing, causes, verdict
from bursar_ledger.checkpoints import FilePlace, SigningKey, checkpoint_of, origin_of, sign

Run = Callable[..., Result]


@pytest.fixture
def key(ledger: Ledger) -> SigningKey:
    """The ledger's signing key, named in its chain by entry 3."""
    made = SigningKey.create(origin_of(ledger.ledger_id))
    ledger.set_checkpoint_key(str(made.verifier), actor="owner", reason="test")
    return made


def _places(tmp_path: Path, *names: str) -> list[FilePlace]:
    made = [FilePlace(name, tmp_path / name) for name in names]
    for place in made:
        place.create()
    return made


def _grow(ledger: Ledger, times: int = 1) -> None:
    for i in range(times):
        ledger.set_allowance("people", "ann", Fraction(1, i + 2), actor="owner", reason="test")


def test_without_witnesses_a_ledger_is_consistent_at_most(ledger: Ledger, path: Path, key: SigningKey) -> None:
    """A pinned key alone witnesses nothing; all figures hold."""
    for pinned in (None, key.verifier):
        judged = verdict(examine_file(path, pinned, (), ask=False))
        assert (judged.standing, judged.text, judged.certain) == (Standing.CONSISTENT, "consistent", 3)
        assert judged.causes == ()
        assert judged.still_certain == ()


def test_witnessed_needs_checkpoints_and_the_pinned_key(
    ledger: Ledger, path: Path, key: SigningKey, tmp_path: Path
) -> None:
    """It names the entry, and counts the locations that reach it."""
    one, two, old = places = _places(tmp_path, "one", "two", "old")
    old.write(sign(checkpoint_of(ledger), key))
    _grow(ledger)
    for place in (one, two):
        place.write(sign(checkpoint_of(ledger), key))
    _grow(ledger)
    judged = verdict(examine_file(path, key.verifier, places, ask=False))
    assert judged.standing is Standing.WITNESSED
    assert judged.text == "consistent, and witnessed up to entry 4 by 2 locations with the pinned key"
    unpinned = verdict(examine_file(path, None, places, ask=False))
    assert unpinned.standing is Standing.CONSISTENT


def test_a_changed_body_and_missing_triggers_are_two_causes(run: Run, study: Path, ledger: Ledger, tamper: Any) -> None:
    """Not one line for each trigger; the figures of the entries before it are shown, and no others."""
    ledger.close()
    tamper(study, ("UPDATE entries SET body = replace(body, 'ann', 'eve') WHERE number = 7", ()))
    with closing(sqlite3.connect(study)) as db:
        triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.commit()
    found = examine_file(study, None, (), ask=False)
    judged = verdict(found)
    assert len(found.problems) > len(triggers) > 5
    assert [cause.text.partition(":")[0] for cause in judged.causes] == [
        "The first wrong entry is 7.",
        f"{len(found.problems) - len(triggers) - 1} findings up to entry 10 may follow from that",
        "The file lacks its own safeguards",
    ]
    assert judged.causes[0].findings == (
        "entry 7: the body does not have the recorded hash; one of the two was changed",
    )
    assert judged.certain == 6
    result = run("verify", study, "--no-second-opinion")
    assert result.stdout.startswith("verdict  not right\n")
    assert "Entries 1 to 6: each follows" in result.stdout
    assert "promised" not in result.stdout
    assert len(result.stderr.splitlines()) < 12
    spend = run("spend", study)
    assert spend.exit_code == 1
    assert "Only entries 1 to 6 are certain" in spend.stderr
    assert spend.stdout.splitlines()[1].split()[:4] == ["people", "(3,", "1e-06)", "0"]
    told = json.loads(run("verify", study, "--json").stdout)
    assert (told["verdict"], told["certain"], len(told["causes"])) == ("not right", 6, 3)
    assert len(told["problems"]) >= len(found.problems)


def test_what_no_witness_contradicts_is_certain(
    ledger: Ledger, path: Path, key: SigningKey, tmp_path: Path, forge: Any
) -> None:
    """A forger who hashes everything anew is consistent in himself: only what was signed before holds."""
    (place,) = _places(tmp_path, "place")
    _grow(ledger)
    place.write(sign(checkpoint_of(ledger), key))
    _grow(ledger, 3)
    place.write(sign(checkpoint_of(ledger), key))
    ledger.close()
    forge(path, 6, lambda fields: fields["details"].update(reason="another"))
    judged = verdict(examine_file(path, key.verifier, (place,), ask=False))
    assert (judged.standing, judged.certain) == (Standing.WRONG, 4)
    assert [cause.text for cause in judged.causes] == [
        "This is not the whole ledger, or not the one that was witnessed."
    ]
    assert "Entries 1 to 4 are also what was signed" in judged.still_certain[1]


def test_with_the_wrong_key_nothing_is_certain(ledger: Ledger, path: Path, key: SigningKey) -> None:
    """It may be another ledger."""
    other = SigningKey.create("bursar/other").verifier
    judged = verdict(examine_file(path, other, (), ask=False))
    assert (judged.standing, judged.certain) == (Standing.WRONG, 0)
    assert judged.still_certain[0].startswith("Nothing:")


def test_findings_of_one_kind_are_one_line() -> None:
    """Kinds are told apart by their words; what cannot be shown is counted."""
    many = [f"entry {n}: spent_cost_units is {n * n}, but the history gives {n}" for n in range(5, 50)]
    first, follow = causes(many)
    assert first.findings == (many[0],)
    assert follow.findings == (f"{many[1]} (and 43 more of this kind)",)
    assert "44 findings up to entry 49" in follow.text
    (kinds,) = causes([f"file: {word}" for word in "abcdefg"])
    assert kinds.findings[-1] == "and 2 findings of other kinds"
    (broken,) = causes(["after entry 16: the file cannot be read as a ledger: x"])
    assert broken.text == "The first wrong entry is 17."
    assert causes([]) == ()


def test_an_empty_file_has_no_certain_entries(tmp_path: Path, tamper: Any) -> None:
    """Not even the first."""
    path = tmp_path / "new.db"
    Ledger.create(path, actor="owner").close()
    tamper(path, ("DELETE FROM entries", ()))
    found: Findings = examine_file(path, None, (), ask=False)
    assert verdict(found).certain == 0
