"""Calls of the data owner over the network. Rows are imported on the server's own machine only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bursar import _convert
from bursar._connection import Connection
from bursar._listing import Listing
from bursar_proto.v1 import admin_pb2


@dataclass(frozen=True)
class TokenSummary:
    """A token without its secret.

    Attributes:
        name: of the holder.
        role: "admin", "analyst" or "auditor".
        revoked: whether it is worth nothing now.
        expires: when it ends, as RFC 3339 in UTC; "" for never.
        datasets: the only ones that its holder may see; () for all.
    """

    name: str
    role: str
    revoked: bool
    expires: str = ""
    datasets: tuple[str, ...] = ()


class Tokens(Listing[TokenSummary]):
    """Tokens, which show themselves as a table."""

    _names = ("token", "tokens")
    _headers = ("name", "role", "state", "expires", "datasets")

    def _row(self, one: TokenSummary) -> list[str]:
        state = "revoked" if one.revoked else "in force"
        return [one.name, one.role, state, one.expires or "never", ", ".join(one.datasets) or "all"]


@dataclass(frozen=True)
class Admin:
    """The administrator's calls, as `client.admin`; every one that changes something is an entry of the ledger."""

    _connection: Connection

    def issue_token(
        self,
        name: str,
        role: Literal["admin", "analyst", "auditor"],
        reason: str = "",
        *,
        days: int = 0,
        datasets: Sequence[str] = (),
    ) -> str:
        """Issue a new token. It is in this answer and nowhere else; the server keeps its hash.

        Args:
            name: of the holder; one live token a name.
            role: what the token may do.
            reason: for the ledger.
            days: how long the token lives; 0 for as long as the server allows.
            datasets: the only ones that an analyst may see; () for all.

        Raises:
            InvalidRequestError: a wrong field, or the name holds a live token.
            NotFoundError: there is no such dataset.
            Error: the call failed.
        """
        wire_role = _convert.choice("role", role, _convert.ROLES)
        request = admin_pb2.IssueTokenRequest(
            name=name, role=wire_role, reason=reason, days=days, datasets=tuple(datasets)
        )
        return self._connection.ask(self._connection.admins.IssueToken, request).token

    def revoke_token(self, name: str, reason: str = "") -> int:
        """Make the token of `name` worthless at once; the number of the ledger's entry that says so.

        Raises:
            NotFoundError: nobody of this name holds a live token.
            Error: the call failed.
        """
        request = admin_pb2.RevokeTokenRequest(name=name, reason=reason)
        return self._connection.ask(self._connection.admins.RevokeToken, request).entry

    def tokens(self) -> list[TokenSummary]:
        """List all tokens that were ever issued, without their secrets.

        Raises:
            Error: the call failed.
        """
        answer = self._connection.ask(self._connection.admins.ListTokens, admin_pb2.ListTokensRequest())
        return Tokens(
            _convert.value_of(TokenSummary, one, role=_convert.named(_convert.ROLES, one.role)) for one in answer.tokens
        )
