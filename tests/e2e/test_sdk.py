"""The SDK against the real server process: what is left as a spend, limits, and a ledger that is rolled back."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import bursar
from bursar_ledger import Ledger, verify
from bursar_ledger.checkpoints import open_note, origin_of, verifier_keys
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc
from tests import asking

if TYPE_CHECKING:
    from tests.e2e.conftest import Home, Server

PATIENCE = 600.0
ASK: dict[str, Any] = {"n_components": 2, "spend": bursar.rho(0.002), "iterations": 2, "progress": False}
Connect = Callable[["Server"], bursar.Client]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Connects as an analyst whose programs share a file of what they saw."""
    clients: list[bursar.Client] = []

    def make(server: Server) -> bursar.Client:
        ca, token = server.home.state.tls / "ca.pem", server.home.tokens["analyst"]
        history = tmp_path / "history.json"
        clients.append(bursar.connect(server.address, token=token, ca=ca, timeout=PATIENCE, history=history))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def _debits(home: Home) -> int:
    with Ledger.open(home.state.ledger) as ledger:
        return len(ledger.releases())


@pytest.mark.slow
def test_an_old_copy_of_the_state_is_noticed_before_a_fit_is_sent(home: Home, connect: Connect) -> None:
    """Everything is put back, checkpoints included, so the server cannot know; new and old clients refuse to go on."""
    server = home.start()
    old = connect(server)
    people = old.dataset("people")
    asking.fit(people, bursar.DPEM, **ASK, request_id="monday")
    server.end(signal.SIGTERM)
    yesterday = home.state.path.with_name("yesterday")
    shutil.copytree(home.state.path, yesterday)

    server = home.start(server.address)
    receipt = asking.fit(people, bursar.DPEM, **ASK, request_id="tuesday").receipt
    assert receipt is not None
    server.end(signal.SIGKILL)
    shutil.rmtree(home.state.path)
    yesterday.rename(home.state.path)

    server = home.start(server.address)
    new = connect(server)
    for ask in (
        lambda: asking.fit(people, bursar.DPEM, **ASK, request_id="wednesday"),
        lambda: asking.fit(people, bursar.DPEM, **ASK, request_id="tuesday"),
        new.datasets,
    ):
        with pytest.raises(bursar.HistoryError, match="has lost") as caught:
            ask()
        assert caught.value.seen.size >= receipt.entry
        assert caught.value.found is not None
        assert caught.value.found.size < caught.value.seen.size
    server.end(signal.SIGTERM)
    assert _debits(home) == 1
    assert verify(home.state.ledger).ok


@pytest.mark.slow
def test_crashes_and_restarts_are_no_reason_to_complain(home: Home, connect: Connect) -> None:
    """A ledger that is only added to is the same one, whatever happens to the processes around it."""
    server = home.start()
    people = connect(server).dataset("people")
    models = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        models.append(asking.fit(people, bursar.DPEM, **ASK, request_id="once"))
        asking.fit(people, bursar.DPEM, **ASK, request_id=f"after-{len(models)}")
        server.end(number)
        server = home.start(server.address)
    assert connect(server).dataset("people").releases()[0].state is bursar.ReleaseState.RELEASED
    assert all(np.array_equal(model.means_, models[0].means_) for model in models)
    assert [model.receipt.replayed for model in models if model.receipt] == [False, True]
    server.end(signal.SIGTERM)
    assert _debits(home) == 1 + 2


