"""`bursar-audit serve`: what it answers, whom, and what it refuses to do; in this process, without a browser."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import re
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bursar_ledger import Adjacency, Budget, Ledger, Registration
from bursar_ledger.audit import _report, _site, _watch
from bursar_ledger.audit._history import history
from bursar_ledger.audit._language import speaking, texts
from bursar_ledger.audit._open import opened, rows
from bursar_ledger.audit._queries import METADATA
from bursar_ledger.audit._report import body, opening
from bursar_ledger.audit._site import link, site
from bursar_ledger.audit._watch import Watch, watching
from bursar_ledger.audit._web import listening
from bursar_ledger.refusals import FILE, Refusals

Run = Callable[..., Result]
Ask = Callable[..., Any]
Visit = Callable[..., Any]
HOSTILE = "<script>alert(1)</script>\"'&\u202etxt\x1b[31m<img src=x onerror=alert(1)>"


class Site:
    """The pages about one ledger, visited as by a browser that came by the link."""

    def __init__(self, made: Any, watch: Watch) -> None:
        self.made = made
        self.watch = watch
        self.link = link(made)
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **given: Any) -> Any:
        """An answer; redirects are not followed."""
        return asyncio.run(self.made.client.get(path, cookies=self.cookies, **given))

    def post(self, path: str, **given: Any) -> Any:
        """Post in the same way."""
        return asyncio.run(self.made.client.post(path, cookies=self.cookies, **given))

    def enter(self) -> None:
        """Opens the link and presses its button."""
        shown = self.get(self.link)
        self.cookies.update(shown.cookies)
        fields = dict(re.findall(r'name="(token|csrftoken)" value="([^"]*)"', shown.text))
        self.cookies.update(self.post(self.link.partition("?")[0], data=fields).cookies)


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Visit]:
    """Makes the pages about a ledger, its first look ended and the link opened; without charts, which take long."""
    with ExitStack() as stack:

        def make(path: Path, *, enter: bool = True, charts: bool = False) -> Site:
            if not charts:
                monkeypatch.setattr(_report, "burn_down_svg", lambda *_: "<svg></svg>")
            watch = stack.enter_context(watching(path, None, (), ask=False))
            made = Site(stack.enter_context(site(watch)), watch)
            watch.wait()
            if enter:
                made.enter()
            return made

        yield make


def _text(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def test_the_dashboard_says_what_the_report_says(visit: Visit, study: Path) -> None:
    """The same parts, made by the same code from the same look, and the time of the verification."""
    pages = visit(study, charts=True)
    front = pages.get("/")
    look = pages.watch.look
    assert look.found.problems == ()
    assert look.entries == 14
    with opened(study) as db:
        told = history(rows(db))
    name, now = study.name, look.made
    for part in (*opening(name, look.found, told, now), *body(told, None)):
        assert part in front.text
    text = _text(front)
    assert "verified" in text
    assert f"Verified at {now:%Y-%m-%d %H:%M:%S} UTC" in text
    assert "checkpoints: none were given" in text
    assert "There is no file of refusals beside this ledger" in text
    assert "newer" not in text


@pytest.mark.parametrize(("spoken", "part"), [("de", "Analysierende"), ("fr", "Vue d'ensemble")])
def test_pages_are_in_the_language_of_the_start(visit: Visit, study: Path, spoken: str, part: str) -> None:
    """Every page has its language and its own words, and no text of the table stays English on it."""
    paths = ["/", "/-/ledger/entries", "/-/ledger/entry/7", "/-/ledger/analysts", "/-/ledger/refusals"]
    english = [text for text in texts() if len(text) > 25 and "{" not in text]
    with speaking(spoken):
        pages = visit(study, enter=False)
        assert texts()["Open the pages here"][spoken] in _text(pages.get(pages.link))
        pages.enter()
        for path in paths:
            answer = pages.get(path)
            assert f'<html lang="{spoken}">' in answer.text
            assert part in _text(answer)
            assert not [text for text in english if f">{text}<" in html.unescape(answer.text)]


def test_nobody_is_let_in_without_the_link(visit: Visit, study: Path) -> None:
    """Every page but style sheets and the link itself; the link works once, and a made-up cookie does not."""
    pages = visit(study, enter=False)
    private = [
        "/",
        "/ledger",
        "/ledger/entries",
        "/ledger.json?sql=select+1",
        "/ledger/entries.csv",
        "/-/ledger/entry/1",
    ]
    private += ["/-/ledger/release/7", "/-/versions.json", "/-/plugins", "/_internal", "/ledger.db", "/nothing"]
    for path in private:
        answer = pages.get(path)
        assert answer.status_code == 403, path
        assert "Open the link" in answer.text
        assert "people" not in answer.text
    assert pages.post("/-/ledger/look").status_code == 403
    assert pages.get("/-/auth-token?token=wrong").status_code == 403
    assert pages.get("/-/ledger/site.css").status_code == 200
    forged = {"ds_actor": "eyJhIjp7ImlkIjoicm9vdCJ9fQ.c2lnbmF0dXJl"}
    assert asyncio.run(pages.made.client.get("/", cookies=forged)).status_code == 403
    pages.enter()
    assert pages.get("/").status_code == 200
    assert pages.get(pages.link).status_code == 403


def test_whoever_only_looks_at_the_link_does_not_use_it_up(visit: Visit, study: Path) -> None:
    """A chat's preview asks for every link that it sees: it gets a page with a button, and no cookie of the pages."""
    pages = visit(study, enter=False)
    for _ in range(3):
        answer = pages.get(pages.link)
        assert answer.status_code == 200
        assert "Open the pages here" in answer.text
        assert "ds_actor" not in answer.cookies
        assert pages.get("/", headers={"cookie": f"ds_csrftoken={answer.cookies['ds_csrftoken']}"}).status_code == 403
    path, _, token = pages.link.partition("?token=")
    assert pages.post(path, data={"token": token[:-1]}).status_code == 403
    assert pages.post(path).status_code == 403
    assert pages.get(pages.link).status_code == 200
    pages.enter()
    assert pages.get("/").status_code == 200
    assert pages.post(path, data={"token": token}, headers={"cookie": ""}).status_code == 403


