"""The chaos run of `bench/chaos.py`, short; and that its bookkeeping sees what must not be."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.chaos import _BETWEEN, _FAULTS, POINTS, ChaosError, Findings, Home, Witness, blows, chaos
from bursar_ledger import Adjacency, Budget, DebitRequest, GaussianEvent, Ledger, Registration
from bursar_proto.v1 import fit_pb2, types_pb2


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_is_paid_twice_whenever_the_server_is_killed() -> None:
    """The server is killed under load, at twenty random instants and in all other ways."""
    findings = chaos(kills=20, seed=20, lanes=1)
    assert findings.ok, findings.public()
    struck = len(blows(20, random.Random(20)))
    # A server that serves changed rows is killed as well as the one before it.
    assert findings.kills.total() == struck + findings.kills["rows changed"] > struck > 20
    assert findings.requests == findings.debits == findings.releases > 20
    assert findings.replays >= findings.requests
    assert findings.unfinished["between debit and release"], "no fit was cut off; all that was asked for was easy"
    assert set(findings.refusals) >= {"another bursar-server", "put back"}
    assert findings.failed <= findings.fits_killed > 0


def test_the_kills_are_of_every_kind_and_as_many_as_asked_for() -> None:
    """Those at random instants are as many; every named point has its turn."""
    found = blows(300, random.Random(1))
    kinds = Counter(blow.kind for blow in found)
    assert set(kinds) == {"instant", "cold start", "named point", "parent of fits", *_FAULTS, *_BETWEEN}
    assert kinds["instant"] + kinds["cold start"] == 300
    assert {blow.point for blow in found if blow.kind == "named point"} == set(POINTS)
    assert all(blow.point is None for blow in found if blow.kind != "named point")


def test_a_command_of_the_owner_that_fails_ends_the_run(tmp_path: Path) -> None:
    """A home on a folder that is one already."""
    Home(tmp_path / "home")
    with pytest.raises((ChaosError, FileExistsError)):
        Home(tmp_path / "home")


def _answer(text: str) -> bytes:
    model = fit_pb2.GaussianMixtureModel(columns=[text])
    return fit_pb2.FitDPEMResponse(model=model).SerializeToString(deterministic=True)


def _receipt(entry: int) -> bytes:
    return fit_pb2.FitDPEMResponse(receipt=types_pb2.Receipt(entry=entry)).SerializeToString(deterministic=True)


class _Story:
    """A ledger and a witness, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.witness = Witness()
        self.ledger = Ledger.create(folder / "ledger.sqlite", actor="owner")
        people = Registration("people", Adjacency.REPLACE_ONE, Budget(3, 1e-6), b"t" * 32, {})
        self.ledger.register_dataset(people, actor="owner", reason="")
        (folder / "runs").write_bytes(b"xxx")

    def debit(self, request_id: str) -> int:
        """A debit, and the receipt that a client gets."""
        digest = hashlib.sha256(request_id.encode()).digest()
        events = (GaussianEvent(1, Fraction(30)),)
        entry = self.ledger.debit(DebitRequest("people", "ann", request_id, digest, "FitDPEM", events)).entry
        self.witness.saw(request_id, _receipt(entry))
        return entry

    def release(self, request_id: str, entry: int) -> None:
        """A stored release, and the answer that a client gets twice."""
        self.ledger.store_release(entry, _answer(request_id))
        for _ in range(2):
            self.witness.saw(request_id, _answer(request_id))

    def found(self, fits_killed: int = 0) -> Findings:
        """Return what the run would say of it."""
        self.ledger.close()
        lane: Any = SimpleNamespace(
            witness=self.witness,
            kills=Counter(instant=1),
            unfinished=Counter(),
            refusals=Counter(),
            fits_killed=fits_killed,
            home=SimpleNamespace(folder=self.folder, ledger=self.folder / "ledger.sqlite"),
        )
        findings = Findings()
        findings.add(lane)
        return findings


@pytest.fixture
def story(tmp_path: Path) -> Iterator[_Story]:
    """One request that went well."""
    made = _Story(tmp_path)
    made.release("well", made.debit("well"))
    yield made
    made.ledger.close()


