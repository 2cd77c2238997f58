"""Reports on messy rows before they are registered, and what is refused until it is said to be meant."""

from __future__ import annotations

import functools
import json
import math
import stat
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar_ledger import Budget
from bursar_server.admin import _looking, _totals
from bursar_server.tables import import_table

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

TOTAL = ("--epsilon", 1, "--delta", 1e-6)

HOSPITAL = """
name = "{name}"
adjacency = "add_remove_one"
public_rows = 50
unit = {{ column = "patient", max_rows = 2 }}
[[columns]]
name = "age"
kind = "numeric"
lower = 0
upper = 110
[[columns]]
name = "smoker"
kind = "categorical"
categories = ["true", "false"]
[[columns]]
name = "income"
kind = "numeric"
lower = 0
upper = 200000
nullable = true
"""


def _hospital(
    admin: Admin, lines: list[str], name: str = "hospital", *, header: str = "patient,age,smoker,income"
) -> list[object]:
    manifest, rows = admin.files / f"{name}.toml", admin.files / f"{name}.csv"
    manifest.write_text(HOSPITAL.format(name=name))
    rows.write_text("\n".join([header, *lines]) + "\n")
    return ["--manifest", manifest, "--csv", rows]


GOOD = [f"p{i},{20 + i},{'true' if i % 3 else 'false'},{1000 * i}" for i in range(40)]
MESSY = [
    *GOOD,
    "p1,999,true,5",  # an age out of bounds
    "p1,-1,true,5",
    "p1,30,true,5",  # a fourth row of one person: two are over the cap
    "p50,31,TRUE,7",  # not declared
    "p51,32,tru\x1b[2J,7",
    "p52,,true,7",  # no age: no row
    'p53,33,true,"1,234.56"',  # lost, and the row stays
    "p54,34,true,",
    ",35,true,8",  # nobody's
]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is a terminal."""

    class Terminal:
        stdout = type("Out", (), {"isatty": staticmethod(lambda: True)})

    monkeypatch.setattr(_looking, "sys", Terminal)


def test_the_report_says_what_is_wrong_with_which_column(admin: Admin) -> None:
    """Counts and shares of every column; examples only where somebody looks."""
    output = admin.ok("import", *_hospital(admin, MESSY), *TOTAL)
    lines = [" ".join(line.split()) for line in output.splitlines()]
    for said in (
        "49 rows read",
        "4 rows with a bad or missing cell, kept as null rows, 8.2%",
        "1 of them without a unit alone, 2.0%",
        "2 rows over their unit's cap, which concerns no single column, kept as null rows, 4.1%",
        "age 0 1 (2.0%) 1 (2.0%) 1 (2.0%)",
        "smoker 2 (4.1%) 0 0 0",
        "income 1 (2.0%) 1 (2.0%) 0 0",
    ):
        assert said in lines, output
    assert "TRUE" not in output
    assert "1,234" not in output


def test_examples_are_for_the_terminal(admin: Admin, watched: None) -> None:
    """They show what was probably meant, without control characters; no entry and no file has any."""
    output = admin.ok("import", *_hospital(admin, MESSY), *TOTAL)
    assert "smoker: 2 values are not declared, such as 'TRUE', 'tru\\x1b[2J'; did you mean 'true'?" in output
    assert "income: 1 values are no numbers, such as '1,234.56'" in output
    assert "\x1b[2J" not in output
    kept = [path for path in admin.state.path.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"1,234.56" in path.read_bytes() or b"TRUE" in path.read_bytes() for path in kept)


def test_a_report_in_a_file_is_asked_for(admin: Admin) -> None:
    """It says what it is, and only its owner reads it."""
    file = admin.files / "report.txt"
    admin.ok("import", *_hospital(admin, MESSY), *TOTAL, "--report", file, "--dry-run")
    text = file.read_text()
    assert text.startswith("import report (computed from the data: for you alone), with values of its rows")
    assert "'1,234.56'" in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_counts_for_programs(admin: Admin) -> None:
    """The same counts as JSON, alone on standard output, without any cell."""
    result = admin.run("import", *_hospital(admin, MESSY), *TOTAL, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["report"]["columns"][1] == {
        "name": "smoker", "bad": 2, "missing": 0, "clipped_low": 0, "clipped_high": 0,
    }  # fmt: skip
    assert (said["dry_run"], said["entry"]["kind"], said["entry"]["dataset"]) == (False, "registration", "hospital")
    assert said["entry"]["number"] == admin.entries()[-1].number
    assert "TRUE" not in result.output
    dry = json.loads(admin.run("snapshot", *_hospital(admin, GOOD), "--dry-run", "--json").stdout)
    assert (dry["dry_run"], dry["report"]["null_rows"]) == (True, 0)


def test_a_refusal_has_its_counts_for_programs(admin: Admin) -> None:
    """The answer has the refusal, and the report that says why; without any cell."""
    bad = [line.replace("true", "True").replace("false", "False") for line in GOOD]
    result = admin.run("import", *_hospital(admin, bad), *TOTAL, "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert "smoker: no value could be read" in said["refused"]
    assert said["report"]["columns"][1]["bad"] == len(GOOD)
    assert "True" not in result.stdout


def test_more_than_a_twentieth_bad_is_red(admin: Admin) -> None:
    """A line of its own, beside the table."""
    few, many = [*GOOD, "p60,30,yes,1"], [*GOOD, *(f"p{60 + i},30,yes,1" for i in range(5))]
    assert "values are bad" not in admin.ok("import", *_hospital(admin, few), *TOTAL, "--dry-run")
    assert "smoker: 5 values are bad, 11.1%" in admin.ok("import", *_hospital(admin, many), *TOTAL, "--dry-run")


def test_a_table_that_is_mostly_bad_is_not_registered(admin: Admin) -> None:
    """One capital letter in each row, as a year's table was once lost; unless it is meant, up to a share."""
    bad = [line.replace("true", "True").replace("false", "False") for line in GOOD]
    before = admin.verified.head, admin.snapshots
    output = admin.refused("import", *_hospital(admin, bad), *TOTAL)
    assert "smoker: no value could be read" in output
    assert "100.0% of the rows are bad" in output
    assert "--accept-bad-rows" in output
    admin.refused("import", *_hospital(admin, [*bad, *GOOD]), *TOTAL, "--accept-bad-rows", "49%")
    assert (admin.verified.head, admin.snapshots) == before
    admin.ok("import", *_hospital(admin, [*bad, *GOOD]), *TOTAL, "--accept-bad-rows", "1/2")


