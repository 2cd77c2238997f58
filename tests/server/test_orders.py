"""Orders apart from the wire: what cannot be tried through a fit of the other tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bursar_proto.v1 import catalog_pb2, fit_pb2, types_pb2
from bursar_server.fits import InvalidRequestError, sketch
from bursar_server.orders import RESPONSES, Orders, _request_hash
from bursar_server.process import FITS
from bursar_server.requests import METHODS
from bursar_server.services import catalog

if TYPE_CHECKING:
    from bursar_server.datasets import Datasets

UNKNOWN = b"\xf8\x3f\x01"
"""A field of number 1023."""


def test_a_field_that_nobody_knows_is_found_wherever_it_is() -> None:
    """Also in the second of several sketches from elsewhere: what a newer client meant by it is not guessed."""
    nowhere: Datasets = None  # type: ignore[assignment]  # refused before there is a look at datasets
    orders = Orders(fits={"FitSketchKMeans": sketch}, datasets=nowhere, ledger=None)  # type: ignore[arg-type]  # likewise
    sums = types_pb2.Tensor.FromString(UNKNOWN)
    request = fit_pb2.FitSketchKMeansRequest(foreign=[fit_pb2.Sketch(), fit_pb2.Sketch(sums=sums)])
    with pytest.raises(InvalidRequestError, match=r"does not know: foreign\.sums\.1023"):
        orders.order("FitSketchKMeans", "alice", request)


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


def test_every_fit_of_the_contract_is_there_and_can_be_previewed() -> None:
    """Registered, with an answer, with a field of the preview's request, and with a method for callers."""
    methods = {method.name for method in fit_pb2.DESCRIPTOR.services_by_name["FitService"].methods} - {"Preview"}
    assert set(FITS) == set(RESPONSES) == methods
    oneof = fit_pb2.PreviewRequest.DESCRIPTOR.oneofs_by_name["fit"]
    requests = {field.name: field.message_type for field in oneof.fields}
    previewed = {name: request.name.removesuffix("Request") for name, request in requests.items() if request}
    assert previewed == METHODS
    assert set(previewed.values()) == methods


def test_every_fit_of_the_contract_can_be_fetched_again() -> None:
    """The answer of `GetRelease` has a field for each, of the message that the fit itself answers with."""
    oneof = catalog_pb2.GetReleaseResponse.DESCRIPTOR.oneofs_by_name["model"]
    fetched = {field.name: field.message_type for field in oneof.fields}
    released = {
        catalog._FIELDS[method]: response.DESCRIPTOR.fields_by_name["model"].message_type
        for method, response in RESPONSES.items()
    }
    assert fetched == released
