"""Certificates: read again when they change, kept when what is there cannot be used, asked of clients if set so."""

from __future__ import annotations

import datetime
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import bursar
from bursar_ledger import Role
from bursar_server import log
from bursar_server.access.tls import CertificateError, Certificates, Reloading, ServerPair
from bursar_server.state import State, write_private

if TYPE_CHECKING:
    from tests.server.serving.conftest import Serve


def _served_certificate(address: str) -> x509.Certificate:
    """Return what a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def _on_disk(state: State) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Certificates(state.tls).chain.read_bytes())


def test_a_new_certificate_is_taken_without_dropping_a_connection(serve: Serve) -> None:
    """New connections are shown it, without a signal or a restart; the one that is open goes on."""
    served = serve()
    assert _served_certificate(served.address) == _on_disk(served.state)
    call: Any = served.channel.unary_unary("/bursar.v1.CatalogService/ListDatasets")
    assert call(b"", metadata=served.bearer())
    before = _on_disk(served.state)
    Certificates(served.state.tls).create()
    assert _served_certificate(served.address) == _on_disk(served.state) != before
    assert call(b"", metadata=served.bearer())


def test_half_of_a_new_pair_is_not_used(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """The old pair stays between the two files of a renewal; both files are taken together."""
    caplog.set_level("INFO", "bursar.server")
    served = serve()
    files = Certificates(served.state.tls)
    before = _on_disk(served.state)
    other = Certificates(served.state.path)
    other.create()
    write_private(files.chain, other.chain.read_bytes())
    assert _served_certificate(served.address) == before
    assert "certificate_kept" in caplog.text
    write_private(files.key, other.key.read_bytes())
    assert _served_certificate(served.address) == _on_disk(served.state) != before
    assert "certificate_loaded" in caplog.text


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", None])
def test_what_is_no_certificate_keeps_the_old_one_and_is_said(state: State, content: bytes | None) -> None:
    """Missing, empty or broken files; the server does not start from them, and does not end by them."""
    files = Certificates(state.tls)
    reloading = Reloading(files, events=log.Events())
    if content is None:
        files.chain.unlink()
    else:
        files.chain.write_bytes(content)
    assert not reloading.reload()
    assert reloading.problem is not None
    assert "server.pem" in reloading.problem
    with pytest.raises(CertificateError):
        ServerPair.load(files)
    files.create()
    assert reloading.reload()
    assert reloading.problem is None


class Authority:
    """Signs clients' certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed("clients' authority", self._key, ca=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def pair(self, name: str) -> tuple[bytes, bytes]:
        """Key and certificate of a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return pem, self._signed(name, key, ca=False).public_bytes(serialization.Encoding.PEM)

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        issuer = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "clients' authority")])
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


def test_a_server_may_ask_for_certificates_of_its_clients(serve: Serve, tmp_path: Path) -> None:
    """One of the right authority lets in whoever has a token, too; none, or another authority's, lets in nobody."""
    right, wrong = Authority(tmp_path / "right"), Authority(tmp_path / "wrong")
    served = serve(tls={"client_ca": str(right.file)})
    ca = Certificates(served.state.tls).ca.read_bytes()
    bearer = served.bearer()

    def code(pair: tuple[bytes | None, bytes | None], metadata: Any = bearer) -> grpc.StatusCode:
        credentials = grpc.ssl_channel_credentials(ca, *pair)
        with grpc.secure_channel(served.address, credentials) as channel:
            call: Any = channel.unary_unary("/bursar.v1.CatalogService/ListDatasets")
            done = call.future(b"", metadata=metadata, timeout=600)
            found: grpc.StatusCode = done.code()
        return found

    assert code(right.pair("ann")) is grpc.StatusCode.OK
    assert code(right.pair("ann"), ()) is grpc.StatusCode.UNAUTHENTICATED
    assert code((None, None)) is grpc.StatusCode.UNAVAILABLE
    assert code(wrong.pair("ann")) is grpc.StatusCode.UNAVAILABLE


def test_the_sdk_shows_its_certificate(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments or the environment name it; half a pair is refused before anything is sent."""
    authority = Authority(tmp_path / "clients")
    served = serve(tls={"client_ca": str(authority.file)})
    key, cert = authority.pair("ann")
    (tmp_path / "key.pem").write_bytes(key)
    ca, token = Certificates(served.state.tls).ca, served.tokens[Role.ANALYST]
    with bursar.connect(
        served.address, token=token, ca=ca, history=False, cert=cert, key=tmp_path / "key.pem"
    ) as client:
        assert [dataset.name for dataset in client.datasets()] == ["people"]
    for half in ((cert, None), (None, key), (key, key), (cert, cert)):
        with pytest.raises(bursar.InvalidRequestError, match=r"cert|key"):
            bursar.connect(served.address, token=token, ca=ca, history=False, cert=half[0], key=half[1])
    (tmp_path / "cert.pem").write_bytes(cert)
    monkeypatch.setenv("BURSAR_CERT", str(tmp_path / "cert.pem"))
    monkeypatch.setenv("BURSAR_KEY", str(tmp_path / "key.pem"))
    with bursar.connect(served.address, token=token, ca=ca, history=False) as client:
        assert client.datasets()


@pytest.mark.slow
@pytest.mark.parametrize("ciphers", [None, "ECDHE-ECDSA-AES128-GCM-SHA256"])
def test_a_server_that_would_speak_old_tls_is_found(tmp_path: Path, ciphers: str | None) -> None:
    """A process with gRPC's own ciphers has it; this package has none for TLS 1.2."""
    files = Certificates(tmp_path)
    files.create()
    program = f"""
import os
import bursar_server
if {ciphers!r}:
    os.environ["GRPC_SSL_CIPHER_SUITES"] = {ciphers!r}
import grpc, concurrent.futures
from pathlib import Path
from bursar_server import log
from bursar_server.access.tls import Certificates, Reloading, speaks_old_tls
certificate = Reloading(Certificates(Path({str(tmp_path)!r})), events=log.Events())
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
port = server.add_secure_port("127.0.0.1:0", certificate.credentials())
server.start()
print(speaks_old_tls(f"127.0.0.1:{{port}}"), speaks_old_tls(f"0.0.0.0:{{port}}"))
server.stop(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(ciphers is not None)] * 2


def test_a_clients_authority_that_is_missing_keeps_the_server_from_starting(serve: Serve) -> None:
    """It would otherwise let in everybody, or nobody."""
    with pytest.raises(CertificateError, match="nowhere"):
        serve(tls={"client_ca": "nowhere.pem"})