FOREIGN = [
    "evil.example",
    "evil.example:8001",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "",
    "10.0.0.9",
    "[::1",
]


@pytest.mark.parametrize("host", FOREIGN)
def test_pages_are_for_this_host_alone(visit: Visit, study: Path, host: str) -> None:
    """A name of elsewhere that leads here gets nothing, with or without the cookie: no style sheet, no link."""
    pages = visit(study)
    for path in ("/", "/ledger/entries", "/-/ledger/site.css", pages.link, "/-/ledger/entry/1"):
        answer = pages.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "people" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert pages.post("/-/ledger/look", headers={"host": host}).status_code == 421


def test_names_of_this_host_are_those_that_were_given(study: Path) -> None:
    """The address that the connection came to, localhost, and what --name says; in any case, with any port."""
    with watching(study, None, (), ask=False) as watch:
        watch.wait()
        with site(watch, ("127.0.0.1", "Audit.Example.org")) as made:
            pages = Site(made, watch)
            for host in ("localhost", "LOCALHOST:9", "127.0.0.1:8001", "audit.example.org", "AUDIT.example.org:443"):
                assert pages.get(pages.link, headers={"host": host}).status_code == 200, host
            assert pages.get(pages.link, headers={"host": "other.example.org"}).status_code == 421
            app = made.app()

            def asked(host: str, server: str) -> int:
                told: list[int] = []

                async def send(message: Any) -> None:
                    told.extend([message["status"]] if message["type"] == "http.response.start" else [])

                async def receive() -> Any:
                    return {"type": "http.request"}

                scope = {"type": "http", "method": "GET", "path": "/-/ledger/site.css", "query_string": b""}
                headers = [(b"host", host.encode())]
                asyncio.run(app({**scope, "headers": headers, "server": (server, 8001)}, receive, send))
                return told[0]

            assert asked("[::1]:8001", "::1") == asked("10.0.0.9:8001", "10.0.0.9") == 200
            assert asked("10.0.0.9:8001", "10.0.0.8") == 421


def test_every_answer_forbids_scripts_and_outside_resources(visit: Visit, study: Path) -> None:
    """The headers do, of errors and files, too; no page has a script or names another host."""
    pages = visit(study)
    paths = ["/", "/ledger", "/ledger/entries", "/ledger/entries/3", "/ledger/largest_debits", "/-/ledger/entry/7"]
    paths += ["/ledger?sql=select+1", "/nothing", "/-/ledger/release/7", "/ledger/entries.csv", "/-/ledger/entry/999"]
    for path in paths:
        answer = pages.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "private, no-store"
        if "html" in answer.headers["content-type"]:
            assert "<script" not in answer.text
            own = re.sub(r'xmlns(:xlink)?="http://www\.w3\.org/[^"]*"', "", answer.text)
            assert set(re.findall(r"https?://[^\"' <]*", own)) <= {"http://www.w3.org/1999/xlink"}, path


