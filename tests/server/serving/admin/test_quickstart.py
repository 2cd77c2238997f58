"""Questions that lead from a messy file to a table and a token; a manifest by the same questions."""

from __future__ import annotations

import ast
import gzip
import importlib.resources
import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import click.testing
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bursar_ledger import Ledger, verify
from bursar_server.admin.cli import main
from bursar_server.state import State
from bursar_server.tables import TEMPLATES, Manifest, Snapshot, skeleton, template_of
from bursar_server.tables.registration import rows_folder

PATIENTS = """\
id;sex;income;born;smoker;diagnosis;country;visits;notes
17;F;1.234,56;31.12.1960;True;E11.9;DE;3;hush-1
17;m ;2.000;01.02.1970;False;i10;fr;999;hush-2
22;male;;03.04.1980;YES;b50;XX;51;hush-3
23;diverse;n/a;heute;no;Z99;DE;1;hush-4
24;w;5;01.01.1999;FALSE;A00;De;0;hush-5
25;M;6;01.01.1999; 1 ;C50;AT;7;hush-6
"""
VALUES = ("hush", "E11", "1.234,56", "31.12.1960", "diverse", "heute")
"""Texts of rows, which no question may show."""

TABLE = ("utf-8", "", "patients", "Visits to a clinic", "yes", "id", "2", "5000", "1.234,5")
COLUMNS = (
    *("categories", "female=f=w, male=m", "other", ""),
    *("money", "", "200000", "", "n/a"),
    *("date", "%d.%m.%Y", "1900-01-01", "2024-12-31", "years", "no", ""),
    *("", "yes, 1", "no", ""),
    *("icd10", ""),
    *("", "DE, FR", ""),
    *("", "", "50", "yes", "999"),
    *("skip",),
)
TOTAL = ("", "", "yes", "alice")


def _lines(*answers: str) -> str:
    return "".join(f"{answer}\n" for answer in answers)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.csv").write_text(PATIENTS, encoding="utf-8")
    return tmp_path


def _run(*words: str, answers: str = "") -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, words, input=answers)


def _slots(state: State, name: str) -> list[tuple[Any, ...] | None]:
    with Ledger.open(state.ledger) as ledger:
        snapshot = Snapshot.open(rows_folder(state, ledger.dataset(name)))
    found: list[tuple[Any, ...] | None] = []
    for block in snapshot.blocks():
        for row, there in zip(zip(*(x.tolist() for x in block.values), strict=True), block.present, strict=True):
            cells = (None if isinstance(cell, float) and math.isnan(cell) else cell for cell in row)
            found.append(tuple(cells) if there else None)
    return found


def test_a_messy_file_becomes_a_table_and_a_token(folder: Path) -> None:
    """Every cell is what the answers say; the ledger verifies; no value of a row is shown, and all commands are."""
    result = _run("quickstart", "patients.csv", "--no-start", answers=_lines(*TABLE, *COLUMNS, *TOTAL))
    assert result.exit_code == 0, result.output
    assert not [value for value in VALUES if value in result.output]
    state = State.open(folder / "state")
    assert _slots(state, "patients") == [
        (0, 1234.56, 60.0, 1, 3, 0, 3.0),
        (1, 2000.0, 70.0, 0, 7, 1, None),
        (1, None, 80.0, 1, 0, 2, 50.0),
        None,  # born "heute", and no date may be missing
        (0, 5.0, 99.0, 0, 0, 0, 0.0),
        (1, 6.0, 99.0, 1, 1, 2, 7.0),
    ]
    manifest = Manifest.load(folder / "patients.toml")
    assert (manifest.unit.column, manifest.unit.max_rows, manifest.public_rows) == ("id", 2, 5000)
    assert [column.name for column in manifest.columns] == PATIENTS.splitlines()[0].split(";")[1:-1]
    assert verify(state.ledger).ok
    with Ledger.open(state.ledger) as ledger:
        assert (ledger.dataset("patients").budget.epsilon, ledger.dataset("patients").budget.delta) == (3, 1e-6)
        assert [held.name for held in ledger.credentials()] == ["admin", "alice"]
    token = (folder / "alice.token").read_text().strip()
    assert (folder / "alice.token").stat().st_mode & 0o777 == 0o600
    assert token not in result.output
    lines = result.output[result.output.index("import bursar") :].splitlines()[:3]
    assert lines[1].endswith('token=open("alice.token").read().strip(), ca="ca.pem")')
    ast.parse("\n".join(lines))
    assert """.fit(bursar.MRF(columns=['sex', 'smoker']), spend=bursar.rho(0.005)))""" in result.output
    for said in ("alice.token", "state/tls/ca.pem", "localhost:8443", "import bursar", "> bursar-server run --state"):
        assert said in result.output


