"""Catalogue, administration and audit over the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
import pytest

from bursar_ledger import Budget, Role, verify
from bursar_proto.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    fit_pb2,
    fit_pb2_grpc,
    types_pb2,
)
from bursar_server.tables import CsvSource, Manifest
from bursar_server.tables.registration import register

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.serving.conftest import Harness, Refusal

Make = Callable[..., fit_pb2.FitDPEMRequest]
Refused = Callable[[Callable[[], object]], "Refusal"]

OTHER = """
name = "others"
adjacency = "add_remove_one"
[unit]
column = "who"
max_rows = 2
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
bins = 4
nullable = true
"""


def _import_other(served: Harness, directory: Path) -> None:
    (directory / "m.toml").write_text(OTHER)
    (directory / "m.csv").write_text("who,x\na,0.5\na,0.1\nb,-0.5\n")
    manifest, source = Manifest.load(directory / "m.toml"), CsvSource(directory / "m.csv")
    register(served.state, served.ledger, manifest, source, Budget(1.0, 1e-6), actor="test", reason="")


def test_the_catalogue_shows_public_facts_only(served: Harness) -> None:
    """Name, columns with bounds and categories, adjacency, unit, rows where they are public, total and remainder."""
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    shown = stub.GetDataset(catalog_pb2.GetDatasetRequest(dataset="people"), metadata=served.bearer()).dataset
    assert (shown.name, shown.description, shown.public_rows) == ("people", "made up", 40)
    assert [(column.name, column.WhichOneof("kind")) for column in shown.columns] == [
        ("height", "numeric"),
        ("town", "categorical"),
    ]
    assert (shown.columns[0].numeric.lower, shown.columns[0].numeric.upper) == (0.0, 3.0)
    assert not shown.columns[0].numeric.bin_edges
    assert not shown.columns[0].numeric.nullable
    assert list(shown.columns[1].categorical.categories) == ["here", "there"]
    assert shown.adjacency == types_pb2.ADJACENCY_REPLACE_ONE
    assert (shown.privacy_unit.unit_column, shown.privacy_unit.max_rows_per_unit) == ("", 1)
    assert (shown.total.epsilon, shown.total.delta) == (1.0, 1e-6)
    assert shown.remaining.cost_units == shown.remaining.cap_cost_units > 0


def test_a_dataset_imported_while_the_server_runs_is_served(served: Harness, tmp_path: Path, fit_request: Make) -> None:
    """The next call sees it, with its own unit and without its private number of rows, and fits run on it."""
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    _import_other(served, tmp_path)
    shown = stub.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=served.bearer()).datasets
    assert [dataset.name for dataset in shown] == ["people", "others"]
    assert shown[1].public_rows == 0
    assert (shown[1].privacy_unit.unit_column, shown[1].privacy_unit.max_rows_per_unit) == ("who", 2)
    assert shown[1].columns[0].numeric.bin_edges == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert shown[1].columns[0].numeric.nullable
    # The fake fit plans for a unit of one row, so here the meter must stop it.
    call = fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(fit_request(dataset="others"), metadata=served.bearer())
    assert next(iter(call)).receipt.dataset == "others"
    with pytest.raises(grpc.RpcError):
        list(call)


def test_releases_are_shown_to_their_owner(served: Harness, fit_request: Make) -> None:
    """An analyst sees his own debits, of one dataset or all, and whether a model is stored; another sees none."""
    fits, catalog = fit_pb2_grpc.FitServiceStub(served.channel), catalog_pb2_grpc.CatalogServiceStub(served.channel)
    receipt, *_ = [event.receipt for event in fits.FitDPEM(fit_request(), metadata=served.bearer())]
    for dataset in ("", "people"):
        listed = catalog.ListReleases(
            catalog_pb2.ListReleasesRequest(dataset=dataset), metadata=served.bearer()
        ).releases
        assert [(line.entry, line.request_id, line.method, line.released) for line in listed] == [
            (receipt.entry, "r1", "FitDPEM", True)
        ]
        assert listed[0].price == receipt.price
    token = _issue(served, "bob")
    other = (("authorization", f"Bearer {token}"),)
    assert not catalog.ListReleases(catalog_pb2.ListReleasesRequest(), metadata=other).releases


def _issue(served: Harness, name: str) -> str:
    stub = admin_pb2_grpc.AdminServiceStub(served.channel)
    message = admin_pb2.IssueTokenRequest(name=name, role=admin_pb2.ROLE_ANALYST, reason="works here")
    return stub.IssueToken(message, metadata=served.bearer(Role.ADMIN)).token


def test_an_issued_token_works_until_it_is_revoked(served: Harness, refused: Refused) -> None:
    """Issue, use, list, revoke; every change is an entry by the administrator."""
    admin, catalog = (
        admin_pb2_grpc.AdminServiceStub(served.channel),
        catalog_pb2_grpc.CatalogServiceStub(served.channel),
    )
    bearer = (("authorization", f"Bearer {_issue(served, 'bob')}"),)
    assert catalog.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=bearer).datasets
    entry = admin.RevokeToken(
        admin_pb2.RevokeTokenRequest(name="bob", reason="left"), metadata=served.bearer(Role.ADMIN)
    ).entry
    refusal = refused(lambda: catalog.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=bearer))
    assert refusal.code == grpc.StatusCode.UNAUTHENTICATED
    listed = admin.ListTokens(admin_pb2.ListTokensRequest(), metadata=served.bearer(Role.ADMIN)).tokens
    assert ("bob", admin_pb2.ROLE_ANALYST, True) in [(held.name, held.role, held.revoked) for held in listed]
    newest = list(served.ledger.entries())[-1]
    assert (newest.number, newest.actor) == (entry, "the-admin")


def test_the_last_administrator_cannot_be_revoked_from_afar(served: Harness, refused: Refused) -> None:
    """Neither by themselves; with a second one it can be, and where the server runs it always can."""
    stub = admin_pb2_grpc.AdminServiceStub(served.channel)
    bearer = served.bearer(Role.ADMIN)
    itself = admin_pb2.RevokeTokenRequest(name="the-admin")
    before = served.entries()
    refusal = refused(lambda: stub.RevokeToken(itself, metadata=bearer))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "LAST_ADMINISTRATOR")
    assert "bursar-admin token revoke" in refusal.text
    assert served.entries() == before
    second = admin_pb2.IssueTokenRequest(name="second", role=admin_pb2.ROLE_ADMIN)
    stub.IssueToken(second, metadata=bearer)
    assert stub.RevokeToken(itself, metadata=bearer).entry == before + 2


def test_names_that_differ_in_case_only_are_refused(served: Harness, refused: Refused) -> None:
    """Nothing is issued, and the refusal says what to do."""
    _issue(served, "alice")
    refusal = refused(lambda: _issue(served, "Alice"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NAME_CONFLICT")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "", "role": 2}, "name"),
        ({"name": "bursar-server", "role": 2}, "name"),
        ({"name": "Bursar-Server", "role": 2}, "name"),
        ({"name": "two words", "role": 2}, "name"),
        ({"name": "x" * 65, "role": 2}, "name"),
        ({"name": "line\nbreak", "role": 2}, "name"),
        ({"name": "bob"}, "role"),
        ({"name": "bob", "role": 9}, "role"),
        ({"name": "bob", "role": 2, "reason": "x" * 501}, "reason"),
        ({"name": "bob", "role": 2, "reason": "a\nb"}, "reason"),
    ],
)
def test_a_bad_token_request_names_its_field(
    served: Harness, refused: Refused, fields: dict[str, str | int], named: str
) -> None:
    """INVALID_ARGUMENT and no entry."""
    stub, head = admin_pb2_grpc.AdminServiceStub(served.channel), served.ledger.head()
    message = admin_pb2.IssueTokenRequest(**fields)  # type: ignore[arg-type]  # some are wrong on purpose
    refusal = refused(lambda: stub.IssueToken(message, metadata=served.bearer(Role.ADMIN)))
    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, (named,))
    assert served.ledger.head() == head


def test_one_live_token_a_name(served: Harness, refused: Refused) -> None:
    """A second token for a name is refused; so is revoking what nobody holds."""
    _issue(served, "bob")
    stub, metadata = admin_pb2_grpc.AdminServiceStub(served.channel), served.bearer(Role.ADMIN)
    assert refused(lambda: _issue(served, "bob")).reason == "CREDENTIAL_EXISTS"
    refusal = refused(lambda: stub.RevokeToken(admin_pb2.RevokeTokenRequest(name="carol"), metadata=metadata))
    assert refusal.code == grpc.StatusCode.NOT_FOUND


def test_an_auditor_reads_the_entries_that_the_chain_hashes(served: Harness, fit_request: Make) -> None:
    """The stream has every entry in order, from any point on, with the bytes and the hash of the file."""
    list(fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(fit_request(), metadata=served.bearer()))
    stub, metadata = audit_pb2_grpc.AuditServiceStub(served.channel), served.bearer(Role.AUDITOR)
    entries = list(stub.ListEntries(audit_pb2.ListEntriesRequest(), metadata=metadata))
    assert [(e.entry, e.kind, e.actor, e.body, e.hash) for e in entries] == [
        (e.number, e.kind, e.actor, e.body, e.hash) for e in served.ledger.entries()
    ]
    some = list(stub.ListEntries(audit_pb2.ListEntriesRequest(first=2, limit=2), metadata=metadata))
    assert some == entries[1:3]
    assert not list(stub.ListEntries(audit_pb2.ListEntriesRequest(first=2**64 - 1), metadata=metadata))


def test_verification_over_the_wire_is_the_auditors_own(served: Harness) -> None:
    """Findings, count and head are those of `verify` on the file."""
    stub = audit_pb2_grpc.AuditServiceStub(served.channel)
    found = stub.Verify(audit_pb2.VerifyRequest(), metadata=served.bearer(Role.AUDITOR))
    expected = verify(served.state.ledger)
    assert (found.ok, found.entries, found.head) == (True, expected.entries, expected.head)