def test_records_of_another_length_are_red(admin: Admin) -> None:
    """Cells of such a record belong to no column, so that counts by column would not tell what is wrong."""
    broken = [f"{line},more" for line in GOOD[:5]]
    output = admin.ok("import", *_hospital(admin, [*broken, *GOOD[5:]]), *TOTAL, "--dry-run")
    assert "5 rows without any value, 12.5%: of a CSV file, those with too few or too many cells, too" in output
    crowded = [line.replace(f"p{i},", "p0,") for i, line in enumerate(GOOD)]
    output = admin.ok("import", *_hospital(admin, crowded), *TOTAL, "--dry-run")
    assert "38 rows are over their unit's cap, 95.0%: a larger max_rows keeps them, and needs more noise" in output


def test_a_table_without_rows_is_not_registered(admin: Admin) -> None:
    """A header alone would be given a total for good without any people; it needs an option."""
    words, before = ("import", *_hospital(admin, []), *TOTAL), admin.verified.head
    assert "the table has no rows" in admin.refused(*words)
    assert admin.verified.head == before
    admin.ok(*words, "--accept-bad-rows", "100%")


def test_numbers_that_cannot_be_read_are_not_missing(admin: Admin) -> None:
    """A nullable column whose numbers are written otherwise loses them all: no row is bad, and it is refused."""
    lines = [f'p{i},30,true,"{i},5"' for i in range(10)]
    output = admin.refused("import", *_hospital(admin, lines), *TOTAL)
    assert "income: 100.0% of the values are bad" in output
    lines = [*GOOD, *(f"p{60 + i},30,true," for i in range(40))]
    admin.ok("import", *_hospital(admin, lines), *TOTAL)  # half of them not told: that is no fault


