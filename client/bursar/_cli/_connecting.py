"""Choice of server and token: options, the environment, and a small file of settings, in this order."""

from __future__ import annotations

import functools
import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import bursar
from bursar._cli._failing import explained
from bursar._cli._printing import say
from bursar._client import DEFAULT_ADDRESS
from bursar_models.files import write_whole

VARIABLE = "BURSAR_CONFIG"
_KEYS = ("server", "ca", "token_file")
_PROFILES = "profiles"
_COMPLETION_SECONDS = 2.0
"""Longest wait of shell completion for a server."""

FILE = click.Path(path_type=Path, dir_okay=False)

SERVER = click.option(
    "--server", metavar="HOST:PORT", envvar="BURSAR_ADDRESS", show_envvar=True, help="The server to ask."
)
CA = click.option(
    "--ca", type=FILE, envvar="BURSAR_CA", show_envvar=True, help="Certificate that the server's is checked against."
)
TOKEN_FILE = click.option("--token-file", type=FILE, help="File with your token. [env var BURSAR_TOKEN: the token]")

PROFILE = click.option(
    "--profile",
    metavar="NAME",
    envvar="BURSAR_PROFILE",
    show_envvar=True,
    help="Settings to use, of those that bursar setup --profile kept.",
)


@dataclass(frozen=True)
class Connecting:
    """Address, authority and token of a server, as far as they were given.

    Attributes:
        server: "host:port".
        ca: the authority's certificate; None for the authorities that gRPC ships with.
        token_file: where the token is; None for the environment's, or none.
    """

    server: str | None
    ca: Path | None
    token_file: Path | None
    profile: str | None = None

    def completed(self, *, new: bool = False) -> Connecting:
        """Fill what was not given from the environment and the file of settings.

        The profile of `new` settings may be one that is not kept yet.

        Raises:
            click.ClickException: the file is not one of settings, or has no such profile.
            OSError: it cannot be read.
        """
        kept = _kept(settings_file(), self.profile, new=new)
        return Connecting(
            server=self.server or kept.server or DEFAULT_ADDRESS,
            ca=self.ca or kept.ca,
            # A token in the environment was put there for this run, a file in the settings for all of them.
            token_file=self.token_file or (None if os.environ.get("BURSAR_TOKEN") else kept.token_file),
            profile=self.profile,
        )

    def client(self, timeout: float | None = None) -> bursar.Client:
        """Return a client of that server.

        Raises:
            bursar.Error: the certificate or the token cannot be one.
            OSError: a file cannot be read.
        """
        token = None if self.token_file is None else _token(self.token_file)
        return bursar.connect(self.server, token=token, ca=self.ca, timeout=timeout)

    def keep(self, path: Path) -> None:
        """Write this as settings, beside other profiles. Raises OSError and click.ClickException."""
        paths = {"ca": self.ca, "token_file": self.token_file}
        values = {"server": self.server} | {name: str(p.absolute()) for name, p in paths.items() if p is not None}
        content = _content(path)
        profiles = content.pop(_PROFILES, {})
        if self.profile is None:
            content = values
        else:
            profiles[self.profile] = values
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A string of JSON is one of TOML, too.
        sections = [content, *profiles.values()]
        titles = ["", *(f"\n[{_PROFILES}.{json.dumps(name)}]\n" for name in profiles)]
        lines = ["".join(f"{name} = {json.dumps(value)}\n" for name, value in one.items()) for one in sections]
        write_whole(path, "".join(title + text for title, text in zip(titles, lines, strict=True)))


def settings_file() -> Path:
    """Return the file of settings: BURSAR_CONFIG, else bursar/config.toml in $XDG_CONFIG_HOME or ~/.config."""
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CONFIG_HOME")
    return Path(named) if named else (Path(base) if base else Path.home() / ".config") / "bursar" / "config.toml"


def connected(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command's callback: add the options of a connection, and give it a `bursar.Client` first."""

    @functools.wraps(function)
    def command(
        server: str | None, ca: Path | None, token_file: Path | None, profile: str | None, **kwargs: Any
    ) -> None:
        with explained(), Connecting(server, ca, token_file, profile).completed().client() as client:
            function(client, **kwargs)

    for option in (PROFILE, TOKEN_FILE, CA, SERVER):
        command = option(command)
    return command


class Dataset(click.ParamType[str]):
    """The name of a dataset; the tabulator asks the server for all that there are."""

    name = "dataset"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name as it was typed: the server knows which there are."""
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so; none if the server cannot be asked, since nobody reads an error there."""
        said = Connecting(*(ctx.params.get(name) for name in (*_KEYS, "profile")))
        try:
            with said.completed().client(timeout=_COMPLETION_SECONDS) as client:
                names = [dataset.name for dataset in client.datasets()]
        except (bursar.Error, click.ClickException, OSError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


DATASET = Dataset()


def _content(path: Path) -> dict[str, Any]:
    """Return what a file of settings has; nothing if there is none. Raises click.ClickException and OSError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:  # of syntax, encoding, too many digits, or too many brackets
        raise _no_settings(path, str(error)) from None
    profiles = content.get(_PROFILES, {})
    if not (isinstance(profiles, dict) and all(isinstance(one, dict) for one in profiles.values())):
        raise _no_settings(path, f"{_PROFILES} must be tables, such as [{_PROFILES}.name]")
    return content


def _kept(path: Path, profile: str | None, *, new: bool) -> Connecting:
    content = _content(path)
    profiles = content.pop(_PROFILES, {})
    if profile is not None:
        if profile not in profiles and not new:
            names = f"there are {', '.join(map(repr, profiles))}" if profiles else "there is none"
            text = f"no profile {profile!r} in {path}, {names}: bursar setup --profile {profile} makes it"
            raise click.ClickException(text)
        content = profiles.get(profile, {})
    unknown = sorted(set(content) - set(_KEYS))
    if unknown:
        raise _no_settings(path, f"it has {unknown[0]!r}, which is none of {', '.join(_KEYS)}")
    wrong = [name for name, value in content.items() if not (isinstance(value, str) and value)]
    if wrong:
        raise _no_settings(path, f"{wrong[0]} must be a text in quotes")
    files = {name: path.parent / content[name] for name in ("ca", "token_file") if name in content}
    return Connecting(content.get("server"), files.get("ca"), files.get("token_file"))


def _no_settings(path: Path, why: str) -> click.ClickException:
    return click.ClickException(
        f"{path} is no file of settings: {why}. Mend it, or remove it and make another: bursar setup --help"
    )


def _token(path: Path) -> str:
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not token:
        raise bursar.AuthenticationError(f"{path} has no token in it")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        say(f"Warning: others can read your token in {path}: chmod 600 {path}", err=True)
    return token
