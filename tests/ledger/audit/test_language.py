"""Pages and reports in three languages: one table of texts, all of it used, nothing said beside it."""

from __future__ import annotations

import ast
import html
import re
import shutil
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from markupsafe import Markup

import bursar_ledger.audit
from bursar_ledger import Ledger
from bursar_ledger._entries import EntryKind
from bursar_ledger.audit._columns import lines
from bursar_ledger.audit._entry_text import entry_in_words
from bursar_ledger.audit._language import (
    LANGUAGES,
    findings,
    say,
    say_amount,
    say_count,
    say_finding,
    say_number,
    say_percent,
    speaking,
    texts,
)
from bursar_ledger.audit._open import opened, rows
from bursar_ledger.audit._pages import say_html
from bursar_ledger.audit._sentences import day_of
from bursar_ledger.audit._verdict import Standing

Run = Callable[..., Result]

_PACKAGE = Path(bursar_ledger.audit.__file__).parent
_WORDS = {
    "total",
    "allowance",
    "maximum per call",
    "retired",
    "withdrawn",
    "role",
    "rows",
    "key",
    "rows destroyed",
    "key destroyed",
    *(kind.value for kind in EntryKind),
    *(one.value for one in Standing),
}
"""Texts that `say_word` and the title of a page take from a ledger or a verdict."""
_SAME = {"Budgets", "Pages", "({epsilon}, {delta})", "{day} {month} {year}", "epsilon {epsilon} ({percent})"}
"""Texts that another language may have word for word."""
_CHECKS = (
    *("_check_entry", "_replay", "_bounds_check", "_schema", "_verify", "_opening", "_mark"),
    *("checkpoints/__init__", "checkpoints/signed_notes"),
    *("audit/_checks", "audit/_changes", "audit/_oracle", "audit/_open"),
)
"""Modules whose sentences become findings."""
_OTHERS = {"signing key", "verifier key", "private key", "public key", "mode 0600", "no entries"}
"""Words of errors that commands tell and no page shows."""
_FRAMES = {
    "7 cannot be read: 7",
    "7 is not base64",
    "7 is not base64 in its only form",
    "the 7 is not of the algorithm",
}
"""Sentences whose values are parts of a sentence, so that 7 makes none."""


def _fields(text: str) -> list[str]:
    return sorted(field for _, field, _, _ in string.Formatter().parse(text) if field is not None)


