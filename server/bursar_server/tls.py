"""A local certificate authority and one server certificate, made at `init`: TLS always, nothing to buy or to fetch."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
