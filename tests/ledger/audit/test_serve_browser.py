"""`bursar-audit serve` in a real headless browser: what is seen, that nothing runs or comes from elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import Adjacency, Budget, GaussianEvent, Ledger, Registration
from bursar_ledger.refusals import FILE, Refusals
from tests.browser.driver import Browser

pytestmark = pytest.mark.slow

PLANTED = (
    "<script>document.title='ran'; window.ran = true</script>",
    "<img src=x onerror=\"document.title='ran'; window.ran = true\">",
    '"><svg onload="document.title=\'ran\'; window.ran = true">',
    "' autofocus onfocus='window.ran = true",
    "</style><script>window.ran = true</script>",
    "javascript:window.ran=true//https://example.org/",
    "{{ 7 * 7 }}{% raise %}",
    "abc\u202efdp.exe",
    "&lt;b&gt; &amp; \u00e4\u6f22\u5b57",
)
"""Names and reasons of somebody who would like the auditor's browser to do something for him."""

STORIES = ("/-/ledger/entries", "/-/ledger/analysts", "/-/ledger/refusals")
"""Pages in sentences."""

PAGES = (
    "/",
    *STORIES,
    "/-/ledger/entries?who=%3Cscript%3Ewindow.ran=true%3C/script%3E&dataset=%22%27&about=events",
    "/ledger",
    "/ledger/entries",
    "/ledger/acts",
    "/ledger/accounts",
    "/ledger/analysts",
    "/ledger/promises",
    "/ledger/releases",
    "/ledger/refusals",
    "/ledger/problems",
    "/ledger/spend_per_analyst",
    "/ledger/refusals_by_analyst",
    "/ledger/releases_of_a_dataset?dataset=%3Cscript%3Ewindow.ran=true%3C/script%3E",
    "/ledger/administrative_acts",
    "/ledger/largest_debits",
    "/ledger?sql=select+%27%3Cscript%3Ewindow.ran%3Dtrue%3C%2Fscript%3E%27+as+%22%3Cscript%3Ewindow.ran%3Dtrue%22",
    "/ledger/%3Cscript%3Ewindow.ran=true%3C",
    "/-/ledger/entry/2",
    "/-/ledger/entry/3",
    "/-/ledger/entry/9999",
)