@pytest.mark.slow
def test_what_was_bought_is_had_again_by_another_program(home: Home, connect: Connect) -> None:
    """A restarted server answers a client that sent no request; another analyst gets nothing."""
    server = home.start()
    people = connect(server).dataset("people")
    separated: dict[str, Any] = {"n_components": 3, "sigma_min": 0.05, "sigma_max": 1.0, "columns": ["x", "y"]}
    bought: list[Any] = [
        asking.fit(people, bursar.DPEM, **ASK),
        asking.fit(people, bursar.DPEM, **ASK, mode="kmeans"),
        people.fit(
            bursar.GradientEM(model="gaussian_mixture", n_components=2), spend=bursar.rho(0.002), progress=False
        ),
        asking.fit(people, bursar.SeparatedGMM, **separated, spend=bursar.rho(0.002), anyway=True, progress=False),
        people.fit(bursar.SketchKMeans(decoding="none", n_clusters=2), spend=bursar.rho(0.002), progress=False),
    ]
    left = people.remaining()
    server.end(signal.SIGKILL)
    server = home.start(server.address)
    other = connect(server)
    assert [one.entry for one in other.releases()] == [model.receipt.entry for model in bought]
    for model, summary in zip(bought, other.releases(), strict=True):
        again = other.model(summary)
        assert type(again) is type(model)
        assert again.receipt == model.receipt
        kept, fetched = model.to_dict(), again.to_dict()
        assert {**kept, "receipt": None} == {**fetched, "receipt": None}
    assert other.dataset("people").remaining() == left
    token = home.admin("token", "issue", "--name", "another", "--role", "analyst").strip()
    ca = home.state.tls / "ca.pem"
    with bursar.connect(server.address, token=token, ca=ca, timeout=PATIENCE, history=False) as stranger:
        for entry in (bought[0].receipt.entry, 1, 10**6):
            with pytest.raises(bursar.NotFoundError, match="this entry is no debit of yours"):
                stranger.model(entry)
    server.end(signal.SIGTERM)
    assert _debits(home) == len(bought)


@pytest.mark.slow
def test_a_state_directory_made_anew_is_another_server(home: Home, connect: Connect) -> None:
    """It has an authority of its own, so that whoever trusts it starts afresh, at the same address and path, too."""
    server = home.start()
    asking.fit(connect(server).dataset("people"), bursar.DPEM, **ASK)
    server.end(signal.SIGTERM)
    shutil.rmtree(home.state.path)
    home.admin("init")
    home.tokens["analyst"] = home.admin("token", "issue", "--name", "the-analyst", "--role", "analyst").strip()
    home.add_table("people")
    server = home.start(server.address)
    assert connect(server).dataset("people").available().share == 1.0


@pytest.mark.slow
def test_what_is_left_is_all_that_one_may_spend(home: Home, connect: Connect) -> None:
    """An allowance and then a maximum per request limit it: each time the preview's price, and then it is gone."""
    with Ledger.open(home.state.ledger) as ledger:
        ledger.set_allowance("people", "the-analyst", Fraction(1, 2), actor="test", reason="")
        ledger.set_call_limit("people", Fraction(1, 3), actor="test", reason="")
    server = home.start()
    people = connect(server).dataset("people")
    ask = {**ASK, "spend": bursar.what_is_left(), "iterations": None}
    spent = []
    for name in ("a third", "the rest"):
        request_id = name.replace(" ", "-")
        preview = asking.preview(people, bursar.DPEM, **{key: ask[key] for key in ("n_components", "spend")})
        first = asking.fit(people, bursar.DPEM, **ask, request_id=request_id)
        again = asking.fit(people, bursar.DPEM, **ask, request_id=request_id)
        assert first.receipt is not None
        assert first.receipt == again.receipt
        assert np.array_equal(first.means_, again.means_)
        assert first.receipt.price == preview.price
        spent.append(first.receipt.price.cost_units)
    cap = people.remaining().cap_cost_units
    assert spent[0] == pytest.approx(cap / 3, rel=1e-6)
    assert spent[1] == pytest.approx(cap / 6, rel=1e-6)
    assert sum(spent) <= cap // 2
    with pytest.raises(bursar.BudgetExhaustedError) as caught:
        asking.fit(people, bursar.DPEM, **ASK)
    assert caught.value.limit == "allowance"
    assert people.limits().dataset.share == pytest.approx(0.5, rel=1e-6)
    server.end(signal.SIGTERM)
    assert verify(home.state.ledger).ok


