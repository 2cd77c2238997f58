"""Clusters of Dask's own processes, with certificates of a test's own authority; for tests and benchmarks."""

from __future__ import annotations

import contextlib
import datetime
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bursar_server.vault import DaskEngine
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]

_QUIET = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")


@dataclass(frozen=True)
class Pems:
    """Files of an authority and of one certificate that it signed, for everybody in a cluster."""

    ca: str
    cert: str
    key: str

    @classmethod
    def make(cls, folder: Path) -> Pems:
        """A new authority in a folder."""
        folder.mkdir(parents=True)
        root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        files = cls(*(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")))
        Path(files.ca).write_bytes(_pem(_signed("authority", root, "authority", root, ca=True)))
        Path(files.cert).write_bytes(_pem(_signed("cluster", own, "authority", root, ca=False)))
        key = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        Path(files.key).write_bytes(key)
        return files

    @property
    def options(self) -> list[str]:
        """Return the options of Dask's command line."""
        return ["--tls-ca-file", self.ca, "--tls-cert", self.cert, "--tls-key", self.key]

    def engine(self, scheduler: str, seconds: float = 300.0) -> DaskEngine:
        """The settings of a server that has this certificate."""
        return DaskEngine(scheduler, self.ca, self.cert, self.key, seconds)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _signed(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey, *, ca: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    subject, signer = (x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, n)]) for n in (name, issuer))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(by, hashes.SHA256())
    )


@dataclass(frozen=True)
class Host:
    """Host where processes of a cluster run.

    Attributes:
        address: that others reach it by.
        enter: command that runs the rest of its line there, such as `ip netns exec NAME`.
    """

    address: str = "127.0.0.1"
    enter: Sequence[str] = ()


@contextlib.contextmanager
def cluster(pems: Pems, folder: Path, hosts: Sequence[Host], *, port: int | None = None) -> Iterator[str]:
    """A scheduler on the first host and a worker, one process with one thread, on each; gives the address."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    address = f"tls://{hosts[0].address}:{port}"
    with contextlib.ExitStack() as stack:
        scheduler = [*_dask("scheduler"), "--host", f"tls://{hosts[0].address}", "--port", str(port)]
        stack.enter_context(_running([*hosts[0].enter, *scheduler, *_QUIET, *pems.options], folder / "s.log"))
        for number, host in enumerate(hosts):
            worker = [*_dask("worker"), address, "--host", host.address, "--nthreads", "1", *_QUIET]
            own = ["--local-directory", str(folder / f"w{number}"), "--name", f"w{number}", *pems.options]
            stack.enter_context(_running([*host.enter, *worker, *own], folder / f"w{number}.log"))
        _wait_for(folder, len(hosts))
        yield address


def _dask(what: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler" if what == "scheduler" else "distributed.cli.dask_worker",
    ]


@contextlib.contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(folder: Path, workers: int) -> None:
    """Wait until all workers have told that they are registered."""
    until = time.monotonic() + 600
    while not all("Registered to:" in (folder / f"w{i}.log").read_text() for i in range(workers)):
        if time.monotonic() > until:
            raise TimeoutError("\n".join(path.read_text() for path in folder.glob("*.log")))
        time.sleep(0.1)
