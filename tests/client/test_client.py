"""The client: how it connects, what it sends with every call, and how datasets show themselves."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import bursar
from bursar.testing import Server
from bursar_proto.v1 import catalog_pb2
from tests import asking
from tests.client.conftest import height_and_weight
from tests.client.line import HISTORY, Line


def self_signed(first: int = -1, last: int = 1, host: str = "127.0.0.1") -> tuple[bytes, bytes]:
    """A private key and a certificate that is its own authority, as PEM, valid from and until hours from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=-first))
        .not_valid_after(now + datetime.timedelta(hours=last))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(pem)


@pytest.mark.parametrize("as_type", [str, Path, lambda path: path.read_bytes()])
def test_connect_speaks_tls(toys: Server, as_type: type) -> None:
    """The authority may be a path or PEM bytes; a token from a file has a newline at its end."""
    token = f"{toys.tokens['analyst']}\n"
    with bursar.connect(toys.address, token=token, ca=as_type(toys.ca)) as client:
        assert "toy" in [dataset.name for dataset in client.datasets()]


def test_connect_takes_what_it_is_not_told_from_the_environment(toys: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """BURSAR_ADDRESS, BURSAR_TOKEN and BURSAR_CA stand in for the arguments."""
    for name, value in {"ADDRESS": toys.address, "TOKEN": toys.tokens["analyst"], "CA": str(toys.ca)}.items():
        monkeypatch.setenv(f"BURSAR_{name}", value)
    with bursar.connect() as client:
        assert client.datasets()


def test_connect_never_speaks_in_the_clear() -> None:
    """A server that answers without TLS gets no token."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        heard = pool.submit(_first_bytes, listening)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with (
            bursar.connect(address, token="abc", ca=self_signed()[1], patience=0, timeout=30) as client,
            pytest.raises(bursar.UnavailableError),
        ):
            client.datasets()
        # A record of TLS that begins a handshake, in which nothing of the call is said.
        assert heard.result()[:2] == b"\x16\x03"
        assert b"abc" not in heard.result()


def _first_bytes(listening: socket.socket) -> bytes:
    connection, _ = listening.accept()
    with connection:
        return connection.recv(4096)


def test_another_authority_is_not_trusted(toys: Server) -> None:
    """The server's certificate is checked against the given one only; the error says so in words."""
    _, stranger = self_signed()
    with (
        bursar.connect(toys.address, ca=stranger, patience=0) as client,
        pytest.raises(
            bursar.UnavailableError, match=r"TLS verification of .* not signed by the certificate in ca=.*CA certif"
        ),
    ):
        client.datasets()


def test_what_is_no_certificate_is_refused_at_once(tmp_path: Path) -> None:
    """Not at the first call, with a text about the network."""
    with pytest.raises(bursar.InvalidRequestError, match="PEM"):
        bursar.connect(ca=b"junk")
    with pytest.raises(FileNotFoundError):
        bursar.connect(ca=tmp_path / "missing.pem")


def test_a_token_stays_out_of_sight(server: Line) -> None:
    """No text that a client makes has the token in it; a token that cannot be one is refused without being shown."""
    with server.client() as client:
        dataset = client.dataset("toy")
        shown = [repr(value) for value in (client, client.admin, client.audit, dataset, dataset._connection)]
        assert not any(server.token in text for text in shown)
    with pytest.raises(bursar.AuthenticationError) as caught:
        server.client(token="secret-\ntoken")
    assert "secret" not in str(caught.value)


def test_without_a_token_none_is_sent(server: Line) -> None:
    """The server decides what a caller without a token may do."""
    server.instead[HISTORY] = lambda _: [catalog_pb2.GetHistoryResponse(ledger_id="a", size=1, head=bytes(32))]
    with server.client(token=None) as client, pytest.raises(bursar.AuthenticationError, match="BURSAR_TOKEN"):
        client.datasets()
    assert "authorization" not in server.metadata[-1]


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_is_positive(timeout: float) -> None:
    """A timeout that would end every call, or none, is refused."""
    with pytest.raises(bursar.InvalidRequestError, match="timeout"):
        bursar.Client(grpc.insecure_channel("127.0.0.1:1"), timeout=timeout)


def test_a_server_that_is_not_there(free_address: str) -> None:
    """The error says what to check."""
    with (
        bursar.Client(grpc.insecure_channel(free_address)) as client,
        pytest.raises(bursar.UnavailableError, match="check"),
    ):
        client.datasets()


def test_a_dataset_is_what_is_public_about_it(client: bursar.Client) -> None:
    """Schema, adjacency, unit, rows and total arrive as values that cannot be changed; handles are equal."""
    (toy,) = [dataset for dataset in client.datasets() if dataset.name == "toy"]
    height, weight, group, *_ = toy.columns
    assert height == bursar.NumericColumn("height", "", 100.0, 220.0)
    assert weight == bursar.NumericColumn("weight", "", 30.0, 150.0, (30.0, 60.0, 90.0, 120.0, 150.0))
    assert group == bursar.CategoricalColumn("group", "arm of a trial", ("control", "treated"))
    assert toy.privacy_unit == bursar.PrivacyUnit(None, 1)
    assert (toy.public_rows, toy.total) == (1000, bursar.epsilon_delta(1e5, 1e-6))
    assert toy == client.dataset("toy")
    with pytest.raises(FrozenInstanceError):
        toy.name = "other"  # type: ignore[misc]


def test_an_unknown_dataset_is_not_found(client: bursar.Client) -> None:
    """The error is of its own kind."""
    with pytest.raises(bursar.NotFoundError):
        client.dataset("nothing")


def test_a_dataset_shows_its_schema(toy: bursar.Dataset) -> None:
    """Columns with their domains, and what is protected; in notebooks as a table."""
    text = repr(toy)
    assert "Dataset 'toy': invented people" in text
    assert "100 to 220\n" in text
    assert "30 to 150, 4 bins\n" in text
    assert "control, treated" in text
    assert "1000 rows; privacy unit: one row; REPLACE_ONE; total budget: epsilon 100000, delta 1e-06" in text
    assert "<td>100 to 220</td>" in toy._repr_html_()


@pytest.mark.parametrize(
    ("edges", "text"), [((), "0 to 2"), ((0.0, 2.0), "0 to 2, 1 bin"), ((0.0, 1.0, 2.0), "0 to 2, 2 bins")]
)
def test_bins_are_part_of_a_domain(edges: tuple[float, ...], text: str) -> None:
    """Bins are shown where the owner declared them."""
    assert bursar.NumericColumn("x", "", 0.0, 2.0, edges).domain == text


def test_a_domain_says_that_values_may_be_missing(toys: Server, client: bursar.Client) -> None:
    """Missing values are shown as declared; a fit without a rule for such columns leaves them out by default."""
    name = toys.add_table(height_and_weight("gaps", nullable=True), budget=bursar.epsilon_delta(1e3, 1e-6))
    gaps = client.dataset(name)
    height, weight = gaps.columns
    assert (height.domain, weight.domain) == ("100 to 220, or null", "30 to 150")
    assert height == bursar.NumericColumn("height", "", 100.0, 220.0, nullable=True)
    assert "100 to 220, or null" in repr(gaps)
    assert asking.fit(gaps, bursar.DPEM, n_components=2, spend=bursar.rho(1), progress=False).columns == ("weight",)
    sketch = asking.fit(gaps, bursar.SketchKMeans, decoding="none", n_clusters=2, spend=bursar.rho(1), progress=False)
    assert sketch.kmeans(2, n_init=1).columns == ("weight",)


def test_many_categories_are_shortened_for_people_only() -> None:
    """The domain fits into a line; the categories are all there."""
    column = bursar.CategoricalColumn("state", "", tuple(f"state {i}" for i in range(100)))
    assert len(column.domain) <= 60
    assert column.domain.endswith("...")
    assert len(column.categories) == 100


def test_what_is_left_is_asked_afresh(server: Line, lone: bursar.Dataset) -> None:
    """Each question about the budget is a call."""
    calls = len(server.metadata)
    before = lone.remaining()
    assert (before.share, lone.remaining()) == (1.0, before)
    assert len(server.metadata) == calls + 2
    asking.fit(lone, bursar.DPEM, n_components=1, spend=bursar.rho(before.rho / 4))
    assert lone.remaining().share == pytest.approx(0.75, abs=1e-3)


def test_every_limit_of_a_request_can_be_asked_for(toys: Server, lone: bursar.Dataset, server: Line) -> None:
    """The dataset's rest, the caller's allowance, the maximum for one request, and the smallest of them."""
    assert (lone.limits().allowance, lone.limits().call) == (None, None)
    assert lone.limits().available == lone.limits().dataset
    toys.admin("allowance", "set", lone.name, "--analyst", server.name, "--share", "0.5")
    toys.admin("call-limit", "set", lone.name, "--share", "0.25")
    limits = lone.limits()
    assert limits.allowance is not None
    assert limits.call is not None
    whole = limits.dataset.rho
    assert (limits.allowance.rho, limits.call.rho) == pytest.approx((whole / 2, whole / 4), rel=1e-3)
    assert limits.available.rho == limits.call.rho
    assert (lone.remaining(), lone.available()) == (limits.dataset, limits.available)
    toys.admin("retire", lone.name, "--yes")
    retired = server.client().dataset(lone.name)
    assert retired.retired
    assert "retired" in repr(retired)


def test_past_releases_are_listed(toy: bursar.Dataset) -> None:
    """Each debit of the caller with its key, by which it can be had again."""
    assert toy.releases() == []
    toy.fit(bursar.DPEM(n_components=1), spend=bursar.rho(0.1), request_id="mine")
    (release,) = toy.releases()
    assert (release.request_id, release.method, release.released) == ("mine", "FitDPEM", True)
    assert release.state is bursar.ReleaseState.RELEASED


def test_releases_are_read_page_by_page(server: Line, toy: bursar.Dataset) -> None:
    """The caller sees one list in order, however short the server's pages are."""
    for name in ("a", "b", "c"):
        asking.fit(toy, bursar.DPEM, n_components=1, spend=bursar.rho(0.1), request_id=name)
    server.before["CatalogService/ListReleases"] = lambda request: setattr(request, "page_size", 1)
    assert [release.request_id for release in toy.releases()] == ["a", "b", "c"]
    assert len(server.sent(catalog_pb2.ListReleasesRequest)) == 3


def test_a_server_that_turns_in_circles_is_left(server: Line, toy: bursar.Dataset) -> None:
    """A page that is not later than the one before is the last."""
    server.instead["CatalogService/ListReleases"] = lambda _: [catalog_pb2.ListReleasesResponse(next_page_token=1)]
    assert toy.releases() == []


def test_a_preview_shows_price_and_accuracy(server: Line, lone: bursar.Dataset) -> None:
    """It debits nothing, names errors by column, and reads as a few lines."""
    spend = bursar.rho(lone.remaining().rho / 5)
    preview = asking.preview(lone, bursar.DPEM, n_components=2, spend=spend, columns=["weight"], iterations=4)
    assert server.requests == []
    assert preview.affordable
    assert preview.fits_left in (4, 5)
    assert preview.iterations == 4
    errors = preview.expected["mean_error"]
    assert isinstance(errors, Mapping)
    assert list(errors) == ["weight"]
    first, *_, errors_line, source = repr(preview).splitlines()
    assert first.startswith("Preview: debits epsilon 1.26 (20%) of epsilon 3 (100%) left")
    assert f"affordable, {preview.fits_left} like it are left" in first
    assert errors_line.startswith("  expected error of a component's mean: weight ")
    assert source.startswith("  a guess from the public schema alone")


@pytest.mark.parametrize(
    ("address", "said"),
    [("name.invalid:1", "cannot find the host of name.invalid:1"), ("127.0.0.1:1", "cannot connect to 127.0.0.1:1")],
)
def test_a_server_that_is_not_there_is_said_in_words(address: str, said: str) -> None:
    """Not in gRPC's, which are in the cause; with what was expected, and what to check."""
    with (
        bursar.connect(address, token="abc", ca=self_signed()[1], patience=0) as client,
        pytest.raises(bursar.UnavailableError, match=said) as caught,
    ):
        client.datasets()
    assert "check the address" in str(caught.value)
    assert str(caught.value).endswith("[UNAVAILABLE]")
    assert caught.value.code == "UNAVAILABLE"
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_an_unknown_dataset_is_named_with_what_there_is(server: Line, client: bursar.Client) -> None:
    """The error has the name that was asked, the one that was meant, and those that this caller may use."""

    def of_this_file(answer: Any) -> None:
        # Other files' tables on the same server may be more than an error names.
        kept = [one for one in answer.datasets if one.name == "toy"]
        answer.ClearField("datasets")
        answer.datasets.extend(kept)

    server.changes["CatalogService/ListDatasets"] = of_this_file
    with pytest.raises(
        bursar.NotFoundError, match=r"no dataset 'tyo'; did you mean 'toy'\? You may use: .*toy"
    ) as caught:
        client.dataset("tyo")
    assert caught.value.code == "UNKNOWN_DATASET"
    with pytest.raises(bursar.NotFoundError, match=r"no dataset 'elephants'\. You may use:"):
        client.dataset("elephants")


def test_a_dataset_that_a_caller_may_not_use_is_not_suggested(server: Line, client: bursar.Client) -> None:
    """Names come from the server's list for this caller, and from nowhere else."""
    server.changes["CatalogService/ListDatasets"] = lambda answer: answer.ClearField("datasets")
    with pytest.raises(bursar.NotFoundError, match=r"no dataset 'tyo'\. You may use none: ask the owner"):
        client.dataset("tyo")


def test_a_server_with_another_authority_is_named_with_the_certificate(toys: Server, tmp_path: Path) -> None:
    """The address, and the file that the server's certificate is not signed by."""
    ca = tmp_path / "other.pem"
    ca.write_bytes(self_signed()[1])
    said = f"TLS verification of {toys.address} failed: its certificate is not signed by {ca}"
    with (
        bursar.connect(toys.address, token="abc", ca=ca, patience=0, history=False) as client,
        pytest.raises(bursar.UnavailableError, match=said),
    ):
        client.datasets()


@pytest.mark.parametrize(
    ("first", "last", "host", "said"),
    [
        (-9, -8, "127.0.0.1", "its certificate has ended, or this machine's clock is wrong"),
        (8, 9, "127.0.0.1", "its certificate is not valid yet, or this machine's clock is wrong"),
        (-1, 1, "127.0.0.2", "its certificate is for other host names"),
    ],
)
def test_why_a_certificate_does_not_do(first: int, last: int, host: str, said: str) -> None:
    """A certificate that has ended is no wrong authority, and a wrong name no server that is not there."""
    key, certificate = self_signed(first, last, host)
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()
    try:
        with (
            bursar.connect(f"127.0.0.1:{port}", token="abc", ca=certificate, patience=0, history=False) as client,
            pytest.raises(bursar.UnavailableError, match=f"TLS verification of .* failed: {said}"),
        ):
            client.datasets()
    finally:
        server.stop(None).wait()


def test_a_client_shows_its_address_and_not_its_token() -> None:
    """The repr says where the client asks; for a client over a channel it says that."""
    with bursar.connect("host.example:9", token="secret", history=False) as client:
        assert repr(client) == "<bursar.Client of host.example:9>"
    with bursar.connect(token="secret", history=False) as client:
        assert "localhost:8443 (no address was given" in repr(client)


def test_a_file_is_no_token(tmp_path: Path) -> None:
    """Its name is not sent."""
    path = tmp_path / "alice.token"
    path.write_text("bursar_analyst_abc")
    with pytest.raises(bursar.AuthenticationError, match=r"alice\.token' is the name of a file; pass what is in it"):
        bursar.connect("localhost:9", token=str(path), history=False)


def test_a_name_is_a_text(client: bursar.Client) -> None:
    """The refusal comes before anything is sent."""
    nothing: Any = None
    with pytest.raises(bursar.InvalidRequestError, match="name: must be the name of a dataset, got None"):
        client.dataset(nothing)


@pytest.mark.parametrize("address", ["https://localhost:8443", "localhost", "localhost:", "host:port"])
def test_an_address_has_a_port_and_no_scheme(address: str) -> None:
    """A URL is refused before anything is sent, and so is a name alone."""
    with pytest.raises(bursar.InvalidRequestError, match="address: must be host:port without a scheme"):
        bursar.connect(address, history=False)