def test_the_history_comes_with_a_signed_note(shared: Server) -> None:
    """The note is by the key that the chain names, of this ledger, and not ahead of it."""
    with shared.channel() as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        answer = stub.GetHistory(catalog_pb2.GetHistoryRequest(), metadata=shared.bearer("auditor"))
    checkpoint = open_note(answer.checkpoint, verifier_keys(shared.home.state.ledger)[-1].key)
    assert checkpoint.origin == origin_of(answer.ledger_id)
    assert checkpoint.size <= answer.size
    with Ledger.open(shared.home.state.ledger) as ledger:
        assert ledger.hash_at(checkpoint.size) == checkpoint.head


def test_dummy_runs_of_every_fit_leave_the_ledger_as_it_was(shared: Server, connect: Connect) -> None:
    """The real code of the real server, on synthetic rows: models of the right kind, and not a byte in the ledger."""
    people = connect(shared).dataset("people")
    left = people.remaining()
    folder = shared.home.state.path
    ledger = [folder / "ledger.sqlite", folder / "ledger.sqlite-wal"]
    before = [file.read_bytes() for file in ledger if file.exists()]
    tried: dict[str, Any] = {"spend": bursar.rho(0.5), "rows": 2000, "seed": 1}
    mixture = people.dry_run(bursar.DPEM(n_components=2, iterations=2), **tried)
    sketch = people.dry_run(bursar.SketchKMeans(decoding="none", n_clusters=2, n_frequencies=40), **tried)
    line = people.dry_run(bursar.GradientEM(model="missing_covariates", target="y", iterations=3), **tried)
    found = people.dry_run(bursar.SeparatedGMM(n_components=2, sigma_min=0.1, sigma_max=1), **tried)
    again = people.dry_run(bursar.DPEM(n_components=2, iterations=2, start=mixture), spend=bursar.rho(0.5))
    decoded = people.dry_run(bursar.SketchKMeans(n_clusters=2, sketch=sketch))
    for made in (mixture, sketch, line, found, again, decoded):
        assert made.dummy_
        assert made.receipt is None
    assert (sketch.n_rows, again.n_rows) == (2000, 400)
    assert abs(line.coef_[0]) < 5  # columns are independent of each other
    assert [file.read_bytes() for file in ledger if file.exists()] == before
    assert people.remaining() == left


def test_suggestions_of_the_real_server(shared: Server, connect: Connect) -> None:
    """Every fit of this table has about the least amount: half of it no longer does."""
    people = connect(shared).dataset("people")
    left = people.remaining()
    for request, goal in (
        (bursar.DPEM(n_components=2, columns=["x"]), bursar.Target(mean_error=0.02)),
        (
            bursar.GradientEM(model="mixture_of_regressions", target="y", noise_std=0.5),
            bursar.Target(coef_error=0.05, relative_error=0.5),
        ),
        (bursar.SeparatedGMM(n_components=2, sigma_min=0.1, sigma_max=1), bursar.Target(covariance_error=0.5)),
        (bursar.SketchKMeans(n_clusters=2, n_frequencies=40, scale="schema"), bursar.Target(snr=50)),
        (bursar.DPEM(n_components=2, iterations=9), bursar.Target(noise={"em": 5})),
    ):
        found = people.suggest_spend(request, target=goal)
        assert goal.met(found.preview), request
        assert isinstance(found.spend, bursar.Rho)
        half = people.preview(request, spend=bursar.rho(found.spend.value / 2))
        assert not goal.met(half), request
        assert found.affordable == (found.preview.price.cost_units <= left.cost_units)
    epsilon = people.suggest_spend(
        bursar.DPEM(n_components=2), target=bursar.Target(mean_error=0.02), spend=bursar.pure(1)
    )
    assert isinstance(epsilon.spend, bursar.Pure)
    assert people.remaining() == left
