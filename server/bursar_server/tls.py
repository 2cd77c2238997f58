"""TLS, always, and 1.3 only: a local authority and one server certificate, made at `init`, and what handshakes use.

An owner may put a certificate of another authority into the place of the one that `init` made, while the server runs.
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

from bursar_server import logs
from bursar_server.state import write_private

VALIDITY = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class Certificates:
    """PEM files of a state directory.

    Attributes:
        directory: 0700.
    """

    directory: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate; clients need it, it is no secret."""
        return self.directory / "ca.pem"

    @property
    def chain(self) -> Path:
        """The server's certificate."""
        return self.directory / "server.pem"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.directory / "server-key.pem"

    def create(self, names: tuple[str, ...] = ()) -> None:
        """Make authority and server certificate for this host, loopback and further DNS names or addresses.

        EC P-256, ten years. The authority's key is thrown away: it can sign no second server.
        """
        ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        ca = _authority(ca_key)
        server = _server(
            server_key, ca, ca_key, _unique(("localhost", "127.0.0.1", "::1", socket.gethostname(), *names))
        )
        write_private(self.key, _pem_key(server_key))
        for path, certificate in ((self.ca, ca), (self.chain, server)):
            write_private(path, certificate.public_bytes(serialization.Encoding.PEM))
            path.chmod(0o644)


class CertificateError(Exception):
    """The server's certificate cannot be used; says which file, and what to do."""


@dataclass(frozen=True)
class ServerPair:
    """What handshakes use.

    Attributes:
        key: PEM.
        chain: PEM; the server's certificate first.
        authorities: PEM, of those that sign clients' certificates; None for a server that asks for none.
        expires: of the server's certificate.
    """

    key: bytes
    chain: bytes
    authorities: bytes | None
    expires: datetime.datetime

    @classmethod
    def load(cls, certificates: Certificates, client_ca: Path | None = None) -> ServerPair:
        """Read and check the files. Raises CertificateError."""
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
        """The same as gRPC has it."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.authorities)


class Reloading:
    """The pair in force: read again when its files change, and kept when what is there now cannot be used.

    Connections that are open keep what they began with; new ones get the newest pair.

    Args:
        certificates: files.
        client_ca: of the clients' authority; None for a server that asks for no certificates.

    Raises:
        CertificateError: the files cannot be used now.
    """

    def __init__(self, certificates: Certificates, client_ca: Path | None = None) -> None:
        self._certificates = certificates
        self._client_ca = client_ca
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._pair = ServerPair.load(certificates, client_ca)
        self._given = self._pair
        self.problem: str | None = None

    @property
    def expires(self) -> datetime.datetime:
        """End of the certificate in force."""
        return self._pair.expires

    def reload(self) -> bool:
        """Read the files again now; whether they gave another pair. What went wrong is in `problem`."""
        with self._lock:
            self._seen = self._stamps()
            return self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """For a server's port. gRPC asks at every handshake whether there is a newer pair."""
        # The types have no None for "as it was", which the documentation has.
        newer = cast(Callable[[], grpc.ServerCertificateConfiguration], self._newer)
        return grpc.dynamic_ssl_server_credentials(
            self._pair.for_grpc, newer, require_client_authentication=self._client_ca is not None
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            if (stamps := self._stamps()) != self._seen:
                self._seen = stamps
                self._load()
            if self._pair == self._given:
                return None
            self._given = self._pair
            return self._pair.for_grpc

    def _load(self) -> bool:
        try:
            pair = ServerPair.load(self._certificates, self._client_ca)
        except CertificateError as error:
            self.problem = str(error)
            logs.event("certificate_kept", reason=self.problem)
            return False
        self.problem = None
        changed, self._pair = pair != self._pair, pair
        if changed:
            logs.event("certificate_loaded", expires=pair.expires.isoformat())
        return changed

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        files = (self._certificates.key, self._certificates.chain, self._client_ca)
        return tuple(None if file is None else _stamp(file) for file in files)


def speaks_old_tls(address: str) -> bool:
    """Whether whoever listens at an address of this machine takes TLS 1.2; False if it cannot be asked."""
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104  not to listen, to ask
    # Nothing is sent over it: what matters is whether the handshake succeeds, whoever answers.
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
        # A day back: the clock of a client may be behind.
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