def test_good_rows_are_not_replaced_by_bad_ones(admin: Admin, at_a_terminal: None) -> None:
    """The question comes after the report, and a table that is mostly bad never reaches it."""
    admin.ok("import", *_hospital(admin, GOOD), *TOTAL, answer="y\n")
    before = admin.verified.head, admin.snapshots
    bad = [line.replace("true", "True").replace("false", "False") for line in GOOD]
    refused = admin.refused("snapshot", *_hospital(admin, bad), "--yes", "--delete-old-rows")
    assert "100.0% of the rows are bad" in refused
    output = admin.refused("snapshot", *_hospital(admin, MESSY), "--delete-old-rows", answer="n\n")
    assert output.index("rows read") < output.index("of the same people as those of hospital?")
    assert (admin.verified.head, admin.snapshots) == before
    admin.ok("snapshot", *_hospital(admin, MESSY), "--delete-old-rows", answer="y\n")
    assert len(admin.snapshots) == 1


def test_a_registration_is_asked_for_last(admin: Admin, at_a_terminal: None) -> None:
    """The question comes after the report and what the total means; a no keeps nothing."""
    before = admin.verified.head, admin.snapshots
    output = admin.refused("import", *_hospital(admin, MESSY), *TOTAL, answer="n\n")
    assert output.index("rows read") < output.index("for a person") < output.index("Register hospital")
    assert (admin.verified.head, admin.snapshots) == before
    dry = admin.ok("import", *_hospital(admin, MESSY), *TOTAL, "--dry-run")
    assert "would register hospital" in dry
    assert "registered hospital" not in dry


def test_columns_that_there_are(admin: Admin) -> None:
    """A missing column is told with those of the file, and a file of semicolons is told from one without header."""
    output = admin.refused("import", *_hospital(admin, GOOD, header="patient,Age,smoker,income"), *TOTAL)
    assert "'age' is missing" in output
    assert "the source has 'patient', 'Age', 'smoker', 'income'" in output
    lines = [line.replace(",", ";") for line in GOOD]
    output = admin.refused("import", *_hospital(admin, lines, header="patient;age;smoker;income"), *TOTAL)
    assert "separated by ';'" in output
    assert "encoding" not in output
    (admin.files / "latin.csv").write_bytes("patient,age,smoker,einkünfte\n".encode("latin-1"))
    words = [*_hospital(admin, GOOD)]
    words[words.index("--csv") + 1] = admin.files / "latin.csv"
    assert "set [csv] encoding" in admin.refused("import", *words, *TOTAL)
    output = admin.refused("import", *_hospital(admin, GOOD[1:], header=GOOD[0]), *TOTAL)
    assert "is there a header" in output
    assert "p0" not in output


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"), [(300, 1e-6, "epsilon 300"), (1, 0.1, "delta 0.1 times 50 rows")]
)
def test_a_total_that_protects_nobody_is_typed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, epsilon: float, delta: float, said: str
) -> None:
    """The name has to be typed, or a script says it in so many words; --yes is not enough."""
    total = ("--epsilon", epsilon, "--delta", delta)
    before = admin.verified.head, admin.snapshots
    output = admin.refused("import", *_hospital(admin, GOOD), *total, "--yes")
    assert said in output
    assert "--i-know" in output
    assert said in admin.ok("import", *_hospital(admin, GOOD), *total, "--dry-run")
    monkeypatch.setattr("bursar_server.admin._acting.at_terminal", lambda: True)
    admin.refused("import", *_hospital(admin, GOOD), *total, answer="yes\n")
    assert (admin.verified.head, admin.snapshots) == before
    admin.ok("import", *_hospital(admin, GOOD), *total, answer="hospital\ny\n")
    admin.ok("import", *_hospital(admin, GOOD[:9], "second"), *total, "--i-know", "--yes")


def test_a_raise_says_what_it_means(admin: Admin) -> None:
    """The same holds for a total that is changed."""
    admin.ok("import", *_hospital(admin, GOOD), *TOTAL)
    output = admin.ok("budget", "set", "hospital", "--epsilon", 3, "--yes")
    assert "95.26 times of 100" in output
    assert "37 fits of epsilon 0.43" in output
    assert "epsilon 30 is above" in admin.refused("budget", "set", "hospital", "--epsilon", 30, "--yes")
    admin.ok("budget", "set", "hospital", "--epsilon", 30, "--yes", "--i-know")


@pytest.mark.parametrize(
    ("epsilon", "guess", "gaussian"),
    [(0.1, "52.5", "50.6"), (1, "73.2", "54.4"), (3, "95.26", "62"), (8, "99.9665", "76.6")],
)
def test_a_total_in_words(epsilon: float, guess: str, gaussian: str) -> None:
    """The numbers are those of docs/epsilon.md."""
    said = _totals.sentence(Budget(epsilon, 1e-6))
    assert f"may guess right {guess} times of 100 at most, and {gaussian} times if all of it is Gaussian" in said


