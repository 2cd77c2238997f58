"""The owner's page: what it shows, what it changes, and whom it answers; in this process, without a browser."""

from __future__ import annotations

import asyncio
import dataclasses
import html
import json
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
import pytest

from bursar_ledger import Adjacency, Budget, Entry, Ledger, Registration
from bursar_ledger.refusals import FILE, Refusals
from bursar_server.access.auth import hash_token
from bursar_server.admin import _owner_site
from bursar_server.admin._acting import Held
from bursar_server.admin._owner_site import CHANGES, Site
from bursar_server.admin.cli import main
from bursar_server.ops.backups import BackupNote
from bursar_server.state import State

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>{{ 7 * 7 }}"


class Visitor:
    """A browser at the pages: keeps cookies, follows no redirects by itself."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """One request."""

        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.site.app())
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                given.setdefault("headers", {})
                if self.cookies:
                    pairs = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
                    given["headers"] = {"cookie": pairs, **given["headers"]}
                return await client.request(method, path, **given)

        found = asyncio.run(answer())
        self.cookies.update(found.cookies)
        return found

    def get(self, path: str, **given: Any) -> httpx.Response:
        """A page."""
        return self.ask("GET", path, **given)

    def post(self, path: str, fields: dict[str, Any], **given: Any) -> httpx.Response:
        """A form, with what its page hides in it."""
        return self.ask("POST", path, data=fields, **given)

    def enter(self) -> Visitor:
        """Opens the link and presses its button."""
        path, _, token = self.site.link.partition("?token=")
        assert self.post(path, {"token": token}).status_code == 303
        return self

    def form(self) -> str:
        """The token of the session's forms."""
        found = re.search(r'name="form" value="([^"]+)"', self.get("/change/retire").text)
        assert found
        return found[1]

    def attempt(self, change: str, **fields: Any) -> str:
        """Return what is read on the page that asks for confirmation."""
        answer = self.post(f"/change/{change}", {"form": self.form(), **fields})
        assert (answer.status_code, answer.headers["location"]) == (303, "/confirm")
        return text(self.get("/confirm"))

    def confirm(self) -> httpx.Response:
        """Presses the button of that page, and gets the page that it leads to."""
        trial = re.search(r'name="trial" value="([^"]+)"', self.get("/confirm").text)
        assert trial
        answer = self.post("/confirm", {"form": self.form(), "trial": trial[1]})
        assert (answer.status_code, answer.headers["location"]) == (303, "/done")
        return self.get("/done")


def text(answer: httpx.Response) -> str:
    """Return what is read on a page, in one line."""
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


@pytest.fixture
def stranger(admin: Admin) -> Iterator[Visitor]:
    """A browser that has not come by the link."""
    admin.state.config.write_text('address = "127.0.0.1:1"\n')  # where no server answers
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger:
        yield Visitor(Site(main, Held(admin.state, ledger), "olga"))


@pytest.fixture
def visitor(stranger: Visitor) -> Visitor:
    """The owner's browser, which came by the link."""
    return stranger.enter()


def test_the_overview_says_how_things_are(visitor: Visitor, admin: Admin) -> None:
    """Tables, what is spent and left in words and as bars, analysts, fits, acts, tokens, checkpoints, backups."""
    admin.spend("r1")
    admin.ok("allowance", "set", "heights", "--analyst", "alice", "--new", "--share", "50%")
    admin.ok("call-limit", "set", "heights", "--share", "1/4", "--reason", "no accidents")
    admin.ok("import", *admin.table("again"), "--same-people-as", "heights")
    answer = visitor.get("/")
    page = text(answer)
    for words in (
        "epsilon 0.885 (79.4%) of the total is left: enough for 3 fits of epsilon 0.43 (20.6%)",
        "epsilon 0.43 (20.6%) was spent by 1 debit.",
        "(1, 1e-06) for a person: whoever sees all that is ever released",
        "heights: accepts fits. Retire heights again: accepts fits. Retire again",
        "alice 1 20.6% of the total was spent by alice at most 50% of the total",
        "one request may cost epsilon 0.478 (25%) of the total at most",
        "UTC: alice ran FitDPEM on heights for epsilon 0.43 (20.6%) of the total. Nothing is stored as released",
        "limited each request about heights to 25% of the lifetime budget. Reason given: no accidents Entry 7.",
        "admin admin live",
        "server none answers at 127.0.0.1:1",
        "There are no counts of refusals beside this ledger.",
        "backup bursar-admin has made none of this directory",
        "checkpoints in file:checkpoints the newest is of entry 8",
    ):
        assert words in page, words
    widths = [float(width) for width in re.findall(r'style="width:([\d.]+)%"', answer.text)]
    assert len(widths) == 2
    assert widths == pytest.approx([20.53, 20.53])
    assert 'role="img" aria-label="20.6% of the total is spent"' in answer.text


