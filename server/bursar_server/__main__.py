"""Command `bursar-server`: serve a state directory, check one, or query a server's health."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import cast

import click
import grpc

from bursar_server.ops.health import ask

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
    from bursar_server.jobs import hardening

    hardening.few_arenas()  # first: libraries start threads when they are imported
    hardening.one_thread_for_matrices()
    from bursar_server.process import StartError, serve

    hardening.no_core_dumps()
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
def warm() -> None:
    """Compile the kernels of all fits before the first start.

    Takes minutes where nothing is compiled yet, and seconds where all is. It needs no state directory, and reads none.
    Run it as the user who will run the server.
    """
    from bursar_server.fits.registry import FITS  # late: it loads compilers

    for number, (name, fit) in enumerate(FITS.items(), start=1):
        click.echo(f"kernels of {name}, {number} of {len(FITS)}")
        getattr(fit, "warm_up", lambda: None)()
    click.echo("all kernels are compiled")


@main.command()
@click.option(
    "--state", "directory", type=_PATH, required=True, envvar="BURSAR_STATE", show_envvar=True, help="State directory."
)
@click.option("--rows", is_flag=True, help="Also read every row, and compare the tables with what was registered.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(directory: Path, rows: bool, as_json: bool) -> None:
    """Say if a state directory can be served, and what to do if not.

    Looks at settings, certificates, keys, file modes, disk, swap, memory, ledger, checkpoints and tables, while a
    server runs or before. Exit with 1 if the server should not run like that. A ledger of an older version is upgraded,
    as by every command that opens it.
    """
    from bursar_server.ops.doctor import check as look

    findings = list(look(directory, rows=rows))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            sign = "ok" if not finding.problem else "WRONG" if finding.fatal else "note"
            click.echo(f"{sign:<5}  {finding.what}{f': {finding.problem}' if finding.problem else ''}")
    if any(finding.problem and finding.fatal for finding in findings):
        raise SystemExit(1)


@main.command()
@click.option("--address", default="127.0.0.1:8443", show_default=True, help="host:port of the server.")
@click.option("--ca", type=_PATH, required=True, help="The authority's certificate, tls/ca.pem of the state directory.")
@click.option("--cert", type=_PATH, help="A client's certificate, for a server that asks for one.")
@click.option("--key", type=_PATH, help="Its key.")
@click.option(
    "--live", is_flag=True, help="Any answer will do: the server is alive, and may still be starting or stopping."
)
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait.")
def health(address: str, ca: Path, cert: Path | None, key: Path | None, live: bool, timeout: float) -> None:
    """Exit with 0 if the server at this address is serving.

    Says DEGRADED after SERVING if somebody should look at it soon: at its log, or at `bursar-server check`.
    """
    try:
        pair = (key.read_bytes() if key else None, cert.read_bytes() if cert else None)
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), *pair)
    except OSError as error:
        raise click.ClickException(f"cannot read {error.filename}: {error.strerror}") from None
    try:
        said = ask(address, credentials, timeout)
    except grpc.RpcError as error:
        raise click.ClickException(f"no answer from {address}: {cast(grpc.Call, error).code().name}") from None
    click.echo(said)
    if not (said.startswith("SERVING") or live):
        raise SystemExit(1)


@main.command()
@click.option(
    "--listen", default="127.0.0.1:8444", show_default=True, help="host:port for HTTPS; port 0 takes a free one."
)
@click.option("--server", "address", default="localhost:8443", show_default=True, help="host:port of the server.")
@click.option(
    "--tls",
    type=_PATH,
    required=True,
    help="Folder of ca.pem, server.pem and server-key.pem: tls of the state directory, or one like it.",
)
def gateway(listen: str, address: str, tls: Path) -> None:
    """Answer JSON over HTTPS for languages without gRPC.

    Runs until SIGTERM or SIGINT; SIGHUP reads the certificate again. Calls are passed on to a running server, with the
    caller's token. The gateway reads neither ledger nor tables, and may run on another machine.
    """
    try:
        from bursar_server.gateway.serving import GatewayError, serve  # needs the extra `gateway`
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "h11"):
            raise
        raise click.ClickException("this command needs uvicorn: pip install './bursar[server,gateway]'") from None
    try:
        serve(listen, address, tls, ready=lambda where: click.echo(f"bursar-server: gateway on https://{where}"))
    except GatewayError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
