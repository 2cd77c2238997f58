"""Tokens that end, and tokens for some datasets only: for their holders there are no others."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Role
from bursar_proto.v1 import admin_pb2, audit_pb2, catalog_pb2, catalog_pb2_grpc, dummy_pb2, fit_pb2
from bursar_server.access import auth
from bursar_server.access.auth import LedgerTokens, UnauthenticatedError, expiry, hash_token, new_token

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal

Refused = Callable[[Callable[[], object]], "Refusal"]
ENDS = "2030-01-01T00:00:00Z"
AT_THE_END = 1_893_456_000.0


def _bearer(served: Harness, *datasets: str, name: str = "ann", role: Role = Role.ANALYST) -> tuple[tuple[str, str]]:
    token = new_token(role)
    scope = datasets or None
    served.ledger.issue_credential(name, role, hash_token(token), actor="test", reason="", datasets=scope)
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize(("now", "live"), [(AT_THE_END - 1, True), (AT_THE_END, False), (AT_THE_END + 1e9, False)])
def test_a_token_ends_at_its_end(served: Harness, now: float, live: bool) -> None:
    """The second of its end is too late; a token without one does not end."""
    ending, endless = new_token(Role.ANALYST), new_token(Role.ANALYST)
    issue = partial(served.ledger.issue_credential, role=Role.ANALYST, actor="test", reason="")
    issue("ann", token_hash=hash_token(ending), expires=ENDS)
    issue("bob", token_hash=hash_token(endless))
    tokens = LedgerTokens(served.ledger, lambda: now)
    assert tokens.principal(endless).name == "bob"
    if live:
        assert tokens.principal(ending).name == "ann"
    else:
        with pytest.raises(UnauthenticatedError, match=f"ended at {ENDS}"):
            tokens.principal(ending)


def test_the_end_of_a_token_is_counted_in_days() -> None:
    """Days count from now, in whole seconds, as the ledger has them."""
    assert expiry(1, AT_THE_END - 86_400.0 + 0.7) == ENDS


def test_a_token_that_has_ended_opens_nothing(served: Harness, refused: Refused) -> None:
    """The wire treats it as none."""
    token = new_token(Role.ADMIN)
    past = expiry(0, time.time() - 5)
    served.ledger.issue_credential("ann", Role.ADMIN, hash_token(token), actor="t", reason="", expires=past)
    call: Any = served.channel.unary_unary("/bursar.v1.CatalogService/ListDatasets")
    refusal = refused(partial(call, b"", metadata=(("authorization", f"Bearer {token}"),)))
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert token not in refusal.everything


def _requests(dataset: str, fit_request: Callable[..., Any]) -> dict[str, bytes]:
    fit = fit_request(dataset=dataset)
    preview = fit_pb2.PreviewRequest(dpem=fit)
    return {
        "/bursar.v1.CatalogService/GetDataset": catalog_pb2.GetDatasetRequest(dataset=dataset).SerializeToString(),
        "/bursar.v1.CatalogService/ListReleases": catalog_pb2.ListReleasesRequest(dataset=dataset).SerializeToString(),
        "/bursar.v1.CatalogService/ListSketches": catalog_pb2.ListSketchesRequest(dataset=dataset).SerializeToString(),
        "/bursar.v1.FitService/Preview": preview.SerializeToString(),
        "/bursar.v1.FitService/FitDPEM": fit.SerializeToString(),
        "/bursar.v1.DummyService/RunDummy": dummy_pb2.DummyRequest(fit=preview).SerializeToString(),
    }


@pytest.mark.parametrize("path", _requests("", lambda **_: fit_pb2.FitDPEMRequest()))
def test_a_dataset_out_of_scope_does_not_exist(
    served: Harness, refused: Refused, fit_request: Callable[..., Any], path: str
) -> None:
    """The same status, text and details as for a name that nobody registered; and nothing is debited."""
    mine = _bearer(served, "another")
    call: Any = served.channel.unary_stream(path)
    told = [
        refused(lambda body=body: list(call(body, metadata=mine)))  # type: ignore[misc]  # defaults have no type
        for body in (_requests(name, fit_request)[path] for name in ("people", "nothing"))
    ]
    assert told[0].code is told[1].code is grpc.StatusCode.NOT_FOUND
    assert (told[0].text, told[0].reason) == (told[1].text, told[1].reason)
    assert served.entries("debit") == 0


def test_every_request_that_names_a_dataset_is_in_the_test_above(fit_request: Callable[..., Any]) -> None:
    """A method that comes later is checked, too: by the gate, and in this list."""

    def names_one(message: Any, depth: int = 4) -> bool:
        return any(
            field.name == "dataset"
            or (field.message_type is not None and depth and names_one(field.message_type, depth - 1))
            for field in message.fields
        )

    modules = (fit_pb2, dummy_pb2, catalog_pb2, admin_pb2, audit_pb2)
    services = [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    naming = {f"/{s.full_name}/{m.name}" for s in services for m in s.methods if names_one(m.input_type)}
    others = {name for name in naming if name.startswith("/bursar.v1.FitService/Fit")}
    assert naming - others <= set(_requests("", fit_request))
    for path in others:
        (method,) = [m for s in services for m in s.methods if f"/{s.full_name}/{m.name}" == path]
        assert method.input_type.fields_by_name["dataset"].number == 2


def test_in_scope_everything_works_and_lists_show_only_that(
    served: Harness, refused: Refused, fit_request: Callable[..., Any]
) -> None:
    """Later the same name gets a narrower token: what it paid for elsewhere is not shown to that one."""
    first = _bearer(served, "people")
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    assert [one.name for one in stub.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=first).datasets] == [
        "people"
    ]
    fits: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    receipt = fit_pb2.FitDPEMResponse.FromString(
        next(iter(list(fits(fit_request().SerializeToString(), metadata=first))))
    ).receipt
    assert len(stub.ListReleases(catalog_pb2.ListReleasesRequest(), metadata=first).releases) == 1
    served.ledger.revoke_credential("ann", actor="test", reason="")
    second = _bearer(served, "another")
    assert not stub.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=second).datasets
    assert not stub.ListReleases(catalog_pb2.ListReleasesRequest(), metadata=second).releases
    asked = partial(stub.GetRelease, catalog_pb2.GetReleaseRequest(entry=receipt.entry), metadata=second)
    assert refused(asked).reason == "UNKNOWN_RELEASE"


def test_an_administrator_issues_tokens_with_an_end_and_a_scope(served: Harness, refused: Refused) -> None:
    """No longer than the settings allow; scopes are for analysts, and name what there is."""
    call: Any = served.channel.unary_unary("/bursar.v1.AdminService/IssueToken")

    def issue(**fields: Any) -> admin_pb2.IssueTokenResponse:
        request = admin_pb2.IssueTokenRequest(name="ann", **({"role": admin_pb2.ROLE_ANALYST} | fields))
        answer: bytes = call(request.SerializeToString(), metadata=served.bearer(Role.ADMIN))
        return admin_pb2.IssueTokenResponse.FromString(answer)

    before = served.entries()
    assert refused(partial(issue, days=366)).fields == ("days",)
    assert refused(partial(issue, role=admin_pb2.ROLE_AUDITOR, datasets=["people"])).fields == ("datasets",)
    assert refused(partial(issue, datasets=["nothing"])).code is grpc.StatusCode.NOT_FOUND
    assert served.entries() == before
    token = issue(days=2, datasets=["people", "people"]).token
    held = served.ledger.credential(hash_token(token))
    assert held is not None
    assert held.datasets == ("people",)
    assert held.expires is not None
    assert expiry(1, time.time()) < held.expires <= expiry(2, time.time())


def test_tokens_are_compared_as_wholes_in_constant_time(served: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash that the index found is compared once more, by a function that takes the same time whatever differs."""
    compared: list[tuple[bytes, bytes]] = []
    original: Callable[[bytes, bytes], bool] = hmac.compare_digest

    def note(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return original(a, b)

    monkeypatch.setattr(hmac, "compare_digest", note)
    token = served.tokens[Role.ANALYST]
    assert auth.authenticate(served.bearer(), LedgerTokens(served.ledger)).name == "the-analyst"
    assert compared == [(hash_token(token), hash_token(token))]
    monkeypatch.setattr(hmac, "compare_digest", lambda *_: False)
    with pytest.raises(UnauthenticatedError):
        auth.authenticate(served.bearer(), LedgerTokens(served.ledger))
