"""What all commands have in common."""

from __future__ import annotations

import click

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class InOrder(click.Group):
    """A group that lists its commands in the order in which an analyst comes to need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added."""
        return list(self.commands)
