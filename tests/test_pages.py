"""The pages, as whoever browses the repository reads them: links lead somewhere, and code is run or said not to be."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import click
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import bursar
import bursar_models
from bursar._cli._app import app
from bursar_ledger.audit.cli import main as audit
from bursar_models.requests import arguments
from bursar_server.__main__ import main as server
from bursar_server.admin.cli import main as admin
from tests.each import each
from tests.pages import FRONT_MATTER, PAGES, ROOT, WITH_CODE

PROGRAMS: Mapping[str, click.Command] = MappingProxyType(
    {"bursar": app, "bursar-admin": admin, "bursar-audit": audit, "bursar-server": server}
)

WITH_CONSOLE = frozenset(
    {
        "docs/cli.md",
        "docs/cli-admin.md",
        "docs/cli-audit.md",
        "docs/howto-first-dataset.md",
        "docs/howto-restore.md",
        "docs/howto-upgrade.md",
        "docs/howto-several-analysts.md",
        "docs/howto-audit.md",
    }
)
"""Pages whose console blocks `tests/test_demo.py` and `tests/test_howto.py` type in and compare."""

FRAGMENTS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("docs/fit-mrf.md", 'week = [f"day_{i}" for i in range(7)]'): "the demo's table has no paths",
        (
            "docs/fit-sketch-kmeans.md",
            'sites = [bursar.load_sketch(path) for path in ("north.json", "south.json")]',
        ): "files of two sites that the demo does not have",
    }
)
"""Python that is shown and not run, marked `py`: page and first line, and why."""


@cache
def _tokens(page: str) -> tuple[Token, ...]:
    text = FRONT_MATTER.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return tuple(MarkdownIt("commonmark").enable("table").parse(text))


def _blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each fenced block, and its text."""
    yield from ((token.info, token.content) for token in _tokens(page) if token.type == "fence")


def _links(page: str) -> Iterator[str]:
    """Targets of links and pictures."""
    for token in _tokens(page):
        for child in token.children or ():
            target = child.attrGet("href" if child.type == "link_open" else "src")
            if child.type in ("link_open", "image") and isinstance(target, str):
                yield target


