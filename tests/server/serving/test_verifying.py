"""A long ledger is served after the check against its newest checkpoint, and verified as a whole beside the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bursar_ledger import (
    Ledger,
    LedgerError,
    LedgerUnavailableError,
    Witness,
    _witnessed,
    verify,
)
from bursar_ledger.checkpoints import FilePlace, SigningKey, checkpoint_of, sign
from bursar_server import log, process
from bursar_server.ops.checkpoints import (
    key_file,
    load_key,
    open_checkpoints,
    places_of,
    witness_of,
    write_checkpoint,
)
from bursar_server.ops.verification import Verifier
from bursar_server.state import State
from tests.server.serving.forging import CONFIG, debit, forged


@pytest.fixture
def long(state: State, monkeypatch: pytest.MonkeyPatch) -> State:
    """A state directory whose ledger counts as long, with checkpoints in two places."""
    monkeypatch.setattr(_witnessed, "SHORT", 5)
    with Ledger.open(state.ledger) as ledger:
        open_checkpoints(state, ledger, CONFIG)
        for number in range(4):
            debit(ledger, number)
        write_checkpoint(state, ledger, CONFIG, create=True)
        debit(ledger, 4)
    return state


class Heard(log.Events):
    """Events that are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[log.Event] = []

    def tell(self, event: log.Event) -> None:
        """Keep one."""
        self.told.append(event)

    @property
    def words(self) -> list[str]:
        """Their words."""
        return [event.word for event in self.told]


@pytest.fixture
def events() -> Heard:
    """Events of the test's verifier."""
    return Heard()


def served(state: State, events: log.Events, told: Callable[[], object] = bool) -> tuple[Ledger, Verifier]:
    """Open a ledger as a server does, and make its verifier."""
    witness = witness_of(state, CONFIG)
    ledger = process._verified(state, witness)
    key = open_checkpoints(state, ledger, CONFIG, witness)
    return ledger, Verifier(state, ledger, places_of(state, CONFIG), key.verifier, events=events).telling(told)


def waited(verifier: Verifier) -> None:
    """Wait for the end of a verification."""
    if verifier._thread is not None:
        verifier._thread.join()


def test_the_newest_checkpoint_of_any_place_is_the_witness(long: State, tmp_path: Path) -> None:
    """This directory's own key must have signed it; a damaged note, or another signer's, is no witness."""
    with Ledger.open(long.ledger) as ledger:
        newest = checkpoint_of(ledger)
        (first, second) = places_of(long, CONFIG)
        before = witness_of(long, CONFIG)
        assert before is not None
        assert before.size == newest.size - 2
        stranger = SigningKey.create(f"bursar/{ledger.ledger_id}")
        first.write("no note at all\n")
        second.write(sign(newest, stranger))
        assert witness_of(long, CONFIG) == before
        second.write(sign(newest, load_key(long)))
        assert witness_of(long, CONFIG) == Witness(newest.size, newest.head)
    key_file(long).rename(tmp_path / "key")
    assert witness_of(long, CONFIG) is None


@pytest.mark.slow
def test_a_long_ledger_is_served_at_once_and_verified_beside(long: State, events: Heard) -> None:
    """Health says so until it is done; a debit is taken meanwhile."""
    ledger, verifier = served(long, events)
    with ledger, verifier:
        assert not ledger.whole
        told = [verifier.problem]
        debit(ledger, 9)
        waited(verifier)
        told.append(verifier.problem)
        debit(ledger, 10)
    assert told == ["being verified", None]
    assert events.words == ["ledger_verified"]
    assert verify(long.ledger).ok


def test_a_short_ledger_is_verified_before(long: State, events: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is left to do beside the server."""
    monkeypatch.setattr(_witnessed, "SHORT", 10**6)
    ledger, verifier = served(long, events)
    with ledger, verifier:
        assert ledger.whole
        assert verifier.problem is None
        assert verifier._process is None
    assert events.words == []


def test_what_is_found_beside_the_server_ends_all_debits(long: State, events: Heard) -> None:
    """A price that was signed as it is: the server begins, and takes no debit from the finding on; nor the next one."""
    forged(long)
    told: list[str] = []
    ledger, verifier = served(long, events, lambda: told.append("look"))
    with ledger, verifier:
        waited(verifier)
        assert verifier.problem == "it does not verify"
        with pytest.raises(LedgerUnavailableError, match="does not verify"):
            debit(ledger, 9)
        with pytest.raises(LedgerUnavailableError, match="but its events cost"):
            ledger.check_files()
    assert told == ["look"]
    (found,) = events.told
    assert isinstance(found, log.LedgerDoesNotVerify)
    assert "but its events cost" in found.problems
    assert "but its events cost" in long.suspect.read_text()
    assert witness_of(long, CONFIG) is None
    with pytest.raises(LedgerError, match="nothing is served from it"):
        process._verified(long, witness_of(long, CONFIG))
    assert long.suspect.exists()


def test_a_whole_verification_ends_the_suspicion(long: State, events: Heard) -> None:
    """The ledger was put back from a good copy."""
    long.suspect.write_text("entry 5: ...")
    assert witness_of(long, CONFIG) is None
    ledger, _ = served(long, events)
    with ledger:
        assert ledger.whole
    assert not long.suspect.exists()
    assert witness_of(long, CONFIG) is not None


def test_a_checkpoint_that_disagrees_is_found_beside_the_server(long: State, events: Heard) -> None:
    """An older note than the witness, signed for another history: it is not compared at the start, and then it is."""
    first, _ = places_of(long, CONFIG)
    (newest,) = first.read()
    with Ledger.open(long.ledger) as ledger:
        other = checkpoint_of(ledger)
    older = sign(type(other)(other.origin, other.size - 6, bytes(32), other.extensions), load_key(long))
    assert isinstance(first, FilePlace)
    first.path.write_text(f"{older}\n{newest}\n")
    ledger, verifier = served(long, events)
    with ledger, verifier:
        waited(verifier)
        assert verifier.problem == "it does not verify"
    assert "history differs from what was signed" in long.suspect.read_text()
    assert events.words == ["ledger_does_not_verify"]


def test_a_place_that_is_away_meanwhile_says_nothing(long: State, events: Heard) -> None:
    """The writer of checkpoints reports it; the ledger is not suspected for it."""
    ledger, verifier = served(long, events)
    (_, second) = places_of(long, CONFIG)
    assert isinstance(second, FilePlace)
    second.path.unlink()
    second.path.mkdir()
    with ledger, verifier:
        waited(verifier)
        assert verifier.problem is None
    assert events.words == ["ledger_verified"]


def test_a_verification_that_is_killed_is_told_and_begun_again(long: State, events: Heard) -> None:
    """Health stays degraded; the end of the server itself is no news."""
    ledger, verifier = served(long, events)
    with ledger, verifier:
        assert verifier._process is not None
        verifier._process.kill()
        waited(verifier)
        assert "ended from outside" in str(verifier.problem)
    assert events.words == ["ledger_not_verified"]
    events.told.clear()
    ledger, verifier = served(long, events)
    with ledger, verifier:
        pass
    assert events.words == []
    assert not long.suspect.exists()
