"""Pages of `bursar-admin serve`. Every change is a command of `bursar-admin`, run by its own function.

Forms are made from a command's own options. What they send becomes the command's words: first with --dry-run, whose
output is shown, and the same words again once the owner confirms. The link of the start opens one session; its cookie
and the token in its forms are random, and every form without both is refused. No answer is kept by the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import inspect
import io
import secrets
import shlex
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import click
from datasette.utils.asgi import Request, Response

from bursar_ledger import REQUESTS
from bursar_ledger.audit._pages import environment, site_style, style
from bursar_ledger.audit._web import App, guarded
from bursar_server.access.tls import Certificates
from bursar_server.admin._acting import Held, actor, explained
from bursar_server.admin._overview import overview, server_health
from bursar_server.config import Config
from bursar_server.ops.doctor import check

_FOLDER = Path(str(importlib.resources.files(__package__))) / "pages"
_TEMPLATES = environment(_FOLDER)
_OPEN = ("/enter", "/style.css")
"""Paths that need no session: the link, and the style sheet."""
_LARGEST = 65_536
"""Bytes of a form. Chosen, not tuned: the longest reason has 500 characters."""

_NOT_KEPT = (("Cache-Control", "no-store"),)
_ENDED = "This link is not, or no longer, in force: stop bursar-admin serve and start it again for another one."

Given = Mapping[str, Sequence[str]]
"""Values of a form's fields, by name."""


@dataclass(frozen=True)
class Change:
    """Change that the page offers: a command."""

    title: str
    words: tuple[str, ...]


CHANGES: Mapping[str, Change] = {
    "budget": Change("Set a new total", ("budget", "set")),
    "allowance": Change("Set an allowance", ("allowance", "set")),
    "allowance-end": Change("End an allowance", ("allowance", "end")),
    "call-limit": Change("Limit one request", ("call-limit", "set")),
    "call-limit-end": Change("End the limit of one request", ("call-limit", "end")),
    "token": Change("Issue a token", ("token", "issue")),
    "token-revoke": Change("Revoke a token", ("token", "revoke")),
    "retire": Change("Retire a dataset", ("retire",)),
    "withdraw": Change("Withdraw a registration", ("dataset", "withdraw")),
}

_NOT_OFFERED = frozenset({"directory", "who", "dry_run", "yes", "out", "delete_rows", "destroy_key"})
"""Parameters that the page sets itself, and those that name files or remove rows, which are for the command line."""


@dataclass(frozen=True)
class Field:
    """Field of a form, made from one parameter of a command.

    Attributes:
        kind: "text", "flag", "choice" or "several".
        choices: values to choose from; suggestions for a text.
    """

    name: str
    label: str
    hint: str
    kind: str
    choices: tuple[str, ...]
    required: bool
    value: tuple[str, ...]


@dataclass(frozen=True)
class Session:
    """The one session of a start: what its cookie holds, and what its forms hold."""

    cookie: str
    form: str


@dataclass(frozen=True)
class Trial:
    """Change that was tried and waits for its confirmation.

    Attributes:
        number: random text that its confirmation names.
        change: key in `CHANGES`.
        given: what was typed.
        output: what the trial printed.
        refused: True if it was refused.
        newest: number of the newest entry before the trial.
    """

    number: str
    change: str
    given: Given
    output: str
    refused: bool
    newest: int


