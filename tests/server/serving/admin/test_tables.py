"""Tables: imported, joined, given new rows, retired; and what is left behind by crashes."""

from __future__ import annotations

import contextlib
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bursar_ledger import Ledger, adopt_copy, verify
from bursar_server.admin.cli import main
from bursar_server.state import State, StateError
from bursar_server.tables import Keyring, Snapshot, registration
from bursar_server.tables.catalogue import Registered

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

ROWS = "height\n1.5\n1.7\nnan\n9\n2\n"  # those of `Admin.table`
OTHER_ROWS = "height\n1.1\n1.2\n"
TOTAL = ("--epsilon", 1, "--delta", 1e-6)


def _slots(admin: Admin, name: str) -> int:
    with Ledger.open(admin.state.ledger) as ledger:
        return Snapshot.open(registration.rows_folder(admin.state, ledger.dataset(name))).slots


def _snapshot_of(admin: Admin, name: str) -> str:
    with Ledger.open(admin.state.ledger) as ledger:
        return Registered.of(ledger.dataset(name).manifest).snapshot


def test_an_import_registers_and_reports(admin: Admin) -> None:
    """The report counts what was done to the rows; the ledger's entry holds none of it."""
    output = admin.ok("import", *admin.table("heights"), *TOTAL, "--reason", "first")
    assert "5  rows read" in output
    assert "1  rows with a bad or missing cell" in output
    assert "height  1 (20.0%)  0        0         1 (20.0%)" in output
    assert "height: 1 values are bad, 20.0%" in output
    assert "'nan'" not in output
    entry = admin.entries()[-1]
    assert f"entry {entry.number}" in output
    assert (entry.kind, entry.details["reason"]) == ("registration", "first")
    assert not any(
        word in entry.body for word in (b"clipped", b'"bad"', b"nan")
    )  # "bad" alone is hexadecimal, as tags are
    assert admin.verified.accounts[0].epsilon == 1.0
    assert "heights  replace_one  (1, 1e-06)" in admin.ok("datasets")


def test_an_import_needs_no_standard_output(admin: Admin) -> None:
    """A service may have closed it: the report goes nowhere, the table is registered."""
    words = [*map(str, ["import", *admin.table("heights"), *TOTAL, "--state", admin.state.path])]
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        main(words, standalone_mode=False)
    assert "heights  replace_one" in admin.ok("datasets")


def test_a_name_is_registered_once(admin: Admin) -> None:
    """The message says which command does what was probably meant, and nothing is left behind."""
    admin.add()
    output = admin.refused("import", *admin.table("heights", OTHER_ROWS), *TOTAL)
    assert "registered already" in output
    assert "snapshot" in output
    assert len(admin.snapshots) == 1


def test_rows_that_are_known_are_refused_until_their_people_are_named(admin: Admin) -> None:
    """Another name, order or kind of source does not hide them; earlier spending counts for them, too."""
    admin.add()
    admin.spend("r1")
    head, kept = admin.verified.head, admin.snapshots
    manifest = admin.table("again")[:2]
    columns = "auto_detect = false, header = true, columns = {'height': 'VARCHAR'}"
    query = f"FROM read_csv('{admin.files / 'heights.csv'}', {columns}) ORDER BY height DESC"
    words = ("import", *manifest, "--sql", query)
    output = admin.refused(*words, *TOTAL)
    assert "these rows are known: 'heights', of the account 'heights', has or had the same" in output
    assert "--same-people-as heights" in output
    assert "--other-people" in output
    assert (admin.verified.head, admin.snapshots) == (head, kept)
    output = admin.ok(*words, "--same-people-as", "heights")
    assert "spent epsilon 0.43 (20.6%)" in output
    assert "registered again in the account heights" in output
    with Ledger.open(admin.state.ledger) as ledger:
        assert ledger.dataset("again").remaining == ledger.dataset("heights").remaining
    assert "again    replace_one  (1, 1e-06)  epsilon 0.885 (79.4%)  account heights" in admin.ok("datasets")
    assert admin.verified.accounts[0].datasets == ("heights", "again")