QUERIES: dict[str, tuple[list[Any] | None, int]] = {
    "spend_per_analyst": (["people", "ann", 2], 2),
    "releases_of_a_dataset?dataset=people": ([11], 2),
    "releases_of_a_dataset?dataset=nobody": (None, 0),
    "administrative_acts": ([14], 9),
    "largest_debits": ([9], 3),
    "debits_without_a_release": ([9], 1),
    "entries_not_yet_witnessed": ([1], 14),
    "refusals_by_analyst": (None, 0),
}
"""Queries with the beginning of the first row of the answer, and the number of rows."""


def test_queries_are_answered(visit: Visit, study: Path) -> None:
    """Each with what the ledger has; none is there that is not tested."""
    pages = visit(study)
    for query, (first, count) in QUERIES.items():
        path, _, arguments = query.partition("?")
        found = pages.get(f"/ledger/{path}.json?{arguments}").json()["rows"]
        assert len(found) == count, query
        if first is not None:
            assert found[0][: len(first)] == first, query
        assert pages.get(f"/ledger/{query}").status_code == 200
    assert {query.partition("?")[0] for query in QUERIES} == set(METADATA["databases"]["ledger"]["queries"])


def test_entries_are_read_as_sentences(visit: Visit, study: Path, ledger: Ledger, ask: Ask) -> None:
    """Newest first, equal neighbours as one, releases within their requests; what is chosen is all that is shown."""
    for i in range(20):
        ledger.debit(ask(f"same-{i}", scale=80, parameters={"n_components": 4, "columns": ["visits", "diseases"]}))
    pages = visit(study)
    answer = pages.get("/-/ledger/entries")
    text = _text(answer)
    asked = "an analyst (ann) asked for a mixture of 4 groups by visits and diseases of people; it cost "
    assert text.count(asked) == 1
    assert re.search(r"20 times on [0-9]+ [A-Z][a-z]+ 20[0-9]{2}, " + re.escape(asked), text)
    assert "of the lifetime budget; the noise was Gaussian, 80 times the most that one person can change" in text
    assert "the release was delivered" in text
    assert "no release is stored" in text
    assert text.index("20 times") < text.index("owner retired people-2") < text.index("owner began the ledger")
    assert 'href="/-/ledger/entry/34"' in answer.text
    assert "entry/8" not in answer.text  # the release of entry 7
    bob = _text(pages.get("/-/ledger/entries?who=bob&about=requests"))
    assert "(bob)" in bob
    assert "(ann)" not in bob
    assert "began the ledger" not in bob
    events = _text(pages.get("/-/ledger/entries?about=events"))
    assert "asked for" not in events
    assert "owner raised the lifetime budget of people from epsilon 3 and delta 1e-06 to epsilon 4" in events
    assert "There is no such entry" in _text(pages.get("/-/ledger/entries?before=1"))
    for odd in ("x", "-1", "9" * 400, "\u0661"):
        assert pages.get("/-/ledger/entries", params={"before": odd}).status_code == 200


