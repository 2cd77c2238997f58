"""A ledger against its checkpoints: what an old copy, a forged chain and a rotated key look like from outside."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bursar_ledger import Ledger, LedgerUnavailableError, Role, adopt_copy, verify
from bursar_ledger.checkpoints import (
    Checkpoint,
    Comparison,
    FilePlace,
    NoteError,
    SigningKey,
    VerifierKey,
    check_place,
    checkpoint_of,
    compare,
    origin_of,
    sign,
    verifier_keys,
)

Forge = Callable[[Path, int, Callable[[dict[str, Any]], None]], None]
Tamper = Callable[..., None]


@dataclass
class Witnessed:
    """A ledger whose every checkpoint is kept.

    Attributes:
        path: the file.
        ledger: open on it.
        key: in force.
        notes: of every `note()`.
    """

    path: Path
    ledger: Ledger
    key: SigningKey
    notes: list[str] = field(default_factory=list)

    def grow(self, count: int = 1) -> None:
        """Append entries."""
        for _ in range(count):
            size = self.ledger.newest()[0]
            self.ledger.issue_credential(f"p{size}", Role.ANALYST, size.to_bytes(32), actor="owner", reason="")

    def note(self, key: SigningKey | None = None, **changes: Any) -> str:
        """Sign a checkpoint of now, and keep it."""
        self.notes.append(sign(replace(checkpoint_of(self.ledger), **changes), key or self.key))
        return self.notes[-1]

    def rotate(self, *, hand_over: bool = True) -> SigningKey:
        """Put another key in force; the old one signs the entry that names it."""
        old, self.key = self.key, SigningKey.create(self.key.name)
        self.ledger.set_checkpoint_key(str(self.key.verifier), actor="owner", reason="rotated")
        if hand_over:
            self.note(old)
        self.note()
        return old

    def compare(self, key: VerifierKey | None = None, notes: Sequence[str] | None = None) -> Comparison:
        """Compare with the newest key pinned, unless another is given."""
        return compare(self.path, self.notes if notes is None else notes, key or self.key.verifier, place="file:far")


@pytest.fixture
def witnessed(ledger: Ledger, path: Path) -> Witnessed:
    """A ledger of two entries, its key as the third, and a checkpoint."""
    made = Witnessed(path, ledger, SigningKey.create(origin_of(ledger.ledger_id)))
    ledger.set_checkpoint_key(str(made.key.verifier), actor="owner", reason="first")
    made.note()
    return made


def only(found: Comparison) -> str:
    """The one problem that was found."""
    assert len(found.problems) == 1, found.problems
    return found.problems[0]


def test_a_checkpoint_says_what_the_ledger_is(ledger: Ledger) -> None:
    """Number and hash of the newest entry, under the ledger's own id, with the time."""
    checkpoint = checkpoint_of(ledger)
    assert (checkpoint.origin, checkpoint.size, checkpoint.head) == (f"bursar/{ledger.ledger_id}", *ledger.newest())
    assert str(checkpoint.time).endswith("+00:00")


def test_a_ledger_that_only_grew_agrees(witnessed: Witnessed) -> None:
    """Up to its newest checkpoint; what came since is not witnessed yet, and that is no problem."""
    for _ in range(3):
        witnessed.grow(2)
        witnessed.note()
    witnessed.grow()
    assert witnessed.compare() == Comparison("file:far", (), notes=4, witnessed=9, entries=10)
    assert compare(witnessed.path, witnessed.notes).ok  # by the key that the chain names


def test_an_older_copy_is_noticed(witnessed: Witnessed, tmp_path: Path) -> None:
    """The file verifies, and the checkpoint beyond its end says what is missing."""
    witnessed.ledger.backup(tmp_path / "yesterday")
    witnessed.grow(4)
    witnessed.note()
    assert verify(tmp_path / "yesterday").ok
    found = compare(tmp_path / "yesterday", witnessed.notes, witnessed.key.verifier)
    assert "ends at entry 3" in only(found)
    assert "entries 4 to 7 were dropped, or an older copy" in only(found)
    assert found.witnessed == 3


def test_an_older_copy_that_went_on_is_noticed(witnessed: Witnessed, tmp_path: Path) -> None:
    """Another history of the same length: the message names the range in which it begins."""
    witnessed.grow(2)
    witnessed.note()
    witnessed.ledger.backup(tmp_path / "fork")
    witnessed.grow(4)
    witnessed.note()
    adopt_copy(tmp_path / "fork")
    with Ledger.open(tmp_path / "fork") as fork:
        for number in range(9):
            fork.issue_credential(f"q{number}", Role.ANALYST, bytes([9] * 31 + [number]), actor="owner", reason="")
    assert verify(tmp_path / "fork").ok
    found = compare(tmp_path / "fork", witnessed.notes, witnessed.key.verifier)
    assert "one of entries 6 to 9 is not what it was" in only(found)
    assert "up to entry 5 it agrees" in only(found)


