"""TLS 1.3, always: the local authority and server certificate that `init` makes, and the pair that handshakes use.

An owner may replace the pair by one of another authority while the server runs.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bursar_server import log
from bursar_server.config import Config
from bursar_server.state import State, write_private

VALIDITY = datetime.timedelta(days=3650)
"""Life of the certificates that `init` makes. Chosen, not tuned; an owner may replace the pair at any time."""


@dataclass(frozen=True)
class Certificates:
    """PEM files of a state directory."""

    directory: Path

    @property
    def ca(self) -> Path:
        """Path of the authority's certificate; clients need it, and it is not secret."""
        return self.directory / "ca.pem"

    @property
    def chain(self) -> Path:
        """Path of the server's certificate."""
        return self.directory / "server.pem"

    @property
    def key(self) -> Path:
        """Path of the server's private key."""
        return self.directory / "server-key.pem"

    def create(self, names: tuple[str, ...] = ()) -> None:
        """Make authority and server certificate for this host, loopback and further DNS names or addresses.

        EC P-256, ten years. The authority's key is not stored, so it can sign no second server.
        """
        ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        ca = _authority(ca_key)
        server = _server(
            server_key, ca, ca_key, _unique(("localhost", "127.0.0.1", "::1", socket.gethostname(), *names))
        )
        # The key first: a certificate without its key would not be usable.
        write_private(self.key, _pem_key(server_key))
        for path, certificate in ((self.ca, ca), (self.chain, server)):
            write_private(path, certificate.public_bytes(serialization.Encoding.PEM))
            path.chmod(0o644)


class CertificateError(Exception):
    """Error: the server's certificate cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class ServerPair:
    """Key and certificates of handshakes.

    Attributes:
        chain: certificates, PEM; the server's certificate first.
        authorities: authorities of clients' certificates, PEM; None for a server that requires none.
    """

    key: bytes
    chain: bytes
    authorities: bytes | None
    expires: datetime.datetime

    @classmethod
    def load(cls, certificates: Certificates, client_ca: Path | None = None) -> ServerPair:
        """Read and check the files. Raises CertificateError if a file cannot be used."""
        key, chain = _read(certificates.key), _read(certificates.chain)
        try:
            certificate = x509.load_pem_x509_certificates(chain)[0]
            private = serialization.load_pem_private_key(key, password=None)
        except (ValueError, TypeError):
            raise CertificateError(
                f"{certificates.chain} or {certificates.key} is not PEM, or the key has a password; expected both "
                "without one, the server's certificate first"
            ) from None
        if _spki(private.public_key()) != _spki(certificate.public_key()):
            raise CertificateError(f"{certificates.key} is not the key of {certificates.chain}; replace both together")
        authorities = None
        if client_ca is not None:
            authorities = _read(client_ca)
            try:
                x509.load_pem_x509_certificates(authorities)
            except ValueError:
                raise CertificateError(
                    f"{client_ca} holds no PEM certificate; expected the clients' authority"
                ) from None
        return cls(key, chain, authorities, certificate.not_valid_after_utc)

    @property
    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """Pair in gRPC's format."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.authorities)


class Reloading:
    """Pair in force: read again when its files change, and kept if the new files cannot be used.

    Open connections keep their pair; new ones get the newest.

    Raises:
        CertificateError: the files cannot be used now.
    """

    def __init__(self, certificates: Certificates, client_ca: Path | None = None, *, events: log.Events) -> None:
        self._events = events
        self._certificates = certificates
        self._client_ca = client_ca
        self._lock = threading.Lock()
        # Before the files are read: a change during the reading is noticed at the next handshake.
        self._seen = self._stamps()
        self._pair = ServerPair.load(certificates, client_ca)
        self._given = self._pair
        self.problem: str | None = None

    @property
    def expires(self) -> datetime.datetime:
        """End of the certificate in force."""
        return self._pair.expires

    def reload(self) -> bool:
        """Read the files again. Return whether the pair changed; a failure is described in `problem`."""
        with self._lock:
            self._seen = self._stamps()
            return self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a server's port. gRPC asks at every handshake for a newer pair."""
        # gRPC documents None for "unchanged", but its type stubs lack it.
        newer = cast(Callable[[], grpc.ServerCertificateConfiguration], self._newer)
        return grpc.dynamic_ssl_server_credentials(
            self._pair.for_grpc, newer, require_client_authentication=self._client_ca is not None
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            if (stamps := self._stamps()) != self._seen:
                self._seen = stamps
                self._load()
            # Not whether this call read a new pair: `reload` may have read it since the last handshake.
            if self._pair == self._given:
                return None
            self._given = self._pair
            return self._pair.for_grpc

    def _load(self) -> bool:
        try:
            pair = ServerPair.load(self._certificates, self._client_ca)
        except CertificateError as error:
            self.problem = str(error)
            self._events.tell(log.CertificateKept(reason=self.problem))
            return False
        self.problem = None
        changed, self._pair = pair != self._pair, pair
        if changed:
            self._events.tell(log.CertificateLoaded(expires=pair.expires.isoformat()))
        return changed

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        files = (self._certificates.key, self._certificates.chain, self._client_ca)
        return tuple(None if file is None else _stamp(file) for file in files)


def client_authority(state: State, config: Config) -> Path | None:
    """Return the file of the authority that signs clients' certificates, None if none are required."""
    return state.path / config.tls.client_ca if config.tls.client_ca else None


def speaks_old_tls(address: str) -> bool:
    """Return whether the server at an address of this machine accepts TLS 1.2; False if it cannot be reached."""
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104  not to listen, to ask
    # Only the handshake counts and nothing is sent, so the certificate needs no check.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, int(port)), timeout=5.0) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CertificateError(f"{file} cannot be read ({error.strerror}); put it there, or restore it") from None


def _spki(key: object) -> bytes:
    public: bytes = getattr(key, "public_bytes")(  # noqa: B009  every kind of key has it, and their union has not
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return public


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("bursar local authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, names: tuple[str, ...]
) -> x509.Certificate:
    return (
        _builder(_name("bursar server"), ca.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A day back, because the clock of a client may be slow.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