@pytest.mark.parametrize(
    "changes",
    [
        {'"height"': '"a"'},
        {'"height"': '"zz"'},
        {"upper = 3.0": "upper = 8.5"},
        {"replace_one": "add_remove_one"},
        {"[[columns]]": 'public_rows = 9\n[unit]\ncolumn = "who"\nmax_rows = 2\n[[columns]]'},
    ],
)
def test_rows_are_known_under_any_schema_of_theirs(admin: Admin, changes: dict[str, str]) -> None:
    """Names, bounds, adjacency and unit play no part."""
    admin.add()
    rows = ROWS.replace("height", changes.get('"height"', '"height"').strip('"'))
    lines = [f"{line},{'who' if i == 0 else f'u{i % 2}'}" for i, line in enumerate(rows.splitlines())]
    table = admin.table("again", "\n".join(lines), **changes)
    assert "these rows are known" in admin.refused("import", *table, *TOTAL)


def test_other_people_have_a_total_of_their_own(admin: Admin) -> None:
    """The administrator says that rows which look the same are of other people: founds an account, or joins another."""
    admin.add()
    admin.add("others", OTHER_ROWS)
    admin.ok("import", *admin.table("again"), *TOTAL, "--other-people")
    refusal = admin.refused("import", *admin.table("third"), "--same-people-as", "others")
    assert "are to join the account 'others', and two accounts are never merged" in refusal
    admin.ok("import", *admin.table("third"), "--same-people-as", "others", "--other-people")
    with Ledger.open(admin.state.ledger) as ledger:
        found = {state.name: state.account for state in ledger.datasets()}
    assert found == {"heights": "heights", "others": "others", "again": "again", "third": "others"}


def test_a_table_that_joins_never_gets_a_total_of_its_own(admin: Admin) -> None:
    """Another total is refused, and so is another adjacency; no snapshot is left behind."""
    admin.add()
    same = ("--same-people-as", "heights")
    assert "stays spent" in admin.refused("import", *admin.table("again"), "--epsilon", 9, "--delta", 1e-6, *same)
    other = admin.table("again", replace_one="add_remove_one")
    assert "adjacency" in admin.refused("import", *other, *same)
    assert len(admin.snapshots) == 1
    admin.ok("import", *admin.table("again"), *TOTAL, *same)  # the same total says nothing new


def test_another_table_of_the_same_people_joins_by_name(admin: Admin) -> None:
    """No total is given, and the name may itself have joined; the account is the first one's."""
    admin.add()
    admin.ok("import", *admin.table("second", OTHER_ROWS), "--same-people-as", "heights")
    output = admin.ok("import", *admin.table("third", "height\n2.5\n"), "--same-people-as", "second")
    assert "registered third in the account heights" in output
    assert "known" not in output
    assert admin.verified.accounts[0].datasets == ("heights", "second", "third")
    assert "no dataset" in admin.refused("import", *admin.table("fourth"), "--same-people-as", "nobody")


def test_a_table_that_joins_with_another_unit_is_pointed_out(admin: Admin) -> None:
    """Only the owner can know whether one row is all that a person has in it."""
    admin.add()
    unit = 'public_rows = 9\n[unit]\ncolumn = "who"\nmax_rows = 2\n[[columns]]'
    table = admin.table("second", "who,height\na,1\na,2\n", **{"[[columns]]": unit})
    output = admin.ok("import", *table, "--same-people-as", "heights")
    assert "all rows with one who, 2 at most here, and a row in heights" in output
    assert "note" not in admin.ok("import", *admin.table("third", OTHER_ROWS), "--same-people-as", "heights")


