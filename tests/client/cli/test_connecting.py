"""Server that is asked, and token that is used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import bursar
from bursar._cli._connecting import Connecting, settings_file

if TYPE_CHECKING:
    from tests.client.cli.conftest import Run

SETTINGS = 'server = "kept:1"\nca = "ca.pem"\ntoken_file = "kept.token"\n'


@pytest.fixture
def settings(tmp_path: Path, run: Run) -> Path:
    """A file of settings, with a token beside it."""
    (tmp_path / "kept.token").write_text("kept\n")
    (tmp_path / "kept.token").chmod(0o600)
    path = tmp_path / "config.toml"
    path.write_text(SETTINGS)
    return path


def test_options_come_before_the_environment_and_that_before_the_settings(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of the settings are beside them; a token in the environment is meant for this run."""
    nothing = Connecting(None, None, None)
    folder = settings.parent
    assert nothing.completed() == Connecting("kept:1", folder / "ca.pem", folder / "kept.token")
    said = Connecting("said:2", Path("said.pem"), Path("said.token"))
    assert said.completed() == said
    monkeypatch.setenv("BURSAR_TOKEN", "secret")
    assert nothing.completed().token_file is None
    assert said.completed() == said
    settings.unlink()
    assert nothing.completed() == Connecting("localhost:8443", None, None)


def test_the_environment_names_the_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same variables serve the command line and the SDK."""
    asked: list[tuple[object, object]] = []
    connect = bursar.connect

    def noting(address: str, *, ca: Path | None, token: str | None, timeout: float | None) -> bursar.Client:
        asked.append((address, ca))
        return connect(address, ca=ca, token=token, timeout=timeout)

    monkeypatch.setattr(bursar, "connect", noting)
    monkeypatch.setenv("BURSAR_ADDRESS", "env:3")
    monkeypatch.setenv("BURSAR_CA", "env.pem")
    run("datasets")
    run("datasets", "--server", "said:2")
    assert asked == [("env:3", Path("env.pem")), ("said:2", Path("env.pem"))]


def test_the_file_of_settings_is_where_such_files_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """BURSAR_CONFIG, then the folder for settings, then the one in the home."""
    monkeypatch.setenv("BURSAR_CONFIG", "/x/y.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/xdg")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings_file() == Path("/x/y.toml")
    monkeypatch.delenv("BURSAR_CONFIG")
    assert settings_file() == Path("/xdg/bursar/config.toml")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert settings_file() == tmp_path / ".config/bursar/config.toml"


def test_a_token_comes_from_a_file(run: Run, settings: Path, tokens: list[str | None], tmp_path: Path) -> None:
    """The settings' one, or the one that is named; others must not be able to read it."""
    run("datasets")
    (tmp_path / "other.token").write_text("other")
    (tmp_path / "other.token").chmod(0o644)
    warned = run("datasets", "--token-file", "other.token")
    assert warned.exit_code == 0
    assert "Warning: others can read your token in other.token: chmod 600 other.token" in warned.stderr
    assert tokens == ["kept", "other"]
    (tmp_path / "other.token").write_text("\n")
    empty = run("datasets", "--token-file", "other.token")
    assert empty.exit_code == 1
    assert "other.token has no token in it" in empty.stderr
    assert "absent.token: No such file" in run("datasets", "--token-file", "absent.token").stderr


def test_setup_keeps_a_connection_that_works(run: Run, tmp_path: Path, tokens: list[str | None]) -> None:
    """Later commands need no options for the server and the token."""
    (tmp_path / "alice.token").write_text("secret-token\n")
    (tmp_path / "alice.token").chmod(0o600)
    result = run("setup", "--server", "host:9", "--ca", "ca.pem", "--token-file", "alice.token")
    assert result.exit_code == 0
    assert re.search(r"host:9 answers: \d+ datasets?\. Kept in", result.stdout)
    kept = (tmp_path / "config.toml").read_text()
    assert "secret-token" not in kept
    assert tomllib.loads(kept) == {
        "server": "host:9",
        "ca": str(tmp_path / "ca.pem"),
        "token_file": str(tmp_path / "alice.token"),
    }
    assert run("datasets").exit_code == 0
    assert tokens == ["secret-token", "secret-token"]
    again = run("setup", "--json")
    assert '"datasets": [\n    "toy"' in again.stdout


def test_setup_leaves_a_token_of_the_environment_where_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so: the next shell has none."""
    monkeypatch.setenv("BURSAR_TOKEN", "secret")
    result = run("setup")
    assert "leave it in BURSAR_TOKEN, or give --token-file" in result.stderr
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"server": "localhost:8443"}


def test_setup_keeps_nothing_that_does_not_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong certificate or a server that does not answer."""

    def nobody(*_: object, **__: object) -> bursar.Client:
        raise bursar.UnavailableError(
            "nobody answers; check the address, the CA certificate (ca=) and that the server runs"
        )

    monkeypatch.setattr(bursar, "connect", nobody)
    result = run("setup", "--server", "host:9")
    assert result.exit_code == 1
    assert "check --server, --ca and that the server runs; bursar setup" in result.stderr
    assert not (tmp_path / "config.toml").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("server = ", "Invalid value"),
        ('token = "secret"', "'token', which is none of server, ca, token_file"),
        ("server = 7", "server must be a text"),
        ('ca = ""', "ca must be a text"),
    ],
)
def test_settings_that_cannot_be_read_are_named(run: Run, settings: Path, content: str, said: str) -> None:
    """The message names the file, what is wrong and how to write it anew; never a token."""
    settings.write_text(content)
    result = run("datasets")
    assert result.exit_code == 1
    assert "config.toml is no file of settings" in result.stderr
    assert said in result.stderr
    assert "secret" not in result.stderr


def test_settings_in_another_code_are_named(settings: Path) -> None:
    """Bytes that are no text."""
    settings.write_bytes(b"\xff\xfe")
    with pytest.raises(click.ClickException, match="no file of settings"):
        Connecting(None, None, None).completed()


def test_profiles_are_kept_beside_each_other(run: Run, tmp_path: Path, tokens: list[str | None]) -> None:
    """Each has its server and token; the settings without a name stay as they are."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.token").write_text(name)
        (tmp_path / f"{name}.token").chmod(0o600)
    assert run("setup", "--server", "plain:1").exit_code == 0
    for name in ("one", "two"):
        words = ("--server", f"{name}:2", "--token-file", f"{name}.token")
        assert run("setup", "--profile", name, *words).exit_code == 0
    kept = tomllib.loads((tmp_path / "config.toml").read_text())
    assert kept["server"] == "plain:1"
    assert {name: one["server"] for name, one in kept["profiles"].items()} == {"one": "one:2", "two": "two:2"}
    tokens.clear()
    assert run("datasets", "--profile", "two").exit_code == 0
    assert run("datasets").exit_code == 0
    assert tokens == ["two", None]
    missing = run("datasets", "--profile", "three")
    assert missing.exit_code == 1
    assert "no profile 'three' in" in missing.stderr
    assert "there are 'one', 'two'" in missing.stderr


@pytest.mark.parametrize("content", ["profiles = 3", "[profiles]\none = 3"])
def test_profiles_that_are_none_are_named(run: Run, settings: Path, content: str) -> None:
    """They are tables."""
    settings.write_text(content)
    assert "profiles must be tables" in run("datasets").stderr