def test_a_forged_entry_is_named_if_checkpoints_are_dense(witnessed: Witnessed, forge: Forge) -> None:
    """A checkpoint an entry leaves one candidate; the chain itself was hashed anew and verifies."""
    for _ in range(4):
        witnessed.grow()
        witnessed.note()
    witnessed.ledger.close()
    forge(witnessed.path, 6, lambda body: body.update(actor="nobody"))
    assert verify(witnessed.path).ok
    assert "entry 6 is not what it was for note 4" in only(witnessed.compare())


def test_a_history_that_never_agreed_says_so(witnessed: Witnessed, forge: Forge) -> None:
    """There is no checkpoint before to begin from."""
    witnessed.grow()
    witnessed.ledger.close()
    forge(witnessed.path, 2, lambda body: body.update(actor="nobody"))
    assert "one of entries 1 to 3" in only(witnessed.compare())
    assert "no checkpoint before agrees" in only(witnessed.compare())


def test_dropped_last_rows_are_noticed(witnessed: Witnessed, tamper: Tamper) -> None:
    """A chain without its newest entries verifies, so checkpoints have to tell."""
    witnessed.grow(3)
    witnessed.note()
    witnessed.ledger.close()
    tamper(witnessed.path, ("DELETE FROM entries WHERE number > ?", (5,)))
    assert verify(witnessed.path).ok
    assert "entry 6 was dropped" in only(witnessed.compare())


def test_a_place_that_became_empty_is_noticed(witnessed: Witnessed) -> None:
    """An unmounted disk or a deleted file; only a ledger with nothing behind its first key may have no checkpoint."""
    assert witnessed.compare(notes=()).ok
    witnessed.grow()
    assert "bursar-admin checkpoint write" in only(witnessed.compare(notes=()))


