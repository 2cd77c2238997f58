"""Attacks by being, or calling things, something else: colluding analysts, renamed tables, calendars, made-up names."""

from __future__ import annotations

import inspect
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, tzinfo
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import (
    AccountConflictError,
    Adjacency,
    Budget,
    ConcentratedEvent,
    DatasetExistsError,
    DebitRequest,
    Ledger,
    Registration,
    Role,
    cost_units,
    verify,
)
from bursar_proto.v1 import types_pb2
from bursar_server.access import auth
from bursar_server.admin import _tables
from bursar_server.tables import CsvSource, Fingerprint, Keys, Manifest
from bursar_server.tables import _importing as importing
from bursar_server.tables.catalogue import Registered
from bursar_server.tables.registration import register as import_table
from bursar_server.wire.gate import Gate
from tests.attacks.asking import Make, analyst, call
from tests.attacks.conftest import BUDGET, register
from tests.attacks.equality import (
    COMMANDS,
    PEOPLE,
    TOTAL,
    ByList,
    ByName,
    Clipped,
    World,
    differences,
    joining_by_itself,
    noting_refusals,
    renewed,
    unlike,
)
from tests.attacks.purses import Ask, Bursar, PerAnalyst, PerName, Purse, Refreshed, Rival, Suicidal

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal, Serve

Refused = Callable[[Callable[[], object]], "Refusal"]
MOST = Fraction(9, 10)
LIST = "/bursar.v1.CatalogService/ListDatasets"
WRONG = "Bearer bursar_analyst_" + "x" * 43


def collusion(purse: Purse) -> Fraction:
    """Return what five analysts learn together who ask for nine tenths each."""
    for i in range(5):
        purse.ask(MOST, who=f"analyst-{i}")
    return purse.loss


def test_analysts_together_learn_no_more_than_one(purse: Bursar) -> None:
    """Register five accounts and share what each of them gets (Lomas has budgets for users, Snowflake for accounts)."""
    assert collusion(purse) <= 1


def test_the_rivals_analysts_learn_five_times_as_much() -> None:
    """The same attack on budgets for each analyst."""
    assert collusion(PerAnalyst()) > 4


def test_new_tokens_and_new_names_have_no_new_budget(served: Harness, fit_request: Make, refused: Refused) -> None:
    """Revoke, issue again, under the same name and others: one sum (Lomas: a file says what its users have spent)."""
    spend = types_pb2.Spend(rho=0.02)
    list(call(served, fit_request(spend=spend)))
    served.ledger.revoke_credential("the-analyst", actor="test", reason="")
    for name in ("the-analyst", "somebody-else"):
        bearer = analyst(served, name)
        refusal = refused(lambda b=bearer: list(call(served, fit_request(spend=spend, request_id="r2"), b)))  # type: ignore[misc]
        assert refusal.reason == "BUDGET_EXHAUSTED"


def two_years(purse: Purse, later: Callable[[float], object]) -> Fraction:
    """Return what is learnt by somebody who comes back every forty days for two years."""
    for day in range(0, 730, 40):
        later(day * 86_400.0)
        purse.ask(MOST)
    return purse.loss


def test_the_rival_refreshes_for_those_who_wait() -> None:
    """A window of thirty days hands out the whole promise again, eighteen times."""
    now = [0.0]
    assert two_years(Refreshed(clock=lambda: now[0]), lambda t: now.__setitem__(0, t)) > 10


