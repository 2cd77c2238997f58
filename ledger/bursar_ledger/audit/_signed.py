"""Signatures of reports: a signed note beside the file says which bytes, of which ledger, with which verdict.

The note has the form of signed checkpoints, so tools for signed notes verify it. Its text is no checkpoint: the second
line is not a size.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

from ..checkpoints import origin_of
from ..checkpoints.signed_notes import Note, NoteError, SigningKey, VerifierKey
from ._checks import Findings
from ._verdict import verdict

_FIRST = "bursar-report"
"""First line of the text: no ledger has this origin."""


def note_path(report: Path) -> Path:
    """Return the file of a report's signature."""
    return report.with_name(f"{report.name}.note")


def sign_report(report: Path, found: Findings, key: SigningKey, now: datetime) -> str:
    """Return the note about a report that was written.

    Raises:
        NoteError: the key is not one that the ledger names for its checkpoints.
    """
    checked = found.verification
    if str(key.verifier) not in [text for _, text in checked.verifier_keys]:
        raise NoteError(f"the ledger does not name the key of {key.name}; sign with the key of its checkpoints")
    lines = (
        _FIRST,
        f"file {report.name}",
        f"sha256 {_digest(report)}",
        f"ledger {origin_of(checked.ledger_id)}",
        f"size {checked.entries}",
        f"head {checked.head.hex()}",
        f"verdict {verdict(found).standing.value}",
        f"time {now.isoformat(timespec='seconds')}",
    )
    return key.note("".join(f"{line}\n" for line in lines))


def check_report(report: Path, note: str, key: VerifierKey) -> str:
    """Return the text of a report's note.

    Raises:
        NoteError: the key did not sign it, it is no note about a report, or the report is not the one that was signed.
    """
    parsed = Note.parse(note)
    parsed.signed_by([key])
    lines = parsed.text.splitlines()
    if lines[0] != _FIRST:
        raise NoteError("the note is not about a report")
    if f"sha256 {_digest(report)}" not in lines:
        raise NoteError(f"{report.name} is not the file that was signed: its SHA-256 is {_digest(report)}")
    return parsed.text


def _digest(report: Path) -> str:
    with report.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