def test_new_rows_need_a_total(admin: Admin) -> None:
    """Whole or not at all."""
    assert "budget is missing" in admin.refused("import", *admin.table("heights"))
    assert "together" in admin.refused("import", *admin.table("heights"), "--epsilon", 1)
    assert "goes with" in admin.refused("import", *admin.table("heights"), "--approximate-share", "1/2")
    assert not admin.snapshots


def test_the_share_of_approximate_releases_is_exact(admin: Admin) -> None:
    """None, if nothing is said: exact releases get all of delta; and a decimal is what it says."""
    admin.ok("import", *admin.table("none"), *TOTAL)
    admin.ok("import", *admin.table("third", OTHER_ROWS), *TOTAL, "--approximate-share", "0.3")
    shares = [entry.details["delta_fail_share"] for entry in admin.entries() if entry.kind == "registration"]
    assert shares == ["0/1", "3/10"]
    assert "approximate-share" in admin.refused("import", *admin.table("x"), *TOTAL, "--approximate-share", "2")
    assert "delta_fail_share" in admin.refused("import", *admin.table("x"), *TOTAL, "--approximate-share", "1")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--sql", "SELECT 1"], "exactly one"),
        (["--database", "FILE"], "exactly one"),
        (["--epsilon", "nan"], "epsilon"),
        (["--epsilon", "-1"], "epsilon"),
        (["--delta", "0"], "delta"),
        (["--manifest", "FILE"], "columns"),
    ],
)
def test_a_bad_import_is_explained_without_a_traceback(admin: Admin, extra: list[str], message: str) -> None:
    """One message that names what is wrong, and no entry."""
    bad = admin.files / "bad.toml"
    bad.write_text('name = "x"\nadjacency = "replace_one"\n')
    before = admin.verified.head
    options = [str(bad) if option == "FILE" else option for option in extra]
    assert message in admin.refused("import", *admin.table("heights"), *TOTAL, *options)
    assert admin.verified.head == before
    assert not admin.snapshots


def test_a_dry_run_of_an_import_keeps_nothing(admin: Admin) -> None:
    """Rows are read, cleaned and recognised, and then neither they nor an entry are there."""
    before = admin.verified.head
    output = admin.ok("import", *admin.table("heights"), *TOTAL, "--dry-run")
    assert output.startswith("dry run:")
    assert "5  rows read" in output
    assert "nothing was written; it would be entry 4 (--show-entry prints it)" in output
    assert '"epsilon": 1.0' not in output
    assert '"epsilon": 1.0' in admin.ok("import", *admin.table("heights"), *TOTAL, "--dry-run", "--show-entry")
    assert not admin.snapshots
    admin.add()
    assert "these rows are known" in admin.refused("import", *admin.table("again"), *TOTAL, "--dry-run")
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights", "--dry-run")
    assert len(admin.snapshots) == 1
    assert before != admin.verified.head
    assert len(admin.verified.accounts[0].datasets) == 1


