"""Options and groups that the commands share."""

from __future__ import annotations

import click

COLUMNS = click.option("--columns", metavar="A,B", help="Columns of the table to show, in this order.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class InOrder(click.Group):
    """Group that lists its commands in the order in which they were added, each with its whole first sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):  # click would cut off a long sentence at the end of the line
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=500)) for name in self.commands])
