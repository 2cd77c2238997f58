"""The tests' own browser does what tests rely on, and its absence is never silent in CI."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from . import npm
from .driver import Browser, BrowserError

FOLDER = Path(__file__).resolve().parent


def test_the_lock_file_names_no_hosts() -> None:
    """Each package has its hash, and comes from wherever the machine's npm is set up to take it from."""
    text = (FOLDER / "package-lock.json").read_text()
    assert "://" not in text
    packages = {name: found for name, found in json.loads(text)["packages"].items() if name}
    assert len(packages) > 50
    assert all(found["integrity"].startswith("sha512-") for found in packages.values())


def test_what_is_not_there_is_skipped_with_a_reason_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's tests turn green in CI because something was not installed."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="of that"):
        npm.unavailable("for want of that")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="of that"):
        npm.unavailable("for want of that")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match=r"Node\.js"):
        npm.node()


def test_packages_are_installed_once_for_each_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when the lock file is another one; what npm says of a failure is told."""
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    for name in ("node", "npm"):
        (programs / name).write_text(
            f'#!/bin/sh\necho "$@" >> {calls}\ntest ! -e broken || {{ echo why >&2; exit 1; }}\n'
        )
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("CI", "true")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "package-lock.json").write_text("1")
    assert npm.installed(folder) == npm.installed(folder) == folder / "node_modules"
    assert len(calls.read_text().splitlines()) == 1
    assert calls.read_text().startswith("ci --ignore-scripts")
    (folder / "package-lock.json").write_text("2")
    (folder / "broken").touch()
    with pytest.raises(pytest.fail.Exception, match="why"):
        npm.installed(folder)
    (folder / "broken").unlink()
    npm.installed(folder)
    assert len(calls.read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_page_is_seen_as_a_person_sees_it(browser: Browser, tmp_path: Path) -> None:
    """Scripts run, and what they do is told: this is what shows elsewhere that none ran."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><title>before</title><p>seen</p><p hidden>unseen</p><img src='missing.png'>"
        "<script>document.title = 'after'; alert('a'); console.log('b'); throw new Error('c')</script>"
    )
    answer = browser.open(page.as_uri(), width=300, dark=True)
    assert (answer.url, answer.status) == (page.as_uri(), 200)
    assert browser.text() == "seen"
    assert browser.evaluate("[document.title, innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]") == [
        "after",
        300,
        True,
    ]
    seen = browser.seen()
    assert seen.dialogs == ["a"]
    assert "log: b" in seen.console
    assert seen.errors == ["Error: c"]
    assert [Path(url).name for url in seen.requests] == ["page.html", "missing.png"]
    picture = browser.screenshot(tmp_path / "page.png", selector="p")
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BrowserError, match="wrong"):
        browser.evaluate("wrong")
    browser.open(page.as_uri(), scripts=False)
    assert browser.seen().dialogs == []