def test_it_is_scripted_by_options_and_a_manifest(folder: Path) -> None:
    """Nothing is asked; a second table goes into the same state directory, and the same analyst keeps their token."""
    asked = _run("manifest", "new", "--csv", "patients.csv", "--ask", answers=_lines(*TABLE, *COLUMNS))
    assert asked.exit_code == 0, asked.output
    for name in ("first", "second"):
        (folder / f"{name}.toml").write_text(asked.stdout.replace('name = "patients"', f'name = "{name}"'))
        (folder / "patients.csv").write_text(PATIENTS + f"30;f;{len(name)};01.01.2000;no;A00;DE;1;\n")
        words = ["quickstart", "patients.csv", "--manifest", f"{name}.toml", "--epsilon", "1", "--delta", "1e-6"]
        result = _run(*words, "--analyst", "alice", "--host", "clinic.example", "--port", "9", "--no-start")
        assert result.exit_code == 0, result.output
        assert "clinic.example:9" in result.output
        assert "0.0.0.0:9" in result.output
    assert "they have one" in result.output
    with Ledger.open(folder / "state" / "ledger.sqlite") as ledger:
        assert [state.name for state in ledger.datasets()] == ["first", "second"]


def test_a_manifest_by_answers_is_that_of_a_quickstart(folder: Path) -> None:
    """The same questions; the manifest alone is on standard output, and the questions are not."""
    result = _run("manifest", "new", "--csv", "patients.csv", "--ask", answers=_lines(*TABLE, *COLUMNS))
    assert result.exit_code == 0, result.output
    assert Manifest.from_public(tomllib.loads(result.stdout)).name == "patients"
    assert not [value for value in VALUES if value in result.output]
    _run("quickstart", "patients.csv", "--no-start", answers=_lines(*TABLE, *COLUMNS, *TOTAL))
    assert (folder / "patients.toml").read_text() == result.stdout


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((*TABLE[:4], "perhaps"), "secret that somebody is in the table"),
        ((*TABLE, "categories", "a, b", "", "", "money", "", "much"), "income: greatest: 'much' is not a valid float"),
        ((*TABLE[:5], "person"), "whose row it is"),
    ],
)
def test_a_wrong_answer_of_a_script_ends_it(folder: Path, answers: tuple[str, ...], said: str) -> None:
    """The answers after it would be those of other questions."""
    result = _run("quickstart", "patients.csv", answers=_lines(*answers, *TABLE, *COLUMNS, *TOTAL))
    assert result.exit_code == 1
    assert said in result.output
    assert not (folder / "patients.toml").exists()
    assert not (folder / "state").exists()


def test_at_a_terminal_a_question_is_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong answer, and answers that fit no column together, are asked again."""
    monkeypatch.setattr("bursar_server.admin._asking.at_terminal", lambda: True)
    (folder / "p.csv").write_text("age,sex\n17,hush\n")
    table = ("utf-8", "comma", "p", "", "maybe", "no", "none", "0", "1234.5")
    columns = (
        "age",
        "9",
        "1",
        "no",
        "",
        "age",
        "0",
        "x",
        "110",
        "no",
        "",
        "categories",
        "a, a",
        "",
        "",
        "categories",
        "a",
        "b",
        "",
    )
    result = _run("manifest", "new", "--csv", "p.csv", "--ask", answers=_lines(*table, *columns))
    assert result.exit_code == 0, result.output
    for said in ("'maybe' is not one of", "lower must be below upper", "'x' is not a valid float", "more than once"):
        assert said in result.output
    assert [column["name"] for column in tomllib.loads(result.stdout)["columns"]] == ["age", "sex"]


def test_a_parquet_file_has_types_and_no_form(folder: Path) -> None:
    """Dates and truth values are known; nobody is asked how a number is written."""
    table = pa.table({"born": pa.array([4711], pa.date32()), "smoker": [True], "height": [1.7]})
    pq.write_table(table, folder / "p.parquet")
    answers = (
        "",
        "",
        "no",
        "none",
        "0",
        "",
        "1900-01-01",
        "2000-01-01",
        "months",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "0",
        "3",
        "",
        "",
    )
    result = _run("quickstart", "p.parquet", "--no-start", answers=_lines(*answers, *TOTAL))
    assert result.exit_code == 0, result.output
    manifest = Manifest.load(folder / "p.toml")
    assert [column.kind for column in manifest.columns] == ["numeric", "categorical", "numeric"]
    assert _slots(State.open(folder / "state"), "p") == [(12.0 * 82 + 10, 1, 1.7)]


def test_what_is_there_is_not_written_over(folder: Path) -> None:
    """A manifest of the file's name stays, and nothing is done."""
    (folder / "patients.toml").write_text("mine")
    result = _run("quickstart", "patients.csv", answers=_lines(*TABLE))
    assert result.exit_code == 1
    assert "--manifest" in result.output
    assert (folder / "patients.toml").read_text() == "mine"
    assert not (folder / "state").exists()