class _Clock(datetime):
    """Time of day for the ledger's modules."""

    seconds = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Some days after the year 2000."""
        return datetime(2000, 1, 1, tzinfo=tz) + timedelta(seconds=cls.seconds)


def turn_clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], object]:
    """Every module of the ledger that has a clock gets ours, which goes as the test says."""
    modules = [module for name, module in sys.modules.items() if name.startswith("bursar_ledger")]
    clocked = [module for module in modules if getattr(module, "datetime", None) is datetime]
    for module in clocked:
        monkeypatch.setattr(module, "datetime", _Clock)
    assert clocked
    return lambda seconds: setattr(_Clock, "seconds", seconds)


def test_no_budget_comes_back_with_time(purse: Bursar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for two years, and set the clock back afterwards: what is spent stays spent, and entries keep their order.

    Snowflake, AWS Clean Rooms and Jeddak-DPSQL refresh budgets by the calendar, the last one by default.
    """
    clock = turn_clocks(monkeypatch)
    assert two_years(purse, clock) <= 1
    clock(-1e9)
    assert purse.ask(Fraction(1, 2)) is None
    assert purse.ask(Fraction(1, 100)) is not None
    years = [record.time[:4] for record in purse.ledger.releases()]
    assert years[0] == "2000" > years[-1]


def refused_forever(purse: Purse) -> bool:
    """Return whether one request beyond everything leaves nothing for the others."""
    purse.ask(2)
    return purse.ask(Fraction(1, 2), who="honest") is None


def test_a_refusal_takes_nothing_from_others(purse: Bursar) -> None:
    """Ask for more than there is, to spoil what is left for everybody else (OpenDP: the filter is dead afterwards)."""
    head = purse.ledger.head()
    purse.ask(2)
    assert purse.ledger.head() == head
    assert not refused_forever(purse)


def test_the_rivals_filter_dies_of_a_refusal() -> None:
    """The same attack on a filter that does not survive it."""
    assert refused_forever(Suicidal())


CLAIMS = ("user-name", "x-user", "x-forwarded-user", "grpc-user", "principal", "x-goog-authenticated-user-email")


@pytest.mark.parametrize("header", CLAIMS)
def test_nobody_is_who_a_header_says(served: Harness, fit_request: Make, header: str) -> None:
    """Claim to be somebody in metadata, without a token and beside one (Lomas v0.4.1 believes `user-name`)."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call(served, fit_request(), ((header, "the-admin"),)))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    list(call(served, fit_request(), (*served.bearer(), (header, "the-admin"))))
    assert [record.principal for record in served.ledger.releases()] == ["the-analyst"]


@pytest.mark.parametrize("token", ["changethis", "admin", "info@openmined.org:changethis", "bursar_admin_" + "0" * 43])
def test_no_password_is_known_beforehand(served: Harness, fit_request: Make, token: str) -> None:
    """Try what servers are shipped with (PySyft: changethis; Lomas: a shared bootstrap secret)."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call(served, fit_request(), (("authorization", f"Bearer {token}"),)))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert served.entries("debit") == 0


def learnt_under_new_names(purse: Purse, rename: Callable[[str], object]) -> Fraction:
    """Return what four names of the same rows give together, asked for nine tenths each."""
    purse.ask(MOST)
    for name in ("people-2", "new people", "people (final)"):
        rename(name)
        purse.ask(MOST, dataset=name)
    return purse.loss


def test_the_same_rows_under_another_name_are_the_same_people(purse: Bursar) -> None:
    """Register the table again under other names: the sum goes on (how rows are recognised: below).

    Seen in BigQuery (a new view), Lomas (`add_users_via_yaml` writes what was spent) and Jeddak-DPSQL (by table name).
    """
    assert learnt_under_new_names(purse, lambda name: register(purse.ledger, name, same_people_as="people")) <= 1
    assert {state.account for state in purse.ledger.datasets()} == {"people"}


def test_the_rivals_names_have_budgets_of_their_own() -> None:
    """The same attack where the name is the budget: almost four times the promise."""
    assert learnt_under_new_names(PerName(), lambda name: None) > 3


def test_a_joining_table_brings_no_promise_of_its_own(purse: Bursar) -> None:
    """Register rows of the same people with a larger total: refused, the account has its total."""
    larger = Registration("again", Adjacency.REPLACE_ONE, Budget(50.0, 1e-6), b"tag", same_people_as="people")
    with pytest.raises(AccountConflictError):
        purse.ledger.register_dataset(larger, actor="owner", reason="")


