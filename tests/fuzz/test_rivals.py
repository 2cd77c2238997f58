"""The fuzzer finds what it is there for: servers and commands with one planted defect each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs.order import Order, Orders
from bursar_server.tables import Manifest
from bursar_server.wire import gate
from bursar_server.wire.fit_service import FitService
from tests.fuzz import files
from tests.fuzz.calls import ALL, Fuzzed, Method, run
from tests.fuzz.exploring import WrongError
from tests.fuzz.server import in_this_process

pytestmark = pytest.mark.slow

_ENOUGH = 80
"""Examples in which a defect is found."""
_DPEM: Method = next(method for method in ALL if method.name == "FitDPEM")

Patch = pytest.MonkeyPatch


def telling(patch: Patch) -> None:
    """Sends the text of an exception, as grpc does by itself."""
    patch.setattr(gate, "status_of", lambda error: (grpc.StatusCode.INVALID_ARGUMENT, f"Exception: {error!r}", ()))


def failing(patch: Patch) -> None:
    """Does not expect a request that is wrong."""
    patch.setattr(gate, "status_of", lambda error: (grpc.StatusCode.UNKNOWN, "something went wrong", ()))


def charging(patch: Patch) -> None:
    """Debits before it looks."""
    original = Orders.ask

    def ask(self: Orders, order: Order) -> Any:
        found = original(self, order)
        self._ledger.debit(found)
        raise InvalidFieldsError(("spend", "is too late"))

    patch.setattr(Orders, "ask", ask)


def cheapening(patch: Patch) -> None:
    """Previews less than it debits."""
    original = FitService.preview

    def preview(self: FitService, request: Any, context: Any) -> Any:
        answer = original(self, request, context)
        answer.price.cost_units -= 1
        return answer

    patch.setattr(FitService, "preview", preview)


def peeking(patch: Patch) -> None:
    """Refuses by what is in the rows."""
    original = Orders.order

    def order(self: Orders, method: str, principal: str, request: Any) -> Order:
        if request.dataset == "others":
            raise InvalidFieldsError(("columns", "two of the rows cannot be used"))
        return original(self, method, principal, request)

    patch.setattr(Orders, "order", order)


@pytest.mark.parametrize(
    ("rival", "words"),
    [
        (telling, "a refusal shows"),
        (failing, "UNKNOWN"),
        (charging, "the ledger moved"),
        (cheapening, "previewed"),
        (peeking, "told apart"),
    ],
)
def test_a_server_with_a_defect_is_found_out(
    tmp_path: Path, monkeypatch: Patch, rival: Callable[[Patch], None], words: str
) -> None:
    """It is found in the calls that the long test makes of a method."""
    rival(monkeypatch)
    with in_this_process(tmp_path) as running, pytest.raises(WrongError, match=words):
        run(Fuzzed(running), _DPEM, _ENOUGH, seed=0)


def bursting(patch: Patch) -> None:
    """Does not expect a manifest that is wrong."""

    def load(path: Path) -> Manifest:
        raise KeyError(path.name)

    patch.setattr(Manifest, "load", load)


def littering(patch: Patch) -> None:
    """Leaves half an import."""
    patch.setattr("bursar_server.tables._importing.shutil.rmtree", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("rival", "target", "words"), [(bursting, "manifest", "ended with"), (littering, "csv", "left something")]
)
def test_a_command_with_a_defect_is_found_out(
    tmp_path: Path, monkeypatch: Patch, rival: Callable[[Patch], None], target: str, words: str
) -> None:
    """It is found in the files that the long test makes."""
    desk = files.prepare(tmp_path)
    rival(monkeypatch)
    with pytest.raises(WrongError, match=words):
        files.run(desk, target, _ENOUGH, seed=0)
