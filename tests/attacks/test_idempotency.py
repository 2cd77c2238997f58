"""Attacks by asking again: retries that pay twice, get fresh noise, or get what is somebody else's."""

from __future__ import annotations

import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bursar_ledger import DebitStatus, Ledger, RequestIdReusedError, verify
from tests.attacks.asking import FIT, PATIENCE, Make, analyst, call, raw
from tests.attacks.purses import Ask, Bursar, ForgetsTheCaller, FreshNoise, PaysTwice, Purse

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve

TENTH = Fraction(1, 10)


def answers_to_retries(purse: Purse) -> int:
    """Different answers that nine repetitions of one request get."""
    for _ in range(9):
        purse.ask(TENTH, request_id="mine")
    return len(purse.seen)


def test_a_retry_gets_the_same_noise(purse: Bursar) -> None:
    """Repeat a request until its noise averages out; every repetition gets the stored bytes for nothing.

    All peers pay twice but WFA (which recognises charges) and PySyft (which keeps outputs); none does both.
    """
    assert answers_to_retries(purse) == 1
    assert purse.spent == pytest.approx(0.1)


def test_rivals_average_or_pay_again() -> None:
    """The same attack: nine draws for one price, or one answer's worth for nine prices."""
    fresh, paying = FreshNoise(), PaysTwice()
    assert (answers_to_retries(fresh), float(fresh.spent)) == (9, 0.1)
    assert fresh.loss > fresh.spent
    assert answers_to_retries(paying) == 9
    assert float(paying.spent) == pytest.approx(0.9)


def test_a_retry_over_the_wire_gets_the_same_bytes(served: Harness, fit_request: Make) -> None:
    """The same against the server: thirty repetitions, whole and cut short, one debit and one draw."""
    models = set()
    for i in range(30):
        if i % 3:
            models.add(raw(served, fit_request())[-1])
        else:
            call(served, fit_request()).cancel()
    assert len(models) == 1
    assert served.fit.runs == served.entries("debit") == 1


def test_another_spelling_of_a_request_is_the_same_request(served: Harness, fit_request: Make) -> None:
    """Send the fields twice, or others before them: the bytes differ, the message does not, nor does the answer."""
    message = fit_request()
    head = raw(served, message)
    spelt = message.SerializeToString()
    other_first = fit_request(request_id="other", n_components=9).SerializeToString() + spelt
    for body in (spelt + spelt, other_first):
        method: Any = served.channel.unary_stream(FIT)
        assert list(method(body, metadata=served.bearer(), timeout=PATIENCE))[-1] == head[-1]
    assert served.entries("debit") == 1


def stolen(purse: Purse) -> bool:
    """Return whether mallory gets ann's answer by knowing the id of her request."""
    anns = purse.ask(TENTH, who="ann", request_id="hers")
    return purse.ask(TENTH, who="mallory", request_id="hers") == anns


def test_an_id_opens_its_owners_answers_only(purse: Bursar, served: Harness, fit_request: Make) -> None:
    """Guess or overhear a request_id: it names another request in another's hands, in the ledger and over the wire."""
    assert not stolen(purse)
    hers = raw(served, fit_request())
    mallorys = raw(served, fit_request(), analyst(served, "mallory"))
    assert mallorys[0] != hers[0]
    assert served.entries("debit") == served.fit.runs == 2


def test_the_rival_gives_answers_to_whoever_knows_the_id() -> None:
    """The same attack on a store of answers by id alone."""
    assert stolen(ForgetsTheCaller())


def test_an_id_cannot_buy_something_dearer(purse: Bursar) -> None:
    """Pay for a little under an id, then ask for much under the same one: another body, another request, refused."""
    purse.ask(TENTH, request_id="mine")
    spent = purse.spent
    with pytest.raises(RequestIdReusedError):
        purse.ask(9 * TENTH, request_id="mine")
    assert purse.spent == spent
    rival = ForgetsTheCaller()
    rival.ask(TENTH, request_id="mine")
    assert rival.ask(9 * TENTH, request_id="mine") is not None


VICTIM = """
import sys
from fractions import Fraction
from bursar_ledger import DebitRequest, GaussianEvent, Ledger

with Ledger.open(sys.argv[1]) as ledger:
    request = DebitRequest("people", "ann", "mine", bytes(32), "FitDPEM", (GaussianEvent(1, Fraction(9)),))
    print(ledger.debit(request).status.value, flush=True)
    sys.stdin.read()
"""


def killed(path: Path) -> str:
    """Return what a debit was to a process that was killed before it could store a release."""
    command = [sys.executable, "-c", VICTIM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        if victim.stdout is None:
            raise RuntimeError("no pipe")
        status = victim.stdout.readline().strip()
        victim.send_signal(signal.SIGKILL)
        victim.wait(600)
    return status


@pytest.mark.slow
def test_a_crash_leaves_nothing_stuck(purse: Bursar, ledger_path: Path) -> None:
    """Kill the server between debit and release, thrice: the request is neither paid twice nor blocked for ever.

    Seen in Lomas: `may_query` stays false after a crash, and jobs stay IN_PROGRESS.
    """
    assert [killed(ledger_path) for _ in range(3)] == ["new", "interrupted", "interrupted"]
    (debit,) = purse.ledger.releases()
    purse.ledger.store_release(debit.entry, b"model")
    assert killed(ledger_path) == "released"
    assert verify(ledger_path).ok


def test_a_release_is_never_exchanged(serve: Serve, served: Harness, fit_request: Make) -> None:
    """Restart the server between request and retry: the stored bytes come, and no fit runs."""
    before = raw(served, fit_request())
    again = serve()
    assert raw(again, fit_request())[-1] == before[-1]
    assert again.fit.runs == 0


def test_debits_outlive_ledgers_that_were_never_closed(purse: Bursar, ledger_path: Path) -> None:
    """Walk away from an open ledger and open another: the debit is there, and its request runs under it."""
    request = purse.request(Ask(TENTH, request_id="mine"))
    paid = purse.ledger.debit(request)
    with Ledger.open(ledger_path) as other:
        again = other.debit(request)
    assert (again.status, again.entry) == (DebitStatus.INTERRUPTED, paid.entry)
