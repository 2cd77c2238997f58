"""Pages of `bursar-audit serve`: Datasette over the tables of a `Watch`, with the report as its front page.

Nothing here opens the ledger for writing, and Datasette does not open it at all: it has the tables that a look made.
The link of the start gives access to everything, and nothing else does: other users of the machine, and other pages of
the browser, reach a port of the loopback interface, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import re
import secrets
import sqlite3
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import datasette
from datasette.app import Datasette
from datasette.plugins import pm
from datasette.utils.asgi import Forbidden, NotFound, Request, Response
from itsdangerous import BadSignature
from markupsafe import Markup

from ._columns import lines
from ._entry_text import entry_in_words
from ._formats import csv_lines
from ._history import History
from ._language import say, say_finding
from ._open import UnreadableError, opened, rows, rows_in_context
from ._pages import TEXTS, site_style, style
from ._queries import METADATA
from ._report import analysts_in_words, refusal_in_words
from ._sentences import folded, story
from ._text import number, visible
from ._verdict import verdict
from ._watch import Watch
from ._web import App, guarded

_FOLDER = Path(str(importlib.resources.files(__package__))) / "pages"
_SETTINGS = {
    "sql_time_limit_ms": 3000,  # a question to a million entries may take longer than Datasette's one second
    "allow_download": False,
    "suggest_facets": False,
    "max_returned_rows": 1000,
    "default_cache_ttl": 0,
}
_THEIRS = "datasette.handle_exception"
_LINK = "/-/auth-token"
_FOR_ALL = (_LINK, "/-/static/", "/-/ledger/site.css", "/-/ledger/report.css")
"""Paths of the link, and of style sheets."""
_FROM_TABLES = ("/ledger", "/-/ledger/entries", "/-/ledger/analysts", "/-/ledger/refusals")
"""Paths of pages that need the tables of a look."""
_COOKIE = {"a": {"id": "root"}}
"""Content of the link's cookie, signed with a key of this start."""
_LINKED = {"entry", "debit"}
"""Columns that hold numbers of entries."""
_DIGESTS, _TIMES = {"head", "sha256"}, {"time", "first", "last", "checked_at"}
_MOST_RECORDS = 1_000_000
"""Maximum rows of one CSV file; longer ones are for `bursar-audit entries`, which needs no memory for them."""
_LONGEST = 2**24
"""Maximum bytes of a text in a query: far above an entry's, and the printf of one line made gigabytes."""
_ABOUT_CSV = {"_next", "_size", "_dl", "_stream", "_labels", "_shape", "_json", "_format"}
"""Arguments that say how to send a table, and not what is in it."""

_Function = TypeVar("_Function", bound=Callable[..., Any])
_hook = cast(Callable[[_Function], _Function], datasette.hookimpl)


@contextlib.contextmanager
def site(watch: Watch, names: Iterable[str] = ()) -> Iterator[Any]:
    """Make Datasette with the pages about a ledger, for the block; its `app()` is the ASGI application.

    `names` are as in `_web.guarded`.
    """
    plugin = _Pages(watch, frozenset(name.lower() for name in names))
    pm.register(plugin, name="bursar-audit")
    # Where `rich` is installed it prints the variables of every frame for every page that is not found.
    theirs = pm.unregister(name=_THEIRS)
    made = None
    try:
        made = Datasette(
            [str(watch.tables)], metadata=METADATA, settings=_SETTINGS, template_dir=str(_FOLDER / "templates")
        )
        yield made
    finally:
        pm.unregister(plugin)
        pm.register(theirs, name=_THEIRS)
        if made is not None:
            made.executor.shutdown()
            made.get_database("ledger").close()


def link(made: Any) -> str:
    """Return the page that the one-time link leads to; its button lets one browser in, once."""
    return f"{_LINK}?token={made._root_token}"


@dataclass(frozen=True)
class _Released:
    """Released bytes: their size and SHA-256, whether an entry has that, and which."""

    size: int
    digest: str
    entry: int | None
    agrees: bool


