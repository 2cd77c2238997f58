"""`bursar-audit report` as a PDF and as a workbook, and its signature."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pypdf
import pytest
from click.testing import Result

from bursar_ledger import Adjacency, Budget, Ledger, Registration
from bursar_ledger.audit._columns import COLUMNS
from bursar_ledger.checkpoints import origin_of
from bursar_ledger.checkpoints.signed_notes import Checkpoint, Note, NoteError, SigningKey

Run = Callable[..., Result]


def _pdf(path: Path) -> str:
    return " ".join(
        " ".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(path.read_bytes())).pages).split()
    )


@pytest.mark.slow
def test_the_pdf_says_what_the_page_says(run: Run, study: Path, tmp_path: Path) -> None:
    """Verdict, budgets, spenders, acts, meaning; a chart for each account with requests; no program in it."""
    out = tmp_path / "report.pdf"
    assert run("report", study, "--out", out).exit_code == 0
    text = _pdf(out)
    for part in (
        "Privacy ledger",
        "consistent",
        "(epsilon, delta) = (4, 1e-06)",
        "second year",
        "Who spent it",
        "owner limited each request about people to 33.3% of the lifetime budget. Reason given: test",
        "probabilities change by a factor of at most eepsilon",
        "What this page cannot show",
    ):
        assert part in text
    reader = pypdf.PdfReader(io.BytesIO(out.read_bytes()))
    assert sum(len(page.images) for page in reader.pages) == 1  # nobody spent anything of homes
    assert not {"/AA", "/Names"} & set(reader.root_object)


@pytest.mark.slow
def test_the_pdf_has_other_languages_and_escapes_what_its_font_lacks(
    run: Run, ledger: Ledger, path: Path, tmp_path: Path
) -> None:
    """Umlauts and Greek are letters; Chinese characters become escapes instead of empty boxes."""
    ledger.register_dataset(
        Registration("Größe αβ 数", Adjacency.REPLACE_ONE, Budget(1, 1e-6), b"2" * 32, {}), actor="o", reason="<b>"
    )
    out = tmp_path / "report.pdf"
    assert run("report", path, "--out", out, "--language", "fr").exit_code == 0
    text = _pdf(out)
    assert "Registre de confidentialité" in text
    assert "Größe αβ \\u{6570}" in text
    assert "<b>" in text


def test_the_workbook_has_every_entry(run: Run, study: Path, tmp_path: Path) -> None:
    """Sheets by their names; an entry has its sentence and the columns of `entries`, numbers as numbers."""
    out = tmp_path / "report.xlsx"
    assert run("report", study, "--out", out).exit_code == 0
    book = openpyxl.load_workbook(out)
    assert book.sheetnames == ["Overview", "Budgets", "Analysts", "Analysts, in words", "Entries", "Refusals"]
    entries = [[cell.value for cell in row] for row in book["Entries"].iter_rows()]
    assert entries[0] == ["entry", "What", *(name for name in COLUMNS if name != "entry")]
    assert [row[0] for row in entries[1:]] == list(range(1, 15))
    debit = dict(zip(entries[0], entries[7], strict=True))
    assert "an analyst (ann) asked for" in str(debit["What"])
    assert debit["actor"] == "ann"
    assert isinstance(debit["rho"], float)
    assert debit["released"] is True
    assert [row[2].value for row in book["Analysts"].iter_rows(min_row=2)] == ["ann", "bob"]
    assert "consistent" in [row[0].value for row in book["Overview"].iter_rows()]


def test_no_cell_is_a_formula(run: Run, ledger: Ledger, path: Path, tmp_path: Path) -> None:
    """Every cell of the ledger's is a text."""
    evil = '=HYPERLINK("http://example.org","x")'
    ledger.register_dataset(
        Registration(evil, Adjacency.REPLACE_ONE, Budget(1, 1e-6), b"2" * 32, {}), actor=evil, reason=evil
    )
    out = tmp_path / "report.xlsx"
    assert run("report", path, "--out", out, "--language", "de").exit_code == 0
    cells = [cell for sheet in openpyxl.load_workbook(out) for row in sheet.iter_rows() for cell in row]
    assert evil in [cell.value for cell in cells]
    assert {cell.data_type for cell in cells if cell.value is not None} <= {"s", "n", "b"}
    assert not [cell for cell in cells if cell.hyperlink]


@pytest.mark.parametrize("form", ["html", "pdf", "xlsx"])
def test_a_forged_ledger_gets_its_report_in_every_form(
    run: Run, study: Path, ledger: Ledger, forge: Any, tmp_path: Path, form: str
) -> None:
    """The status is 1, and the report is there."""
    ledger.close()
    forge(study, 9, lambda fields: fields.update(actor="\x1b\u202e" + "x" * 40_000, cost_units=10**30, time="never"))
    out = tmp_path / f"report.{form}"
    assert run("report", study, "--out", out).exit_code == 1
    assert out.stat().st_size > 5000


def test_another_ending_is_refused(run: Run, study: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    result = run("report", study, "--out", tmp_path / "report.doc")
    assert result.exit_code == 2
    assert "expected report.html, report.pdf or report.xlsx" in result.stderr
    assert not list(tmp_path.glob("report*"))


def _key(ledger: Ledger, tmp_path: Path) -> tuple[Path, str]:
    key = SigningKey.create(origin_of(ledger.ledger_id))
    ledger.set_checkpoint_key(str(key.verifier), actor="owner", reason="test")
    key.save(tmp_path / "checkpoint.key")
    return tmp_path / "checkpoint.key", str(key.verifier)


def test_a_report_is_signed_with_the_key_of_the_checkpoints(
    run: Run, ledger: Ledger, path: Path, tmp_path: Path
) -> None:
    """The note names file, ledger and verdict; another byte, another key and a checkpoint's note are refused."""
    private, public = _key(ledger, tmp_path)
    out = tmp_path / "report.pdf"
    assert run("report", path, "--out", out, "--sign", private).exit_code == 0
    result = run("signature", out, "--key", public)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"signed by {public}"
    for part in ("file report.pdf", f"ledger {origin_of(ledger.ledger_id)}", "size 3", "verdict consistent"):
        assert part in result.stdout.splitlines()
    as_json = json.loads(run("signature", out, "--key", public, "--json").stdout)
    assert (as_json["signed by"], as_json["size"]) == (public, "3")
    note = tmp_path / "report.pdf.note"
    with pytest.raises(NoteError):
        Checkpoint.parse(Note.parse(note.read_text("utf-8")).text)  # nobody can pass it off as a checkpoint
    stranger = str(SigningKey.create("bursar/other").verifier)
    assert run("signature", out, "--key", stranger).exit_code == 1
    out.write_bytes(out.read_bytes() + b" ")
    result = run("signature", out, "--key", public)
    assert result.exit_code == 1
    assert "is not the file that was signed" in result.stderr
    note.unlink()
    assert run("signature", out, "--key", public).exit_code == 2


def test_a_strangers_key_signs_no_report(run: Run, ledger: Ledger, path: Path, tmp_path: Path) -> None:
    """The report is there, and the error says that it is not signed."""
    SigningKey.create("bursar/other").save(tmp_path / "other.key")
    out = tmp_path / "report.html"
    result = run("report", path, "--out", out, "--sign", tmp_path / "other.key")
    assert result.exit_code == 1
    assert "the report is written, and not signed: the ledger does not name the key" in result.stderr
    assert out.exists()
    assert not (tmp_path / "report.html.note").exists()
