"""Signed notes: the text that other programs write and read, and nothing that is nearly it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar_ledger import LedgerError
from bursar_ledger.checkpoints import Checkpoint, NoteError, SigningKey, VerifierKey, open_note, sign
from bursar_ledger.checkpoints.signed_notes import CHAIN_LINE, Note

# The example of Go's package golang.org/x/mod/sumdb/note.
GO_VERIFIER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_SIGNER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
GO_SIGNATURE = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
GO_NOTE = f"{GO_TEXT}\n— PeterNeumann {GO_SIGNATURE}\n"
KEY = SigningKey("bursar/aa", bytes(range(32)))

names = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="+"), min_size=1, max_size=20)
lines = st.text(st.characters(exclude_categories=("C", "Zl", "Zp", "Zs")), min_size=1, max_size=20)
checkpoints = st.builds(
    Checkpoint,
    names,
    st.integers(1, 2**63 - 1),
    st.binary(min_size=32, max_size=32),
    st.lists(lines, max_size=3).map(tuple),
)
keys = st.builds(SigningKey, names, st.binary(min_size=32, max_size=32))


def test_keys_and_signatures_are_those_of_go() -> None:
    """Key id, texts of both keys and the signature equal what Go's package prints: Ed25519 has one signature a text."""
    signer, verifier = SigningKey.parse(GO_SIGNER), VerifierKey.parse(GO_VERIFIER)
    assert signer.verifier == verifier
    assert str(verifier) == GO_VERIFIER
    note = Note.parse(GO_NOTE)
    assert note.text == GO_TEXT
    assert note.signed_by([KEY.verifier, verifier]) == verifier
    assert signer.note(GO_TEXT) == GO_NOTE


def test_another_log_key_has_the_id_that_it_is_known_by() -> None:
    """The key of Go's checksum database."""
    text = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
    assert str(VerifierKey.parse(f" {text}\n")) == text


@given(checkpoints, keys)
def test_what_was_signed_comes_back(checkpoint: Checkpoint, key: SigningKey) -> None:
    """Any checkpoint under any key, and both keys through their texts."""
    assert open_note(sign(checkpoint, key), VerifierKey.parse(str(key.verifier))) == checkpoint


def test_the_lines_of_a_checkpoint_are_those_of_transparency_logs() -> None:
    """Origin, decimal size, base64 of the head, then what kind of head it is, and the time."""
    note = sign(Checkpoint("bursar/aa", 57, bytes(32), ("time 2026-11-21T13:30:00+00:00",)), KEY)
    text, _, signature = note.partition("\n\n")
    assert text.split("\n") == ["bursar/aa", "57", "A" * 43 + "=", CHAIN_LINE, "time 2026-11-21T13:30:00+00:00"]
    dash, name, value = signature.removesuffix("\n").split(" ")
    assert (dash, name) == ("—", "bursar/aa")
    assert base64.b64decode(value)[:4] == KEY.verifier.key_id
    assert len(base64.b64decode(value)) == 68


@given(checkpoints, st.data())
def test_a_note_with_one_other_character_does_not_open(checkpoint: Checkpoint, data: st.DataObject) -> None:
    """No change, loss or addition of a character passes."""
    note = sign(checkpoint, KEY)
    place = data.draw(st.integers(0, len(note) - 1))
    character = data.draw(st.characters(exclude_characters=note[place]) | st.just(""))
    kept = data.draw(st.booleans()) and character
    with pytest.raises(NoteError):
        open_note(note[:place] + character + note[place + (not kept) :], KEY.verifier)


@given(st.text() | st.text("ab\n— +=/A0").map(lambda text: f"bursar/aa\n1\n{text}"))
@example("\n\n")
@example("text\n\n— name \n")
@example("text\n\n— name AAAA\n")
@example("\ud800\n\n— name AAAAAAA=\n")
@example("\tx\n\n— name AAAAAAA=\n")
def test_any_other_text_is_refused_in_one_way(text: str) -> None:
    """NoteError, whatever it is: an error of the ledger, and none of a library."""
    for read in (lambda t: open_note(t, KEY.verifier), VerifierKey.parse, SigningKey.parse, Checkpoint.parse):
        with pytest.raises(NoteError):
            read(text)
    assert issubclass(NoteError, LedgerError)


def test_signatures_of_others_are_no_harm() -> None:
    """Witnesses add lines; a note opens by the key that is asked for, wherever its line is, whatever theirs are."""
    checkpoint = Checkpoint("bursar/aa", 1, bytes(32))
    note = sign(checkpoint, KEY)
    witness = SigningKey.create("witness.example")
    text, _, ours = note.rpartition("\n\n")
    theirs = sign(checkpoint, witness).rpartition("\n\n")[2]
    other_algorithm = f"— bursar/aa {base64.b64encode(b'abcd' + bytes(9)).decode()}\n"
    both = f"{text}\n\n{theirs}{other_algorithm}{ours}"
    assert open_note(both, KEY.verifier) == open_note(both, witness.verifier) == checkpoint


