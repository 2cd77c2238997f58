"""The owner's limits on requests: what is just allowed passes, one more is refused by name before the debit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Role
from bursar_models._frequencies import MAX_FREQUENCIES
from bursar_proto.v1 import audit_pb2, catalog_pb2, fit_pb2, types_pb2
from bursar_server.config import Config, ConfigError, RequestLimits, settings
from bursar_server.fits import InvalidFieldsError, Plan
from bursar_server.fits.dpem import _plan as dpem
from bursar_server.fits.gradient_em import _plan as gradient_em
from bursar_server.fits.mrf import _schema as mrf
from bursar_server.fits.separated_gmm import _plan as separated_gmm
from bursar_server.fits.sketch import _plan as sketch
from bursar_server.jobs.limits import check_entries, check_plan, check_request, page, work

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.serving.conftest import Refusal, Serve

Refused = Callable[[Callable[[], object]], "Refusal"]


def _cliques(n: int) -> fit_pb2.FitMRFRequest:
    return fit_pb2.FitMRFRequest(cliques=fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=["a"])] * n))


def _sketch(m: int) -> fit_pb2.FitSketchKMeansRequest:
    return fit_pb2.FitSketchKMeansRequest(new_sketch=fit_pb2.NewSketch(n_frequencies=m))


def _pilot(m: int) -> fit_pb2.FitSketchKMeansRequest:
    return fit_pb2.FitSketchKMeansRequest(new_sketch=fit_pb2.NewSketch(pilot=fit_pb2.PilotSketch(n_frequencies=m)))


REQUESTS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "dpem components": ("components", lambda n: fit_pb2.FitDPEMRequest(n_components=n)),
    "gradient components": ("components", lambda n: fit_pb2.FitGradientEMRequest(n_components=n)),
    "separated components": ("components", lambda n: fit_pb2.FitSeparatedGMMRequest(n_components=n)),
    "clusters": ("components", lambda n: fit_pb2.FitSketchKMeansRequest(n_clusters=n)),
    "iterations": ("iterations", lambda n: fit_pb2.FitDPEMRequest(iterations=n)),
    "columns": ("columns", lambda n: fit_pb2.FitDPEMRequest(columns=["x"] * n)),
    "columns of a chain": (
        "columns",
        lambda n: fit_pb2.FitMRFRequest(chain=fit_pb2.HomogeneousChain(columns=["x"] * n)),
    ),
    "cliques": ("cliques", _cliques),
    "frequencies": ("frequencies", _sketch),
    "pilot": ("frequencies", _pilot),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_may_ask_for_as_much_as_is_allowed_and_no_more(what: str) -> None:
    """The refusal names field, limit and number."""
    name, request = REQUESTS[what]
    limits = RequestLimits.model_validate({name: 7})
    check_request(limits, request(7))
    with pytest.raises(InvalidFieldsError, match="at most 7 on this server, got 8"):
        check_request(limits, request(8))


def _plan(columns: int = 2, events: int = 4, iterations: int = 0, rounds: int | None = None) -> Plan:
    counted: Any = (None,) * events
    parameters = {"iterations": iterations, "rounds": rounds}
    return Plan(columns=("x",) * columns, events=counted, iterations=iterations, noise=(), parameters=parameters)


def test_what_the_server_would_choose_is_limited_too() -> None:
    """All columns of a wide table, iterations where the request left them open, and pairs chosen in rounds."""
    limits = RequestLimits(columns=3, iterations=5, cliques=7)
    check_plan(limits, fit_pb2.FitDPEMRequest(), _plan(columns=3, iterations=5), None)
    check_plan(limits, fit_pb2.FitMRFRequest(), _plan(rounds=7), None)
    with pytest.raises(InvalidFieldsError, match="would choose 8"):
        check_plan(limits, fit_pb2.FitMRFRequest(), _plan(rounds=8), None)
    with pytest.raises(InvalidFieldsError, match="columns"):
        check_plan(limits, fit_pb2.FitDPEMRequest(), _plan(columns=4), None)
    with pytest.raises(InvalidFieldsError, match="iterations"):
        check_plan(limits, fit_pb2.FitDPEMRequest(), _plan(iterations=6), None)


def test_time_is_reckoned_from_public_numbers_before_the_debit() -> None:
    """Rows x columns^2 x components x passes, at so many additions a second: at the limit, and just above."""
    request = fit_pb2.FitDPEMRequest(n_components=5)
    plan = _plan(columns=2, events=4)
    assert work(request, plan, 1000) == 1000 * 4 * 5 * 4
    assert work(_sketch(7), plan, 1000) == 1000 * 2 * 7 * 4
    check_plan(RequestLimits(fit_seconds=80.0, work_per_second=1e3), request, plan, 1000)
    with pytest.raises(InvalidFieldsError, match="reckoned to take 80"):
        check_plan(RequestLimits(fit_seconds=79.9, work_per_second=1e3), request, plan, 1000)
    # Where the number of rows is private, nothing can be reckoned, and nothing may be guessed from the rows.
    check_plan(RequestLimits(fit_seconds=1e-9, work_per_second=1e3), request, plan, None)


def test_a_fit_above_a_limit_debits_nothing_and_its_preview_says_so(
    serve: Serve, refused: Refused, fit_request: Callable[..., Any]
) -> None:
    """And one at the limit is fitted."""
    served = serve(limits={"components": 3})
    fits: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    previews: Any = served.channel.unary_unary("/bursar.v1.FitService/Preview")
    body = fit_request(n_components=4)
    refusal = refused(lambda: list(fits(body.SerializeToString(), metadata=served.bearer())))
    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("n_components",))
    shown = fit_pb2.PreviewRequest(dpem=body).SerializeToString()
    assert refused(partial(previews, shown, metadata=served.bearer())).fields == ("n_components",)
    assert served.entries("debit") == 0
    assert list(fits(fit_request(n_components=3).SerializeToString(), metadata=served.bearer()))
    assert served.entries("debit") == 1


def test_what_is_left_and_what_is_free_are_limited_too(
    serve: Serve, refused: Refused, fit_request: Callable[..., Any]
) -> None:
    """Spending everything is no way around, nor is asking for something that costs nothing."""
    served = serve(limits={"components": 3})
    fits: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    rest = fit_request(n_components=4, spend=types_pb2.Spend(remaining=types_pb2.WhatIsLeft()))
    assert refused(lambda: list(fits(rest.SerializeToString(), metadata=served.bearer()))).fields == ("n_components",)
    paid = list(fits(fit_request(n_components=2).SerializeToString(), metadata=served.bearer()))
    entry = fit_pb2.FitDPEMResponse.FromString(paid[0]).receipt.entry
    free = fit_pb2.FitDPEMRequest(
        request_id="free", dataset="people", n_components=4, released=fit_pb2.StartReleased(entry=entry)
    )
    assert refused(lambda: list(fits(free.SerializeToString(), metadata=served.bearer()))).fields == ("n_components",)
    assert served.entries("debit") == 1


def test_a_limit_that_was_lowered_takes_nothing_away_that_was_paid_for(
    serve: Serve, fit_request: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a stored release, nor a fit that was interrupted: it runs under its debit."""
    first = serve()
    stored, cut = fit_request(n_components=50), fit_request(n_components=60, request_id="cut")
    fits: Any = first.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    before = list(fits(stored.SerializeToString(), metadata=first.bearer()))
    monkeypatch.setattr(type(first.ledger), "store_release", _fails)
    with pytest.raises(grpc.RpcError):
        list(fits(cut.SerializeToString(), metadata=first.bearer()))
    monkeypatch.undo()
    second = serve(limits={"components": 2})
    fits = second.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    assert list(fits(stored.SerializeToString(), metadata=second.bearer()))[-1] == before[-1]
    again = list(fits(cut.SerializeToString(), metadata=second.bearer()))
    assert fit_pb2.FitDPEMResponse.FromString(again[-1]).HasField("model")
    assert second.entries("debit") == 2