def test_what_changes_is_seen_at_the_next_visit(visitor: Visitor, admin: Admin) -> None:
    """A closed account, a retired table, refusals, a released model, a backup: the page is made anew each time."""
    admin.spend("r1")
    with Ledger.open(admin.state.ledger) as ledger:
        ledger.store_release(ledger.releases()[0].entry, b"model")
    refusals = Refusals(admin.state.path / FILE)
    refusals.note(analyst="eve", dataset="heights", method="FitMRF", refused_by="total", rho_asked=0.5, rho_left=0.25)
    refusals.close()
    admin.ok("budget", "set", "heights", "--epsilon", 0.1, "--yes")
    page = text(visitor.get("/"))
    assert "Nothing is stored as released" not in page
    assert "eve: FitMRF on heights was refused 1 time (total), the last one at" in page
    assert "It asked for epsilon 82.9 (" in page
    assert "More was spent, by 1 debit, than the total in force allows" in page
    admin.ok("backup", admin.files / "copy.sqlite")
    assert "made less than a day ago, at 2" in text(visitor.get("/"))
    admin.ok("retire", "heights", "--yes")
    page = text(visitor.get("/"))
    assert "heights: retired: accepts no fits" in page
    assert "1 entry is newer" in page
    BackupNote(datetime.now(UTC) - timedelta(days=40), 3, "/mnt/old").save(admin.state)
    assert "made 40 days ago" in text(visitor.get("/"))
    (admin.state.path / "backup.json").write_text("[]")
    assert "bursar-admin has made none" in text(visitor.get("/"))


def test_a_directory_without_tables_has_its_page(admin: Admin) -> None:
    """The first thing that a new owner sees."""
    with Ledger.open(admin.state.ledger) as ledger:
        visitor = Visitor(Site(main, Held(admin.state, ledger), "olga")).enter()
        page = text(visitor.get("/"))
        assert "No datasets yet" in page
        assert "None among the newest entries." in page
        assert "choose" in visitor.attempt("budget", epsilon="1") or "Missing argument" in text(visitor.get("/confirm"))


def test_health_is_what_the_check_finds(visitor: Visitor, admin: Admin) -> None:
    """Word for word as `bursar-server check` has it."""
    admin.state.config.chmod(0o644)
    page = text(visitor.get("/health"))
    assert f"WRONG: {admin.state.config} can be read by others" in page
    assert "dataset heights ok" in page


CHANGED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "budget": (
        ("budget", "set", "heights", "--epsilon", "3", "--yes", "--reason", "a & b"),
        {"name": "heights", "epsilon": "3", "reason": "a & b"},
    ),
    "allowance": (
        ("allowance", "set", "heights", "--analyst", "alice", "--share", "1/3"),
        {"name": "heights", "analyst": "alice", "share": "1/3", "new": ""},
    ),
    "allowance-end": (
        ("allowance", "end", "heights", "--everyone"),
        {"name": "heights", "everyone": "yes"},
    ),
    "call-limit": (("call-limit", "set", "heights", "--share", "5%"), {"name": "heights", "share": "5%"}),
    "call-limit-end": (("call-limit", "end", "heights"), {"name": "heights"}),
    "token": (
        ("token", "issue", "--name", "bob", "--role", "analyst", "--dataset", "heights", "--dataset", "other"),
        {"name": "bob", "role": "analyst", "datasets": ["heights", "other"], "days": ""},
    ),
    "token-revoke": (("token", "revoke", "--name", "alice"), {"name": "alice"}),
    "retire": (("retire", "heights", "--yes"), {"name": "heights"}),
    "withdraw": (
        ("dataset", "withdraw", "heights", "--yes", "--reason", "twice"),
        {"name": "heights", "reason": "twice"},
    ),
}
"""Words of a command, and fields of a form, that say the same."""