class Site:
    """Pages about one state directory.

    Changes are made by `who`, as by --actor; None for the login.

    Raises:
        InvalidFieldsError: entries cannot hold the name.
    """

    def __init__(self, program: click.Command, held: Held, who: str | None) -> None:
        self._program, self._held, self._who, self._actor = program, held, who, actor(who)
        self._token: str | None = secrets.token_urlsafe(32)
        # A name of its own: browsers send cookies to all ports of a host, and another page must not replace this one's.
        self._cookie = f"bursar_owner_{secrets.token_hex(8)}"
        self._session: Session | None = None
        self._trial: Trial | None = None
        self._result: tuple[str, str, bool] | None = None
        self._pages: dict[tuple[str, str], Callable[[Request, Given], Awaitable[Response]]] = {
            ("GET", "/"): self._overview,
            ("GET", "/health"): self._health,
            ("GET", "/enter"): self._entrance,
            ("POST", "/enter"): self._enter,
            ("GET", "/style.css"): self._style,
            ("GET", "/confirm"): self._shown_trial,
            ("POST", "/confirm"): self._confirm,
            ("GET", "/done"): self._done,
        }
        for key in CHANGES:
            self._pages["GET", f"/change/{key}"] = self._form
            self._pages["POST", f"/change/{key}"] = self._try

    @property
    def link(self) -> str:
        """Path that the one-time link leads to."""
        return f"/enter?token={self._token}"

    def app(self) -> App:
        """Return the ASGI application."""

        async def refused() -> Response:
            text = (
                "Open the link that bursar-admin printed when it started. It lets one browser in, once; for another "
                "one stop bursar-admin serve and start it again."
            )
            return self._message("Not for you", text, 403)

        return guarded(self._answered, frozenset(), self._is_admitted, refused)

    def _is_admitted(self, request: Request) -> bool:
        pairs = (part.strip().partition("=") for part in request.headers.get("cookie", "").split(";"))
        cookie = next((value for name, _, value in pairs if name == self._cookie), "")
        session = self._session
        known = session is not None and secrets.compare_digest(cookie.encode(), session.cookie.encode())
        return known or request.scope["path"] in _OPEN

    async def _answered(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except click.ClickException as error:
            answer = self._message("This cannot be shown", error.format_message(), 503)
        except Exception as error:  # a bug: its traceback is for the terminal
            traceback.print_exception(error)
            answer = self._message("Error", "bursar-admin printed on its terminal what went wrong.", 500)
        await answer.asgi_send(send)

    async def _answer(self, request: Request) -> Response:
        page = self._pages.get((request.method, request.scope["path"]))
        if page is None:
            return self._message("Not found", "There is no such page.", 404)
        if request.method == "GET":
            return await page(request, parse_qs(request.query_string))
        length = request.headers.get("content-length", "")
        if not (length.isdecimal() and int(length) <= _LARGEST):
            return self._message("Too long", f"A form has at most {_LARGEST} bytes.", 413)
        given = parse_qs((await request.post_body()).decode("utf-8", "replace"))
        session, sent = self._session, (given.pop("form", None) or [""])[0]
        if request.scope["path"] not in _OPEN and not (
            session is not None and secrets.compare_digest(sent.encode(), session.form.encode())
        ):
            return self._message("Not sent by this page", "The form lacks this session's token: nothing was done.", 403)
        return await page(request, given)

    async def _entrance(self, request: Request, given: Given) -> Response:
        """Show the link's button: programs that look at a link before a person does send no form."""
        if not self._is_link(given):
            return self._message("Not for you", _ENDED, 403)
        return self._page("enter.html", token=given["token"][0])

    async def _enter(self, request: Request, given: Given) -> Response:
        """Let in the browser that pressed the button."""
        if not self._is_link(given):
            return self._message("Not for you", _ENDED, 403)
        self._token, self._session = None, Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        answer = _redirect("/")
        answer.set_cookie(self._cookie, self._session.cookie, httponly=True, samesite="strict")
        return answer

    def _is_link(self, given: Given) -> bool:
        token = (given.get("token") or [""])[0]
        return self._token is not None and secrets.compare_digest(token.encode(), self._token.encode())

    async def _style(self, request: Request, given: Given) -> Response:
        text = style() + site_style() + (_FOLDER / "owner.css").read_text("utf-8")
        return Response(text, headers=dict(_NOT_KEPT), content_type="text/css; charset=utf-8")

    async def _overview(self, request: Request, given: Given) -> Response:
        with explained():
            config = Config.load(self._held.state.config)
            certificates = Certificates(self._held.state.tls)
            health = await asyncio.to_thread(server_health, config.address, certificates)
            return self._page("overview.html", shown=overview(self._held, config, health))

    async def _health(self, request: Request, given: Given) -> Response:
        """Show what `bursar-server check` finds; that verifies the whole ledger."""
        with explained():
            found = await asyncio.to_thread(lambda: list(check(self._held.state.path)))
        return self._page("health.html", found=found)

    async def _form(self, request: Request, given: Given) -> Response:
        key = _key(request)
        command = self._command(key)
        text = inspect.cleandoc(command.help or "").partition("\b")[0].split("\n\n")
        return self._page(
            "change.html",
            key=key,
            change=CHANGES[key],
            paragraphs=[part for part in text if part.strip() and not part.startswith("With --")],
            fields=[self._field(parameter, given) for parameter in _offered(command)],
        )

    async def _try(self, request: Request, given: Given) -> Response:
        key = _key(request)
        words = _words(self._command(key), given)
        newest, _ = self._held.ledger.newest()
        refused, output = self._run([*self._begin(key), "--dry-run", *words])
        self._trial = Trial(secrets.token_urlsafe(16), key, given, output, refused, newest)
        return _redirect("/confirm")

    async def _shown_trial(self, request: Request, given: Given) -> Response:
        trial = self._trial
        if trial is None:
            return self._message("Nothing to confirm", "What was tried here is done, or was never tried.", 404)
        words = _words(self._command(trial.change), trial.given)
        return self._page(
            "confirm.html",
            trial=trial,
            change=CHANGES[trial.change],
            lines=trial.output.splitlines(),
            typed=shlex.join(["bursar-admin", *CHANGES[trial.change].words, *words]),
            again=f"/change/{trial.change}?{urlencode(trial.given, doseq=True)}",
        )

    async def _confirm(self, request: Request, given: Given) -> Response:
        trial = self._trial
        if trial is None or trial.refused or (given.get("trial") or [""])[0] != trial.number:
            return self._message("Nothing was done", "This is not the change that was tried last. Try it again.", 409)
        self._trial = None  # first: a form that is sent twice changes nothing twice
        # Another administrator's change: the same words may now do something else than what was shown.
        since = (one for one in self._held.ledger.entries(trial.newest + 1) if one.kind not in REQUESTS)
        if (other := next(since, None)) is not None:
            text = f"Entry {other.number} by {other.actor} has changed something since this was tried. Try it again."
            return self._message("Nothing was done", text, 409)
        command = self._command(trial.change)
        yes = ["--yes"] if any(parameter.name == "yes" for parameter in command.params) else []
        refused, output = self._run([*self._begin(trial.change), *yes, *_words(command, trial.given)])
        self._result = CHANGES[trial.change].title, output, refused
        return _redirect("/done")

    async def _done(self, request: Request, given: Given) -> Response:
        """Show what a change printed, a new token included, once."""
        if self._result is None:
            return self._message("Shown already", "What a change printed is shown once; the ledger has the entry.", 410)
        (title, output, refused), self._result = self._result, None
        return self._page("done.html", title=title, lines=output.splitlines(), refused=refused)

    def _begin(self, key: str) -> list[str]:
        who = [] if self._who is None else [f"--actor={self._who}"]
        return [*CHANGES[key].words, f"--state={self._held.state.path}", *who]

    def _run(self, words: list[str]) -> tuple[bool, str]:
        """Run a command, and return whether it was refused, and what it printed."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                self._program.main(words, prog_name="bursar-admin", standalone_mode=False, obj=self._held)
            except click.ClickException as error:
                return True, printed.getvalue() + error.format_message()
        return False, printed.getvalue()

    def _command(self, key: str) -> click.Command:
        command = self._program
        for word in CHANGES[key].words:
            if not isinstance(command, click.Group):
                raise TypeError(f"{key}: {command.name!r} has no command {word!r}")
            command = command.commands[word]
        return command

    def _field(self, parameter: click.Parameter, given: Given) -> Field:
        """Return the field of one parameter. Names are suggested from the ledger."""
        ledger = self._held.ledger
        kind: str = "text"
        choices: tuple[str, ...] = ()
        names = tuple(state.name for state in ledger.datasets() if not state.retired)
        if isinstance(parameter, click.Argument):
            kind, choices = "choice", names
        elif isinstance(parameter.type, click.Choice):
            kind, choices = "choice", tuple(parameter.type.choices)
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            kind = "flag"
        elif parameter.multiple:
            kind, choices = "several", names
        elif parameter.name in ("name", "analyst"):
            choices = tuple(holder.name for holder in ledger.credentials() if not holder.revoked)
        argument = isinstance(parameter, click.Argument)
        return Field(
            name=str(parameter.name),
            label="dataset" if argument else parameter.opts[0].removeprefix("--").replace("-", " "),
            hint="The dataset, whose account it is about." if argument else str(getattr(parameter, "help", "")),
            kind=kind,
            choices=choices,
            required=parameter.required,
            value=tuple(given.get(str(parameter.name), ())),
        )

    def _page(self, template: str, status: int = 200, **shown: object) -> Response:
        form = "" if self._session is None else self._session.form
        html = _TEMPLATES.get_template(template).render(
            state=self._held.state.path, actor=self._actor, changes=CHANGES, form=form, **shown
        )
        return Response.html(html, status=status, headers=dict(_NOT_KEPT))

    def _message(self, title: str, text: str, status: int) -> Response:
        return self._page("message.html", status, title=title, text=text)


def _redirect(path: str) -> Response:
    return Response.redirect(path, status=303, headers=dict(_NOT_KEPT))


def _key(request: Request) -> str:
    return str(request.scope["path"]).removeprefix("/change/")


def _offered(command: click.Command) -> list[click.Parameter]:
    offered = [parameter for parameter in command.params if parameter.name not in _NOT_OFFERED]
    return sorted(offered, key=lambda parameter: parameter.name == "reason")  # which comes last


def _words(command: click.Command, given: Given) -> list[str]:
    """Return what was typed as words of a command; no value can become an option."""
    options: list[str] = []
    arguments: list[str] = []
    for parameter in _offered(command):
        values = [value for value in given.get(str(parameter.name), ()) if value]
        if isinstance(parameter, click.Argument):
            arguments += values[:1]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            options += [parameter.opts[0]] if values else []
        else:
            options += [f"{parameter.opts[0]}={value}" for value in (values if parameter.multiple else values[:1])]
    return [*options, "--", *arguments] if arguments else options