def _strings(node: ast.AST) -> Iterator[str]:
    return (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _used() -> set[str]:
    """Return the texts of the table that are strings of the package's modules or templates."""
    found = set(_WORDS)
    for module in _PACKAGE.glob("*.py"):
        found |= set(_strings(ast.parse(module.read_text("utf-8"))))
    templates = "".join(template.read_text("utf-8") for template in (_PACKAGE / "pages").rglob("*.html"))
    return found | {text for text in texts() if '"{}"'.format(text.replace('"', '\\"')) in templates}


def _said() -> Iterator[object]:
    """Yield every constant that is given to `say`, `say_html` or the templates' functions of that name."""
    for module in _PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.startswith("say"):
                texts_given = node.args[1:3] if "count" in node.func.id else node.args[:1]
                for given in texts_given:
                    chosen = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
                    yield from (one.value for one in chosen if isinstance(one, ast.Constant))
    for template in (_PACKAGE / "pages").rglob("*.html"):
        for match in re.findall(r'\bsay\("((?:[^"\\]|\\.)*)"', template.read_text("utf-8")):
            yield match.replace('\\"', '"')


def test_each_text_is_there_in_each_language_with_the_same_fields() -> None:
    """And no other language is in the table; a translation is another text unless it is listed."""
    for english, translated in texts().items():
        assert tuple(translated) == LANGUAGES
        for language in LANGUAGES:
            assert translated[language].strip()
            assert _fields(translated[language]) == _fields(english), english
            tags = re.findall(r"</?[a-z]+>", english)
            assert sorted(re.findall(r"</?[a-z]+>", translated[language])) == sorted(tags), english
            assert translated[language][0].isspace() == english[0].isspace() or english[0] == " "
        alike = translated["de"] == english == translated["fr"]
        assert not alike or english in _SAME, english


def test_the_table_has_every_text_that_is_said_and_no_other() -> None:
    """A text that nothing says would be translated for nothing."""
    missing = set(_said()) - set(texts())
    assert not missing
    unused = set(texts()) - set(findings()) - _used()
    assert not unused


def _sentence(node: ast.AST) -> str:
    """Return a string with 7 for each value in it; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_sentence(part) or "7" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_sentence(node.left) or "7") + (_sentence(node.right) or "7")
    return ""


def _nodes() -> Iterator[ast.AST]:
    for name in _CHECKS:
        yield from ast.walk(ast.parse((_PACKAGE.parent / f"{name}.py").read_text("utf-8")))


def _told() -> Iterator[str]:
    """Yield every sentence that is given to a list of problems, or raised about a note or a file."""
    for node in _nodes():
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = ast.unparse(node.func)
        if name.endswith(("._problem", "problems.append")) or name in ("NoteError", "UnreadableError"):
            yield _sentence(node.args[0])


def test_each_finding_is_there_in_each_language() -> None:
    """A check that is added has to be translated, and a form that no check has is not in the table."""
    told = {text for text in _told() if text and not any(word in text for word in _OTHERS | _FRAMES)}
    assert len(told) > 60
    with speaking("de"):
        assert [text for text in told if say_finding(text) == text] == []
    written = {three for node in _nodes() for three in _threes(_sentence(node))}
    for english in set(findings()) - _used():
        foreign = [three for part in re.split(r"\{\w+\}", english) for three in _threes(part) if three not in written]
        assert len(foreign) <= _JOINTS, english


_JOINTS = 3
"""Groups of words where two strings of the code meet in one sentence."""


def _threes(text: str) -> Iterator[tuple[str, ...]]:
    """Yield each three words in a row."""
    words = re.findall(r"\w+", text)
    return zip(words, words[1:], words[2:], strict=False)


def test_a_finding_is_told_with_what_it_quotes() -> None:
    """Sentences within sentences are translated, names and numbers stay, even where they are sentences themselves."""
    text = "file:/a/notes: note 2: it says that it is of entry 9, but it is not signed by the expected key"
    overspent = "entry 12: account 'a dataset was retired twice' is overspent"
    assert say_finding(text) == text
    with speaking("de"):
        assert say_finding(text) == (
            "file:/a/notes: Prüfpunkt 2: er nennt Eintrag 9, aber er ist nicht mit dem erwarteten Schlüssel signiert"
        )
        assert say_finding(overspent) == "Eintrag 12: Konto 'a dataset was retired twice' ist überzogen"
        assert say_finding("nothing of ours") == "nothing of ours"
    with speaking("fr"):
        assert say_finding("schema: trigger x is missing") == "structure du fichier : trigger x manque"


def test_numbers_and_days_have_the_signs_of_the_language() -> None:
    """Decimal sign, thousands, percent, and the first of a French month."""
    assert (say_percent(0.0185), say_number(1234.5), day_of("2026-03-01T00:00:00+00:00")) == (
        "1.85%",
        "1234.5",
        "1 March 2026",
    )
    with speaking("de"):
        assert (say_percent(0.0185), say_number(0.25), day_of("2026-03-01T00:00:00+00:00")) == (
            "1,85 %",
            "0,25",
            "1. März 2026",
        )
        assert say("{count} entries", count=12345) == "12.345 Einträge"
        assert say_amount(float("inf"), 1.0) == "Epsilon unendlich (100 %)"
    with speaking("fr"):
        assert day_of("2026-03-01T00:00:00+00:00") == "1er mars 2026"
        assert say("{count} entries", count=12345) == "12 345 inscriptions"
        assert say_count(0, "{count} debit", "{count} debits") == "0 débit"
    assert say_count(0, "{count} debit", "{count} debits") == "0 debits"


def test_fields_are_no_templates_and_no_html() -> None:
    """A field is put in once, and escaped where the text is HTML."""
    assert say("Compared with {since}.", since="{kept}") == "Compared with {kept}."
    shown = say_html("For your next visit keep this text: <code>{kept}</code>", kept="<b>{kept}\x1b</b>")
    assert isinstance(shown, Markup)
    assert shown.endswith("<code>&lt;b&gt;{kept}\\x1b&lt;/b&gt;</code>")


@pytest.mark.parametrize(
    ("language", "parts"),
    [
        (
            "de",
            (
                "owner hat jede Anfrage an people auf 33,3 % des Gesamtbudgets begrenzt. Angegebener Grund: test",
                "<strong>(Epsilon; Delta) = (4; 1e-06)</strong>",
            ),
        ),
        (
            "fr",
            (
                "owner a limité chaque requête sur people à 33,3 % du budget total. Motif indiqué : test",
                "<strong>(epsilon ; delta) = (4 ; 1e-06)</strong>",
            ),
        ),
    ],
)
def test_a_report_in_another_language_has_no_english_sentence(
    run: Run, study: Path, tmp_path: Path, language: str, parts: tuple[str, ...]
) -> None:
    """Texts of the English page that the table has do not come in the other one."""
    pages = {}
    for spoken in ("en", language):
        out = tmp_path / f"{spoken}.html"
        assert run("report", study, "--out", out, "--language", spoken).exit_code == 0
        pages[spoken] = out.read_text("utf-8")
    for part in (f'<html lang="{language}">', *parts):
        assert part in pages[language]
    for english, translated in texts().items():
        plain = not _fields(english) and len(english) > 25 and translated[language] != english
        if plain and f">{english}" in pages["en"]:
            assert f">{translated[language].replace(chr(39), '&#39;')}" in pages[language] or (
                f">{translated[language]}" in pages[language]
            )
            assert f">{english}" not in pages[language]
    _all_translated(pages[language], language)


_ENGLISH = {
    *("the", "and", "of", "with", "by", "from", "for", "to", "it", "its", "that", "than", "was", "were", "are", "is"),
    *("has", "have", "had", "not", "no", "entry", "entries", "release", "released", "debit", "budget", "day", "noise"),
    *("analyst", "asked", "cost", "spent", "left", "key", "dataset", "account"),
}
"""Words that no English sentence of ours does without."""
_SHARED = {"de": {"was", "budget", "analyst"}, "fr": {"budget", "analyst"}}
"""Those of them that the other language has, too."""


def _all_translated(page: str, language: str, *quoted: str) -> None:
    """Check that no word of a page is English but those of code, JSON and names."""
    text = re.sub(r"<(style|code|svg)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    for one in quoted:
        text = text.replace(one, " ")
    words = set(re.findall(r"(?<![\w\-./=_'])[a-z]+(?![\w\-./_=])", html.unescape(text)))
    assert words & (_ENGLISH - _SHARED[language]) == set()


@pytest.mark.parametrize("language", ["de", "fr"])
def test_findings_and_entries_in_another_language_have_no_english_sentence(
    run: Run, study: Path, ledger: Ledger, tamper: Callable[..., None], tmp_path: Path, language: str
) -> None:
    """The report of a ledger that is not right, compared with a last visit; and every entry in full."""
    ledger.close()
    seen = tmp_path / "seen.db"
    shutil.copy(study, seen)
    with speaking(language), opened(study) as db:
        for row, line, _ in lines(rows(db)):
            said = re.sub(r"^ *[{}\[\]\"].*$", "", "\n".join(entry_in_words(row, line)), flags=re.MULTILINE)
            _all_translated(said, language, f"entry {row.number}, ledger_head")
    tamper(
        study,
        ("UPDATE entries SET body = replace(body, 'second year', 'second yeas') WHERE number = 10", ()),
        ("UPDATE releases SET content = x'00' WHERE debit = 11", ()),
    )
    out = tmp_path / "report.html"
    assert run("report", study, "--out", out, "--language", language, "--since", seen).exit_code == 1
    page = out.read_text("utf-8")
    assert page.count("<li>") > 12
    _all_translated(page, language)