@pytest.mark.parametrize("change", CHANGED)
def test_a_change_is_the_commands(visitor: Visitor, admin: Admin, change: str) -> None:
    """The entry is shown first, and is not written; once confirmed it is the one that the command line writes."""
    words, fields = CHANGED[change]
    admin.add("other", "height\n0.5\n")
    admin.ok("allowance", "set", "heights", "--everyone", "--share", "1/2")
    admin.ok("call-limit", "set", "heights", "--share", "1/2")
    admin.ok("token", "issue", "--name", "alice", "--role", "analyst")
    before = admin.verified
    shutil.copytree(admin.state.path, admin.files / "twin")
    twin = dataclasses.replace(admin, state=State.open(admin.files / "twin"))
    twin.ok(*words, "--actor", "olga")
    meant = twin.entries()[-1]
    shown = visitor.attempt(change, **fields)
    kind = "an allowance" if meant.kind == "allowance" else f"a {meant.kind}"
    assert f"it would be entry {meant.number}, {kind} by local:olga with" in shown
    (printed,) = (
        html.unescape(re.sub(r"<[^>]*>", "", found))
        for found in re.findall(r"<pre[^>]*>(.*?)</pre>", visitor.get("/confirm").text, re.S)
    )
    assert admin.verified.head == before.head
    assert f"entry {meant.number}" in text(visitor.confirm())
    *_, written = admin.entries()
    drawn = {"token_hash", "expires"}  # another token, perhaps a second later

    def same(entry: Entry) -> object:
        details = {name: value for name, value in entry.details.items() if name not in drawn}
        return entry.number, entry.kind, entry.dataset, entry.actor, details

    assert same(written) == same(meant)
    entry = json.loads(printed[printed.index("{\n") : printed.rindex("}") + 1])
    assert entry == {**written.details, **{name: entry[name] for name in drawn & entry.keys()}}
    # A checkpoint was written, as by the command.
    assert f"the newest is of entry {written.number}" in text(visitor.get("/"))


def test_what_another_changed_since_the_trial_is_looked_at_first(visitor: Visitor, admin: Admin) -> None:
    """A delta that was raised meanwhile would be confirmed unseen; analysts' fits hold nothing up."""
    visitor.attempt("budget", name="heights", epsilon="0.9")
    admin.spend("r1")
    admin.ok("budget", "set", "heights", "--delta", "1e-4", "--yes", "--actor", "ben")
    trial = re.search(r'name="trial" value="([^"]+)"', visitor.get("/confirm").text)
    assert trial
    answer = visitor.post("/confirm", {"form": visitor.form(), "trial": trial[1]})
    assert answer.status_code == 409
    assert f"Entry {admin.entries()[-1].number} by local:ben has changed something" in answer.text
    account = admin.verified.accounts[0]
    assert (account.epsilon, account.delta) == (1.0, 1e-4)
    visitor.attempt("budget", name="heights", epsilon="0.9")
    admin.spend("r2")
    assert "entry" in text(visitor.confirm())
    assert admin.verified.accounts[0].epsilon == 0.9


def test_every_change_is_tested() -> None:
    """And each leads to a command."""
    assert set(CHANGED) == set(CHANGES)


def test_without_the_link_there_is_nothing(stranger: Visitor) -> None:
    """Every page but the style sheet; the link works once, for whoever presses its button and not for a preview."""
    paths = ["/", "/health", "/confirm", "/done", "/nothing", *(f"/change/{key}" for key in CHANGES)]
    for path in paths:
        for answer in (stranger.get(path), stranger.post(path, {"form": ""})):
            assert answer.status_code == 403, path
            assert "Open the link" in answer.text
            assert "heights" not in answer.text
    assert stranger.get("/style.css").status_code == 200
    for token in ("", "wrong", "%E4%BD%A0"):
        assert stranger.get(f"/enter?token={token}").status_code == 403
        assert stranger.post("/enter", {"token": token}).status_code == 403
    for _ in range(2):
        assert "Open the pages here" in text(stranger.get(stranger.site.link))
    assert stranger.cookies == {}
    link = stranger.site.link
    stranger.enter()
    assert stranger.get("/").status_code == 200
    (name,) = stranger.cookies
    assert "not, or no longer, in force" in stranger.get(link).text
    assert stranger.post("/enter", {"token": link.partition("=")[2]}).status_code == 403
    for value in ("", "wrong", "\xe4"):
        assert stranger.get("/", headers={"cookie": f"{name}={value}".encode()}).status_code == 403
    strange = f'a:b="; {name}={stranger.cookies[name]}; c'
    assert stranger.get("/", headers={"cookie": strange}).status_code == 200