class _Pages:
    """Plugin of Datasette for one watch."""

    def __init__(self, watch: Watch, names: frozenset[str] = frozenset()) -> None:
        self.__name__ = "bursar_audit"  # Datasette asks plugins, which are modules elsewhere, for theirs
        self._watch = watch
        self._names = names

    @_hook
    def register_routes(self) -> list[tuple[str, Any]]:
        """Return the pages that are not Datasette's, before its own."""
        return [
            (r"^/$", self.dashboard),
            (rf"^{_LINK}$", self.enter),
            (r"^/-/ledger/look$", self.look),
            (r"^/-/ledger/entries$", self.entries),
            (r"^/-/ledger/analysts$", self.analysts),
            (r"^/-/ledger/refusals$", self.refusals),
            (r"^/-/ledger/entry/(?P<number>[1-9][0-9]{0,17})$", self.entry),
            (r"^/-/ledger/release/(?P<number>[1-9][0-9]{0,17})$", self.release),
            (r"^/-/ledger/(?P<sheet>site|report)\.css$", self.sheet),
            (r"^/ledger(?P<rest>(/[^.]+)?)\.csv$", self.csv),
        ]

    @_hook
    def prepare_connection(self, conn: sqlite3.Connection) -> None:
        """Limit the texts that one query can make, so that a link from a stranger cannot fill the memory."""
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)

    @_hook
    def prepare_jinja2_environment(self, env: Any) -> None:
        """Give templates the texts of the language in force."""
        env.globals.update(TEXTS)

    @_hook
    def asgi_wrapper(self, datasette: Any) -> Callable[[App], App]:
        """Refuse requests that did not come by the link, and add the headers that every answer has."""

        async def refused() -> Response:
            await datasette.invoke_startup()
            return await self.forbidden(datasette)

        def admitted(request: Request) -> bool:
            return request.scope["path"].startswith(_FOR_ALL) or _let_in(datasette, request)

        def wrap(app: App) -> App:
            async def ready(scope: Any, receive: Any, send: Any) -> None:
                if self._watch.look is None and scope["path"].startswith(_FROM_TABLES):
                    await (await self.waiting(datasette)).asgi_send(send)
                else:
                    await app(scope, receive, send)

            return guarded(ready, self._names, admitted, refused)

        return wrap

    @_hook
    def render_cell(self, value: object, column: str, database: str) -> Markup | None:
        """Link numbers of entries to the entry, and shorten long values; no text becomes a link to another site."""
        if isinstance(value, int) and column in _LINKED:
            return Markup('<a href="/-/ledger/entry/{0}">{0}</a>').format(value)
        if isinstance(value, float):
            return Markup('<span title="{}">{}</span>').format(repr(value), number(value))
        if not isinstance(value, str) or not value:
            return None
        if column in _DIGESTS:
            return Markup('<code title="{}">{}</code>').format(value, f"{value[:12]}\u2026")
        return Markup("{}").format(value[:19].replace("T", " ") if column in _TIMES else visible(value))

    @_hook
    async def forbidden(self, datasette: Any) -> Response:
        """Return the page for requests that did not come by the link."""
        error = say(
            "Open the link that bursar-audit printed when it started. It lets one browser in, once; for another one "
            "stop bursar-audit and start it again."
        )
        return await _page(datasette, None, "error.html", {"title": say("Not for you"), "error": error}, status=403)

    @_hook
    async def handle_exception(self, datasette: Any, request: Request, exception: Any) -> Response:
        """Return the page for a missing page, a bad query or a bug, whose traceback goes to the terminal."""
        status = getattr(exception, "status", 500)
        text = getattr(exception, "message", None) or str(exception)
        if status == 500:
            traceback.print_exception(exception)
        if request.path.endswith(".json"):
            return Response.json({"ok": False, "error": visible(text), "status": status}, status=status)
        # Datasette has some messages in HTML, with what is not its own escaped.
        error = Markup(text) if getattr(exception, "message_is_html", False) else visible(text)  # noqa: S704
        named = say("Not found") if status == 404 else say("Error {status}", status=status)
        title = getattr(exception, "title", None) or named
        return await _page(datasette, None, "error.html", {"title": title, "error": error}, status=status)

    async def dashboard(self, datasette: Any, request: Request) -> Response:
        """Return the report, with the time of its verification."""
        newer = self._watch.newer()
        look = self._watch.look
        context = {
            "name": visible(self._watch.path.name),
            "busy": self._watch.busy,
            "newer": newer,
            "error": None if look is None or look.error is None else visible(say_finding(look.error)),
            "parts": None if look is None else look.parts,
            "made": None if look is None else _second(look.made),
            "remembered": look is not None and look.remembered,
            "seconds": "" if look is None else _duration(look.seconds),
            "verdict": _verdict(self._watch),
        }
        return await _page(datasette, request, "dashboard.html", context)

    async def waiting(self, datasette: Any) -> Response:
        """Return the page that comes again until the entries are read."""
        await datasette.invoke_startup()
        answer = await _page(datasette, None, "waiting.html", {"name": visible(self._watch.path.name)}, status=503)
        answer.headers["retry-after"] = "3"
        return answer

    async def entries(self, datasette: Any, request: Request) -> Response:
        """Return entries in sentences, newest first."""
        chosen = {name: str(request.args.get(name) or "") for name in ("who", "dataset", "about")}
        before = str(request.args.get("before") or "")
        numbers, choices = await _chosen(datasette, chosen, int(before) if _NUMBER.fullmatch(before) else _ENDLESS)
        look = self._watch.look
        certain = None if look is None or look.found is None else verdict(look.found).certain
        with _found(self._watch.path) as db:
            shown = set(numbers[:_PAGE])
            read = [item for item in lines(rows_in_context(db, shown)) if item[0].number in shown][::-1]
        stories = [
            {
                "text": visible(one.text),
                "entries": one.entries[::-1],
                "uncertain": certain is not None and one.entries[-1] > certain,
            }
            for one in folded(story(row, line) for row, line, _ in read)
        ]
        context = {
            "name": visible(self._watch.path.name),
            "stories": stories,
            "chosen": chosen,
            "choices": choices,
            "more": numbers[_PAGE - 1] if len(numbers) > _PAGE else None,
            "title": say("Admin events") if chosen["about"] == "events" else say("Entries"),
        }
        return await _page(datasette, request, "entries.html", context)

    async def analysts(self, datasette: Any, request: Request) -> Response:
        """Return what each analyst spent, in sentences."""
        look = self._watch.look
        told = History() if look is None else look.told
        stories = [(visible(analyst), visible(text)) for analyst, text in analysts_in_words(told)]
        context = {"name": visible(self._watch.path.name), "stories": stories}
        return await _page(datasette, request, "analysts.html", context)

    async def refusals(self, datasette: Any, request: Request) -> Response:
        """Return what was refused, in sentences."""
        look = self._watch.look
        noted = None if look is None else look.refusals
        stories = None
        if look is not None and noted is not None:
            stories = [visible(refusal_in_words(one, look.told)) for one in noted[:_MOST_REFUSALS]]
        context = {"name": visible(self._watch.path.name), "stories": stories}
        return await _page(datasette, request, "refusals.html", context)

    async def enter(self, datasette: Any, request: Request) -> Response:
        """Show the link's button, or let the browser in that pressed it.

        Programs that look at a link before a person does, such as a chat's preview, send no form.
        """
        posted = request.method == "POST"  # which Datasette lets through with its token only
        token = str((await request.post_vars() if posted else request.args).get("token") or "")
        if not datasette._root_token or not secrets.compare_digest(token.encode(), datasette._root_token.encode()):
            raise Forbidden(say("this link is not, or no longer, in force"))
        if not posted:
            context = {"name": visible(self._watch.path.name), "token": token}
            return await _page(datasette, request, "enter.html", context)
        # The link is used up: whoever finds it later, in a history or a log, gets nothing.
        datasette._root_token = None
        answer = Response.redirect("/", status=303)
        answer.set_cookie("ds_actor", datasette.sign(_COOKIE, "actor"), httponly=True)
        return answer

    async def look(self, datasette: Any, request: Request) -> Response:
        """Verify again."""
        if request.method != "POST":  # which Datasette lets through with its token only
            return Response.text("POST only", status=405)
        self._watch.start()
        return Response.redirect("/", status=303)

    async def entry(self, datasette: Any, request: Request) -> Response:
        """Return one entry in words, as `bursar-audit show` prints it."""
        wanted = int(request.url_vars["number"])
        told, words, body, released, is_last = _entry(self._watch.path, wanted)
        context = {"name": visible(self._watch.path.name), "number": wanted, "words": words, "body": body}
        context |= {"story": told, "is_last": is_last}
        return await _page(datasette, request, "entry.html", {**context, "released": released})

    async def release(self, datasette: Any, request: Request) -> Response:
        """Return released bytes, as a file."""
        debit = int(request.url_vars["number"])
        with _found(self._watch.path) as db:
            content = db.execute("SELECT content FROM releases WHERE debit = ?", [debit]).fetchone()
        if content is None or not isinstance(content[0], bytes):
            raise NotFound(say("nothing is stored as released under entry {number}", number=str(debit)))
        disposition = {"Content-Disposition": f'attachment; filename="release-{debit}.bin"'}
        return Response(content[0], headers=disposition, content_type="application/octet-stream")

    async def sheet(self, request: Request) -> Response:
        """Return a style sheet."""
        own = request.url_vars["sheet"] == "site"
        return Response(site_style() if own else style(), content_type="text/css; charset=utf-8")

    async def csv(self, datasette: Any, request: Request) -> Response:
        """Return a table, or the answer to a query, as CSV in which no text is a formula; every page of it."""
        asked = [(key, value) for key in request.args if key not in _ABOUT_CSV for value in request.args.getlist(key)]
        columns: list[str] = []
        records: list[dict[str, Any]] = []
        following: str | None = ""
        while following is not None and len(records) < _MOST_RECORDS:
            params = [*asked, ("_size", "max"), *([("_next", following)] if following else [])]
            path = f"/ledger{request.url_vars['rest']}.json"
            answer = await datasette.client.get(path, params=params, cookies=request.cookies)
            told = answer.json()
            if answer.status_code != 200:
                return Response.text(visible(told.get("error", "error")), status=answer.status_code)
            columns = told["columns"]
            records.extend(dict(zip(columns, row, strict=True)) for row in told["rows"])
            following = told.get("next")
        text = "".join(f"{line}\n" for line in csv_lines(columns, records))
        disposition = {"Content-Disposition": 'attachment; filename="ledger.csv"'}
        return Response(text, headers=disposition, content_type="text/csv; charset=utf-8")


