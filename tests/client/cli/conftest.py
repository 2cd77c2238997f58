"""`bursar` in this process, against a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf.message import Message

import bursar
from bursar._cli import _fitting
from bursar._cli._app import app
from bursar.testing import Server
from bursar_proto.v1 import fit_pb2
from tests.client.line import Line, refusal

Run = Callable[..., Result]
"""Runs `bursar` with these words and `answer=` typed at its question; standard output and error are apart."""


class Shop(Line):
    """A line to the server, which may say that nothing is left.

    Attributes:
        poor: previews say so.
        failures: status, text and details of the next fits, which fail.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server, "shopper", server.token("shopper"))
        self.poor = False
        self.failures: list[tuple[grpc.StatusCode, str, list[Message]]] = []
        self.changes["FitService/Preview"] = self._note
        self.before["FitService/FitDPEM"] = self._fail
        self.before["FitService/FitMRF"] = _leave_some

    def _note(self, preview: fit_pb2.PreviewResponse) -> None:
        preview.affordable = not self.poor
        preview.warnings.append("the shop is small")

    def _fail(self, request: fit_pb2.FitDPEMRequest) -> None:
        if self.failures:
            raise refusal(*self.failures.pop())


def _leave_some(request: fit_pb2.FitMRFRequest) -> None:
    """Spend little where all that is left is asked for, since other tests share it."""
    if request.spend.HasField("remaining"):
        request.spend.rho = 0.1


@pytest.fixture(scope="session")
def shop(toys: Server) -> Shop:
    """One line for all commands."""
    return Shop(toys)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there to answer."""
    monkeypatch.setattr(_fitting, "at_terminal", lambda: True)


@pytest.fixture
def tokens() -> list[str | None]:
    """The token of every connection that was made."""
    return []


@pytest.fixture
def run(shop: Shop, tokens: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands in an empty folder, without settings."""
    shop.poor = False
    for name in ("BURSAR_TOKEN", "BURSAR_ADDRESS", "BURSAR_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BURSAR_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.chdir(tmp_path)

    def connect(address: str, *, token: str | None, ca: Path | None, timeout: float | None) -> bursar.Client:
        tokens.append(token)
        return shop.client()

    monkeypatch.setattr(bursar, "connect", connect)

    def command(*words: object, answer: str | None = None) -> Result:
        result = CliRunner().invoke(app, [str(word) for word in words], input=answer, prog_name="bursar")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return command