def test_a_ledger_that_never_had_a_key_has_no_checkpoints_to_compare(ledger: Ledger, path: Path) -> None:
    """The answer says so."""
    assert "there is no checkpoint" in only(compare(path, ()))
    key = SigningKey.create(origin_of(ledger.ledger_id))
    found = compare(path, [sign(checkpoint_of(ledger), key)], key.verifier)
    assert "it names none" in only(found)
    assert found.witnessed == 2
    assert "not signed by the expected key" in only(compare(path, [sign(checkpoint_of(ledger), key)]))


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda note: "scribble", "note 2: a note is a text"),
        (lambda note: note.replace("hash-chain", "hash-brain"), "note 2: the fourth line"),
        (
            lambda note: note.replace("\n3\n", "\n4\n"),
            "note 2: it says that it is of entry 4, but the signature does not",
        ),
        (lambda note: note.replace("\n3\n", "\n9000000000000000000\n"), "but the signature does not verify"),
        (lambda note: note.replace("bursar/", "bursar/f"), "note 2: it is a checkpoint of bursar/f"),
        (lambda note: note[:-9] + "AAAAAAA=\n", "note 2"),
    ],
)
def test_a_note_that_was_changed_is_noticed(witnessed: Witnessed, edit: Callable[[str], str], complaint: str) -> None:
    """Each is named by its number in the place."""
    changed = edit(witnessed.notes[0])
    assert changed != witnessed.notes[0]
    found = witnessed.compare(notes=[witnessed.notes[0], changed, witnessed.notes[0]])
    assert complaint in only(found)
    assert (found.notes, found.witnessed) == (3, 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_one_other_character_in_a_note_is_noticed(witnessed: Witnessed, data: st.DataObject) -> None:
    """Wherever it is."""
    note = witnessed.notes[0]
    place = data.draw(st.integers(0, len(note) - 1))
    character = data.draw(st.characters(exclude_characters=note[place]) | st.just(""))
    assert not witnessed.compare(notes=[note[:place] + character + note[place + 1 :]]).ok


def test_a_key_that_is_not_the_ledgers_is_not_believed(witnessed: Witnessed) -> None:
    """Neither the same name nor the right content makes it so."""
    witnessed.note(SigningKey.create(witnessed.key.name))
    assert "not signed by the expected key" in only(witnessed.compare())


def test_many_bad_notes_are_a_short_report(witnessed: Witnessed) -> None:
    """The first few, and how many more."""
    found = witnessed.compare(notes=["scribble"] * 50)
    assert len(found.problems) == 6
    assert "and 45 more" in found.problems[-1]


def test_old_notes_stay_good_after_a_rotation(witnessed: Witnessed) -> None:
    """The newest key's own checkpoint vouches for the entries that name the older ones."""
    for _ in range(3):
        witnessed.grow(2)
        witnessed.note()
        witnessed.rotate()
    assert witnessed.compare().ok
    assert [chain.until for chain in verifier_keys(witnessed.path)] == [6, 9, 12, None]
    assert [chain.entry for chain in verifier_keys(witnessed.path)] == [3, 6, 9, 12]


def test_whoever_pinned_an_old_key_can_follow_the_rotation(witnessed: Witnessed) -> None:
    """The old key's last note covers the entry that names the new one; without it the new key is not believed."""
    first = witnessed.key.verifier
    witnessed.rotate()
    witnessed.rotate()
    witnessed.grow()
    witnessed.note()
    assert witnessed.compare(first).ok
    witnessed.rotate(hand_over=False)
    found = witnessed.compare(first)
    assert "is signed by a key that no trusted checkpoint vouches for" in only(found)
    assert found.witnessed == 6


def test_an_old_key_is_not_good_for_what_came_after_it(witnessed: Witnessed) -> None:
    """A key that leaked and was replaced cannot sign on."""
    old = witnessed.rotate()
    witnessed.grow()
    witnessed.note(old)
    assert "is signed by a key that entry 4 had replaced" in only(witnessed.compare())


def test_a_forged_chain_cannot_bring_its_own_key(witnessed: Witnessed, tmp_path: Path, forge: Forge) -> None:
    """It names the forger's key before the pinned one, and all notes are the forger's: nothing vouches for them."""
    true_key = witnessed.rotate()
    forger = SigningKey.create(true_key.name)
    witnessed.ledger.close()
    forge(witnessed.path, 3, lambda body: body["details"].update(verifier_key=str(forger.verifier)))
    with Ledger.open(witnessed.path) as forged:
        head = forged.hash_at(3)
    note = sign(Checkpoint(true_key.name, 3, head or b""), forger)
    found = witnessed.compare(notes=[note])
    assert "no trusted checkpoint vouches" in only(found)
    assert found.witnessed == 0
    # With the true notes still there it is plain which entries are not theirs.
    text = "\n".join(witnessed.compare(notes=[*witnessed.notes, note]).problems)
    assert "one of entries 1 to 4 is not what it was" in text


def test_a_copy_from_before_a_rotation_is_noticed(witnessed: Witnessed, tmp_path: Path) -> None:
    """It does not name the pinned key, whose notes reach beyond its end."""
    witnessed.ledger.backup(tmp_path / "yesterday")
    witnessed.rotate()
    found = compare(tmp_path / "yesterday", witnessed.notes, witnessed.key.verifier)
    text = "\n".join(found.problems)
    assert f"does not name the key {witnessed.key.verifier}" in text
    assert "entry 4 was dropped" in text


def test_a_key_that_came_back_is_good_again(witnessed: Witnessed) -> None:
    """It counts from its second entry on."""
    first = witnessed.key
    witnessed.rotate()
    witnessed.ledger.set_checkpoint_key(str(first.verifier), actor="owner", reason="back")
    witnessed.grow()
    witnessed.note(first)
    assert witnessed.compare(first.verifier).ok


def test_an_entry_that_holds_no_key_is_named(witnessed: Witnessed) -> None:
    """Nothing can be compared by it."""
    witnessed.ledger.set_checkpoint_key("not a key", actor="owner", reason="")
    with pytest.raises(NoteError, match="entry 4 holds no verifier key"):
        witnessed.compare()


def test_a_place_is_read_and_compared(witnessed: Witnessed, tmp_path: Path) -> None:
    """Its name is in what is found; one that cannot be read is a problem and no error."""
    place = FilePlace("file:history", tmp_path / "history")
    place.create()
    place.write(witnessed.notes[0])
    assert check_place(witnessed.path, place, witnessed.key.verifier) == Comparison("file:history", (), 1, 3, 3)
    place.path.unlink()
    witnessed.grow()
    assert only(check_place(witnessed.path, place)).startswith("file:history: there is no checkpoint")
    place.path.mkdir()
    assert "file:history: Is a directory" in only(check_place(witnessed.path, place))


def test_a_file_that_is_no_ledger_is_an_error_of_the_ledger(tmp_path: Path, witnessed: Witnessed) -> None:
    """Missing, foreign or without entries."""
    foreign = tmp_path / "foreign"
    with pytest.raises(LedgerUnavailableError):
        compare(foreign, ())
    foreign.write_text("text")
    with pytest.raises(LedgerUnavailableError):
        compare(foreign, ())
    foreign.unlink()
    with closing(sqlite3.connect(foreign)) as db:
        db.execute("CREATE TABLE entries (number INTEGER, body TEXT, hash BLOB, kind TEXT)")
        db.commit()
        with pytest.raises(LedgerUnavailableError, match="no entries"):
            compare(foreign, ())
        db.execute("INSERT INTO entries VALUES (1, '{}', x'00', 'genesis')")
        db.commit()
        with pytest.raises(LedgerUnavailableError, match="cannot be read"):
            compare(foreign, ())


def test_a_comparison_leaves_the_file_alone(witnessed: Witnessed, tmp_path: Path) -> None:
    """Not a byte changes."""
    witnessed.ledger.close()
    shutil.copy(witnessed.path, tmp_path / "before")
    assert witnessed.compare().ok
    assert witnessed.path.read_bytes() == (tmp_path / "before").read_bytes()
