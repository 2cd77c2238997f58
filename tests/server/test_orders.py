"""Orders apart from the wire: what cannot be tried through a fit of the other tests."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from bursar_ledger import Budget, Cost, GaussianEvent, Remainder, SpendingLimits
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import InvalidFieldsError, Plan, sketch
from bursar_server.jobs.limits import check_real
from bursar_server.jobs.order import Orders, Quote, _request_hash

if TYPE_CHECKING:
    from bursar_server.tables.catalogue import Datasets

UNKNOWN = b"\xf8\x3f\x01"
"""A field of number 1023."""


def test_a_field_that_nobody_knows_is_found_wherever_it_is() -> None:
    """Also in the second of several sketches from elsewhere: what a newer client meant by it is not guessed."""
    nowhere: Datasets = None  # type: ignore[assignment]  # refused before there is a look at datasets
    orders = Orders(fits={"FitSketchKMeans": sketch}, datasets=nowhere, ledger=None)  # type: ignore[arg-type]  # likewise
    sums = types_pb2.Tensor.FromString(UNKNOWN)
    request = fit_pb2.FitSketchKMeansRequest(foreign=[fit_pb2.Sketch(), fit_pb2.Sketch(sums=sums)])
    with pytest.raises(InvalidFieldsError, match=r"does not know: foreign\.sums\.1023"):
        orders.order("FitSketchKMeans", "alice", request)


def test_a_made_up_sketch_is_found_wherever_it_is() -> None:
    """Also behind one that was released: each is named, and none goes into what is paid for or kept."""
    sketches = [fit_pb2.Sketch(), fit_pb2.Sketch(dummy=True), fit_pb2.Sketch(), fit_pb2.Sketch(dummy=True)]
    with pytest.raises(InvalidFieldsError) as caught:
        check_real(fit_pb2.FitSketchKMeansRequest(foreign=sketches))
    assert [field for field, _ in caught.value.violations] == ["foreign[1]", "foreign[3]"]


def test_who_decodes_is_no_part_of_what_is_the_same() -> None:
    """A request that is repeated from elsewhere gets what was released, not a second debit; other fields are a part."""
    asked = fit_pb2.FitSketchKMeansRequest(dataset="people", n_clusters=3, n_init=2)
    same = fit_pb2.FitSketchKMeansRequest(dataset="people", n_clusters=3, n_init=2, decode_on_client=True)
    other = fit_pb2.FitSketchKMeansRequest(dataset="people", n_clusters=3, n_init=1, decode_on_client=True)
    one, two, three = (_request_hash("FitSketchKMeans", "alice", request) for request in (asked, same, other))
    assert one == two != three
    one, two, three = (
        _request_hash("FitMRF", "alice", fit_pb2.FitMRFRequest(dataset="people", **fields))
        for fields in ({}, {"estimate_on_client": True}, {"estimate_on_client": True, "regularization": 1.0})
    )
    assert one == two != three


def test_method_principal_and_request_do_not_run_together() -> None:
    """Principal and method are each a part of what makes two requests the same."""
    asked = fit_pb2.FitSketchKMeansRequest(dataset="people")
    hashes = {_request_hash(*who, asked) for who in (("Fit", "MRFann"), ("FitMRF", "ann"), ("FitMRFann", ""))}
    assert len(hashes) == 3
    assert _request_hash("FitMRF", "ann", asked) != _request_hash("FitMRF", "bob", asked)


@pytest.mark.parametrize(("cost", "delta", "expected"), [(10, 0, 10), (10, 3, 4), (10, 13, 0), (25, 1, 4), (25, 6, 2)])
def test_delta_counts_in_how_many_fits_are_left(cost: int, delta: int, expected: int) -> None:
    """Units of cost or of delta run out first; there are 100 of the one and 12 of the other."""
    left = Remainder(100, 12, 200, 24, Fraction(9))
    plan = Plan(columns=(), events=(GaussianEvent(1, Fraction(1)),), iterations=1, noise=(), parameters={})
    assert (
        Quote(plan, Cost(cost, delta, Fraction(9)), SpendingLimits(left, None, None), Budget(3.0, 1e-6)).times
        == expected
    )