def test_a_crash_before_the_registration_leaves_no_dataset(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of an import that was killed is served by nobody, and the next import removes it."""

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "register_dataset", crash)
        patch.setattr(shutil, "rmtree", lambda path, **_: None)  # as if killed at once
        assert admin.run("import", *admin.table("heights"), *TOTAL).exit_code != 0
    left = admin.snapshots
    assert len(left) == 1
    assert admin.ok("datasets") == "no datasets yet: bursar-admin import --help\n"
    admin.add()
    assert len(admin.snapshots) == 1
    assert not admin.snapshots & left


def test_an_interruption_just_after_the_registration_keeps_the_rows(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that an entry names are never removed, whatever the command was told afterwards."""
    register = Ledger.register_dataset

    def interrupted(*arguments: Any, **options: Any) -> None:
        register(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "register_dataset", interrupted)
        assert admin.run("import", *admin.table("heights"), *TOTAL).exit_code != 0
    assert admin.snapshots == {_snapshot_of(admin, "heights")}


def test_the_half_of_an_import_that_was_killed_is_removed_by_the_next(admin: Admin) -> None:
    """And nothing that an import did not make."""
    admin.state.datasets.joinpath(f".{'0' * 32}.partial").mkdir(0o700)
    admin.state.datasets.joinpath(f".{'0' * 32}.partial", "rows.arrow").touch(0o400)
    admin.state.datasets.joinpath("lost+found").mkdir()
    admin.state.datasets.joinpath("notes.txt").write_text("mine")
    admin.add()
    assert admin.snapshots == {_snapshot_of(admin, "heights"), "lost+found", "notes.txt"}


def test_new_rows_of_the_same_people(admin: Admin) -> None:
    """Name, account and what was spent stay; the replaced rows go with the next import."""
    admin.add()
    admin.spend("r1")
    first = _snapshot_of(admin, "heights")
    output = admin.ok("snapshot", *admin.table("heights", OTHER_ROWS), "--yes", "--reason", "withdrawals")
    entry = admin.entries()[-1]
    assert (entry.kind, entry.details["reason"]) == ("snapshot", "withdrawals")
    assert f"entry {entry.number}" in output
    assert "spent epsilon 0.43" in output
    second = _snapshot_of(admin, "heights")
    assert admin.snapshots == {first, second}  # a fit that waits for its turn may still open the first
    assert _slots(admin, "heights") == 2
    admin.add("other", "height\n0.5\n")
    assert admin.snapshots == {second, _snapshot_of(admin, "other")}
    assert admin.verified.accounts[0].debits == 1


def test_a_fit_that_has_the_replaced_rows_open_reads_on(admin: Admin) -> None:
    """A file that is removed goes away with its last reader."""
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger:
        opened = Snapshot.open(registration.rows_folder(admin.state, ledger.dataset("heights")))
    admin.ok("snapshot", *admin.table("heights", OTHER_ROWS), "--yes", "--delete-old-rows")
    assert admin.snapshots == {_snapshot_of(admin, "heights")}
    assert sum(int(block.present.sum()) for block in opened.blocks()) == 4


def test_rows_that_come_back_are_still_known(admin: Admin) -> None:
    """Those of a replaced snapshot, too; and those of another account are refused."""
    admin.add()
    admin.ok("snapshot", *admin.table("heights", OTHER_ROWS), "--yes")
    assert "these rows are known: 'heights'" in admin.refused("import", *admin.table("again"), *TOTAL)
    admin.add("strangers", "height\n0.1\n")
    head, kept = admin.verified.head, admin.snapshots
    for rows in (ROWS, OTHER_ROWS):
        words = ("snapshot", *admin.table("strangers", rows), "--yes")
        output = admin.refused(*words)
        assert "these rows are known: 'heights'" in output
        assert "are to join the account 'strangers', and two accounts are never merged" in output
        assert (admin.verified.head, admin.snapshots) == (head, kept)
    admin.ok(*words, "--other-people")
    admin.ok("snapshot", *admin.table("heights"), "--yes")  # back again: the own account's


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("adjacency", {"replace_one": "add_remove_one"}),
        ("unit", {"[[columns]]": 'public_rows = 9\n[unit]\ncolumn = "who"\n[[columns]]'}),
        ("columns", {"upper = 3.0": "upper = 4.0"}),
        ("columns", {'"height"': '"width"'}),
    ],
)
def test_a_snapshot_keeps_the_promise_and_its_meaning(admin: Admin, field: str, changes: dict[str, str]) -> None:
    """Adjacency and privacy unit are part of the promise, the columns are what analysts know the dataset by."""
    admin.add()
    before = admin.verified.head
    output = admin.refused("snapshot", *admin.table("heights", OTHER_ROWS, **changes), "--yes")
    assert field in output
    assert "--same-people-as heights" in output
    assert admin.verified.head == before


