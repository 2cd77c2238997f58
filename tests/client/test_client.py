"""The client: how it connects, what it sends with every call, and how datasets show themselves."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import bursar
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, types_pb2


def self_signed() -> tuple[bytes, bytes]:
    """A private key and a certificate for 127.0.0.1 that is its own authority, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(pem)


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[FakeServer, Path]]:
    """A fake server behind TLS, and the file of its certificate."""
    key, certificate = self_signed()
    path = tmp_path / "ca.pem"
    path.write_bytes(certificate)
    fake = FakeServer()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    catalog_pb2_grpc.add_CatalogServiceServicer_to_server(fake, server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    fake.address = f"127.0.0.1:{port}"
    server.start()
    yield fake, path
    server.stop(grace=None).wait()


@pytest.mark.parametrize("as_type", [str, Path, lambda path: path.read_bytes()])
def test_connect_speaks_tls(tls_server: tuple[FakeServer, Path], as_type: type) -> None:
    """The authority may be a path or PEM bytes; the token comes with every call."""
    fake, path = tls_server
    with bursar.connect(fake.address, token="abc\n", ca=as_type(path)) as client:
        assert [dataset.name for dataset in client.datasets()] == ["toy"]
    assert fake.metadata[-1]["authorization"] == "Bearer abc"


def test_connect_takes_what_it_is_not_told_from_the_environment(
    tls_server: tuple[FakeServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """BURSAR_ADDRESS, BURSAR_TOKEN and BURSAR_CA stand in for the arguments."""
    fake, path = tls_server
    for name, value in {"ADDRESS": fake.address, "TOKEN": "xyz", "CA": str(path)}.items():
        monkeypatch.setenv(f"BURSAR_{name}", value)
    with bursar.connect() as client:
        client.datasets()
    assert fake.metadata[-1]["authorization"] == "Bearer xyz"


def test_connect_never_speaks_in_the_clear(server: FakeServer) -> None:
    """A server without TLS, or with another authority's certificate, hears no token."""
    _, stranger = self_signed()
    with bursar.connect(server.address, token="abc", ca=stranger) as client, pytest.raises(bursar.UnavailableError):
        client.datasets()
    assert server.metadata == []


def test_another_authority_is_not_trusted(tls_server: tuple[FakeServer, Path]) -> None:
    """The server's certificate is checked against the given one only."""
    fake, _ = tls_server
    _, stranger = self_signed()
    with bursar.connect(fake.address, ca=stranger) as client, pytest.raises(bursar.UnavailableError, match="CA certif"):
        client.datasets()
    assert fake.metadata == []


def test_what_is_no_certificate_is_refused_at_once(tmp_path: Path) -> None:
    """Not at the first call, with a text about the network."""
    with pytest.raises(bursar.InvalidRequestError, match="PEM"):
        bursar.connect(ca=b"junk")
    with pytest.raises(FileNotFoundError):
        bursar.connect(ca=tmp_path / "missing.pem")


def test_a_token_stays_out_of_sight(server: FakeServer) -> None:
    """No text that a client makes has the token in it; a token that cannot be one is refused without being shown."""
    with server.client(token="secret-token") as client:
        dataset = client.dataset("toy")
        shown = [repr(value) for value in (client, client.admin, client.audit, dataset, dataset._connection)]
        assert not any("secret-token" in text for text in shown)
    with pytest.raises(bursar.AuthenticationError) as caught:
        server.client(token="secret-\ntoken")
    assert "secret" not in str(caught.value)


def test_without_a_token_none_is_sent(server: FakeServer) -> None:
    """The server decides what a caller without a token may do."""
    with server.client() as client:
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
    (toy,) = client.datasets()
    height, weight, group, *_ = toy.columns
    assert height == bursar.NumericColumn("height", "", 100.0, 220.0)
    assert weight == bursar.NumericColumn("weight", "", 30.0, 150.0, (30.0, 60.0, 90.0, 120.0, 150.0))
    assert group == bursar.CategoricalColumn("group", "arm of a trial", ("control", "treated"))
    assert toy.privacy_unit == bursar.PrivacyUnit(None, 1)
    assert (toy.public_rows, toy.total) == (1000, bursar.epsilon_delta(3.0, 1e-6))
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
    assert "1000 rows; privacy unit: one row; REPLACE_ONE; total budget: epsilon 3, delta 1e-06" in text
    assert "<td>100 to 220</td>" in toy._repr_html_()


@pytest.mark.parametrize(
    ("edges", "text"), [((), "0 to 2"), ((0.0, 2.0), "0 to 2, 1 bin"), ((0.0, 1.0, 2.0), "0 to 2, 2 bins")]
)
def test_bins_are_part_of_a_domain(edges: tuple[float, ...], text: str) -> None:
    """Where the owner declared them."""
    assert bursar.NumericColumn("x", "", 0.0, 2.0, edges).domain == text


class Gaps(FakeServer):
    """Heights may be missing."""

    def GetDataset(
        self, request: catalog_pb2.GetDatasetRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetDatasetResponse:
        """As before, but for that."""
        answer = super().GetDataset(request, context)
        answer.dataset.columns[0].numeric.nullable = True
        return answer


def test_a_domain_says_that_values_may_be_missing() -> None:
    """Where the owner declared it; a fit that has no rule for such columns does not get them by default."""
    with fake_server(Gaps) as fake, fake.client() as client:
        toy = client.dataset("toy")
        height, weight, *_ = toy.columns
        assert (height.domain, weight.domain) == ("100 to 220, or null", "30 to 150, 4 bins")
        assert height == bursar.NumericColumn("height", "", 100.0, 220.0, nullable=True)
        assert "100 to 220, or null" in repr(toy)
        assert toy.fit_dpem(n_components=2, spend=bursar.rho(0.01), progress=False).columns == ("weight",)
        sketch = toy.sketch(n_clusters=2, spend=bursar.rho(0.01), progress=False)
        assert sketch.kmeans(2, n_init=1).columns == ("weight",)


def test_many_categories_are_shortened_for_people_only() -> None:
    """The domain fits into a line; the categories are all there."""
    column = bursar.CategoricalColumn("state", "", tuple(f"state {i}" for i in range(100)))
    assert len(column.domain) <= 60
    assert column.domain.endswith("...")
    assert len(column.categories) == 100


def test_what_is_left_is_asked_afresh(server: FakeServer, toy: bursar.Dataset) -> None:
    """Each question about the budget is a call."""
    calls = len(server.metadata)
    assert toy.remaining().share == 0.9
    assert toy.remaining().rho == 0.9
    assert len(server.metadata) == calls + 2


class Limited(FakeServer):
    """Has an allowance, a maximum per call and a retired dataset."""

    def GetDataset(
        self, request: catalog_pb2.GetDatasetRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetDatasetResponse:
        """The base's dataset with limits."""
        answer = super().GetDataset(request, context)
        answer.dataset.retired = True
        answer.dataset.allowance_remaining.CopyFrom(types_pb2.Remaining(cost_units=3, cap_cost_units=4, rho=0.3))
        answer.dataset.call_limit.CopyFrom(types_pb2.Remaining(cost_units=2, cap_cost_units=2, rho=0.2))
        answer.dataset.available.CopyFrom(types_pb2.Remaining(cost_units=2, cap_cost_units=2, rho=0.2))
        return answer


def test_every_limit_of_a_request_can_be_asked_for() -> None:
    """The dataset's rest, the caller's allowance, the maximum for one request, and the smallest of them."""
    with fake_server(Limited) as server, server.client() as client:
        toy = client.dataset("toy")
        limits = toy.limits()
        assert limits.allowance is not None
        assert limits.call is not None
        assert (limits.dataset.rho, limits.allowance.rho, limits.call.rho, limits.available.rho) == (0.9, 0.3, 0.2, 0.2)
        assert (toy.remaining(), toy.available()) == (limits.dataset, limits.available)
        assert toy.retired
        assert "retired" in repr(toy)


def test_without_allowance_and_maximum_the_datasets_rest_is_the_limit(toy: bursar.Dataset) -> None:
    """What is not there is None."""
    limits = toy.limits()
    assert (limits.allowance, limits.call) == (None, None)
    assert limits.available == limits.dataset
    assert not toy.retired


def test_past_releases_are_listed(toy: bursar.Dataset) -> None:
    """Each debit of the caller with its key, by which it can be had again."""
    assert toy.releases() == []
    toy.fit_dpem(n_components=1, spend=bursar.rho(0.1), request_id="mine")
    (release,) = toy.releases()
    assert (release.entry, release.request_id, release.method, release.released) == (2, "mine", "FitDPEM", True)
    assert release.state is bursar.ReleaseState.RELEASED


class Paging(FakeServer):
    """Gives one release a page, and counts pages."""

    pages = 0

    def ListReleases(
        self, request: catalog_pb2.ListReleasesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListReleasesResponse:
        """As the base does, but shorter."""
        self.pages += 1
        request.page_size = 1
        return super().ListReleases(request, context)


def test_releases_are_read_page_by_page() -> None:
    """The caller sees one list in order, however short the server's pages are."""
    with fake_server(Paging) as server, server.client() as client:
        toy = client.dataset("toy")
        for name in ("a", "b", "c"):
            toy.fit_dpem(n_components=1, spend=bursar.rho(0.1), request_id=name)
        assert [release.request_id for release in toy.releases()] == ["a", "b", "c"]
        assert isinstance(server, Paging)
        assert server.pages == 3


class Stuck(FakeServer):
    """Names a next page for ever, and never a later one."""

    def ListReleases(
        self, request: catalog_pb2.ListReleasesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListReleasesResponse:
        """See the class."""
        return catalog_pb2.ListReleasesResponse(next_page_token=1)


def test_a_server_that_turns_in_circles_is_left() -> None:
    """A page that is not later than the one before is the last."""
    with fake_server(Stuck) as server, server.client() as client:
        assert client.dataset("toy").releases() == []


def test_a_preview_shows_price_and_accuracy(server: FakeServer, toy: bursar.Dataset) -> None:
    """It debits nothing, names errors by column, and reads as a few lines."""
    preview = toy.preview_dpem(n_components=2, spend=bursar.rho(0.1), columns=["weight"], iterations=4)
    assert server.requests == []
    assert (preview.affordable, preview.fits_left, preview.iterations) == (True, 9, 4)
    assert preview.expected_mean_error == {"weight": 0.5}
    first, *_, last = repr(preview).splitlines()
    assert first == "Preview: debits rho=0.1 of rho=0.9 left; affordable, 9 like it are left"
    assert last == "  expected error of a component's mean: weight 0.5"


@pytest.mark.parametrize(
    ("address", "said"), [("name.invalid:1", "no machine of this name"), ("127.0.0.1:1", "nobody answers")]
)
def test_a_server_that_is_not_there_is_said_in_words(address: str, said: str) -> None:
    """Not in gRPC's, which are in the cause; with what was expected, and what to check."""
    with (
        bursar.connect(address, token="abc", ca=self_signed()[1], patience=0) as client,
        pytest.raises(bursar.UnavailableError, match=said) as caught,
    ):
        client.datasets()
    assert "expected" in str(caught.value)
    assert "check the address" in str(caught.value)
    assert "[" not in str(caught.value)
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_a_certificate_of_another_authority_is_said_in_words(tls_server: tuple[FakeServer, Path]) -> None:
    """What answers is not the server that the caller means."""
    with (
        bursar.connect(tls_server[0].address, token="abc", ca=self_signed()[1], patience=0) as client,
        pytest.raises(bursar.UnavailableError, match="no certificate for it from this authority"),
    ):
        client.datasets()
