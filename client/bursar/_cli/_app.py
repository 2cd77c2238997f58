"""The program `bursar`: one group, in the order of an analyst's work."""

from __future__ import annotations

import click

from bursar._cli._catalog import datasets, limits, releases, setup, show
from bursar._cli._failing import STATUS
from bursar._cli._fitting import fit, preview, suggest
from bursar._cli._groups import InOrder
from bursar._cli._planning import plan
from bursar._cli._released import model
from bursar._cli._trying import try_


@click.group(
    name="bursar",
    cls=InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=STATUS,
)
@click.version_option(package_name="bursar")
def app() -> None:
    """Fit differentially private models to protected tables, charged to a privacy budget.

    The commands are in the order in which an analyst comes to need them: keep the connection once, look at a dataset
    and at its remaining budget, preview a fit, pay for it; then use the model as often as you like.

    Your token is in the file that --token-file or the settings name, or in BURSAR_TOKEN. It is never an argument: other
    users of the machine can read those.
    """


for _command in (setup, datasets, show, limits, preview, suggest, plan, fit, releases, model, try_):
    app.add_command(_command)
