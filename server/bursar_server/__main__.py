"""`bursar-server`: serve a state directory, or ask a server for its health."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bursar_ledger import Ledger, LedgerError, verify
from bursar_server import logs
from bursar_server.config import Config, ConfigError
from bursar_server.datasets import Datasets
from bursar_server.fits import dpem
from bursar_server.server import AddressError, BursarServer
from bursar_server.services.fit import AnyFit
from bursar_server.state import State, StateError

FITS: Mapping[str, AnyFit] = {"FitDPEM": dpem}
"""The fits of this version, by name of their RPC."""

_PATH = click.Path(path_type=Path)


@click.group()
@click.version_option(package_name="bursar")
def main() -> None:
    """Serve protected tables under a privacy budget."""


@main.command()
@click.option("--state", "directory", type=_PATH, required=True, envvar="BURSAR_STATE", help="State directory.")
@click.option("--address", help="host:port to listen on; port 0 picks a free one. Default: as in config.toml.")
@click.option("--workers", "fit_workers", type=int, help="Fits that run at the same time.")
@click.option("--threads", "threads_per_fit", type=int, help="Threads that sum rows for one fit.")
def run(directory: Path, address: str | None, fit_workers: int | None, threads_per_fit: int | None) -> None:
    """Serve until SIGTERM or SIGINT; then finish the fits that were paid for."""
    logs.set_up()
    try:
        state = State.open(directory)
        config = Config.load(state.config, address=address, fit_workers=fit_workers, threads_per_fit=threads_per_fit)
        with state.serving(), _verified(state) as ledger:
            _serve(state, config, ledger)
    except (StateError, ConfigError, LedgerError, AddressError) as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.option("--address", default="127.0.0.1:8443", show_default=True, help="host:port of the server.")
@click.option("--ca", type=_PATH, required=True, help="The authority's certificate, tls/ca.pem of the state directory.")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait.")
def health(address: str, ca: Path, timeout: float) -> None:
    """Exit with 0 if the server at this address is serving."""
    try:
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        with grpc.secure_channel(address, credentials) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout)
    except OSError as error:
        raise click.ClickException(f"cannot read {ca}: {error.strerror}") from None
    except grpc.RpcError as error:
        raise click.ClickException(f"no answer from {address}: {cast(grpc.Call, error).code().name}") from None
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    click.echo(name)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise SystemExit(1)


def _verified(state: State) -> contextlib.AbstractContextManager[Ledger]:
    """The ledger, after every debit was priced again. Raises LedgerError naming the entries that are wrong."""
    found = verify(state.ledger)
    if not found.ok:
        raise LedgerError("the ledger does not verify, nothing is served from it:\n" + "\n".join(found.problems))
    return Ledger.open(state.ledger)


def _serve(state: State, config: Config, ledger: Ledger) -> None:
    # Kernels are compiled on made-up rows now, so that the time of the first request says nothing.
    for fit in FITS.values():
        getattr(fit, "warm_up", lambda: None)()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = BursarServer(
        state=state, config=config, ledger=ledger, datasets=Datasets(ledger, state.datasets), fits=FITS
    )
    with server:
        click.echo(f"bursar-server: serving on {server.address}")
        logs.event("serving", address=server.address, workers=config.fit_workers, queue=config.queue_length)
        stop.wait()
        logs.event("stopping")


if __name__ == "__main__":
    main()