def test_a_run_in_which_all_went_well_is_counted(story: _Story) -> None:
    """One request, one debit, one release, one replay."""
    found = story.found()
    assert found.ok
    counted = (found.requests, found.debits, found.releases, found.replays, found.runs, found.kills.total())
    assert counted == (1, 1, 1, 1, 3, 1)


def test_a_debit_without_an_answer_is_a_loss(story: _Story) -> None:
    """Paid for, and nothing stored."""
    story.debit("lost")
    assert story.found().losses == 1


def test_a_receipt_that_the_ledger_does_not_know_is_a_loss(story: _Story) -> None:
    """A client was told of a debit that is gone."""
    story.witness.saw("gone", _receipt(77))
    assert story.found().losses == 1


def test_an_answer_that_is_not_the_stored_one_is_a_loss(story: _Story) -> None:
    """Something else left than what is kept."""
    entry = story.debit("other")
    story.ledger.store_release(entry, _answer("kept"))
    story.witness.saw("other", _answer("sent"))
    assert story.found().losses == 1


def test_an_empty_release_is_a_loss(story: _Story) -> None:
    """The fit failed: the client paid and got no model."""
    story.ledger.store_release(story.debit("failed"), b"")
    assert story.found().losses == 1


def test_a_fit_whose_process_was_killed_has_failed_and_stays_so(story: _Story) -> None:
    """Its client paid, was told so in one text each time, and an empty release is stored."""
    story.ledger.store_release(story.debit("killed"), b"")
    for _ in range(3):
        story.witness.heard_of_failure("killed", "the server failed")
    found = story.found(fits_killed=1)
    assert found.ok, found.public()
    assert (found.requests, found.failed) == (2, 1)


def test_a_fit_that_failed_though_no_process_was_killed_fails_the_run(story: _Story) -> None:
    """The same without a kill."""
    story.ledger.store_release(story.debit("failed"), b"")
    story.witness.heard_of_failure("failed", "the server failed")
    assert story.found().problems


def test_a_fit_that_failed_and_is_to_be_run_again_is_a_loss(story: _Story) -> None:
    """Its client was told that it failed, and nothing is stored."""
    story.debit("told")
    story.witness.heard_of_failure("told", "the server failed")
    assert story.found(fits_killed=1).losses == 1


def test_a_fit_that_was_killed_before_it_read_is_answered_later(story: _Story) -> None:
    """Its client was told that it failed, asked again and has the model: nothing is lost, and nothing is a failure."""
    story.witness.heard_of_failure("well", "the server failed")
    found = story.found(fits_killed=1)
    assert found.ok
    assert (found.requests, found.failed) == (1, 0)


def test_a_failure_in_two_texts_fails_the_run(story: _Story) -> None:
    """The text of a failure must depend on nothing."""
    story.ledger.store_release(story.debit("killed"), b"")
    for text in ("the server failed", "out of memory"):
        story.witness.heard_of_failure("killed", text)
    assert story.found(fits_killed=1).problems


@pytest.mark.parametrize("message", [_answer("second"), _receipt(9)])
def test_two_answers_to_one_request_are_seen(story: _Story, message: bytes) -> None:
    """A second draw that left, or a second debit."""
    story.witness.saw("well", message)
    found = story.found()
    assert found.two_answers == 1
    assert not found.ok


def test_what_no_client_may_see_fails_the_run(story: _Story) -> None:
    """A complaint of the SDK that the ledger was rolled back is one."""
    story.witness.failures.append("HistoryError: ...")
    assert not story.found().ok


def test_a_ledger_that_does_not_verify_fails_the_run(story: _Story) -> None:
    """One byte of a release is another."""
    story.ledger.close()
    file = story.folder / "ledger.sqlite"
    content = file.read_bytes()
    assert content.count(_answer("well")) == 1
    file.write_bytes(content.replace(_answer("well"), _answer("ill!")))
    assert story.found().problems


@pytest.mark.parametrize("beyond", [1, 2])
def test_a_request_that_was_debited_twice_is_a_double_spend(
    story: _Story, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    """The ledger refuses to hold such a thing, so its answer is made up."""
    past = Ledger.releases
    monkeypatch.setattr(Ledger, "releases", lambda self: (*past(self), *past(self)[:1] * beyond))
    assert story.found().double_spends == beyond + 1  # and the sum is not that of the debits
