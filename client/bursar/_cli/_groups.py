"""Options and groups that the commands share."""

from __future__ import annotations

import click

COLUMNS = click.option("--columns", metavar="A,B", help="Columns of the table to show, in this order.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class InOrder(click.Group):
    """A group that lists its commands in the order in which an analyst comes to need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole first sentence: click would cut a long one off at the end of the line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=500)) for name in self.commands])