@given(st.floats(0.05, 40.0), st.floats(1e-9, 0.3))
@example(1.0, 1e-6)
@example(3.0, 0.1)
def test_a_guess_is_never_said_to_be_worse_than_it_may_be(epsilon: float, delta: float) -> None:
    """The bound is that of the best test against a mechanism that spends all of epsilon and delta."""
    total = Budget(epsilon, delta)
    worst, gaussian = map(Fraction, _totals.guesses(total))
    best = 100 - 100 * (1 - Fraction(delta)) / (1 + Fraction(math.exp(epsilon) * (1 + 1e-14)))
    assert best - Fraction(1, 10**13) <= worst < 100
    assert worst - best <= (100 - best) / 100 + Fraction(1, 10**13)
    rho = float(total.part(total.cap_cost_units).rho)
    assert 100 * NormalDist().cdf(math.sqrt(rho / 2)) - 1e-9 <= gaussian < 100


def test_who_does_it_is_named(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option, the environment or a user of this machine names them; an impossible name is refused."""
    admin.ok("import", *_hospital(admin, GOOD), *TOTAL, "--actor", "ada")
    assert admin.entries()[-1].actor == "local:ada"
    assert "name" in admin.refused("retire", "hospital", "--yes", "--actor", "a b")
    monkeypatch.setenv("BURSAR_ACTOR", "grace")
    admin.ok("retire", "hospital", "--yes")
    assert admin.entries()[-1].actor == "local:grace"


def test_a_long_import_shows_that_it_reads(tmp_path: Path) -> None:
    """The rows pass unchanged."""
    from bursar_server.tables import CsvSource

    file = tmp_path / "rows.csv"
    file.write_text("x\n1\n2\n")
    plain, watched = (list(source.batches(["x"])) for source in (CsvSource(file), _looking.Watched(CsvSource(file))))
    assert plain == watched


def test_python_is_refused_what_the_command_is(admin: Admin) -> None:
    """Bad rows and totals that protect hardly anybody have to be meant; a refusal leaves nothing."""
    _hospital(admin, GOOD)
    bad = pl.DataFrame(
        {"patient": ["p1"] * 3, "age": [1, 2, 3], "smoker": ["true", "no", "no"], "income": [1, None, 3]}
    )
    manifest, good = admin.files / "hospital.toml", bad.with_columns(smoker=pl.lit("true")).to_arrow()
    run = functools.partial(import_table, admin.state.path, manifest, actor="local:ada")
    head = admin.verified.head
    with pytest.raises(ValueError, match=r"smoker: 66\.7% of the values are bad; 66\.7% of the rows are bad"):
        run(bad, Budget(1, 1e-6))
    with pytest.raises(ValueError, match="epsilon 300 is above 10"):
        run(good, Budget(300, 1e-6))
    with pytest.raises(ValueError, match="times 50 rows is 5"):
        run(good, Budget(1, 0.1))
    with pytest.raises(ValueError, match="budget is missing"):
        run(good, None)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="accept_bad_rows: expected a share from 0 to 1"):
            run(bad, Budget(1, 1e-6), accept_bad_rows=share)
    assert run(bad, Budget(300, 1e-6), accept_bad_rows=0.7, accept_danger=True, dry_run=True).null_rows == 2
    assert admin.verified.head == head
    assert not admin.snapshots
    assert run(good, Budget(1, 1e-6)).rows_over_cap == 1
    assert len(admin.snapshots) == 1


def test_a_refusal_says_how_rows_with_empty_cells_are_kept(admin: Admin) -> None:
    """The columns that lose them are named, with `nullable` or a category for empty cells."""
    lines = [*GOOD, *(f"q{i},,true,5" for i in range(10)), *(f"r{i},40,,5" for i in range(10))]
    refused = admin.refused("import", *_hospital(admin, lines), *TOTAL).splitlines()
    assert "age: 16.7% of the cells are empty; nullable = true keeps their rows" in refused
    assert any(line.startswith('smoker: 16.7% of the cells are empty; aliases = { "" = CATEGORY }') for line in refused)
    assert not any(line.startswith("income: ") and "empty" in line for line in refused)