_NUMBER = re.compile(r"[0-9]{1,18}")


def _let_in(made: Any, request: Request) -> bool:
    """Return whether a request has the cookie that the link gave."""
    try:
        return bool(made.unsign(request.cookies.get("ds_actor", ""), "actor") == _COOKIE)
    except BadSignature:
        return False


async def _chosen(datasette: Any, chosen: Mapping[str, str], before: int) -> tuple[list[int], dict[str, list[str]]]:
    """Return numbers of entries, newest first, one more than a page has, and what there is to choose from."""
    tables = datasette.get_database("ledger")
    found = await tables.execute(_CHOSEN, {**chosen, "before": before, "most": _PAGE + 1})
    choices = {}
    for name, column in (("who", "actor"), ("dataset", "dataset")):
        distinct = f"SELECT DISTINCT {column} FROM entries WHERE {column} != '' ORDER BY {column} LIMIT 200"  # noqa: S608
        choices[name] = [row[0] for row in (await tables.execute(distinct)).rows]
    return [row[0] for row in found.rows], choices


_PAGE = 200
"""Entries of one page; equal neighbours of them are one sentence."""
_MOST_REFUSALS = 1000
"""Refusals on the page, the newest first: a browser draws so many at once."""
_ENDLESS = 2**62
"""Number beyond that of every entry, and an integer that SQLite has."""
_CHOSEN = """
SELECT entry FROM entries
WHERE kind IS NOT 'release' AND entry < :before
    AND (:who = '' OR actor = :who) AND (:dataset = '' OR dataset = :dataset)
    AND (:about = '' OR (kind IS 'debit') = (:about = 'requests'))
ORDER BY entry DESC LIMIT :most
"""
"""Releases are left out: the sentence about a request says whether it was delivered."""