def test_a_file_that_is_no_text_is_told_before_any_question(folder: Path) -> None:
    """No answer about its encoding would help."""
    (folder / "patients.csv.gz").write_bytes(gzip.compress(PATIENTS.encode()))
    result = _run("quickstart", "patients.csv.gz")
    assert result.exit_code == 1
    assert result.output == "Error: patients.csv.gz is compressed by gzip: unpack it; expected a CSV file\n"
    assert not (folder / "state").exists()


def test_a_total_that_is_not_meant_is_asked_for_again(folder: Path) -> None:
    """Its meaning is said first; a total that is none is refused."""
    total = ("-1", "1e-6", "300", "1e-6", "no", "0.5", "1e-7", "yes", "alice")
    result = _run("quickstart", "patients.csv", "--no-start", answers=_lines(*TABLE, *COLUMNS, *total))
    assert result.exit_code == 0, result.output
    assert "epsilon must be positive" in result.output
    assert result.output.count("fits of epsilon") >= 3
    with Ledger.open(folder / "state" / "ledger.sqlite") as ledger:
        assert ledger.dataset("patients").budget.epsilon == 0.5


def test_a_total_is_repeated_as_it_was_given(folder: Path) -> None:
    """The commands that are shown, and what they say, promise no smaller total than the ledger has."""
    total = ("1.0000004", "1.2345678e-7", "yes", "alice")
    result = _run("quickstart", "patients.csv", "--no-start", answers=_lines(*TABLE, *COLUMNS, *total))
    assert result.exit_code == 0, result.output
    assert "--epsilon 1.0000004 --delta 1.2345678e-07" in result.output
    assert "(1, " not in result.output


def test_a_delta_is_proposed_that_can_be_read(folder: Path) -> None:
    """One digit, and at most a hundredth of one over the number of rows."""
    table = (*TABLE[:-2], "22000", TABLE[-1]) if TABLE[-2] == "5000" else TABLE
    result = _run("quickstart", "patients.csv", "--no-start", answers=_lines(*table, *COLUMNS, "3", "", "", "alice"))
    assert result.exit_code == 0, result.output
    assert "Total delta [4e-07]" in result.output


def test_the_server_takes_the_place_of_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that is run is the one that is shown."""
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: started.append(words))
    result = _run("quickstart", "patients.csv", answers=_lines(*TABLE, *COLUMNS, *TOTAL, "yes"))
    assert result.exit_code == 0, result.output
    ((_, _, *words),) = started
    assert words == ["-m", "bursar_server", "run", "--state", "state", "--address", "127.0.0.1:8443"]


def test_templates_are_what_they_say() -> None:
    """Countries are those of the time zones' list; letters of ICD-10 are chapters; names and types suggest one."""
    zones = importlib.resources.files("tzdata") / "zoneinfo" / "iso3166.tab"
    listed = [line.split("\t")[0] for line in zones.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert TEMPLATES["country"].fields["categories"] == sorted(listed)
    icd = TEMPLATES["icd10"].fields
    assert sorted({*icd["categories"], *icd["aliases"]}) == [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    names = {"age": "age", "country": "country", "n_visits": "count", "visits": "count", "birthday": "date", "x": None}
    assert {name: template_of(name, None) for name in names} == names
    assert template_of("age", pa.string()) == "categories"
    assert template_of("sex", pa.int64()) == "number"
    assert template_of("x", pa.timestamp("s")) == "date"
    assert 'kind = "boolean"' in skeleton([("x", pa.bool_())])


def test_a_refused_table_says_how_to_go_on(folder: Path) -> None:
    """The manifest stays, and the command that is printed goes on with it, once it is corrected."""
    (folder / "people.csv").write_text("age,smoker\n" + "20,true\n30,\n" * 5)
    answers = ("utf-8", "", "", "People", "yes", "none", "0", "", "age", "", "", "yes", "", "boolean", "", "", "")
    result = _run("quickstart", "people.csv", "--no-start", answers=_lines(*answers, *TOTAL))
    assert result.exit_code == 1
    (again,) = re.findall(r"people\.toml is kept: correct it, and go on with\n  bursar-admin (.+)\n", result.output)
    manifest = folder / "people.toml"
    manifest.write_text(manifest.read_text().replace('true = ["true"', 'true = ["", "true"'))
    result = _run(*again.split(), "--epsilon", "3", "--delta", "1e-6", "--analyst", "alice", "--no-start")
    assert result.exit_code == 0, result.output


def test_a_table_of_numbers_gets_a_mixture_as_its_first_model(folder: Path) -> None:
    """Categories are what the other model is of, and here are none."""
    (folder / "heights.csv").write_text("height\n1.5\n1.7\n")
    answers = ("utf-8", "", "", "Heights", "yes", "none", "0", "", "number", "0", "3", "no", "")
    result = _run("quickstart", "heights.csv", "--no-start", answers=_lines(*answers, *TOTAL))
    assert result.exit_code == 0, result.output
    assert ".fit(bursar.DPEM(n_components=2, columns=['height']), spend=bursar.rho(0.005)))" in result.output
