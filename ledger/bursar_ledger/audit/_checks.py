"""Checks of a ledger file, all together: verification, the second opinion, signed checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .._verify import Verification, Verified, check, verify
from ..errors import LedgerError
from ._changes import Since, Visit, compare_visit
from ._open import UnreadableError, opened, rows, visible_name
from ._oracle import SecondOpinion, second_opinion

if TYPE_CHECKING:
    from ..checkpoints import Comparison, Place, VerifierKey


@dataclass(frozen=True)
class Findings:
    """Findings about a ledger."""

    verification: Verification
    opinion: SecondOpinion
    comparisons: tuple[Comparison, ...]
    key: VerifierKey | None
    since: Since | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for everything that is not right."""
        return (
            *self.verification.problems,
            *self.opinion.problems,
            *self.key_problems,
            *(problem for comparison in self.comparisons for problem in comparison.problems),
            *(self.since.problems if self.since is not None else ()),
        )

    @property
    def witnessed(self) -> int:
        """Number of the newest entry that a signed checkpoint vouches for; 0 if none does."""
        return max((comparison.witnessed for comparison in self.comparisons), default=0)

    @property
    def key_problems(self) -> tuple[str, ...]:
        """One line if the ledger does not name the pinned key; with places, the comparison says so."""
        named = [text for _, text in self.verification.verifier_keys]
        if self.key is None or self.comparisons or str(self.key) in named:
            return ()
        return (f"the ledger does not name the key {self.key}; it is another or an older ledger, or the wrong key",)


def verified(path: Path, known: Verified | None = None) -> Verification:
    """Verify a ledger file, with one process for each CPU, from what is known on.

    Raises:
        UnreadableError: it is no ledger that this version can read.
    """
    with opened(path):
        pass  # what is no ledger is told apart from a ledger that is not right
    return verify(path, processes=os.cpu_count() or 1, known=known)


def examine_file(
    path: Path,
    key: VerifierKey | None,
    places: Sequence[Place],
    *,
    ask: bool = True,
    visit: Visit | None = None,
    known: Verified | None = None,
    heard: SecondOpinion | None = None,
) -> Findings:
    """Verify a ledger file in every way; raises as `verified`.

    The verification goes on from `known`. `heard`, the second opinion on what is known, counts only if the file goes on
    from there.
    """
    found = verified(path, known)
    heard = heard if found.known else None
    with opened(path) as db:
        unheard = rows(db, first=1 if heard is None else found.known + 1, last=found.entries)
        opinion = second_opinion(unheard, heard) if ask else SecondOpinion(None)
    since = None if visit is None else compare_visit(path, visit)
    return Findings(found, opinion, compared(path, key, places), key, since)


def chain_of(path: Path) -> Verification:
    """Verify schema, chain, sums and caps of a ledger file; prices are not computed again."""
    with opened(path) as db:
        return check(db, reprice=False, processes=os.cpu_count() or 1)


def compared(path: Path, key: VerifierKey | None, places: Sequence[Place]) -> tuple[Comparison, ...]:
    """Compare each place's notes with the ledger."""
    if not places:
        return ()
    with _cryptography():
        from ..checkpoints import check_place
    found = []
    for place in places:
        try:
            found.append(check_place(path, place, key))
        except LedgerError as error:
            found.append(_failed(place.name, error))
    return tuple(found)


def compared_files(path: Path, key: VerifierKey | None, files: Sequence[Path]) -> tuple[Comparison, ...]:
    """Compare the notes of each file (one, or a whole history of them) with the ledger."""
    with _cryptography():
        from ..checkpoints import FilePlace, compare
    found = []
    for file in files:
        try:
            alone = file.read_text("utf-8", "replace")
            # A note that was saved by itself ends where a history has an empty line.
            notes = FilePlace(str(file), file).read() or (alone,)
            found.append(compare(path, notes, key, place=str(file)))
        except OSError as error:
            raise UnreadableError(f"{visible_name(file)} cannot be read: {error.strerror}") from error
        except LedgerError as error:
            found.append(_failed(str(file), error))
    return tuple(found)


def read_key(text: str) -> VerifierKey:
    """Return the verifier key that a text is, or that a file of this name holds.

    Raises:
        click.BadParameter: neither.
    """
    with _cryptography():
        from ..checkpoints import VerifierKey
    try:
        path = Path(text)
        # A key has base64 in it and can be too long for a file's name.
        is_file = len(text) < 1000 and path.is_file()
        return VerifierKey.parse(path.read_text("utf-8") if is_file else text)
    except (LedgerError, OSError, ValueError) as error:
        raise click.BadParameter(
            f"expected a verifier key (name+key id+key) or a file that holds one: {error}"
        ) from error


def read_place(text: str) -> Place:
    """Return the place that a text names; a plain path is that of a history file, or of a git folder.

    Raises:
        click.BadParameter: it names none that can be read.
    """
    with _cryptography():
        from ..checkpoints import parse_place
    path = Path(text)
    if len(text) < 1000 and path.exists():
        text = f"git:{text}" if path.is_dir() else f"file:{text}"
    try:
        place = parse_place(text, Path.cwd())
    except ValueError as error:
        raise click.BadParameter(f"{error}; or the path of a history file or git folder that is there") from error
    if not place.readable:
        raise click.BadParameter(f"{place.name} cannot be read again; give a file of what was printed there")
    return place


def _failed(place: str, error: LedgerError) -> Comparison:
    from ..checkpoints import Comparison

    return Comparison(place, (f"{place}: {error}",), 0, 0, 0)


@contextlib.contextmanager
def _cryptography() -> Iterator[None]:
    """Explain a missing library, around imports that only some commands need."""
    try:
        yield
    except ImportError as error:
        raise click.UsageError("keys and checkpoints need cryptography: pip install './bursar[audit]'") from error
