"""`bursar-admin serve` in a real headless browser: on a phone, by keyboard, without scripts, with hostile names."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from bursar_ledger import Adjacency, Budget, DebitRequest, GaussianEvent, Ledger, Registration
from bursar_ledger.refusals import FILE, Refusals
from bursar_server.admin._owner_site import CHANGES
from tests.browser.driver import Browser

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

pytestmark = pytest.mark.slow

PLANTED = (
    "<script>document.title='ran'; window.ran = true</script>",
    '"><svg onload="document.title=\'ran\'; window.ran = true">',
    "' autofocus onfocus='window.ran = true",
    "javascript:window.ran=true//https://example.org/",
    "{{ 7 * 7 }}{% raise %}",
)
"""Names of somebody who would like the owner's browser to do something for them."""

FOCUSED = "(e => e.name || e.textContent.trim())(document.activeElement)"


@contextlib.contextmanager
def _served(admin: Admin) -> Iterator[str]:
    """The link of a real `bursar-admin serve`, ended by Ctrl-C."""
    admin.state.config.write_text('address = "127.0.0.1:1"\n')  # where no server answers
    command = [sys.executable, "-m", "bursar_server.admin", "serve", "--state", str(admin.state.path), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--actor", "olga"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
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
    """Opens the link and presses its button; returns where the pages are."""
    browser.open(link, **window)
    assert browser.click("form button").status == 200
    return link.partition("/enter")[0]


def _tab_to(browser: Browser, what: str) -> None:
    """Presses Tab until the focus is on a field of this name, or on a link or button with this text."""
    for _ in range(80):
        if browser.evaluate(FOCUSED) == what:
            return
        browser.press("Tab")
    raise AssertionError(f"Tab does not lead to {what}: {browser.text()}")


def test_an_allowance_is_set_on_a_phone_by_keyboard(browser: Browser, admin: Admin) -> None:
    """The way from the link to the entry needs no mouse: form, preview, confirmation, overview."""
    admin.add()
    admin.ok("token", "issue", "--name", "alice", "--role", "analyst")
    before = admin.verified.entries
    with _served(admin) as link:
        browser.open(link, width=380)
        _tab_to(browser, "Open the pages here")
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        browser.enter()
        browser.press("Tab")
        assert browser.evaluate("document.activeElement.className") == "skip"
        _tab_to(browser, "Set an allowance for heights")
        browser.enter()
        for name, typed in (("analyst", "alice"), ("share", "25%"), ("reason", "main study")):
            _tab_to(browser, name)
            browser.type(f"[name={name}]", typed)
        browser.enter()  # from a field, as people do
        assert browser.evaluate("location.pathname") == "/confirm"
        assert f"it would be entry {before + 1}, an allowance by local:olga" in browser.text()
        assert admin.verified.entries == before
        _tab_to(browser, "Write this entry")
        browser.enter()
        assert browser.evaluate("location.pathname") == "/done"
        assert "alice may spend 1/4 of the account heights" in browser.text()
        _tab_to(browser, "To the overview")
        browser.enter()
        assert "at most 25% of the total" in browser.text()
    written = admin.entries()[-1]
    assert (written.kind, written.actor) == ("allowance", "local:olga")
    assert (written.details["share"], written.details["reason"]) == ("1/4", "main study")


def test_nothing_needs_scripts(browser: Browser, admin: Admin) -> None:
    """A token is issued with scripts switched off, and shown once; going back does not show it again."""
    admin.add()
    with _served(admin) as link:
        home = _enter(browser, link, scripts=False)
        browser.go(f"{home}/change/token")
        browser.type("[name=name]", "bob")
        browser.click("form.change button")
        answer = browser.click("form button")
        assert answer.headers["cache-control"] == "no-store"
        (token,) = re.findall(r"bursar_\w+?_[\w-]{20,}", browser.text())
        assert browser.go(f"{home}/done").status == 410
        assert token not in browser.text()
        browser.go(f"{home}/")
        assert "bob" in browser.text()
        assert token not in browser.text()


ACTS: dict[str, tuple[str, dict[str, str], str]] = {
    "budget": ("Set a new total for heights", {"epsilon": "3", "reason": "second year"}, "budget"),
    "allowance": ("Set an allowance for heights", {"analyst": "alice", "share": "25%"}, "allowance"),
    "allowance-end": ("End an allowance for heights", {"analyst": "alice"}, "allowance"),
    "call-limit": ("Limit one request for heights", {"share": "5%"}, "call_limit"),
    "call-limit-end": ("End the limit of one request for heights", {}, "call_limit"),
    "token": ("Issue a token", {"name": "bob", "days": "30"}, "credential_issued"),
    "token-revoke": ("Revoke a token", {"name": "bob"}, "credential_revoked"),
    "withdraw": ("withdraw other, a mistake", {"reason": "a mistake"}, "retirement"),
    "retire": ("Retire heights", {"reason": "end of the study"}, "retirement"),
}
"""Link, typed fields and kind of the entry of every change, in an order in which each is possible."""


def test_every_act_is_made_on_a_phone_by_keyboard_without_scripts(browser: Browser, admin: Admin) -> None:
    """The link, the form, what it would write, the confirmation: each page fits the screen, and there is one entry."""
    assert set(ACTS) == set(CHANGES)
    admin.add()
    admin.add("other", "height\n0.5\n")
    admin.ok("token", "issue", "--name", "alice", "--role", "analyst")

    def fits(page: str) -> None:
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
        assert [found for found in browser.contrasts() if not found[1] >= 4.5] == [], page

    with _served(admin) as link:
        home = _enter(browser, link, width=380, scripts=False)
        for key, (where, typed, kind) in ACTS.items():
            before = admin.verified.entries
            browser.go(home)
            _tab_to(browser, where)
            browser.enter()
            for name, text in typed.items():
                _tab_to(browser, name)
                browser.type(f"[name={name}]", text)
            fits(key)
            _tab_to(browser, "Show what it would write")
            browser.enter()
            assert re.search(rf"it would be entry {before + 1}, an? {kind} by local:olga", browser.text()), key
            assert browser.evaluate("document.querySelectorAll('form button').length") == 1
            fits(f"{key}, to be confirmed")
            assert admin.verified.entries == before, key
            _tab_to(browser, "Write this entry")
            browser.enter()
            assert "Done." in browser.text(), key
            fits(f"{key}, done")
            assert admin.verified.entries == before + 1, key
            written = admin.entries()[-1]
            assert (written.kind, written.actor) == (kind, "local:olga")
            assert written.details["reason"] == typed.get("reason", ""), key
        browser.go(home)
        assert "other: withdrawn, registered by mistake" in browser.text()
        assert "heights: retired" in browser.text()
    listed = admin.ok("datasets").splitlines()
    assert [line.split()[-1] for line in listed[-2:]] == ["retired", "withdrawn"]


def test_nothing_of_the_ledger_runs(browser: Browser, admin: Admin) -> None:
    """Names are read as they were written, on every page; nothing runs, and nothing comes from elsewhere."""
    with Ledger.open(admin.state.ledger) as ledger:
        for number, name in enumerate(PLANTED):
            made = Registration(name, Adjacency.REPLACE_ONE, Budget(1, 1e-6), bytes([number]) * 32, {})
            ledger.register_dataset(made, actor=name, reason=name)
            ledger.set_allowance(name, name, Fraction(1, 2), actor=name, reason=name)
            ledger.debit(DebitRequest(name, name, "r", bytes(32), name, (GaussianEvent(1, Fraction(40)),)))
    refusals = Refusals(admin.state.path / FILE)
    for name in PLANTED:
        refusals.note(analyst=name, dataset=name, method=name, refused_by=name)
    refusals.close()
    with _served(admin) as link:
        home = _enter(browser, link)
        text = browser.text()
        for name in PLANTED:
            assert text.count(" ".join(name.split())) >= 5, name
        for page in ("/", "/change/allowance?analyst=%3Cscript%3Ewindow.ran=true%3C/script%3E", "/change/token"):
            browser.go(f"{home}{page}")
            _nothing_ran(browser, home)
        browser.go(f"{home}/change/allowance")
        browser.type("[name=analyst]", PLANTED[0])
        browser.type("[name=share]", PLANTED[1])
        browser.type("[name=reason]", PLANTED[2])
        browser.click("form.change button")
        assert "This is refused" in browser.text()
        _nothing_ran(browser, home)
        browser.click("main a")
        assert browser.evaluate("document.querySelector('[name=analyst]').value") == PLANTED[0]
        _nothing_ran(browser, home)
        links = browser.evaluate("[...document.links].map(link => link.href)")
        assert [url for url in links if not url.startswith(home)] == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read(browser: Browser, admin: Admin, dark: bool) -> None:
    """Contrast is enough by day and by night, on a phone, too; no page is wider, every field has its name."""
    admin.add()
    admin.spend("r1")
    admin.ok("allowance", "set", "heights", "--analyst", "alice", "--new", "--share", "50%")
    unnamed = "[...document.querySelectorAll('input:not([type=hidden]), select')].filter(f => !f.labels.length).length"
    with _served(admin) as link:
        home = _enter(browser, link, width=380, dark=dark)
        for page in ("/", "/health", "/change/budget", "/change/token", "/done"):
            browser.go(f"{home}{page}")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
            assert [found for found in browser.contrasts() if not found[1] >= 4.5] == [], page
            assert browser.evaluate("document.querySelectorAll('h1').length") == 1, page
            assert browser.evaluate("document.querySelectorAll('main').length") == 1, page
            assert browser.evaluate("document.documentElement.lang") == "en"
            assert browser.evaluate(unnamed) == 0, page
        browser.go(f"{home}/")
        shown = browser.evaluate(
            "[...document.querySelectorAll('.bar')].map(bar => bar.firstElementChild.offsetWidth / bar.offsetWidth)"
        )
        assert shown == pytest.approx([0.205, 0.205], abs=0.02)


def _nothing_ran(browser: Browser, home: str) -> None:
    assert browser.evaluate("[window.ran === undefined, document.title !== 'ran', document.scripts.length]") == [
        True,
        True,
        0,
    ]
    seen = browser.seen()
    assert (seen.dialogs, seen.errors) == ([], [])
    # A style, script or picture that the policy had to stop would be told here.
    assert seen.console == []
    assert [url for url in seen.requests if not url.startswith(home)] == []