def test_long_lists_go_on_with_earlier_entries(visit: Visit, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry is on one of the pages."""
    monkeypatch.setattr(_site, "_PAGE", 5)
    pages, path, seen = visit(study), "/-/ledger/entries", set[str]()
    while path:
        page = pages.get(path).text
        seen |= set(re.findall(r"/-/ledger/entry/([0-9]+)", page))
        following = re.search(r'<a rel="next" href="([^"]*)"', page)
        path = f"/-/ledger/entries{html.unescape(following[1])}" if following else ""
    assert seen == {str(n) for n in range(1, 15)} - {"8", "12"}


def test_analysts_are_told_in_sentences(visit: Visit, study: Path) -> None:
    """They are told what they spent, what is left for them, and all their requests."""
    answer = visit(study).get("/-/ledger/analysts")
    text = _text(answer)
    assert "ann made 2 paid requests to people and people-2 and spent" in text
    assert "The limit is 50% of the budget;" in text
    assert "?about=requests&amp;who=bob" in answer.text


def test_questions_have_titles_of_their_own(visit: Visit, study: Path) -> None:
    """And no SQL where nobody asked in SQL."""
    pages = visit(study)
    page = pages.get("/ledger/spend_per_analyst").text
    assert "<title>Spend per analyst</title>" in page
    assert "SELECT" not in page.upper().partition("<MAIN")[2].replace("?SQL=SELECT", "")
    assert "<title>A question of your own</title>" in pages.get("/ledger?sql=select+1").text


def test_an_entry_is_shown_with_what_was_released(
    visit: Visit, run: Run, study: Path, ledger: Ledger, tamper: Any
) -> None:
    """The words are those of `bursar-audit show`; released bytes are a file whose SHA-256 is compared."""
    pages = visit(study)
    for number in (4, 7, 9):
        shown = " ".join(run("show", study, number).stdout.split())
        assert shown in _text(pages.get(f"/-/ledger/entry/{number}"))
    assert 'rel="next"' in pages.get("/-/ledger/entry/13").text
    assert 'rel="next"' not in pages.get("/-/ledger/entry/14").text
    page = _text(pages.get("/-/ledger/entry/7"))
    assert "that of entry 8" in page
    answer = pages.get("/-/ledger/release/7")
    assert (answer.content, answer.headers["content-type"]) == (b"model", "application/octet-stream")
    assert "attachment" in answer.headers["content-disposition"]
    assert pages.get("/-/ledger/release/9").status_code == 404
    assert pages.get("/-/ledger/entry/15").status_code == 404
    assert pages.get("/-/ledger/entry/99999999999999999999").status_code == 404
    ledger.close()
    tamper(study, ("UPDATE releases SET content = ? WHERE debit = 7", (b"other",)))
    assert "not that of entry 8" in _text(pages.get("/-/ledger/entry/7"))


def test_text_of_the_ledger_is_text(visit: Visit, ledger: Ledger, ask: Ask, path: Path) -> None:
    """Wherever it appears: markup is shown, controls and directions of writing are made visible, nothing is a link."""
    name = "<b>ann</b> https://example.org/ javascript:alert(1)"
    ledger.register_dataset(
        Registration("<i>set</i>", Adjacency.REPLACE_ONE, Budget(1, 1e-6), b"x" * 32, {}), actor=name, reason=HOSTILE
    )
    ledger.debit(ask("a", dataset="<i>set</i>", principal=name, scale=40))
    Refusals(path.with_name(FILE)).note(analyst=name, dataset="<i>set</i>", method="<u>m</u>", refused_by="total")
    pages = visit(path)
    for page in (
        "/",
        "/ledger/entries",
        "/ledger/acts",
        "/ledger/spend_per_analyst",
        "/-/ledger/entry/3",
        "/ledger/refusals",
    ):
        answer = pages.get(page)
        for tag in ("<b>", "<i>set", "<u>m", "<script", "<img", 'href="https://example', 'href="javascript'):
            assert tag not in answer.text, (page, tag)
        assert "\u202e" not in answer.text
        assert "\x1b" not in answer.text
    assert r"<script>alert(1)</script>" in _text(pages.get("/ledger/acts"))
    assert r"\u202etxt\x1b" in _text(pages.get("/ledger/acts"))
    assert "<b>ann</b> https://example.org/" in _text(pages.get("/"))


def test_csv_has_no_formulas(visit: Visit, ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tables, nor answers, nor rows; and it has all pages of a table."""
    monkeypatch.setitem(_site._SETTINGS, "max_returned_rows", 5)
    for i in range(12):
        ledger.set_allowance("people", "=cmd|' /C calc'!A0", Fraction(1, i + 1), actor="@SUM(1)", reason="test")
    pages = visit(path)
    answer = pages.get("/ledger/acts.csv?_stream=on&_dl=on&actor=@SUM(1)")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(found) == 12
    assert {row["actor"] for row in found} == {"'@SUM(1)"}
    asked = pages.get("/ledger.csv", params={"sql": "select actor from acts where entry = :n", "n": "9"})
    assert asked.text == "actor\n'@SUM(1)\n"
    assert pages.get("/ledger.csv", params={"sql": 'select 1 as "=1+1"'}).text == "'=1+1\n1\n"
    assert "'@SUM(1)" in pages.get("/ledger/acts/9.csv").text
    assert pages.get("/ledger.csv?sql=drop+table+acts").status_code == 400


def test_sql_reaches_the_tables_and_changes_nothing(visit: Visit, study: Path) -> None:
    """Questions of one's own are answered from the tables; whatever writes, attaches or takes too long is refused."""
    pages = visit(study)

    def asked(sql: str) -> Any:
        return pages.get("/ledger.json", params={"sql": sql, "_shape": "array", "_timelimit": "200"})

    assert asked("select count(*) as n from entries").json() == [{"n": 14}]
    before = study.read_bytes()
    for sql in ("delete from entries", "attach 'x' as y", "pragma query_only=0", "select load_extension('x')"):
        assert asked(sql).status_code == 400
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    assert asked(endless).status_code == 400
    # One text of gigabytes takes no time, and all memory.
    assert asked("select length(hex(zeroblob(10000000))) as n").status_code == 400
    assert asked("select length(printf('%.*c', 900000000, 'x')) as n").json() == [{"n": None}]
    assert asked("select length(hex(zeroblob(5000000))) as n").json() == [{"n": 10_000_000}]
    assert _site._SETTINGS["sql_time_limit_ms"] <= 3000  # for whoever names no limit
    assert study.read_bytes() == before


def test_new_entries_are_counted_and_verified_when_asked(
    visit: Visit, study: Path, ledger: Ledger, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures stay those of the last look while the server writes, until there is another one."""
    monkeypatch.setattr(_watch, "_REST", 1e9)
    pages = visit(study)
    ledger.debit(ask("late", scale=40))
    text = _text(pages.get("/"))
    assert "1 entry is newer" in text
    assert pages.get("/ledger/entries.json?_shape=array").json()[0]["entry"] == 14
    assert pages.get("/-/ledger/look").status_code == 405
    assert pages.post("/-/ledger/look").status_code == 403  # no token of the form
    form = pages.get("/")
    token = re.search(r'name="csrftoken" value="([^"]*)"', form.text)
    assert token
    pages.cookies.update(form.cookies)
    assert pages.post("/-/ledger/look", data={"csrftoken": token[1]}).status_code == 303
    pages.watch.wait()
    assert "newer" not in _text(pages.get("/"))
    assert pages.get("/ledger/entries.json?_shape=array").json()[0]["entry"] == 15


def test_a_look_is_made_by_itself_when_the_last_one_was_cheap(
    visit: Visit, study: Path, ledger: Ledger, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started by a visit, once there is something new and some time has gone by."""
    monkeypatch.setattr(_watch, "_REST", 0)
    pages = visit(study)
    ledger.debit(ask("late", scale=40))
    assert "comes again by itself" in _text(pages.get("/"))
    assert 'http-equiv="refresh"' in pages.get("/").text or not pages.watch.busy
    pages.watch.wait()
    assert pages.watch.look.entries == 15


def test_until_the_first_look_ends_the_page_says_so(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes figures for verified that are not."""
    with watching(study, None, (), ask=False) as watch:
        watch.wait()
        watch.look = None
        with site(watch) as made:
            pages = Site(made, watch)
            pages.enter()
            watch._thread = None
            assert "The entries are being read" in _text(pages.get("/"))
            for page in ("/-/ledger/entries", "/-/ledger/analysts", "/-/ledger/refusals", "/ledger/entries", "/ledger"):
                answer = pages.get(page)
                assert answer.status_code == 503, page
                assert "comes again by itself" in answer.text
                assert "Not found" not in answer.text
            monkeypatch.setattr(_watch, "_SHORT", 10)
            watch.look = next(watch._looks())
            text = _text(pages.get("/"))
            assert "being verified" in text
            assert "chain, sums, caps, released bytes" not in text
            assert pages.get("/ledger/checks.json?_shape=array").json()[0]["verdict"] == "being verified"


def test_a_forged_ledger_is_shown_in_red(visit: Visit, study: Path, ledger: Ledger, forge: Any) -> None:
    """The front page and a table say what is wrong, entry by entry."""
    ledger.close()
    forge(study, 9, lambda fields: fields["details"].update(cost_units=1))
    pages = visit(study)
    front = pages.get("/")
    assert 'class="verdict wrong">not right' in front.text
    assert "<title>NOT RIGHT" in front.text
    problems = pages.get("/ledger/problems.json?_shape=array").json()
    assert problems
    for problem in problems:
        assert problem["problem"] in _text(front)
    assert pages.get("/ledger/entries").status_code == 200


def test_a_damaged_file_is_shown_in_red(visit: Visit, study: Path, ledger: Ledger) -> None:
    """One that turned unreadable after the start, or is gone: the page says why, and works again when it is back."""
    pages = visit(study)
    ledger.close()
    with closing(sqlite3.connect(study)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = study.read_bytes()
    study.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    pages.watch.start()
    pages.watch.wait()
    front = pages.get("/")
    assert 'class="verdict wrong"' in front.text
    study.unlink()
    pages.watch.start()
    pages.watch.wait()
    front = pages.get("/")
    assert "cannot be read" in _text(front)
    assert "there is no file" in _text(front)
    study.write_bytes(whole)
    pages.watch.start()
    pages.watch.wait()
    assert 'class="verdict consistent"' in pages.get("/").text


def test_refusals_are_shown(visit: Visit, run: Run, study: Path, tmp_path: Path) -> None:
    """The dashboard, the report and a table have them; another file in their place is no error."""
    Refusals(study.with_name(FILE)).note(
        analyst="ann", dataset="people", method="FitMRF", refused_by="allowance", rho_asked=0.5, rho_left=0.25
    )
    pages = visit(study)
    asked = "An analyst (ann) asked once for a table of how often categories occur together of people"
    row = f"{asked} and was refused by this limit: allowance; the last time on"
    cost = "would have cost epsilon 5.39 (162%) of the lifetime budget and epsilon 3.56 (80.9%) was left"
    assert row in _text(pages.get("/"))
    refused = _text(pages.get("/-/ledger/refusals"))
    assert row in refused
    assert cost in refused
    (noted,) = pages.get("/ledger/refusals_by_analyst.json?_shape=array").json()
    assert noted["refused_by"] == "allowance"
    assert (noted["percent_asked"], noted["percent_left"]) == (
        pytest.approx(161.9, abs=0.1),
        pytest.approx(80.9, abs=0.1),
    )
    assert run("report", study, "--out", tmp_path / "page.html").exit_code == 0
    report = " ".join(re.sub(r"<[^>]*>", " ", (tmp_path / "page.html").read_text()).split())
    assert row in report
    study.with_name(FILE).write_text("words" * 1000)
    pages.watch.start()
    pages.watch.wait()
    assert "There is no file of refusals" in _text(pages.get("/"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "\u202e"])  # noqa: S104 - refused
def test_others_are_let_near_only_if_that_is_said(run: Run, study: Path, host: str) -> None:
    """The refusal has the reason, and comes before anything listens."""
    result = run("serve", study, "--host", host)
    assert result.exit_code == 2
    assert "--beyond-this-machine" in result.stderr
    assert "ssh -L" in result.stderr


def test_a_port_that_is_taken_is_said(run: Run, study: Path) -> None:
    """The message says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = run("serve", study, "--port", other.getsockname()[1])
    assert result.exit_code == 2
    assert "another --port" in result.stderr


def test_where_it_listens() -> None:
    """It listens on loopback by either name, and beyond it if told to; port 0 is a free one."""
    for host, beyond in (("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)):  # noqa: S104 - said so
        with listening(host, 0, beyond_this_machine=beyond) as listener:
            assert listener.getsockname()[1] > 0


def test_what_is_no_ledger_is_said_before_anything_is_served(run: Run, tmp_path: Path) -> None:
    """The status is the one that all commands have for it."""
    assert run("serve", tmp_path / "none").exit_code == 3
    (tmp_path / "other").write_text("words" * 1000)
    assert run("serve", tmp_path / "other").exit_code == 3
    with closing(sqlite3.connect(tmp_path / "empty")) as db:
        db.execute("CREATE TABLE t (x)")
    result = run("serve", tmp_path / "empty")
    assert result.exit_code == 3
    assert "no table of entries" in result.stderr


def test_without_datasette_the_command_says_what_to_do(run: Run, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other commands do not need it."""
    monkeypatch.delitem(sys.modules, "bursar_ledger.audit._site", raising=False)
    monkeypatch.setitem(sys.modules, "datasette", None)
    result = run("serve", study)
    assert result.exit_code == 2
    assert "bursar[serve]" in result.stderr
