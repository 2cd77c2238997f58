"""`bursar` in this process, against a fake server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf.message import Message

import bursar
from bursar._cli import _fitting
from bursar._cli._app import app
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import fit_pb2

Run = Callable[..., Result]
"""Runs `bursar` with these words and `answer=` typed at its question; standard output and error are apart."""


class Shop(FakeServer):
    """A fake server that may have nothing left.

    Attributes:
        poor: previews say so.
        previews: every one that was asked for.
        failures: status, text and details of the next fits, which fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.poor = False
        self.previews: list[fit_pb2.PreviewRequest] = []
        self.failures: list[tuple[grpc.StatusCode, str, list[Message]]] = []

    def Preview(self, request: Any, context: Any) -> fit_pb2.PreviewResponse:
        """As it was, but for what is left."""
        self.previews.append(request)
        preview = super().Preview(request, context)
        preview.affordable = not self.poor
        preview.warnings.append("this is a fake")
        return preview

    def FitDPEM(self, request: Any, context: Any) -> Iterator[fit_pb2.FitDPEMResponse]:
        """As it was, but for failures."""
        if self.failures:
            self.fail_next(*self.failures.pop())
        yield from super().FitDPEM(request, context)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """One server for a module."""
    with fake_server(Shop) as server:
        assert isinstance(server, Shop)
        yield server


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
        return shop.client(token=token)

    monkeypatch.setattr(bursar, "connect", connect)

    def command(*words: object, answer: str | None = None) -> Result:
        result = CliRunner().invoke(app, [str(word) for word in words], input=answer, prog_name="bursar")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return command