@cache
def _anchors(page: str) -> frozenset[str]:
    """Names of a page's headings, as they are made where repositories are browsed."""
    found: list[str] = []
    for before, token in zip(_tokens(page), _tokens(page)[1:], strict=False):
        if before.type == "heading_open":
            words = "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))
            found.append(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return frozenset(found)


def _broken(page: str, links: Iterator[str]) -> list[str]:
    """Relative links that lead nowhere: no such file, or no such heading in it."""
    bad = []
    for link in links:
        target, _, anchor = link.partition("#")
        if re.match(r"(https?|mailto):", link):
            continue
        path = Path(os.path.normpath(ROOT / Path(page).parent / target)) if target else ROOT / page
        if not path.exists() or (anchor and anchor not in _anchors(path.relative_to(ROOT).as_posix())):
            bad.append(link)
    return bad


@each("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link names a file that exists, and its anchor a heading in it."""
    assert not _broken(page, _links(page))


@pytest.mark.parametrize("link", ["nowhere.md", "guarantee.md#nowhere", "#nowhere", "../guarantee.md"])
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    """A file that is missing, a heading that is missing, there and here, and a wrong folder."""
    assert _broken("docs/limits.md", iter([link, "guarantee.md#statement", "#of-the-fits"])) == [link]


@each("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    """Python is run by tests, or is an exception with a name; everything else is marked as what it is."""
    for kind, text in _blocks(page):
        first = text.strip().partition("\n")[0]
        if kind == "python":
            assert page in {*WITH_CODE, "docs/howto-sources.md"}, (
                f"{page} is not among the pages whose code is run: {first}"
            )
        elif kind == "py":
            assert (page, first) in FRAGMENTS, f"{page} has code that is not run: {first}"
            compile(text, page, "exec")
        elif kind == "console":
            assert page in WITH_CONSOLE, f"{page} is not among the pages whose lines are typed in: {first}"
            assert text.startswith("$ "), first
        elif kind == "toml":
            assert tomllib.loads(text)
        else:
            assert kind in ("text", "sh", "bash", "csv", "js"), (
                f"{page}: a block begins with ```{kind}; say what it is, such as ```text, ```sh or ```toml: {first}"
            )


def test_the_exceptions_are_still_there() -> None:
    """A list of exceptions that outlives them would hide the next one."""
    found = {(page, text.strip().partition("\n")[0]) for page in PAGES for kind, text in _blocks(page) if kind == "py"}
    assert found == set(FRAGMENTS)


def _commands(page: str) -> Iterator[list[str]]:
    """Lines for a shell that start one of our programs, as words."""
    for kind, text in _blocks(page):
        if kind in ("sh", "console"):
            for line in text.replace("\\\n", " ").splitlines():
                words = (
                    shlex.split(line.removeprefix("$ "), comments=kind == "sh")
                    if kind == "sh" or line[:2] == "$ "
                    else []
                )
                if words and words[0] in PROGRAMS:
                    yield words


def _unknown(words: list[str]) -> list[str]:
    """Words of a command line that its program does not know: commands and long options."""
    command = PROGRAMS[words[0]]
    options = {"--help", "--version"}
    bad = []
    for word in words[1:]:
        options |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        if word.startswith("--"):
            bad += [] if word.partition("=")[0] in options else [word]
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return [*bad, word]
            command = found
            options |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return bad


@each("page", PAGES)
def test_shell_lines_name_commands_and_options_that_exist(page: str) -> None:
    """A typed line is at least understood."""
    assert not [(words, _unknown(words)) for words in _commands(page) if _unknown(words)]


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("bursar-admin import --state state --parquet x --epsilon 3", []),
        ("bursar-admin import --state state --parkett x", ["--parkett"]),
        ("bursar-admin improt --state state", ["improt"]),
        ("bursar-admin token list --reason x", ["--reason"]),
    ],
)
def test_a_shell_line_with_an_unknown_word_is_found(line: str, bad: list[str]) -> None:
    """An option of another command is none of this one's."""
    assert _unknown(line.split()) == bad


@each("page", PAGES)
def test_every_page_has_a_place_on_the_site(page: str) -> None:
    """The author of a page says in mkdocs.yml for whom it is."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(rf"[ :-] {re.escape(page)}$", listed, re.MULTILINE), f"add {page} to the nav of mkdocs.yml"


def test_the_reference_lists_every_public_name_of_the_sdk() -> None:
    """A new name that is no model gets its line; `tests/test_site.py` looks whether it is shown."""
    listed = re.findall(r"^::: bursar\.(\w+)$", (ROOT / "docs" / "reference" / "sdk.md").read_text(), re.MULTILINE)
    assert set(listed) == set(bursar.__all__) - set(bursar_models.__all__)


FITS: Mapping[str, type[bursar.Request]] = MappingProxyType(
    {
        "docs/fit-dpem.md": bursar.DPEM,
        "docs/fit-gradient-em.md": bursar.GradientEM,
        "docs/fit-mrf.md": bursar.MRF,
        "docs/fit-separated-gmm.md": bursar.SeparatedGMM,
        "docs/fit-sketch-kmeans.md": bursar.SketchKMeans,
    }
)


@pytest.mark.parametrize("page", FITS)
def test_a_fits_page_has_what_a_reader_looks_for(page: str) -> None:
    """The page has its source, when to use it, a worked example with a picture, corrections, limits, and its proof."""
    headings = _anchors(page)
    assert headings & {"when-to-use-it", "which-fit-for-which-question"}
    assert headings >= {"asking", "limits", "what-was-corrected"}
    links = list(_links(page))
    assert any(link.endswith(".png") for link in links)
    assert any(link.endswith("statistics.md") for link in links), "no link to its proof"


@pytest.mark.parametrize(("page", "kind"), FITS.items())
def test_a_fits_page_explains_every_argument(page: str, kind: type[bursar.Request]) -> None:
    """Each has a row in one of its tables."""
    said = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\|([^|]*)\|", (ROOT / page).read_text(), re.MULTILINE))))
    assert {argument.name for argument in arguments(kind)} - said == set()


@each("page", PAGES)
def test_tests_that_a_page_names_exist(page: str) -> None:
    """A page that says which test plays an attack names a file and, where it gives one, a function in it."""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path
        assert not name or f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"