async def _page(
    datasette: Any, request: Request | None, template: str, context: Mapping[str, Any], status: int = 200
) -> Response:
    return Response.html(await datasette.render_template(template, dict(context), request=request), status=status)


def _entry(path: Path, wanted: int) -> tuple[str, str, str, _Released | None, bool]:
    """Return an entry in a sentence and in detail, the text that was hashed, what was released, and if none follows.

    Raises NotFound.
    """
    with _found(path) as db:
        row = next(rows(db, first=wanted, last=wanted), None)
        if row is None:
            raise NotFound(say("the ledger has no entry {number}", number=str(wanted)))
        *_, (row, line, _) = lines(rows_in_context(db, [wanted]))
        words = "\n".join(entry_in_words(row, line))
        is_last = next(rows(db, first=wanted + 1, last=wanted + 1), None) is None
        return visible(story(row, line).text), words, visible(row.body), _released(db, wanted), is_last


def _released(db: Any, debit: int) -> _Released | None:
    stored = db.execute("SELECT content FROM releases WHERE debit = ?", [debit]).fetchone()
    if stored is None or not isinstance(stored[0], bytes):
        return None
    digest = hashlib.sha256(stored[0]).hexdigest()
    entry = db.execute(
        "SELECT number, json_extract(body, '$.details.sha256') FROM entries WHERE kind = 'release' AND debit = ?",
        [debit],
    ).fetchone()
    return _Released(len(stored[0]), digest, entry and entry[0], entry is not None and entry[1] == digest)


@contextlib.contextmanager
def _found(path: Path) -> Iterator[Any]:
    """Open the ledger for reading; raises NotFound if it cannot be read."""
    try:
        with opened(path) as db:
            yield db
    except UnreadableError as error:
        raise NotFound(visible(say_finding(error.message))) from error


def _verdict(watch: Watch) -> str:
    look = watch.look
    if look is None or (look.found is None and look.error is None):
        return say("being verified")
    if look.found is None or look.found.problems:
        return say("not right").upper()
    return say(verdict(look.found).standing.value)


def _second(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
