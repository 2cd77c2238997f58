"""Command line of `bursar-admin`: one group, in the order of an owner's work."""

from __future__ import annotations

import click

from bursar_ledger.audit._formats import InOrder
from bursar_server.admin._backups import backup, restore, write_off
from bursar_server.admin._budgets import allowance, budget, call_limit
from bursar_server.admin._checkpoints import checkpoint
from bursar_server.admin._documents import document
from bursar_server.admin._history import acts
from bursar_server.admin._manifests import manifest
from bursar_server.admin._plans import plan
from bursar_server.admin._quickstart import init, quickstart
from bursar_server.admin._serve import serve
from bursar_server.admin._sketches import sketch
from bursar_server.admin._tables import dataset, datasets, import_, partition_, retire, snapshot
from bursar_server.admin._tokens import token


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="bursar")
def main() -> None:
    """Administer a state directory, on the server's own machine, while the server runs or not.

    The commands are in the order in which an owner needs them: make the directory once, import tables with their
    budgets, share the budgets among analysts, issue tokens; then inspect and maintain.

    Every change is one permanent entry of the ledger, with your name, the time and --reason. Try it with --dry-run
    first. Set BURSAR_STATE to save typing --state.
    """


for _command in (
    quickstart,
    init,
    manifest,
    import_,
    datasets,
    plan,
    budget,
    allowance,
    call_limit,
    token,
    sketch,
    snapshot,
    partition_,
    dataset,
    retire,
    checkpoint,
    backup,
    restore,
    write_off,
    acts,
    serve,
    document,
):
    main.add_command(_command)