def _fails(*_: object) -> None:
    raise OSError


def test_pages_and_lists_of_entries_have_so_many_rows(serve: Serve, refused: Refused) -> None:
    """A page is cut, and says that there is more; a list that would be longer is refused, and its parts are not."""
    assert [page(RequestLimits(page_rows=5), asked, 1000) for asked in (0, 4, 5, 6)] == [5, 4, 5, 5]
    assert page(RequestLimits(page_rows=500), 0, 100) == 100
    served = serve(limits={"entry_rows": 3})
    there = served.entries()
    assert there > 3
    call: Any = served.channel.unary_stream("/bursar.v1.AuditService/ListEntries")

    def listed(first: int, limit: int) -> int:
        body = audit_pb2.ListEntriesRequest(first=first, limit=limit).SerializeToString()
        return len(list(call(body, metadata=served.bearer(Role.AUDITOR))))

    assert listed(1, 3) == 3
    assert listed(there - 2, 0) == 3
    for first, limit in ((1, 0), (1, 4), (there - 3, 0)):
        assert refused(partial(listed, first, limit)).fields == ("limit",)
    check_entries(RequestLimits(entry_rows=3), 2**32 - 1, 3)


def test_messages_have_their_largest_size(serve: Serve) -> None:
    """A message of exactly the size that is set passes, one byte more does not; nothing is debited by it."""
    served = serve(max_request_bytes=4096)
    call: Any = served.channel.unary_unary("/bursar.v1.CatalogService/GetDataset")

    def code(size: int) -> Any:
        name = "x" * (
            size - len(catalog_pb2.GetDatasetRequest(dataset="x" * (size - 10)).SerializeToString()) + size - 10
        )
        body = catalog_pb2.GetDatasetRequest(dataset=name).SerializeToString()
        assert len(body) == size
        with pytest.raises(grpc.RpcError) as caught:
            call(body, metadata=served.bearer())
        error: Any = caught.value
        return error.code()

    assert code(4096) is grpc.StatusCode.NOT_FOUND
    assert code(4097) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_defaults_are_what_the_fits_can_do() -> None:
    """So that a server whose owner set nothing refuses nothing that the fits take."""
    limits = RequestLimits()
    assert limits.components == max(
        dpem.MAX_COMPONENTS, gradient_em.MAX_COMPONENTS, separated_gmm.MAX_COMPONENTS, sketch.MAX_CLUSTERS
    )
    assert limits.iterations == max(dpem.MAX_ITERATIONS, gradient_em.MAX_ITERATIONS)
    assert limits.columns == separated_gmm.MAX_COLUMNS
    assert limits.cliques == mrf.MOST_CLIQUES
    assert limits.frequencies == MAX_FREQUENCIES


@pytest.mark.parametrize(
    "path",
    [path for path, default in settings() if isinstance(default, (int, float)) and not isinstance(default, bool)],
)
def test_every_number_has_ends_of_its_own(path: tuple[str, ...], tmp_path: Path) -> None:
    """Zero or less, NaN and what no machine has are refused by name; so no limit can be switched off by accident."""
    for value in ("-1", "nan", "1e300"):
        header = f"[{path[0]}]\n" if len(path) == 2 else ""
        (tmp_path / "config.toml").write_text(f"{header}{path[-1]} = {value}\n")
        with pytest.raises(ConfigError, match=path[-1]):
            Config.load(tmp_path / "config.toml")