def test_the_cookie_is_for_this_page_alone(stranger: Visitor) -> None:
    """Scripts do not see it, other sites do not send it, and two pages of one host do not share its name."""
    path, _, token = stranger.site.link.partition("?token=")
    cookie = stranger.post(path, {"token": token}).headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    other = Visitor(Site(main, stranger.site._held, "olga")).enter()
    assert set(other.cookies) != set(stranger.cookies)
    assert token not in cookie


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.9", "", "[::1"])
def test_a_foreign_name_gets_nothing(visitor: Visitor, host: str) -> None:
    """A page elsewhere whose name was made to lead here gets nothing, even with the cookie."""
    for path in ("/", "/style.css", "/enter", "/change/token"):
        for answer in (
            visitor.get(path, headers={"host": host}),
            visitor.post(path, {"form": visitor.form()}, headers={"host": host}),
        ):
            assert answer.status_code == 421
            assert "heights" not in answer.text


def test_every_answer_has_the_headers(visitor: Visitor) -> None:
    """No scripts, nothing from elsewhere, no frame, and nothing is kept by the browser; errors included."""
    visitor.attempt("token", name="bob", role="analyst")
    paths = ["/", "/health", "/confirm", "/done", "/enter", "/nothing", "/style.css", "/change/token"]
    for answer in (*map(visitor.get, paths), visitor.post("/confirm", {}), visitor.ask("PUT", "/")):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "script-src" not in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "<script" not in answer.text
        assert not re.search(r"https?://", answer.text)


def test_a_form_of_another_page_does_nothing(visitor: Visitor, admin: Admin) -> None:
    """A missing token, another session's and the cookie as one do nothing; and no GET changes anything."""
    visitor.attempt("call-limit", name="heights", share="5%")
    trial = re.search(r'name="trial" value="([^"]+)"', visitor.get("/confirm").text)
    assert trial
    other = Visitor(Site(main, visitor.site._held, "olga")).enter()
    head = admin.verified.head
    for form in ("", "wrong", other.form(), *visitor.cookies.values()):
        answer = visitor.post("/confirm", {"form": form, "trial": trial[1]})
        assert answer.status_code == 403
        assert "nothing was done" in answer.text
        assert visitor.post("/change/retire", {"form": form, "name": "heights"}).status_code == 403
    for path in ("/confirm", "/done", *(f"/change/{key}" for key in CHANGES)):
        visitor.get(f"{path}?form={visitor.form()}&trial={trial[1]}&name=heights&share=5%25")
    assert admin.verified.head == head
    # What was tried before is still what would be confirmed.
    visitor.confirm()
    assert admin.entries()[-1].kind == "call_limit"


def test_a_form_that_is_sent_twice_changes_nothing_twice(visitor: Visitor, admin: Admin) -> None:
    """And only what was shown last is confirmed."""
    visitor.attempt("call-limit", name="heights", share="5%")
    first = re.search(r'name="trial" value="([^"]+)"', visitor.get("/confirm").text)
    visitor.attempt("call-limit", name="heights", share="6%")
    second = re.search(r'name="trial" value="([^"]+)"', visitor.get("/confirm").text)
    assert first
    assert second
    form = visitor.form()
    before = admin.verified.entries
    assert visitor.post("/confirm", {"form": form, "trial": first[1]}).status_code == 409
    assert visitor.post("/confirm", {"form": form}).status_code == 409
    assert visitor.post("/confirm", {"form": form, "trial": second[1]}).status_code == 303
    assert visitor.post("/confirm", {"form": form, "trial": second[1]}).status_code == 409
    assert visitor.get("/confirm").status_code == 404
    assert admin.verified.entries == before + 1
    assert admin.entries()[-1].details["share"] == "3/50"


def test_a_token_is_shown_once(visitor: Visitor, admin: Admin) -> None:
    """One page has it, which no browser keeps; it is in force, and on no other page."""
    visitor.attempt("token", name="bob", role="analyst", reason="course")
    before = visitor.get("/confirm").text
    answer = visitor.confirm()
    assert answer.headers["cache-control"] == "no-store"
    (token,) = re.findall(r"bursar_analyst_[\w-]+", text(answer))
    assert token not in before
    again = visitor.get("/done")
    assert again.status_code == 410
    for page in (again, *map(visitor.get, ("/", "/confirm", "/health", "/change/token", "/change/token-revoke"))):
        assert token not in page.text
    with Ledger.open(admin.state.ledger) as ledger:
        held = ledger.credential(hash_token(token))
        assert held is not None
        assert held.name == "bob"
    assert 'value="bob"' in visitor.get("/change/token-revoke").text


@pytest.mark.parametrize(
    ("change", "fields", "why"),
    [
        ("allowance", {"name": "heights", "share": "1/2"}, "give one of --analyst and --everyone"),
        ("allowance", {"name": "heights", "share": "2", "everyone": "yes"}, "write 25%"),
        ("allowance", {"name": "heights", "share": "1", "analyst": "alcie"}, "no token in force has the name"),
        ("allowance-end", {"name": "heights", "everyone": "yes"}, "no allowance of heights"),
        ("call-limit-end", {"name": "heights"}, "no call limit that could end"),
        ("budget", {"name": "heights", "epsilon": "1"}, "already"),
        ("budget", {"name": "heights", "epsilon": "lots"}, "not a valid float"),
        ("token", {"name": "a b", "role": "analyst"}, "1 to 64 characters"),
        ("token", {"name": "bob", "role": "king"}, "'king' is not one of"),
        ("token-revoke", {"name": "nobody"}, "no credential in force"),
        ("retire", {"name": "--delete-rows"}, "--delete-rows"),
        ("retire", {"name": "heights", "reason": "x" * 501}, "at most 500 printable characters"),
    ],
)
def test_what_the_command_refuses_is_refused(
    visitor: Visitor, admin: Admin, change: str, fields: dict[str, str], why: str
) -> None:
    """The words are the command's, typed text is kept to be corrected, and there is nothing to confirm."""
    head = admin.verified.head
    page = visitor.attempt(change, **fields)
    assert "This is refused; nothing was written." in page
    assert why in page
    answer = visitor.get("/confirm").text
    assert "Write this entry" not in answer
    assert visitor.post("/confirm", {"form": visitor.form(), "trial": "x"}).status_code == 409
    again = re.search(r'href="(/change/[^"]+)"[^>]*>Change what was typed', answer)
    assert again
    filled = html.unescape(visitor.get(html.unescape(again[1])).text)
    for name, value in fields.items():
        if value in ("yes", "heights", "analyst"):
            continue
        assert f'value="{value}"' in filled or name in ("name", "role")
    assert admin.verified.head == head


def test_what_is_typed_is_a_value_and_no_option(visitor: Visitor, admin: Admin) -> None:
    """Nobody can smuggle an option in; parameters that the page does not offer are not passed on."""
    visitor.attempt(
        "call-limit", name="heights", share="5%", reason="--actor=mallory", who="mallory", dry_run="", directory="/x"
    )
    visitor.confirm()
    written = admin.entries()[-1]
    assert (written.actor, written.details["reason"]) == ("local:olga", "--actor=mallory")
    out = admin.files / "token"
    visitor.attempt("token", name="bob", role="analyst", out=str(out))
    visitor.confirm()
    assert not out.exists()
    visitor.attempt("retire", name="heights", delete_rows="yes", destroy_key="yes")
    visitor.confirm()
    assert len(admin.snapshots) == 1
    assert admin.entries()[-1].kind == "retirement"


def test_nothing_is_asked_at_the_terminal(visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A total that protects hardly anybody needs its box, and not somebody who types where the page was started."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    page = visitor.attempt("budget", name="heights", epsilon="30")
    assert "epsilon 30 is above 10" in page
    head = admin.verified.head
    refused = text(visitor.confirm())
    assert "This was refused; nothing was written." in refused
    assert "--i-know" in refused
    assert admin.verified.head == head
    visitor.attempt("budget", name="heights", epsilon="30", i_know="yes")
    assert "Done." in text(visitor.confirm())
    assert admin.entries()[-1].details["epsilon"] == 30


def test_names_are_text(admin: Admin) -> None:
    """Those of a ledger whose owner was somebody else: escaped on every page, and sent back as they are."""
    with Ledger.open(admin.state.ledger) as ledger:
        public = {"columns": [], "name": HOSTILE}
        made = Registration(HOSTILE, Adjacency.REPLACE_ONE, Budget(1, 1e-6), bytes(32), public)
        ledger.register_dataset(made, actor=HOSTILE, reason=HOSTILE)
        ledger.set_allowance(HOSTILE, HOSTILE, Fraction(1, 2), actor=HOSTILE, reason=f"{HOSTILE}\u202etxt")
        refusals = Refusals(admin.state.path / FILE)
        refusals.note(analyst=HOSTILE, dataset=HOSTILE, method=HOSTILE, refused_by=HOSTILE)
        refusals.close()
        BackupNote(datetime.now(UTC), 1, HOSTILE).save(admin.state)
        visitor = Visitor(Site(main, Held(admin.state, ledger), None)).enter()
        trial = visitor.attempt("allowance-end", name=HOSTILE, analyst=HOSTILE, reason=HOSTILE)
        assert "<script>alert(1)</script>" in trial
        for path in ("/", "/confirm", "/change/retire?" + urlencode({"name": HOSTILE}), "/health", "/nothing"):
            answer = visitor.get(path)
            assert "<script" not in answer.text, path
            assert "<img" not in answer.text, path
            assert "\u202e" not in answer.text, path
        front = visitor.get("/").text
        assert text(visitor.get("/")).count(HOSTILE) >= 8
        links = [html.unescape(link) for link in re.findall(r'href="(/change/retire\?name=[^"]+)"', front)]
        chosen = re.findall(r"<option selected>([^<]*)</option>", visitor.get(links[0]).text)
        assert [html.unescape(name) for name in chosen] == [HOSTILE]


def test_forms_have_a_length(visitor: Visitor) -> None:
    """A body that is too long, or does not say how long it is, is not read; one that is no text is no form."""
    assert visitor.post("/change/retire", {"form": visitor.form(), "reason": "x" * 70_000}).status_code == 413

    async def parts() -> Any:
        yield b"form="

    assert visitor.ask("POST", "/change/retire", content=parts()).status_code == 413
    assert visitor.ask("POST", "/change/retire", content=b"form=\xff&%ff=%ff").status_code == 403


def test_what_fails_is_said(visitor: Visitor, admin: Admin) -> None:
    """Settings that are wrong, and a ledger whose file was taken away under the page."""
    admin.state.config.write_text("nothing = 1\n")
    answer = visitor.get("/")
    assert answer.status_code == 503
    assert "nothing" in answer.text
    admin.state.config.write_text('address = "127.0.0.1:1"\n')
    admin.state.ledger.rename(admin.files / "away")
    assert "This is refused; nothing was written." in visitor.attempt("call-limit", name="heights", share="5%")
    (admin.files / "away").rename(admin.state.ledger)


def test_a_bug_is_told_at_the_terminal(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not on the page."""

    def broken(*_: object) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr(_owner_site, "overview", broken)
    answer = visitor.get("/")
    assert answer.status_code == 500
    assert "a bug" not in answer.text
    assert "RuntimeError: a bug" in capsys.readouterr().err


def test_without_a_name_the_login_acts(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login is taken as on the command line; also one that --actor would not take."""
    monkeypatch.setattr("getpass.getuser", lambda: "a b")
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger:
        visitor = Visitor(Site(main, Held(admin.state, ledger), None)).enter()
        assert "by local:a b, as entries" in visitor.get("/change/retire").text
        visitor.attempt("retire", name="heights")
        visitor.confirm()
    assert admin.entries()[-1].actor == "local:a b"


def test_the_command_serves_this_machine_alone(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens on loopback, has no option for another host, prints the link, and names who acts."""
    served: list[Any] = []

    def noted(app: Any, listener: socket.socket, subject: object, link: str, *, show: bool) -> None:
        served.append((listener.getsockname()[0], subject, link.partition("=")[0], show))

    monkeypatch.setattr("bursar_ledger.audit._web.serve", noted)
    admin.ok("serve", "--port", 0, "--actor", "olga")
    assert served == [("127.0.0.1", admin.state.path, "/enter?token", False)]
    assert "No such option" in admin.refused("serve", "--host", "0.0.0.0")  # noqa: S104 - refused
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "another --port" in admin.refused("serve", "--port", other.getsockname()[1])
    assert "1 to 64 characters" in admin.refused("serve", "--actor", "a b")


def test_without_datasette_the_command_says_what_to_do(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other commands do not need it."""
    monkeypatch.delitem(sys.modules, "bursar_ledger.audit._web", raising=False)
    monkeypatch.setitem(sys.modules, "datasette.utils.asgi", None)
    assert "bursar[server,serve]" in admin.refused("serve")