@contextlib.contextmanager
def _served(ledger: Path, *options: str) -> Iterator[str]:
    """The link of a real `bursar-audit serve`, ended by Ctrl-C."""
    command = [sys.executable, "-m", "bursar_ledger.audit", "serve", str(ledger), "--port", "0", *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            told = [process.stdout.readline() if process.stdout else "" for _ in range(2)]
            assert "works once" in told[0], process.stderr.read() if process.stderr else ""
            yield told[1].strip()
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        assert errors == ""


def _enter(browser: Browser, link: str, **window: Any) -> str:
    """Opens the link and presses its button, waits until everything is verified, and returns where the pages are."""
    home = link.partition("/-/")[0]
    browser.open(link, **window)
    browser.click("form button")
    for _ in range(300):
        if browser.evaluate("!!document.querySelector('.verdict:not(.waiting)')"):
            return home
        browser.evaluate("new Promise(done => setTimeout(done, 300))")
        browser.go(f"{home}/")
    raise AssertionError(browser.text())


def _nothing_ran(browser: Browser, home: str, page: str) -> None:
    assert browser.evaluate("[window.ran === undefined, document.title !== 'ran', document.scripts.length]") == [
        True,
        True,
        0,
    ], page
    seen = browser.seen()
    assert seen.dialogs == [], page
    assert seen.errors == [], page
    # A style, script or picture that the policy had to stop would be told here.
    assert [line for line in seen.console if "404" not in line] == [], page
    assert [url for url in seen.requests if not url.startswith(home)] == [], page


@pytest.fixture
def hostile(ledger: Ledger, ask: Any, path: Path) -> Path:
    """Every name, reason and parameter is one of those planted."""
    for number, text in enumerate(PLANTED):
        name = text if text.isprintable() else "plain"  # the ledger takes no other names, but every reason
        public = {"columns": list(PLANTED)}
        made = Registration(name, Adjacency.REPLACE_ONE, Budget(1, 1e-6), bytes([number]) * 32, public)
        ledger.register_dataset(made, actor=name, reason=text)
        ledger.set_allowance(name, name, Fraction(1, 2), actor=name, reason=text)
        asked = {"dataset": name, "principal": name, "method": name, "events": (GaussianEvent(1, Fraction(40)),)}
        debit = ledger.debit(ask("a", **asked, parameters={"names": list(PLANTED)}))
        ledger.store_release(debit.entry, text.encode())
    refusals = Refusals(path.with_name(FILE))
    for text in PLANTED:
        refusals.note(analyst=text, dataset=text, method=text, refused_by=text)
    refusals.close()
    return path


def test_nothing_of_the_ledger_runs(browser: Browser, hostile: Path) -> None:
    """Names are read as written and controls as escapes, on any page and in any field; the browser stays here."""
    with _served(hostile, "--no-second-opinion") as link:
        home = _enter(browser, link)
        for page in PAGES:
            browser.go(f"{home}{page}")
            _nothing_ran(browser, home, page)
        browser.go(f"{home}/")
        text = browser.text()
        for planted in PLANTED:
            shown = " ".join(planted.replace("\u202e", r"\u202e").split())
            assert text.count(shown) >= 4, shown  # a refusal, its acts, and its account with its spender
        browser.go(f"{home}/ledger/acts?_size=max")
        text = browser.text()
        for planted in PLANTED:
            assert " ".join(planted.replace("\u202e", r"\u202e").split()) in text
        links = browser.evaluate("[...document.links].map(link => link.href)")
        assert [url for url in links if not url.startswith(home)] == []


@pytest.mark.parametrize(
    ("language", "entries", "asked", "began"),
    [
        ("en", "Entries", "asked for", "began the ledger"),
        ("de", "Einträge", "angefordert", "das Journal begonnen"),
        ("fr", "Inscriptions", "a demandé", "a ouvert le registre"),
    ],
)
def test_a_person_without_a_mouse_finds_everything(
    browser: Browser, study: Path, language: str, entries: str, asked: str, began: str
) -> None:
    """Tab reaches a link to the content first, then the pages; Enter follows; fields and tables have names."""
    with _served(study, "--no-second-opinion", "--language", language) as link:
        home = _enter(browser, link)
        browser.press("Tab")
        assert browser.evaluate("document.activeElement.className") == "skip"
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for _ in range(2):
            browser.press("Tab")
        assert browser.evaluate("document.activeElement.textContent") == entries
        browser.enter()
        assert browser.evaluate("location.pathname") == "/-/ledger/entries"
        assert browser.evaluate("document.documentElement.lang") == language
        for _ in range(12):
            browser.press("Tab")
            if browser.evaluate("document.activeElement.name") == "about":
                break
        browser.press("ArrowDown")
        assert browser.evaluate("document.activeElement.value") == "requests"
        browser.press("Tab")
        browser.enter()
        assert asked in browser.text()
        assert began not in browser.text()
        browser.go(f"{home}/ledger/entries")
        assert browser.evaluate("document.querySelectorAll('th[scope=col]').length") > 5
        for page in ("/", "/ledger", "/ledger/releases_of_a_dataset", "/-/ledger/entry/7", *STORIES):
            browser.go(f"{home}{page}")
            assert browser.evaluate("document.querySelectorAll('h1').length") == 1, page
            assert browser.evaluate("document.querySelectorAll('main').length") == 1, page
            unnamed = "[...document.querySelectorAll('input:not([type=hidden]):not([type=submit]), select')]"
            assert browser.evaluate(f"{unnamed}.filter(field => !field.labels.length).length") == 0, page
        browser.go(f"{home}/ledger/releases_of_a_dataset")
        browser.type("#qp1", "people")
        assert browser.enter().status == 200
        assert "rows" in browser.text()


@pytest.mark.parametrize("language", ["en", "de", "fr"])
@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read(browser: Browser, study: Path, dark: bool, language: str) -> None:
    """Text stands out by day and by night, on a phone, too, and no page is wider than the screen, in any language."""
    with _served(study, "--no-second-opinion", "--language", language) as link:
        home = _enter(browser, link, width=380, dark=dark)
        for page in ("/", "/ledger", "/ledger/entries", "/ledger/largest_debits", "/-/ledger/entry/7", *STORIES):
            browser.go(f"{home}{page}")
            browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
            contrasts = browser.contrasts()
            assert len(contrasts) >= 10
            assert [found for found in contrasts if not found[1] >= 4.5] == [], page


def test_a_forged_ledger_is_red(browser: Browser, study: Path, ledger: Ledger, forge: Any) -> None:
    """The verdict, and every problem, in a colour that nothing else has."""
    ledger.close()
    forge(study, 9, lambda fields: fields["details"].update(cost_units=1))
    with _served(study, "--no-second-opinion") as link:
        _enter(browser, link)
        assert "not right" in browser.text()
        red = browser.evaluate("getComputedStyle(document.querySelector('.verdict')).backgroundColor")
        assert red == "rgb(155, 28, 49)"
        assert browser.evaluate("document.querySelectorAll('ul.problems li').length") >= 1
        assert browser.evaluate("document.title").startswith("NOT RIGHT")


def test_the_page_follows_a_server_that_writes(browser: Browser, study: Path, ledger: Ledger, ask: Any) -> None:
    """New entries are said to be there; after `Verify again` the figures count them."""
    with _served(study, "--no-second-opinion") as link:
        home = _enter(browser, link)
        assert "fits paid for 3" in browser.text()
        ledger.debit(ask("late", scale=40))
        browser.go(f"{home}/")
        assert re.search("1 entry is newer|A new look is under way", browser.text())
        for _ in range(100):
            if "fits paid for 4" in browser.text():
                break
            if browser.evaluate("!!document.querySelector('main button')"):
                browser.click("main button")
            browser.go(f"{home}/")
        assert "fits paid for 4" in browser.text()
        assert "newer" not in browser.text()