def test_shuffled_rows_in_another_file_are_recognised(served: Harness, tmp_path: Path) -> None:
    """The same attack on the import: rows in another order under another name, refused without a word of the owner.

    Other disguises, and what clients see of it: below.
    """
    rows = [f"{1 + i / 40},here\n" for i in range(40)]  # the table of the fixture
    (tmp_path / "t.csv").write_text("height,town\n" + "".join(reversed(rows)))
    manifest = Manifest.from_public(Registered.of(served.ledger.dataset("people").manifest).fields["schema"])
    renamed, source = manifest.model_copy(update={"name": "others"}), CsvSource(tmp_path / "t.csv")
    who: dict[str, Any] = {"actor": "owner", "reason": ""}
    with pytest.raises(AccountConflictError, match="these rows are known: 'people'"):
        import_table(served.state, served.ledger, renamed, source, BUDGET, **who)
    import_table(served.state, served.ledger, renamed, source, None, same_people_as="people", **who)
    assert served.ledger.dataset("others").account == "people"


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """Makes worlds that differ in nothing yet."""
    made: list[World] = []

    def make(**fields: Any) -> World:
        made.append(World(tmp_path / f"world {len(made)}", **fields))
        return made[-1]

    return make


@pytest.mark.parametrize("adjacency", ["add_remove_one", "replace_one"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_client_sees_whether_two_tables_are_equal(world: Callable[..., World], command: str, adjacency: str) -> None:
    """Catalogue, previews, what is left, releases, every entry: the administrator's words decide, not the rows.

    Found here once: a new name joined the account of equal rows by itself, and analysts saw it by what was left; tags
    of two snapshots were equal if and only if no row had changed, and went to auditors.
    """
    assert differences(world, *COMMANDS[command], adjacency=adjacency) == []


def test_a_refusal_is_seen_by_the_administrator_alone(world: Callable[..., World]) -> None:
    """Import and snapshot of known rows, as often as one likes: no entry, no list, no file that stays."""
    each = world()
    each.given("import", "second", PEOPLE[:9], *TOTAL)
    head = verify(each.state.ledger).head
    before, files = each.view(), {path: path.stat().st_size for path in each.state.path.rglob("*") if path.is_file()}
    assert not each.given("import", "third", PEOPLE, *TOTAL)
    assert not each.given("import", "third", PEOPLE, "--same-people-as", "second")
    assert not each.given("snapshot", "second", PEOPLE, "--yes")
    assert verify(each.state.ledger).head == head
    assert unlike(before, each.view()) == []
    after = {path: path.stat().st_size for path in each.state.path.rglob("*") if path.is_file()}
    assert {path for path in {*files, *after} if files.get(path) != after.get(path)} <= {each.state.ledger}


def test_the_same_people_get_no_second_budget_in_any_guise(world: Callable[..., World]) -> None:
    """Names and order of columns, categories and rows, text, bounds and caps are no disguise.

    Found here once: columns counted in the order of their names, and categories in the order of the manifest, so x
    renamed to `a` got a new budget, and to `xx` did not.
    """
    assert renewed(world()) == []


def test_the_rival_that_joins_by_itself_tells(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """One command for equal and unequal rows: what is left of the second table is the answer."""
    monkeypatch.setattr(_tables, "register", joining_by_itself)
    told = differences(world, "import", "second", *TOTAL)
    assert {"catalogue", "GetDataset second", "preview of 0.0195 from second"} <= set(told)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_rival_without_salts_tells(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """One secret for all snapshots: two tags are equal if and only if the tables are."""
    monkeypatch.setattr(Keys, "draw", lambda: Keys(bytes(32)))
    assert any(question.startswith("entry") for question in differences(world, *COMMANDS[command]))


def test_the_rival_that_notes_refusals_tells(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry more is enough."""
    monkeypatch.setattr(_tables, "register", noting_refusals)
    each = world()
    before = each.view()
    assert not each.given("import", "second", PEOPLE, *TOTAL)
    assert unlike(before, each.view()) != []


@pytest.mark.parametrize(
    ("rival", "guises"),
    [
        (ByName, {"a column of another name"}),
        (ByList, {"categories in another order", "categories of other names"}),
        (Clipped, {"other bounds"}),
    ],
)
def test_the_rivals_that_look_at_names_and_order_renew_budgets(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, rival: type[Fingerprint], guises: set[str]
) -> None:
    """The same people have two accounts, and analysts twice the promise."""
    monkeypatch.setattr(importing, "Fingerprint", rival)
    assert guises <= set(renewed(world()))


def test_retiring_and_registering_again_resets_nothing(purse: Bursar) -> None:
    """Retire the dataset and bring it back under a new name: what was spent is still spent (delete and recreate)."""
    purse.ask(MOST)
    purse.ledger.retire_dataset("people", actor="owner", reason="")
    register(purse.ledger, "people-2", same_people_as="people")
    assert purse.ask(MOST, dataset="people-2") is None
    with pytest.raises(DatasetExistsError):
        register(purse.ledger, "people")


def test_raising_and_lowering_a_total_forgets_nothing(purse: Bursar) -> None:
    """Turn the total up and down: what was spent is priced again, never dropped; below it, the account is closed."""
    paid = purse.ledger.debit(purse.request(Ask(MOST)))
    events = purse.ledger.debit_entry(paid.entry).request.events
    for epsilon in (4.0, 0.25, 1.0):
        purse.ledger.set_budget("people", Budget(epsilon, 1e-6), actor="owner", reason="")
        state = purse.ledger.dataset("people")
        assert state.spent_cost_units == cost_units(events, state.order)
    purse.ledger.set_budget("people", Budget(0.5, 1e-6), actor="owner", reason="")
    assert purse.ledger.dataset("people").remaining.cost_units == 0
    assert purse.ask(Fraction(1, 10**9)) is None


def starved(purse: Purse) -> bool:
    """Return whether one analyst can leave nothing for another: in one call, and in many."""
    for share in (MOST, *[Fraction(1, 10)] * 10):
        purse.ask(share, who="mallory")
    return purse.ask(Fraction(1, 10), who="honest") is None


def test_nobody_drains_what_others_need(purse: Bursar) -> None:
    """Spend everything at once, or little by little (the aggregation service's threads on draining a budget).

    Within an allowance and a maximum per call an analyst gets his part and no more; without them the dataset's total is
    for whoever comes first, which is what the rival has.
    """
    purse.ledger.set_allowance("people", "*", Fraction(1, 3), actor="owner", reason="")
    purse.ledger.set_call_limit("people", Fraction(1, 5), actor="owner", reason="")
    assert not starved(purse)
    assert max(record.price.cost_units for record in purse.ledger.releases("mallory")) <= (
        purse.ledger.dataset("people").cap_cost_units // 5
    )


def test_the_rival_is_drained_by_the_first() -> None:
    """The same attack on a total without parts."""
    assert starved(Rival())


def test_an_allowance_is_no_budget_of_its_own(purse: Bursar) -> None:
    """Give everybody the whole total as an allowance: together they get the total once, not five times."""
    purse.ledger.set_allowance("people", "*", Fraction(1), actor="owner", reason="")
    assert collusion(purse) <= 1


TINY = ConcentratedEvent(Fraction(1, 10**6))


def test_every_act_of_an_administrator_is_an_entry(purse: Bursar) -> None:
    """Change budgets where nobody looks (Lomas' dashboard and command line): every act has an actor and a reason.

    The acts are found by looking at what the ledger offers, so that a new one cannot be forgotten here.
    """
    ledger = purse.ledger
    arguments: dict[str, tuple[object, ...]] = {
        "register_dataset": (Registration("cars", Adjacency.REPLACE_ONE, BUDGET, b"cars"),),
        "new_snapshot": ("people", b"new rows", {}),
        "set_budget": ("people", Budget(2.0, 1e-6)),
        "set_allowance": ("people", "bob", Fraction(1, 2)),
        "set_call_limit": ("people", Fraction(1, 2)),
        "set_checkpoint_key": ("a key",),
        "issue_credential": ("bob", Role.ANALYST, bytes(32)),
        "revoke_credential": ("bob",),
        "write_off": (DebitRequest("people", "ann", "w", bytes(32), "write-off", (TINY,)),),
        "retire_dataset": ("people",),
        "record_destruction": ("people", "rows"),
    }
    methods = inspect.getmembers(Ledger, inspect.isfunction)
    acts = {name for name, method in methods if "actor" in inspect.signature(method).parameters}
    assert acts == set(arguments)
    for name, given in arguments.items():
        number = ledger.newest()[0]
        getattr(ledger, name)(*given, actor="owner", reason=f"because of {name}")
        entries = [entry for entry in ledger.entries(first=number + 1) if entry.kind != "release"]
        assert len(entries) == (3 if name == "write_off" else 1)  # a call's limit, lifted and put back
        for entry in entries:
            said = {"by": entry.actor, **entry.details, **entry.details.get("parameters", {})}
            assert (said["by"], said["reason"]) == ("owner", f"because of {name}")
        with pytest.raises(TypeError):
            getattr(ledger, name)(*given)


def test_rows_of_the_ledger_cannot_be_edited_under_it(purse: Bursar, ledger_path: Path) -> None:
    """Update what was spent with a few words of SQL (sums are plain columns elsewhere): triggers refuse."""
    purse.ask(MOST)
    with closing(sqlite3.connect(ledger_path)) as db:
        for statement in (
            "UPDATE entries SET body = '{}'",
            "DELETE FROM entries",
            "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)",
            "INSERT OR REPLACE INTO entries (number, body, hash) SELECT number, body, hash FROM entries LIMIT 1",
            "DELETE FROM releases",
        ):
            with pytest.raises(sqlite3.IntegrityError):
                db.execute(statement)


def _lock_out(served: Harness, refused: Refused, tries: int) -> Any:
    """Fail until the address is locked out, over a connection of the stranger; returns the last refusal."""
    credentials = grpc.ssl_channel_credentials((served.state.tls / "ca.pem").read_bytes())
    with grpc.secure_channel(served.address, credentials, (("stranger", 1),)) as stranger:
        call: Any = stranger.unary_unary(LIST)
        bad = partial(call, b"", metadata=(("authorization", WRONG),))
        told = [refused(bad) for _ in range(tries + 1)]
    assert {each.code for each in told[:-1]} == {grpc.StatusCode.UNAUTHENTICATED}
    return told[-1]


def test_strangers_do_not_lock_out_who_shares_their_address(serve: Serve, refused: Refused) -> None:
    """Fail more often than the limit allows; the analysts behind the same address are served all the same."""
    served = serve(rates={"failures": 20, "lockout_seconds": 1000.0})
    assert _lock_out(served, refused, 20).reason == "ADDRESS_LOCKED_OUT"
    call: Any = served.channel.unary_unary(LIST)
    assert call(b"", metadata=served.bearer())


def test_the_rival_lets_strangers_lock_others_out(
    serve: Serve, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same attack on a gate that looks at the address first, as this server's once did."""
    known = Gate._known

    def address_first(gate: Gate, metadata: Any, address: str) -> auth.Principal:
        gate._throttle.check_address(address)
        return known(gate, metadata, address)

    monkeypatch.setattr(Gate, "_known", address_first)
    served = serve(rates={"failures": 20, "lockout_seconds": 1000.0})
    _lock_out(served, refused, 20)
    call: Any = served.channel.unary_unary(LIST)
    assert refused(partial(call, b"", metadata=served.bearer())).reason == "ADDRESS_LOCKED_OUT"
