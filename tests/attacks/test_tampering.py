"""Attacks by whoever has the file: edits, cuts, copies and forgeries, through what an owner and an auditor run.

Each one is judged twice: `bursar-audit verify` must find it, and `bursar-server run` must refuse to serve. Both name
the entry or the place. A ledger that was rolled back, forked or written anew is consistent in itself (ElephantDP, Jin
et al. 2024): there, what catches it is a signed checkpoint that lies elsewhere, under a key that the auditor pinned.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bursar_ledger import Adjacency, Budget, DebitRequest, GaussianEvent, Ledger, Registration, mark_of, verify
from bursar_ledger.audit.cli import main as audit
from bursar_ledger.checkpoints import SigningKey, checkpoint_of, parse_place, sign
from bursar_server import log, process
from bursar_server.admin.cli import main as admin
from bursar_server.config import Config
from bursar_server.ops.checkpoints import key_file, write_checkpoint
from bursar_server.state import State
from tests.ledger.conftest import contents, forge, forge_mark, tamper

__all__ = ["contents", "forge", "tamper"]

ELSEWHERE = "elsewhere.notes"
UNREADABLE = 3
"""Exit status of `bursar-audit` for what is no ledger."""

TABLE = """
name = "people"
adjacency = "replace_one"
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
"""


def ask(request_id: str, scale: int, principal: str = "the-analyst") -> DebitRequest:
    """A request for one Gaussian release."""
    digest = hashlib.sha256(request_id.encode()).digest()
    return DebitRequest("people", principal, request_id, digest, "FitDPEM", (GaussianEvent(1, Fraction(scale)),))


@dataclass(frozen=True)
class Crime:
    """A state directory with a history, its checkpoints on another disk, and the key that the auditor pinned.

    Entries: 5 registration, 6 debit "a", 7 its release, 8 debit "b", 9 its release, 10 bob's allowance, 11 debit "c",
    12 a new total, 13 call limit, 14 debit "d", 15 its release, 16 debit "e", which has none.
    """

    folder: Path

    @property
    def state(self) -> State:
        """The scene."""
        return State(self.folder / "state")

    @property
    def ledger(self) -> Path:
        """The file."""
        return self.state.ledger

    @property
    def elsewhere(self) -> Path:
        """Return where the checkpoints are, beside those in the state directory."""
        return self.folder / ELSEWHERE

    def audited(self) -> tuple[int, str]:
        """Exit status and output of the auditor's command."""
        pinned = (self.folder / "pinned.vkey").as_posix()
        command = ["verify", str(self.ledger), "--key", pinned, "--checkpoints", f"file:{self.elsewhere}"]
        result = CliRunner().invoke(audit, command)
        return result.exit_code, result.output

    def served(self) -> str:
        """Return why the server does not start; empty if it serves."""
        try:
            process.serve(self.state.path, ready=_served, address="127.0.0.1:0")
        except process.StartError as error:
            return str(error)
        except _ServesError:
            return ""
        raise AssertionError("a server that serves says so")

    def sql(self, *statements: str) -> None:
        """Run statements on the file as its owner can."""
        with closing(sqlite3.connect(self.ledger, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    def overwrite(self, at: int, byte: int | None = None) -> None:
        """Flip a byte of the file, or set it."""
        image = bytearray(self.ledger.read_bytes())
        image[at] = image[at] ^ 0x01 if byte is None else byte
        self.ledger.write_bytes(image)


class _ServesError(Exception):
    """The server serves."""


def _served(address: str) -> None:
    raise _ServesError


def _admin(*arguments: object) -> None:
    result = CliRunner().invoke(admin, [*map(str, arguments)])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of `Crime`, to be copied; beside it the ledger as it was before the last two debits."""
    folder = tmp_path_factory.mktemp("scene")
    state = State(folder / "state")
    _admin("init", "--state", state.path)
    (folder / "table.toml").write_text(TABLE)
    (folder / "rows.csv").write_text("x\n" + "0.5\n" * 20)
    state.config.write_text(f'[checkpoints]\nplaces = ["file:checkpoints", "file:../{ELSEWHERE}"]\n')
    config = Config.load(state.config)
    with Ledger.open(state.ledger) as ledger:
        write_checkpoint(state, ledger, config, create=True)
    _admin("token", "issue", "--name", "the-analyst", "--role", "analyst", "--state", state.path)
    _admin(
        "import", "--state", state.path, "--manifest", folder / "table.toml", "--csv", folder / "rows.csv",
        "--epsilon", 1, "--delta", 1e-6,
    )  # fmt: skip
    with Ledger.open(state.ledger) as ledger:
        for name, content in (("a", b"model of a"), ("b", b"model of b")):
            ledger.store_release(ledger.debit(ask(name, 20)).entry, content)
        ledger.set_allowance("people", "bob", Fraction(1, 10), actor="owner", reason="test")
        ledger.debit(ask("c", 30, "bob"))
        ledger.set_budget("people", Budget(2.0, 1e-6), actor="owner", reason="test")
        ledger.set_call_limit("people", Fraction(1, 2), actor="owner", reason="test")
        ledger.backup(folder / "yesterday.sqlite")
        shutil.copy(state.path / "checkpoints", folder / "yesterday.notes")
        ledger.store_release(ledger.debit(ask("d", 20)).entry, b"model of d")
        ledger.debit(ask("e", 20))
        assert not write_checkpoint(state, ledger, config)
        assert [entry.kind for entry in ledger.entries(first=5)] == [
            *("registration", "debit", "release", "debit", "release", "allowance", "debit", "budget"),
            *("call_limit", "debit", "release", "debit"),
        ]
    (folder / "pinned.vkey").write_text(str(SigningKey.load(key_file(state)).verifier) + "\n")
    return folder


@pytest.fixture
def crime(scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crime]:
    """A copy of the scene for one attack."""
    monkeypatch.setattr(log, "set_up", lambda *_: None)  # else the log of the whole run of tests would change
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    shutil.copytree(scene, tmp_path / "scene")
    yield Crime(tmp_path / "scene")
    for number, handler in before.items():
        signal.signal(number, handler)


def caught(crime: Crime, words: str, *, status: int = 1) -> None:
    """Both judges find it, and say where."""
    code, output = crime.audited()
    assert (code, bool(re.search(words, output))) == (status, True), output
    refusal = crime.served()
    assert re.search(words, refusal), refusal


def test_an_honest_ledger_is_served_and_verified(crime: Crime) -> None:
    """Nothing was done: the auditor's command succeeds, and the server starts."""
    code, output = crime.audited()
    assert code == 0, output
    assert crime.served() == ""


# Edits of rows, by somebody who puts the triggers back word by word.


@pytest.mark.parametrize("entry", [1, 5, 6, 10, 12, 16])
def test_one_letter_of_a_body(crime: Crime, tamper: Any, entry: int) -> None:
    """One changed letter in an entry of any kind."""
    edit = 'UPDATE entries SET body = replace(body, \'"time":"2\', \'"time":"3\') WHERE number = ?'
    tamper(crime.ledger, (edit, (entry,)))
    caught(crime, f"entry {entry}: the body does not have the recorded hash")


def test_one_byte_of_a_hash(crime: Crime, tamper: Any) -> None:
    """A changed hash agrees neither with its body nor with the next entry."""
    tamper(crime.ledger, ("UPDATE entries SET hash = ? WHERE number = 8", (secrets.token_bytes(32),)))
    caught(crime, "entry 8: the body does not have the recorded hash")
    caught(crime, "entry 9: it does not follow from the entry before it")


def test_released_bytes(crime: Crime, tamper: Any) -> None:
    """Another model in the place of the one that was released."""
    tamper(crime.ledger, ("UPDATE releases SET content = ? WHERE debit = 6", (b"model of A",)))
    caught(crime, "entry 7: the bytes released under debit 6 are not those whose digest was recorded")


def test_two_releases_change_places(crime: Crime, tamper: Any) -> None:
    """Each debit has a model, and it is the other's."""
    swap = "UPDATE releases SET content = ? WHERE debit = ?"
    tamper(crime.ledger, (swap, (b"model of b", 6)), (swap, (b"model of a", 8)))
    caught(crime, "entry 7: the bytes released under debit 6 are not those")
    caught(crime, "entry 9: the bytes released under debit 8 are not those")


def test_a_release_is_removed(crime: Crime, tamper: Any) -> None:
    """Delete stored bytes, so that their request would run again on fresh noise."""
    tamper(crime.ledger, ("DELETE FROM releases WHERE debit = 6", ()))
    caught(crime, "entry 7: the bytes released under debit 6 are missing")


def test_a_row_from_the_middle(crime: Crime, tamper: Any) -> None:
    """A debit that never was."""
    tamper(crime.ledger, ("DELETE FROM entries WHERE number = 11", ()))
    caught(crime, "entry 12: expected entry 11 here; entries are missing")


def test_two_rows_change_places(crime: Crime, tamper: Any) -> None:
    """Numbers are exchanged, hashes are right."""
    moves = ((13, 99), (14, 13), (99, 14))
    tamper(crime.ledger, *[("UPDATE entries SET number = ? WHERE number = ?", (new, old)) for old, new in moves])
    caught(crime, "entry 13: the body says that it is entry 14")


def rechained(crime: Crime, bodies: list[dict[str, Any]]) -> list[tuple[int, str, bytes]]:
    """Rows with numbers and hashes anew: what a forger does who knows the format."""
    rows, previous = [], bytes(32)
    for number, fields in enumerate(bodies, 1):
        text = json.dumps(
            {**fields, "number": number, "previous": previous.hex()}, sort_keys=True, separators=(",", ":")
        )
        previous = hashlib.sha256(text.encode()).digest()
        rows.append((number, text, previous))
    return rows


def bodies_of(path: Path) -> list[dict[str, Any]]:
    """All bodies, decoded."""
    with closing(sqlite3.connect(path)) as db:
        return [json.loads(row[0]) for row in db.execute("SELECT body FROM entries ORDER BY number")]


def test_two_rows_change_places_in_a_chain_hashed_anew(crime: Crime, tamper: Any) -> None:
    """A debit before the limit that refused it: numbers, links and hashes are right, sums and limits are not."""
    bodies = bodies_of(crime.ledger)
    bodies[12], bodies[13] = bodies[13], bodies[12]
    tamper(crime.ledger, ("DELETE FROM entries", ()), *inserts(rechained(crime, bodies)))
    caught(crime, "entry 13: call_cost_units is [0-9]+, but the history gives None")


def inserts(rows: list[tuple[int, str, bytes]]) -> list[tuple[str, tuple[object, ...]]]:
    """Statements that write rows."""
    return [("INSERT INTO entries (number, body, hash) VALUES (?, ?, ?)", row) for row in rows]


def test_an_entry_is_replayed(crime: Crime, tamper: Any) -> None:
    """A debit is put at the end once more, as it is: it says which entry it was."""
    with closing(sqlite3.connect(crime.ledger)) as db:
        body, digest = db.execute("SELECT body, hash FROM entries WHERE number = 10").fetchone()
    tamper(crime.ledger, *inserts([(17, body, digest)]))
    caught(crime, "entry 17: the body says that it is entry 10")


def test_an_entry_is_replayed_in_a_chain_hashed_anew(crime: Crime, tamper: Any) -> None:
    """A release is taken for a second debit's: digest and bytes are right, the debit has one."""
    crime.sql("DROP INDEX one_release_a_debit")
    bodies = bodies_of(crime.ledger)
    tamper(crime.ledger, *inserts(rechained(crime, [*bodies, bodies[8]])[-1:]))
    caught(crime, "entry 17: entry 8 is not a debit of this dataset that waits for its release")
    caught(crime, "index one_release_a_debit is missing")


# Forgeries: the chain is hashed anew from the edit on.


def details(**changes: object) -> Callable[[dict[str, Any]], None]:
    """An edit of details."""
    return lambda fields: fields["details"].update(changes)


@pytest.mark.parametrize(
    ("entry", "edit", "words"),
    [
        (5, details(epsilon=30.0), "entry 5: account 'people': cap_cost_units is"),
        (5, details(cap_cost_units=2**60), "entry 5: account 'people': cap_cost_units is"),
        (12, details(epsilon=20.0), "entry 12: account 'people': cap_cost_units is"),
        (12, details(spent_cost_units=1), "entry 12: spent_cost_units is 1, but the history gives"),
        (10, details(share="1/1"), "entry 11: allowance_cost_units is [0-9]+, but the history gives"),
        (10, details(analyst="mallory"), "entry 11: allowance_cost_units is [0-9]+, but the history gives None"),
        (13, details(share=None), "entry 14: call_cost_units is [0-9]+, but the history gives None"),
        (6, details(cost_units=1), "entry 6: the debit is 1 units, but its events cost"),
        (8, lambda fields: fields.update(actor="bob"), "entry 8: analyst_spent_cost_units is"),
    ],
)
def test_a_forged_promise_limit_or_price(
    crime: Crime, forge: Any, entry: int, edit: Callable[[dict[str, Any]], None], words: str
) -> None:
    """Totals, allowances, limits and prices that were raised or lowered: caps and prices are computed again."""
    forge(crime.ledger, entry, edit)
    caught(crime, words)


def written_anew(crime: Crime, monkeypatch: pytest.MonkeyPatch, epsilon: float) -> None:
    """A history like the true one, made by the program itself, with a larger promise and fewer debits."""
    bodies = bodies_of(crime.ledger)
    identity, registration = bodies[0]["details"]["ledger_id"], bodies[4]["details"]
    crime.ledger.unlink()
    mark_of(crime.ledger).unlink()
    with monkeypatch.context() as forged:
        forged.setattr(secrets, "token_hex", lambda size: identity)
        with Ledger.create(crime.ledger, actor="owner") as ledger:
            for _ in range(2):
                ledger.set_checkpoint_key((crime.folder / "pinned.vkey").read_text().strip(), actor="owner", reason="")
            tag = bytes.fromhex(registration["content_tag"])
            manifest = registration["manifest"]
            made = Registration("people", Adjacency.REPLACE_ONE, Budget(epsilon, 1e-6), tag, manifest)
            ledger.register_dataset(made, actor="owner", reason="")
            for i in range(14):
                ledger.debit(ask(f"n{i}", 90))


def test_a_ledger_written_anew(crime: Crime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consistent from the first entry to the last, with the right name and key: only its checkpoints know better."""
    written_anew(crime, monkeypatch, 50.0)
    assert verify(crime.ledger).ok
    caught(crime, "history differs from what was signed: one of entries 1 to 3 is not what it was")


def test_the_last_rows_are_cut_off(crime: Crime, tamper: Any) -> None:
    """The newest debit goes: what is left is a right ledger, and the checkpoint is of a longer one."""
    tamper(crime.ledger, ("DELETE FROM entries WHERE number = 16", ()))
    assert verify(crime.ledger).ok
    caught(crime, "the ledger ends at entry 15, .*: entry 16 was dropped")


def test_the_last_rows_are_cut_off_and_their_bytes_stay(crime: Crime, tamper: Any) -> None:
    """The bytes of a release that goes with them stay behind, and no checkpoint is needed."""
    tamper(crime.ledger, ("DELETE FROM entries WHERE number >= 15", ()))
    caught(crime, "entry 14: released bytes are stored, but no release entry names them")


def put_back(crime: Crime) -> None:
    """Yesterday's copy in the place of the ledger, with a mark that fits it: else that alone would give it away."""
    shutil.copy(crime.folder / "yesterday.sqlite", crime.ledger)
    forge_mark(crime.ledger)


def test_yesterdays_copy_alone(crime: Crime) -> None:
    """An accident, or a thief who does not know the mark: it names an entry that the copy lacks."""
    shutil.copy(crime.folder / "yesterday.sqlite", crime.ledger)
    caught(crime, "ends at entry 13 .* its mark says that entry 16 .* was confirmed. Entries 14 to 16 are lost")


def test_yesterdays_copy(crime: Crime) -> None:
    """The oldest attack of all on a budget: put back the backup of before (ElephantDP, Jin et al. 2024)."""
    put_back(crime)
    assert verify(crime.ledger).ok
    caught(
        crime,
        "the ledger ends at entry 13, .*: entries 14 to 16 were dropped, or an older copy of the ledger was put back",
    )


def test_the_whole_directory_of_yesterday(crime: Crime) -> None:
    """Put back everything that the server has, its own checkpoints included: those on another disk did not go back."""
    put_back(crime)
    shutil.copy(crime.folder / "yesterday.notes", crime.state.path / "checkpoints")
    caught(crime, f"{ELSEWHERE}: the ledger ends at entry 13, .*: entries 14 to 16 were dropped, or an older copy")
    crime.state.config.write_text('[checkpoints]\nplaces = ["file:checkpoints"]\n')
    assert crime.served() == ""  # which is why they lie on another disk


def test_a_fork(crime: Crime) -> None:
    """Yesterday's copy lives on to the same length: one more history of one ledger (the fork of the same paper)."""
    put_back(crime)
    with Ledger.open(crime.ledger) as ledger:
        for i in range(4):
            ledger.debit(ask(f"other-{i}", 90))
    assert verify(crime.ledger).ok
    caught(crime, "history differs from what was signed: one of entries 6 to 16 is not what it was")


def test_the_newest_entry_is_forged(crime: Crime, forge: Any) -> None:
    """The chain cannot see a forged entry that no later one depends on; the checkpoint sees it."""
    forge(crime.ledger, 16, details(request_id="another"))
    assert verify(crime.ledger).ok
    caught(crime, "history differs from what was signed: one of entries 6 to 16 is not what it was")


# Checkpoints.


def test_a_checkpoint_under_another_key(crime: Crime) -> None:
    """Put yesterday's copy back and sign a checkpoint of it with a key of one's own."""
    put_back(crime)
    with Ledger.open(crime.ledger) as ledger:
        mallorys = SigningKey.create(f"bursar/{ledger.ledger_id}")
        note = sign(checkpoint_of(ledger), mallorys)
    for file in (crime.elsewhere, crime.state.path / "checkpoints"):
        file.unlink()
        place = parse_place(f"file:{file}", crime.folder)
        place.create()
        place.write(note)
    caught(crime, f"{ELSEWHERE}: note 1: it says that it is of entry 13, but it is not signed by the expected key")


def test_a_key_of_ones_own(crime: Crime, forge: Any) -> None:
    """Put one's own key into the chain and sign everything anew with it: the auditor pinned another.

    The server's own directory holds the true key, so that it refuses, too. Whoever has that key as well can sign what
    he likes; the older notes elsewhere, and what clients remember, are beyond him.
    """
    (number,) = [i for i, body in enumerate(bodies_of(crime.ledger), 1) if body["kind"] == "checkpoint_key"]
    with Ledger.open(crime.ledger) as ledger:
        mallorys = SigningKey.create(f"bursar/{ledger.ledger_id}")
    forge(crime.ledger, number, details(verifier_key=str(mallorys.verifier)))
    assert verify(crime.ledger).ok
    with Ledger.open(crime.ledger) as ledger:
        note = sign(checkpoint_of(ledger), mallorys)
    for file in (crime.elsewhere, crime.state.path / "checkpoints"):
        file.unlink()
        place = parse_place(f"file:{file}", crime.folder)
        place.create()
        place.write(note)
    code, output = crime.audited()
    assert (code, "the ledger does not name the key" in output) == (1, True), output
    assert "the key of entry 3 is not in" in crime.served()


def test_a_forged_signature(crime: Crime) -> None:
    """A note for the forged head with the true note's signature."""
    notes = crime.elsewhere.read_text()
    crime.elsewhere.write_text(notes.replace("\n16\n", "\n17\n"))
    caught(crime, f"{ELSEWHERE}: note 4: it says that it is of entry 17, but the signature does not verify")


def test_the_checkpoints_are_deleted(crime: Crime) -> None:
    """A place that is configured and empty is no place that agrees."""
    put_back(crime)
    crime.elsewhere.unlink()
    (crime.state.path / "checkpoints").unlink()
    caught(crime, f"{ELSEWHERE}: there is no checkpoint, but the ledger has 13 entries")


# Schema and file.


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TRIGGER debits_stay_within_the_cap", "trigger debits_stay_within_the_cap is missing"),
        ("DROP TRIGGER entries_never_change", "trigger entries_never_change is missing"),
        ("DROP INDEX one_debit_a_request", "index one_debit_a_request is missing"),
        ("CREATE TRIGGER spy AFTER INSERT ON entries BEGIN SELECT 1; END", "trigger spy does not belong"),
        ("CREATE TABLE side_door (x)", "table side_door does not belong"),
        ("CREATE VIEW nicer AS SELECT 1", "view nicer does not belong"),
    ],
)
def test_a_changed_schema(crime: Crime, statement: str, words: str) -> None:
    """Rules that are missing, and rules that are not ours."""
    crime.sql(statement)
    caught(crime, words)


def page_of(crime: Crime, name: str) -> tuple[int, bytes]:
    """Offset and bytes of the root page of a table or index."""
    with closing(sqlite3.connect(crime.ledger)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    at = (root - 1) * size
    return at, crime.ledger.read_bytes()[at : at + size]


def test_one_byte_of_an_index(crime: Crime) -> None:
    """An index that says something else than its table: the request is no longer found, and would be paid again."""
    at, page = page_of(crime, "one_debit_a_request")
    crime.overwrite(at + page.index(b"the-analyst"))
    caught(crime, "one_debit_a_request")


@pytest.mark.parametrize("name", ["entries", "releases", "one_debit_a_request"])
def test_one_byte_of_a_page_header(crime: Crime, name: str) -> None:
    """The kind of a page is changed: the file is damaged, and that is said."""
    at, _ = page_of(crime, name)
    crime.overwrite(at)
    code, output = crime.audited()
    assert code in (1, UNREADABLE), output
    assert re.search("malformed|damage|file|page", output), output
    assert re.search("malformed|damage|file|page", crime.served())


@pytest.mark.parametrize("keep", [0.9, 0.5, 0.1])
def test_a_truncated_file(crime: Crime, keep: float) -> None:
    """The end of the file is cut off."""
    image = crime.ledger.read_bytes()
    crime.ledger.write_bytes(image[: int(len(image) * keep)])
    code, output = crime.audited()
    assert code in (1, UNREADABLE), output
    assert crime.served()


def saying(path: Path) -> object:
    """All that a ledger file says: rows and schema."""
    with closing(sqlite3.connect(path)) as db:
        return [
            db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608  our own names
            for table in ("entries", "releases", "sqlite_master", "_sqlite_migrations")
        ]


@pytest.mark.slow
def test_no_byte_changes_what_a_ledger_says_unnoticed(crime: Crime) -> None:
    """Flip a bit here and there in the whole file: it is found, or what the ledger says is what it said before.

    The offsets go through the file in prime steps, so that over the years all kinds of places are met: headers, cells,
    indices, free space.
    """
    honest, image = saying(crime.ledger), crime.ledger.read_bytes()
    found = 0
    for at in range(17, len(image), 1009):
        crime.overwrite(at)
        if verify(crime.ledger).ok:
            assert saying(crime.ledger) == honest, f"byte {at}"
        else:
            found += 1
        crime.ledger.write_bytes(image)
    assert found > 10