def test_a_snapshot_may_change_descriptions(admin: Admin) -> None:
    """They promise nothing."""
    admin.add()
    described = {
        "adjacency": 'description = "new"\nadjacency',
        'kind = "numeric"': 'kind = "numeric"\ndescription = "cm"',
    }
    admin.ok("snapshot", *admin.table("heights", OTHER_ROWS, **described), "--yes")
    with Ledger.open(admin.state.ledger) as ledger:
        assert Registered.of(ledger.dataset("heights").manifest).manifest.description == "new"


def test_a_dry_run_of_a_snapshot_keeps_nothing(admin: Admin) -> None:
    """Not even the question."""
    admin.add()
    before = admin.snapshots, admin.verified.head
    output = admin.ok("snapshot", *admin.table("heights", OTHER_ROWS), "--dry-run", "--delete-old-rows")
    assert "heights would get new rows: nothing was written; it would be entry" in output
    assert (admin.snapshots, admin.verified.head) == before


def test_the_last_look_before_an_act_that_cannot_be_undone(admin: Admin, at_a_terminal: None) -> None:
    """A no is a no, and the question names the dataset."""
    admin.add()
    before = admin.verified.head
    for words in (("snapshot", *admin.table("heights", OTHER_ROWS)), ("retire", "heights")):
        output = admin.refused(*words, answer="n\n")
        assert "heights" in output
        assert "Aborted" in output
        assert admin.verified.head == before
    admin.ok("retire", "heights", answer="y\n")
    assert admin.verified.head != before


def test_nobody_to_ask_means_no(admin: Admin) -> None:
    """A script has to say --yes."""
    admin.add()
    before = admin.verified.head
    assert "--yes" in admin.refused("retire", "heights")
    assert "--yes" in admin.refused("snapshot", *admin.table("heights", OTHER_ROWS))
    assert admin.verified.head == before


def test_a_mistake_is_withdrawn_while_nothing_was_debited(admin: Admin) -> None:
    """No budget is gained: name and account stay, and the same rows are known as if the dataset had stayed."""
    admin.add()
    refused = admin.refused("import", *admin.table("again"), *TOTAL)
    assert "would withdraw heights" in admin.ok("dataset", "withdraw", "heights", "--dry-run")
    admin.ok("dataset", "withdraw", "heights", "--yes", "--reason", "wrong bounds")
    entry = admin.entries()[-1]
    assert (entry.kind, entry.details["withdrawn"], entry.details["reason"]) == ("retirement", True, "wrong bounds")
    assert "withdrawn: registered by mistake" in admin.ok("acts")
    assert admin.refused("import", *admin.table("again"), *TOTAL) == refused
    assert "registered already" in admin.refused("import", *admin.table("heights", OTHER_ROWS), *TOTAL)
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    (account,) = admin.verified.accounts
    assert (account.datasets, account.epsilon) == (("heights", "again"), 1.0)
    admin.spend("r1", dataset="again")
    assert "something was debited" in admin.refused("dataset", "withdraw", "again", "--yes")
    assert not admin.entries()[-1].details.get("withdrawn")
    admin.ok("retire", "heights", "--delete-rows", "--yes")
    assert admin.snapshots == {_snapshot_of(admin, "again")}


def test_a_withdrawal_outlives_a_backup(admin: Admin) -> None:
    """A restored ledger still has it."""
    admin.add()
    admin.ok("dataset", "withdraw", "heights", "--yes")
    copy = admin.files / "copy.sqlite"
    admin.ok("backup", copy)
    assert verify(copy).ok
    with Ledger.open(admin.state.ledger) as ledger:
        assert ledger.dataset("heights").retired


