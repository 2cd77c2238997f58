"""Pages and reports in three languages: one table of texts, all of it used, nothing said beside it."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from markupsafe import Markup

import bursar_ledger.audit
from bursar_ledger.audit._language import (
    LANGUAGES,
    say,
    say_amount,
    say_count,
    say_number,
    say_percent,
    speaking,
    texts,
)
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
    *(one.value for one in Standing),
}
"""Texts that `say_word` and the title of a page take from a ledger or a verdict."""
_SAME = {"Budgets", "Pages", "({epsilon}, {delta})", "{day} {month} {year}", "epsilon {epsilon} ({percent})"}
"""Texts that another language may have word for word."""


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
    unused = set(texts()) - _used()
    assert not unused


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
    assert "limited" not in pages[language]
    assert "raised" not in pages[language]
