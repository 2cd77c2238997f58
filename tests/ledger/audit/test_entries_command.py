"""`bursar-audit entries`: filters, formats, and what forged ledgers hold."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import Result

from bursar_ledger import Budget, Ledger
from bursar_ledger.audit import _charts, _report
from bursar_ledger.audit._columns import COLUMNS

Run = Callable[..., Result]


def _numbers(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return [int(line.split()[0]) for line in result.stdout.splitlines()[1:]]


def test_every_entry_is_one_line_in_words(run: Run, study: Path) -> None:
    """Number, time, kind, actor, dataset, and what happened."""
    lines = run("entries", study).stdout.splitlines()
    assert len(lines) == 15
    for number, words in {
        2: "(epsilon, delta) = (3, 1e-06), replace_one",
        4: "replace_one, joins account people",
        5: "bob: at most 1/2 of the total: test",
        9: "no release stored",
        10: "new total (epsilon, delta) = (4, 1e-06), before (epsilon, delta) = (3, 1e-06): second year",
        12: "13 bytes under debit 11",
        13: "one call costs at most 1/3 of the total",
        14: "no new debits",
    }.items():
        assert words in lines[number]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--dataset", "people"], [2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14]),
        (["--dataset", "people-2"], [4, 9, 14]),
        (["--dataset", "homes"], [3]),
        (["--analyst", "ann"], [7, 8, 11, 12]),
        (["--analyst", "bob"], [9]),
        (["--analyst", "owner"], []),
        (["--method", "FitMRF"], [9]),
        (["--kind", "debit"], [7, 9, 11]),
        (["--kind", "debit", "--kind", "budget"], [7, 9, 10, 11]),
        (["--first", "8", "--last", "10"], [8, 9, 10]),
        (["--dataset", "people", "--analyst", "ann", "--kind", "debit", "--first", "8"], [11]),
        (["--dataset", "nobody"], []),
    ],
)
def test_filters_add_up(run: Run, study: Path, options: list[str], numbers: list[int]) -> None:
    """Each leaves what it says, together they leave what all of them leave."""
    assert _numbers(run("entries", study, *options)) == numbers


def test_filters_by_time(run: Run, study: Path, ledger: Ledger, forge: Any) -> None:
    """Dates and times; a whole day belongs to --until; what has no time that can be read is kept."""
    ledger.close()
    for number, time in {8: "2020-01-01T10:00:00+00:00", 9: "2020-01-02T23:30:00-01:00", 11: "never"}.items():
        forge(study, number, lambda fields, time=time: fields.update(time=time))
    assert _numbers(run("entries", study, "--until", "2020-01-01")) == [8, 11]
    assert _numbers(run("entries", study, "--until", "2020-01-01T10:00:00Z")) == [11]
    assert _numbers(run("entries", study, "--since", "2020-01-01T10:00:00Z", "--until", "2020-01-03")) == [8, 9, 11]
    assert _numbers(run("entries", study, "--since", "2020-01-03", "--until", "2020-01-03")) == [9, 11]
    assert 8 not in _numbers(run("entries", study, "--since", "2020-01-02"))


def test_json_lines_csv_and_parquet_say_the_same(run: Run, study: Path, tmp_path: Path, ledger: Ledger) -> None:
    """Read back, the three hold equal values, in columns of fixed names and types."""
    table = tmp_path / "entries.parquet"
    assert run("entries", study, "--format", "parquet", "--out", table).exit_code == 0
    from_parquet = pyarrow.parquet.read_table(table)
    records = [json.loads(line) for line in run("entries", study, "--format", "json").stdout.splitlines()]
    assert from_parquet.to_pylist() == records
    assert from_parquet.column_names == list(COLUMNS) == list(records[0])
    names = {"int64": int, "double": float, "bool": bool, "string": str}
    assert [names[str(kind)] for kind in from_parquet.schema.types] == list(COLUMNS.values())
    read = list(csv.DictReader(io.StringIO(run("entries", study, "--format", "csv").stdout)))
    assert [{k: "" if v is None else str(v) for k, v in record.items()} for record in records] == read
    debit = records[8]
    assert (debit["account"], debit["dataset"], debit["actor"]) == ("people", "people-2", "bob")
    assert debit["released"] is False
    assert debit["share"] == debit["cost_units"] / debit["cap_cost_units"]
    assert debit["percent"] == 100 * debit["share"]
    assert (debit["delta"], debit["epsilon"]) == (
        9e-7,
        Budget(3, 1e-6, Fraction(1, 10)).part(debit["cost_units"]).epsilon,
    )
    assert debit["rho"] == pytest.approx(ledger.debit_entry(9).price.rho, rel=1e-12)
    assert debit["head"] == ledger.debit_entry(9).head.hex()
    assert records[0]["cost_units"] is None


def test_a_file_appears_when_it_is_whole(run: Run, study: Path, tmp_path: Path) -> None:
    """--out replaces the file at once, and leaves nothing else in the folder."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "entries.csv").write_text("old")
    assert run("entries", study, "--format", "csv", "--out", folder / "entries.csv").stdout == ""
    assert (folder / "entries.csv").read_text() == run("entries", study, "--format", "csv").stdout
    assert [file.name for file in folder.iterdir()] == ["entries.csv"]
    result = run("entries", study, "--out", folder / "nowhere" / "entries.txt")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_parquet_without_pyarrow_says_what_to_do(
    run: Run, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not among the auditor's dependencies."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("entries", study, "--format", "parquet", "--out", tmp_path / "entries.parquet")
    assert result.exit_code == 2
    assert "pip install pyarrow" in result.stderr


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\uff1d"])
def test_spreadsheets_run_nothing(run: Run, study: Path, ledger: Ledger, forge: Any, first: str) -> None:
    """A text that begins like a formula comes with an apostrophe in front."""
    ledger.close()
    forge(study, 14, lambda fields: fields["details"].update(reason=f"{first}cmd|' /C calc'!A0"))
    read = list(csv.DictReader(io.StringIO(run("entries", study, "--format", "csv").stdout)))
    assert read[13]["reason"].startswith(f"'{first}cmd")
    assert read[0]["reason"] == "test"


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_control_characters_are_made_visible(run: Run, study: Path, ledger: Ledger, forge: Any, form: str) -> None:
    """A forged ledger cannot write to the auditor's terminal, nor break lines or turn their direction."""
    ledger.close()
    forge(study, 14, lambda fields: fields["details"].update(reason="\x1b[2J\x7f\u202e\n\u2028"))
    forge(study, 13, lambda fields: fields.update(actor="\x1b]0;x\x07"))
    for command in (["entries", "--format", form], ["show", "14"], ["show", "14", "--json"], ["verify"]):
        output = run(command[0], study, *command[1:]).output
        assert all(character.isprintable() or character == "\n" for character in output)
    assert len(run("entries", study, "--format", form).stdout.splitlines()) == 15 - (form == "json")


@pytest.mark.parametrize(
    "edit",
    [
        lambda fields: fields["details"].update(cost_units="a lot"),
        lambda fields: fields["details"].update(cost_units=2**70),
        lambda fields: fields["details"].update(cost_units=True),
        lambda fields: fields["details"].update(method=["FitDPEM"]),
        lambda fields: fields["details"].update(order="0/1"),
        lambda fields: fields["details"].update(cap_cost_units=0),
        lambda fields: fields["details"].pop("events"),
        lambda fields: fields["details"].update(events=[{"mechanism": "magic"}]),
        lambda fields: fields["details"].update(events=7),
        lambda fields: fields.update(details=[]),
        lambda fields: fields.update(kind=3),
        lambda fields: fields.update(actor=7),
        lambda fields: fields.pop("time"),
        lambda fields: fields.update(dataset="\ud800"),
    ],
)
def test_forged_entries_are_listed_and_never_end_in_a_traceback(
    run: Run,
    study: Path,
    ledger: Ledger,
    tamper: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edit: Callable[[dict[str, Any]], Any],
) -> None:
    """Fields of another type are left empty; every command goes on to the end, and verify finds the entry."""
    # The account of which nobody asked anything, and whose entries are as they were, is not drawn.
    draw = _charts.burn_down_svg
    monkeypatch.setattr(_report, "burn_down_svg", lambda burn, colours, prefix: colours and draw(burn, colours, prefix))
    entry = next(iter(ledger.entries(7, 1)))
    ledger.close()
    fields = json.loads(entry.body)
    edit(fields)
    tamper(study, ("UPDATE entries SET body = ? WHERE number = 7", (json.dumps(fields),)))
    for form in ("table", "csv", "json"):
        assert run("entries", study, "--format", form).exit_code in (0, 1)
    assert run("entries", study, "--format", "parquet", "--out", tmp_path / "forged.parquet").exit_code in (0, 1)
    assert run("show", study, "7").exit_code == 0
    assert run("show", study, "7", "--json").exit_code == 0
    for command in (["spend"], ["spend", "--by", "analyst", "--pld"], ["report", "--out", tmp_path / "page.html"]):
        assert run(command[0], study, *command[1:]).exit_code == 1
    result = run("verify", study)
    assert result.exit_code == 1
    assert "entry 7:" in result.stderr


def test_show_says_everything(run: Run, study: Path, ledger: Ledger) -> None:
    """Events in words with their prices, sums, the analyst's part, the hash that receipts have."""
    words = run("show", study, "9").stdout
    head = ledger.debit_entry(9).head.hex()
    for part in (
        "entry 9: debit",
        "2 releases with discrete Laplace noise: L1 sensitivity 3 in each of 2 groups of coordinates, scale 40",
        "1 release with pure epsilon = 0.02",
        "2 choices by the exponential mechanism (Gumbel noise): sensitivity of a score 3, scale 200 (epsilon 0.03 ",
        "2 releases with a failure probability of at most 1e-09: 1 release with discrete Gaussian noise",
        "2e-09 of delta",
        "none stored",
        "account           people",
        "analyst's part",
        "(50%) of the lifetime budget",
        "SHA-256 of the body agrees",
        f"Every receipt for this debit says: entry 9, ledger_head {head}",
    ):
        assert part in words
    total = ledger.debit_entry(9).price.cost_units
    assert f", {total} units" in words


def test_show_json_is_what_was_hashed(run: Run, study: Path, ledger: Ledger) -> None:
    """The output's SHA-256 is the entry's hash, without the line break at its end."""
    import hashlib

    for entry in ledger.entries():
        body = run("show", study, entry.number, "--json").stdout.removesuffix("\n")
        assert hashlib.sha256(body.encode()).digest() == entry.hash


def test_show_says_that_a_body_was_changed(run: Run, study: Path, ledger: Ledger, tamper: Any) -> None:
    """One glance at the entry is enough."""
    ledger.close()
    tamper(study, ("UPDATE entries SET body = replace(body, 'ann', 'eve') WHERE number = 7", ()))
    assert "THE BODY HAS ANOTHER SHA-256" in run("show", study, "7").stdout


def test_a_long_ledger_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines go out while rows come in: the table's widths are those of the first rows."""
    from bursar_ledger.audit._text import table_lines

    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield (taken, "x")

    lines = table_lines(("number", "what"), endless())
    for _ in range(2000):
        next(lines)
    assert taken <= 2000


def test_a_terminal_gets_lines_that_fit_it(
    run: Run, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers and times to the minute stay whole, long words are shortened; a file gets everything."""
    monkeypatch.setattr("bursar_ledger.audit.cli.terminal_width", lambda: 80)
    lines = run("entries", study).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(re.match(r"\d+ +\d{4}-\d\d-\d\d \d\d:\d\d  \w", line) for line in lines[1:])
    assert any(line.endswith("...") for line in lines)
    run("entries", study, "--out", tmp_path / "all.txt")
    assert "..." not in (tmp_path / "all.txt").read_text()


@pytest.mark.parametrize("command", ["entries", "spend"])
def test_json_is_an_option_as_everywhere(run: Run, study: Path, command: str) -> None:
    """The same as the format of that name."""
    assert run(command, study, "--json").stdout == run(command, study, "--format", "json").stdout != ""
