"""Orders apart from the wire: what cannot be tried through a fit of the other tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import InvalidRequestError, sketch
from bursar_server.orders import Orders

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
