"""Every RPC under requests that were made up: nothing but documented statuses, exact debits, and no innards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar_ledger import verify
from bursar_server.access.auth import METHOD_ROLES, PUBLIC_METHODS
from tests.fuzz.calls import ALL, Fuzzed, Method, run
from tests.fuzz.server import in_its_own_process, in_this_process
from tests.fuzz.valid import VALID

_FEW, _MANY = 3, 40
"""Examples of a method in the quick suite and in the long one; `make fuzz` has thousands."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """A server in this process; when the tests are through, its ledger has to verify."""
    with in_this_process(tmp_path_factory.mktemp("fuzzed")) as running:
        yield Fuzzed(running)
        assert verify(running.prepared.state.ledger).ok


def test_no_method_is_left_out() -> None:
    """All methods of the contract, health, reflection and the table of roles are fuzzed, from a working request."""
    paths = {method.path for method in ALL}
    assert paths == set(VALID)
    other_version = {path for path in METHOD_ROLES if path.startswith("/grpc.reflection.v1.")}
    assert (METHOD_ROLES.keys() | PUBLIC_METHODS) - other_version <= paths


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_no_request_does_what_it_must_not(fuzzed: Fuzzed, method: Method) -> None:
    """Any request gets a documented status in plain words; a refusal changes nothing; a debit is what was previewed."""
    run(fuzzed, method, _FEW, seed=0)


@pytest.mark.slow
def test_a_server_process_withstands_a_minute_of_it(tmp_path: Path) -> None:
    """The same on a server as it is started normally; in the end it stops in order, and its ledger verifies."""
    with in_its_own_process(tmp_path) as running:
        fuzzed = Fuzzed(running)
        for method in ALL:
            run(fuzzed, method, _MANY, seed=0)
        assert sum(fuzzed.tally.debited.values()) > _MANY // 2
        assert fuzzed.tally.twins > _MANY // 2
    assert verify(running.prepared.state.ledger).ok