def _lines(*changes: tuple[int, str]) -> str:
    rows = Checkpoint("bursar/aa", 57, bytes(32)).text.split("\n")
    for index, row in changes:
        rows[index] = row
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bursar/aa\n57\n", "four lines"),
        (_lines((0, "")), "origin"),
        (_lines((1, "057")), "second line"),
        (_lines((1, "0")), "second line"),
        (_lines((1, "-1")), "second line"),
        (_lines((1, "٣")), "second line"),
        (_lines((1, "9" * 19)), "size"),
        (_lines((2, "AA")), "third line"),
        (_lines((2, "A" * 42 + "B=")), "third line"),
        (_lines((2, "AAAA")), "32 bytes"),
        (_lines((3, "merkle")), "fourth line"),
        (_lines((4, "\n")), "extension"),
    ],
)
def test_a_text_that_is_no_checkpoint_is_refused_by_line(text: str, complaint: str) -> None:
    """Even under a good signature; the message names what is wrong."""
    with pytest.raises(NoteError, match=complaint):
        Checkpoint.parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "complaint"),
    [
        (VerifierKey.parse, GO_VERIFIER.replace("c74f20a3", "c74f20a4"), "key id"),
        (VerifierKey.parse, GO_VERIFIER.replace("Peter", "Paul"), "key id"),
        (VerifierKey.parse, GO_VERIFIER[:-4], "31|bytes|key id"),
        (VerifierKey.parse, GO_VERIFIER.replace("+AR", "+BR"), "algorithm"),
        (VerifierKey.parse, GO_VERIFIER + "!", "base64"),
        (SigningKey.parse, GO_VERIFIER, "begins with"),
        (SigningKey.parse, GO_SIGNER.replace("c74f20a3", "c74f20a4"), "key id"),
        (SigningKey.parse, GO_SIGNER[:-4], "bytes"),
    ],
)
def test_keys_that_were_copied_badly_are_refused(parse: Callable[[str], object], text: str, complaint: str) -> None:
    """The message says which part is wrong, and holds no part of the key."""
    with pytest.raises(NoteError, match=complaint) as caught:
        parse(text)
    assert text[-20:] not in str(caught.value)


@pytest.mark.parametrize("name", ["", "two words", "a+b", "line\nbreak", "bell\a"])
def test_names_have_no_spaces_and_plus_signs(name: str) -> None:
    """They would make the texts ambiguous."""
    with pytest.raises(NoteError, match="name"):
        SigningKey.create(name)
    with pytest.raises(NoteError, match="name"):
        Checkpoint(name, 1, bytes(32))


@pytest.mark.parametrize("size", [0, -1, 2**63])
def test_sizes_are_entry_numbers(size: int) -> None:
    """Sizes go from 1 to what the ledger's file can count."""
    with pytest.raises(NoteError, match="size"):
        Checkpoint("bursar/aa", size, bytes(32))


def test_keys_have_their_length() -> None:
    """32 bytes each."""
    for make in (VerifierKey, SigningKey):
        with pytest.raises(NoteError, match="32 bytes"):
            make("bursar/aa", bytes(31))


def test_a_signature_of_another_length_does_not_verify() -> None:
    """It is refused as any wrong one is."""
    assert not KEY.verifier.accepts(b"text", b"short")


def test_a_note_has_a_largest_size() -> None:
    """A file of any size is not taken in as one note."""
    with pytest.raises(NoteError, match="at most"):
        Note.parse("a" * 1_000_001)


def test_a_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    """0600, never overwritten, never read when others may; and it does not show in a repr."""
    path = tmp_path / "checkpoint.key"
    key = SigningKey.create("bursar/aa")
    key.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path) == key
    assert repr(key.secret) not in repr(key)
    with pytest.raises(NoteError, match="never overwritten"):
        key.save(path)
    path.chmod(0o640)
    with pytest.raises(NoteError, match="0600"):
        SigningKey.load(path)


def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Missing, not text, or in a folder that is not there."""
    path = tmp_path / "checkpoint.key"
    with pytest.raises(NoteError, match=r"checkpoint\.key cannot be read: No such file"):
        SigningKey.load(path)
    path.write_bytes(b"\xff")
    path.chmod(0o600)
    with pytest.raises(NoteError, match="does not hold"):
        SigningKey.load(path)
    with pytest.raises(NoteError, match="cannot be written"):
        KEY.save(tmp_path / "missing" / "key")


def test_new_keys_differ() -> None:
    """They come from the system's randomness."""
    assert SigningKey.create("bursar/aa").secret != SigningKey.create("bursar/aa").secret
