"""The way in: `connect()` makes a channel with TLS, `Client` works over any channel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import grpc

from bursar._admin import Admin
from bursar._audit import Audit
from bursar._connection import Connection
from bursar._dataset import Dataset, Datasets, dataset_from
from bursar._errors import AuthenticationError
from bursar._fit import get_dataset
from bursar._history import OFF, VARIABLE, History, default_file, in_file, in_memory, server_name
from bursar._releases import Releases, ReleaseSummary, get_release, list_releases, list_unfetched
from bursar._wire_errors import Peer
from bursar_models import Model, Sketch
from bursar_models.budget import Receipt, positive
from bursar_models.errors import InvalidRequestError
from bursar_proto.v1 import catalog_pb2

DEFAULT_ADDRESS = "localhost:8443"
RETRY_DELAYS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each repetition of a fit: long enough in all for a server to start again."""
PATIENCE = 30.0
"""Seconds that one call may wait in all for a busy server."""

_MAX_ANSWER_BYTES = 64 * 2**20
"""A full mixture of 1,000 components in 80 columns has 51 MB; gRPC's own limit of 4 MB is far below."""


class Client:
    """A connection to a server, and the token that it is used with.

    Args:
        channel: any gRPC channel; the token travels over it, so it should be one with TLS.
        token: bearer token; None sends none.
        timeout: seconds that one call may take, the repetitions of a fit included; None for no limit.
        retry_delays: seconds to wait before each repetition of a fit whose stream broke.
        patience: seconds that one call may wait in all for a server that is busy and says when to come back; 0 raises
            `OverloadedError` at once. The same message is sent again, so nothing is paid twice.
        history: file that keeps what was seen of the server's ledger; for this server alone, since a channel does not
            say whom it reaches. None remembers as long as the client lives.
        peer: what errors call the server; None for words.

    Attributes:
        admin: the administrator's calls.
        audit: the auditor's calls.

    Raises:
        AuthenticationError: the token has characters that no token has.
        InvalidRequestError: the timeout is not a positive finite number, or the patience negative or not finite.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        token: str | None = None,
        timeout: float | None = None,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        patience: float = PATIENCE,
        history: str | Path | History | None = None,
        peer: Peer | None = None,
    ) -> None:
        seconds = None if timeout is None else positive("timeout", timeout)
        if not isinstance(history, History):
            history = in_memory() if history is None else in_file(history, "channel")
        delays = tuple(retry_delays)
        self._use(Connection(channel, _metadata(token), seconds, delays, _patience(patience), history, peer or Peer()))

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self.admin = Admin(connection)
        self.audit = Audit(connection)

    def _through(self, *interceptors: Any) -> Client:
        """Return a client of the same server, with the same token, whose calls go through these interceptors first."""
        other = object.__new__(Client)
        channel = grpc.intercept_channel(self._connection.channel, *interceptors)
        other._use(replace(self._connection, channel=channel))
        return other

    def datasets(self) -> list[Dataset]:
        """List every dataset that this token may use.

        Raises:
            Error: the call failed.
        """
        answer = self._connection.ask(self._connection.catalog.ListDatasets, catalog_pb2.ListDatasetsRequest())
        return Datasets(dataset_from(message, self._connection) for message in answer.datasets)

    def dataset(self, name: str) -> Dataset:
        """Return one dataset by its name.

        Raises:
            InvalidRequestError: the name is no text.
            NotFoundError: there is none of this name.
            Error: the call failed.
        """
        if not isinstance(name, str):
            raise InvalidRequestError.of("name", f"must be the name of a dataset, got {name!r}")
        return dataset_from(get_dataset(self._connection, name), self._connection)

    def releases(self) -> Releases:
        """List the caller's own debits on all datasets, oldest first, with their states.

        Raises:
            Error: the call failed.

        Example:
            >>> model = data.fit(bursar.DPEM(n_components=2), spend=bursar.rho(0.1))
            >>> client.releases()
            1 release
              entry  dataset   method     state                 paid  time
              ...        toy  FitDPEM  released  epsilon ... (...%)  ...
            >>> client.model(model.receipt.entry).n_components
            2
        """
        return list_releases(self._connection, "")

    def recover(self) -> Releases:
        """List fits that were paid and whose models never came back to a program of yours on this machine.

        `model(entry)` fetches each of them for free; so does the same fit once more, which takes the same request id.
        Fits of the last 30 days that this user sent from this machine are known; `releases()` lists every debit.

        Raises:
            Error: the call failed.

        Example:
            >>> models = [client.model(release.entry) for release in client.recover()]
            >>> len(models)
            0
        """
        return list_unfetched(self._connection, "")

    def model(self, entry: ReleaseSummary | Receipt | int) -> Model | Sketch:
        """Fetch what one of the caller's own debits released, for free. See `Dataset.model`.

        Args:
            entry: of the ledger, or the receipt, or what `releases()` lists.

        Raises:
            NotFoundError: there is no such debit of this token's holder, or it has no release yet.
            Error: otherwise as `Dataset.model`.
        """
        return get_release(self._connection, "", entry)

    def close(self) -> None:
        """Close the channel; further calls raise `TransportError`."""
        self._connection.channel.close()

    def __repr__(self) -> str:
        return f"<bursar.Client of {self._connection.peer.address}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    ca: str | Path | bytes | None = None,
    timeout: float | None = None,
    patience: float = PATIENCE,
    history: str | Path | Literal[False] | None = None,
    cert: str | Path | bytes | None = None,
    key: str | Path | bytes | None = None,
) -> Client:
    """Return a client over TLS. Nothing is sent before the first question.

    It remembers how far the server's ledger had come, and raises `HistoryError` before it asks for a fit from a server
    whose ledger is another one or has lost entries.

    Args:
        address: "host:port"; None takes the environment variable BURSAR_ADDRESS, else "localhost:8443".
        token: bearer token; None takes BURSAR_TOKEN.
        ca: the certificate that the server's is checked against, as a path or as PEM bytes; None takes the path in
            BURSAR_CA, else the authorities that gRPC ships with.
        timeout: seconds that one call may take, the repetitions of a fit included; None for no limit.
        patience: seconds that one call may wait in all for a server that is busy and says when to come back; 0 raises
            `OverloadedError` at once. The same message is sent again, so nothing is paid twice.
        history: file in which it is remembered, for any number of servers and programs; None takes the path in
            BURSAR_HISTORY, else bursar/history.json in $XDG_STATE_HOME or ~/.local/state. False (or "off" in the
            variable) remembers only as long as the client lives, which is what happens, with a warning, if the file
            cannot be written.
        cert: a certificate of one's own, for a server that asks for one, as a path or as PEM bytes; None takes the path
            in BURSAR_CERT, if there is one.
        key: its private key, likewise; None takes the path in BURSAR_KEY.

    Raises:
        AuthenticationError: the token has characters that no token has.
        InvalidRequestError: the address has a scheme, a certificate is not PEM, only one of `cert` and `key` is given,
            the timeout is not a positive finite number, or the patience is negative or not finite.
        OSError: the file of a certificate or of the key cannot be read.
    """
    certificate = _certificate("ca", ca or os.environ.get("BURSAR_CA"))
    own = _certificate("cert", cert or os.environ.get("BURSAR_CERT"))
    private = _key(key or os.environ.get("BURSAR_KEY"))
    if (own is None) != (private is None):
        raise InvalidRequestError.of("cert", "goes with key; expected both, or neither")
    address = address or os.environ.get("BURSAR_ADDRESS")
    named = address or f"{DEFAULT_ADDRESS} (no address was given: pass one, or set BURSAR_ADDRESS)"
    address = address or DEFAULT_ADDRESS
    # Without a port gRPC would call that of HTTPS, where no bursar server is.
    if "://" in address or not address.rpartition(":")[2].isdecimal():
        raise InvalidRequestError.of("address", f"must be host:port without a scheme, got {address!r}")
    channel = grpc.secure_channel(
        address,
        grpc.ssl_channel_credentials(certificate, private, own),
        options=[("grpc.max_receive_message_length", _MAX_ANSWER_BYTES)],
    )
    seen = _history(history, certificate, address)
    token = token or os.environ.get("BURSAR_TOKEN")
    peer = Peer(named, _authority(ca))
    return Client(channel, token=token, timeout=timeout, patience=patience, history=seen, peer=peer)


def _history(history: str | Path | Literal[False] | None, certificate: bytes | None, address: str) -> History:
    if history is None:
        history = os.environ.get(VARIABLE) or default_file()
        if history == OFF:
            history = False
    return in_memory() if history is False else in_file(history, server_name(certificate, address), address)


def _authority(given: str | Path | bytes | None) -> str:
    """Return what errors call the authority."""
    given = given or os.environ.get("BURSAR_CA") or "a public authority (ca= names another)"
    return "the certificate in ca=" if isinstance(given, bytes) else str(given)


def _certificate(name: str, given: str | Path | bytes | None) -> bytes | None:
    if given is None:
        return None
    pem = given if isinstance(given, bytes) else Path(given).read_bytes()
    # gRPC would accept anything here and fail at every call, with a text that names another cause.
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise InvalidRequestError.of(name, "must be a certificate in PEM form, or the path of one")
    return pem


def _key(given: str | Path | bytes | None) -> bytes | None:
    if given is None:
        return None
    pem = given if isinstance(given, bytes) else Path(given).read_bytes()
    if b"PRIVATE KEY-----" not in pem:
        raise InvalidRequestError.of("key", "must be a private key in PEM form, or the path of one")
    return pem


def _patience(value: object) -> float:
    return 0.0 if value == 0 else positive("patience", value)


def _metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    if token is None:
        return ()
    # A token that was read from a file has a newline at its end.
    stripped = token.strip()
    if not (stripped.isascii() and stripped.isprintable()):
        raise AuthenticationError("the token has characters that no token has; pass it as it was issued")
    if os.path.isfile(stripped):  # noqa: PTH113  Path.is_file raises for a long text
        raise AuthenticationError(f"token: {stripped!r} is the name of a file; pass what is in it")
    return (("authorization", f"Bearer {stripped}"),)
