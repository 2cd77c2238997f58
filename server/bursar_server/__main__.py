"""`bursar-server`: serve a state directory, or ask a server for its health."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_PATH = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="bursar")
def main() -> None:
    """Serve protected tables under a privacy budget."""


@main.command()
@click.option(
    "--state", "directory", type=_PATH, required=True, envvar="BURSAR_STATE", show_envvar=True, help="State directory."
)
@click.option("--address", help="host:port to listen on; port 0 picks a free one. Default: as in config.toml.")
@click.option("--workers", "fit_workers", type=int, help="Fits that run at the same time.")
@click.option("--threads", "threads_per_fit", type=int, help="Threads that sum rows for one fit.")
def run(directory: Path, address: str | None, fit_workers: int | None, threads_per_fit: int | None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was paid for."""
    # Not at the top: it loads compilers and samplers, and `health` is asked often.
    from bursar_server import hardening
    from bursar_server.process import StartError, serve
    from bursar_server.tls import only_newest_tls

    hardening.no_core_dumps()
    only_newest_tls()
    try:
        finished = serve(
            directory,
            ready=lambda where: click.echo(f"bursar-server: serving on {where}"),
            address=address,
            fit_workers=fit_workers,
            threads_per_fit=threads_per_fit,
        )
    except StartError as error:
        raise click.ClickException(str(error)) from None
    if not finished:
        # Fits that are not waited for are still at their sums; to take the interpreter apart under them could crash.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


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


if __name__ == "__main__":
    main()
