"""Command that serves the owner's page."""

from __future__ import annotations

from pathlib import Path

import click

from bursar_server.admin._acting import ACTOR, STATE, Held, opened


@click.command()
@STATE
@ACTOR
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8002, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
def serve(directory: Path, who: str | None, port: int, show: bool) -> None:
    """Serve the owner's page: tables, budgets, analysts and requests in a browser, and the most common changes.

    It listens on this machine only, at 127.0.0.1, and prints a link to a button that lets one browser in, once. From
    elsewhere reach it through ssh -L. Each change is shown with its entry first, and written once you confirm, by the
    same commands as here; the page says which. It never reads a row.

    \b
      bursar-admin serve --state state --actor alice
    """  # noqa: D301  click reads the backslash
    try:
        from bursar_ledger.audit._web import listening
        from bursar_ledger.audit._web import serve as serve_pages
        from bursar_server.admin._owner_site import Site
    except ImportError as error:
        raise click.UsageError(f"this needs Datasette: pip install './bursar[server,serve]' ({error})") from error
    with opened(directory) as (state, ledger), listening("127.0.0.1", port) as listener:
        site = Site(click.get_current_context().find_root().command, Held(state, ledger), who)
        serve_pages(site.app(), listener, directory, site.link, show=show)