def test_retirement_is_for_good(admin: Admin) -> None:
    """The rows stay unless told otherwise, the account goes on under its other names, and no new rows come."""
    admin.add()
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    output = admin.ok("retire", "heights", "--yes", "--reason", "over")
    entry = admin.entries()[-1]
    assert (entry.kind, entry.details["reason"]) == ("retirement", "over")
    assert f"retired heights: entry {entry.number}" in output
    assert len(admin.snapshots) == 2
    assert "retired" in admin.ok("datasets").splitlines()[1]
    admin.spend("r1", dataset="again")
    assert "is retired" in admin.refused("retire", "heights", "--yes")
    assert "is retired" in admin.refused("snapshot", *admin.table("heights", OTHER_ROWS), "--yes")
    assert admin.verified.ok


def test_rows_are_deleted_after_their_dataset_is_retired(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry first: if the deletion is cut off, the same command ends it. Other datasets' rows stay."""
    admin.add()
    admin.add("other", OTHER_ROWS)
    admin.spend("r1")
    rows = _snapshot_of(admin, "heights")

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bursar_server.admin._tables.remove_rows", crash)
        result = admin.run("retire", "heights", "--yes", "--delete-rows")
    assert result.exit_code != 0
    assert "1 paid fits of heights have no stored release" in result.output
    assert admin.entries()[-1].kind == "retirement"
    assert rows in admin.snapshots
    before = admin.verified.entries
    admin.ok("retire", "heights", "--yes", "--delete-rows")
    admin.ok("retire", "heights", "--yes", "--delete-rows")
    assert admin.verified.entries == before + 1
    assert admin.entries()[-1].details["destroyed"] == "rows"
    assert admin.snapshots == {_snapshot_of(admin, "other")}


def test_an_older_ledger_removes_no_rows(admin: Admin) -> None:
    """It has forgotten whose they are; the checkpoints know, and every command that would remove rows is refused."""
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger:
        ledger.backup(admin.files / "old")
    admin.add("later", OTHER_ROWS)
    there = admin.snapshots
    for file in admin.state.path.glob("ledger.sqlite*"):
        file.unlink()
    shutil.copy(admin.files / "old", admin.state.ledger)
    adopt_copy(admin.state.ledger)
    head = admin.verified.head
    for words in (
        ("import", *admin.table("third", "height\n0.5\n"), *TOTAL),
        ("snapshot", *admin.table("heights", OTHER_ROWS), "--delete-old-rows", "--yes"),
        ("retire", "heights", "--delete-rows", "--yes"),
    ):
        assert "file:checkpoints: the ledger ends at entry" in admin.refused(*words)
    assert (admin.snapshots, admin.verified.head) == (there, head)


def test_a_dry_run_of_a_retirement_keeps_everything(admin: Admin) -> None:
    """It says what would go."""
    admin.add()
    before = admin.snapshots, admin.verified.head
    output = admin.ok("retire", "heights", "--delete-rows", "--dry-run")
    assert str(admin.state.datasets / _snapshot_of(admin, "heights")) in output
    assert (admin.snapshots, admin.verified.head) == before


def test_rows_that_are_needed_are_not_deleted(admin: Admin) -> None:
    """The function behind it insists on the entry."""
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger, pytest.raises(StateError, match="not retired"):
        registration.remove_rows(admin.state, ledger, "heights", actor="test", reason="")


def test_imports_wait_for_nobody_and_mix_with_nobody(admin: Admin) -> None:
    """Another import and every removal are refused while one is under way."""
    admin.add()
    state = State.open(admin.state.path)
    with state.importing():
        for words in (
            ("import", *admin.table("other", OTHER_ROWS), *TOTAL),
            ("snapshot", *admin.table("heights", OTHER_ROWS), "--yes"),
        ):
            assert "under way" in admin.refused(*words)


def _key_of(admin: Admin, name: str) -> Path:
    with Ledger.open(admin.state.ledger) as ledger:
        return Keyring(admin.state.keys).path(Registered.of(ledger.dataset(name).manifest).snapshot)


def test_a_dataset_can_be_deleted_for_good(admin: Admin) -> None:
    """Rows and key are gone, overwritten and not merely without a name; the ledger stays, says so, and verifies."""
    admin.add("heights", "height\n2.718281828\n")
    admin.add("others", "height\n2.5\n")
    admin.spend("r1")
    snapshot, key, kept = _snapshot_of(admin, "heights"), _key_of(admin, "heights"), _key_of(admin, "others")
    row = struct.pack("<d", 2.718281828)
    assert any(row in path.read_bytes() for path in admin.state.path.rglob("*") if path.is_file())
    with key.open("rb") as still_open:
        secret = still_open.read()
        admin.refused("retire", "heights", "--yes", "--destroy-key")
        dry = admin.ok("retire", "heights", "--dry-run", "--delete-rows", "--destroy-key")
        assert "would be destroyed" in dry
        assert key.read_bytes() == secret
        words = ("retire", "heights", "--yes", "--reason", "withdrawn", "--delete-rows", "--destroy-key")
        output = admin.ok(*words)
        still_open.seek(0)
        assert still_open.read() not in (secret, b"")
    assert "destroyed the key of heights" in output
    found = [path for path in admin.state.path.rglob("*") if path.is_file()]
    assert kept in found
    for path in found:
        assert path != key
        assert snapshot not in path.parts
        assert secret not in path.read_bytes()
        assert row not in path.read_bytes()
    told = [(entry.kind, entry.details.get("destroyed"), entry.details["reason"]) for entry in admin.entries()[-3:]]
    assert told == [
        ("retirement", None, "withdrawn"),
        ("destruction", "rows", "withdrawn"),
        ("destruction", "key", "withdrawn"),
    ]
    assert admin.entries()[-1].actor.startswith("local:")
    assert admin.verified.entries == len(admin.entries())
    head = admin.verified.head
    admin.ok(*words)  # as after an interruption
    assert admin.verified.head == head
    assert "key destroyed" in admin.ok("acts")


@pytest.mark.parametrize("step", ["record_destruction", "destroy", "second entry"])
def test_a_destruction_that_is_cut_off_is_ended_by_the_same_command(
    admin: Admin, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger never says that something is gone which is there; in the end it says all, once."""
    admin.add("heights")
    key, words = _key_of(admin, "heights"), ("retire", "heights", "--yes", "--delete-rows", "--destroy-key")
    record = Ledger.record_destruction

    def crash(*arguments: Any, **options: Any) -> Any:
        if step == "second entry" and arguments[2] == "rows":
            return record(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "destroy":
            patch.setattr(Keyring, "destroy", crash)
        else:
            patch.setattr(Ledger, "record_destruction", crash)
        assert admin.run(*words).exit_code != 0
    destroyed = [entry.details["destroyed"] for entry in admin.entries() if entry.kind == "destruction"]
    assert destroyed == ([] if step == "record_destruction" else ["rows"])
    assert key.exists() == (step != "second entry")
    if step == "second entry":
        assert "the keys of heights are destroyed or missing" in admin.refused("import", *admin.table("again"), *TOTAL)
    admin.ok(*words)
    destroyed = [entry.details["destroyed"] for entry in admin.entries() if entry.kind == "destruction"]
    assert destroyed == ["rows", "key"]
    assert not key.exists()
    assert admin.verified.ok


def test_every_snapshot_has_a_key(admin: Admin) -> None:
    """The same rows have another tag each time, under whatever name, and are recognised all the same."""
    admin.add("heights")
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    for name in ("heights", "again", "heights"):
        admin.ok("snapshot", *admin.table(name), "--yes")
    made = [entry.details for entry in admin.entries() if entry.kind in ("registration", "snapshot")]
    for tags in ([one["content_tag"] for one in made], [one["manifest"]["rows_tag"] for one in made]):
        assert len(set(tags)) == 5
    secrets = [path.read_bytes() for path in (admin.state.keys / "tables").iterdir()]
    assert len(set(secrets)) == 5
    assert "these rows are known" in admin.refused("import", *admin.table("third"), *TOTAL)


def test_rows_are_recognised_by_the_key_of_any_table_that_had_them(admin: Admin) -> None:
    """The second one's keys still know them after the first one's were destroyed; then the administrator has to say."""
    admin.add("heights")
    admin.ok("snapshot", *admin.table("heights", "height\n2.5\n"), "--yes")
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    admin.spend("r1", dataset="again")
    admin.ok("retire", "heights", "--yes", "--delete-rows", "--destroy-key")
    assert "these rows are known: 'again'" in admin.refused("import", *admin.table("third"), *TOTAL)
    admin.ok("retire", "again", "--yes", "--delete-rows", "--destroy-key")
    assert list((admin.state.keys / "tables").iterdir()) == []
    before = admin.verified.head, admin.snapshots
    refusal = admin.refused("import", *admin.table("fourth"), *TOTAL)
    assert "the keys of heights, again are destroyed or missing" in refusal
    assert "--same-people-as" in refusal
    assert (admin.verified.head, admin.snapshots) == before
    assert list((admin.state.keys / "tables").iterdir()) == []
    admin.ok("import", *admin.table("fourth"), "--same-people-as", "heights")
    admin.ok("import", *admin.table("fifth", OTHER_ROWS), *TOTAL, "--other-people")
    with Ledger.open(admin.state.ledger) as ledger:
        assert ledger.dataset("fourth").spent_cost_units > 0
        assert ledger.dataset("fifth").spent_cost_units == 0
    assert "these rows are known: 'fourth'" in admin.refused("import", *admin.table("sixth"), *TOTAL)
    assert admin.verified.ok


def test_the_key_of_a_table_of_another_width_plays_no_part(admin: Admin) -> None:
    """Tables of one and of two columns are never equal, so no word is needed."""
    admin.add("heights")
    admin.ok("retire", "heights", "--yes", "--delete-rows", "--destroy-key")
    more = '[[columns]]\nname = "w"\nkind = "numeric"\nlower = 0.0\nupper = 9.0\n[[columns]]'
    admin.ok("import", *admin.table("wide", "height,w\n1,2\n", **{"[[columns]]": more}), *TOTAL)


def test_capped_rows_are_recognised_under_another_name(admin: Admin) -> None:
    """The draw of a unit's rows is new for each import, and plays no part."""
    rows = "height,who\n" + "".join(f"{i / 40},{'abc'[i % 3]}\n" for i in range(60))
    capped = {"[[columns]]": 'public_rows = 60\n[unit]\ncolumn = "who"\nmax_rows = 2\n[[columns]]'}
    admin.ok("import", *admin.table("heights", rows, **capped), *TOTAL)
    assert "these rows are known" in admin.refused("import", *admin.table("again", rows, **capped), *TOTAL)


def test_what_fails_or_is_only_tried_leaves_no_key(admin: Admin) -> None:
    """A key is there for every table that the ledger knows, and no other."""
    admin.add("heights")
    folder = admin.state.keys / "tables"
    before = sorted(folder.iterdir())
    admin.ok("import", *admin.table("others", OTHER_ROWS), *TOTAL, "--dry-run")
    admin.refused("import", *admin.table("others", OTHER_ROWS))
    refused_by_the_ledger = admin.table("others", OTHER_ROWS, replace_one="add_remove_one")
    admin.refused("import", *refused_by_the_ledger, "--same-people-as", "heights")
    assert sorted(folder.iterdir()) == before


def test_a_lost_key_is_said_to_be(admin: Admin) -> None:
    """Rows cannot be compared without it; an import of possibly the same rows asks, others go on."""
    admin.add("heights")
    _key_of(admin, "heights").unlink()
    assert "the keys of heights are destroyed or missing" in admin.refused("import", *admin.table("again"), *TOTAL)
    admin.ok("snapshot", *admin.table("heights", OTHER_ROWS), "--yes")
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
