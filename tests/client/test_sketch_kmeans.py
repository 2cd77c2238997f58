"""Sketches through the client: what is sent, what comes back and from whom, what is free, and what files hold."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2

import bursar
from bursar import _convert
from bursar.models import Frequencies, Signature, predicted_snr
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import catalog_pb2, fit_pb2, types_pb2

ASK: dict[str, Any] = {"n_clusters": 2, "spend": bursar.rho(0.1)}
EVERY: dict[str, Any] = {
    "columns": ["weight"],
    "n_frequencies": 40,
    "frequencies_per_row": 30,
    "law": "gaussian",
    "structure": "hadamard",
    "signature": "one_bit",
    "units": "bounds",
    "scale": 0.25,
    "public_seed": 2**64 - 1,
}


def same(one: bursar.Sketch, other: bursar.Sketch) -> bool:
    """Whether two sketches have the same numbers and names, whatever their receipts."""
    return _convert.sketch_to(one, entry=0) == _convert.sketch_to(other, entry=0)


def of_other_site(sketch: bursar.Sketch, **changes: Any) -> bursar.Sketch:
    """The same numbers, as another site might send them in a file."""
    names = ["columns", "centre", "unit", "lower", "upper", "frequencies", "signature", "frequencies_per_row", "sums"]
    names += ["noise_std", "n_rows", "n_rows_std"]
    return bursar.Sketch(**{**{name: getattr(sketch, name) for name in names}, **changes})


def without_receipts(model: bursar.KMeans | bursar.GaussianMixture) -> dict[str, Any]:
    """All that a model and its sketch say, but their receipts."""
    said = model.to_dict()
    return {**said, "receipt": None, "sketch": {**said["sketch"], "receipt": None}}


def test_a_fit_returns_clusters_with_their_sketch_and_receipt(toy: bursar.Dataset) -> None:
    """Centres and weights in the columns' order, what it cost, and the sketch for other decodings."""
    model = toy.fit_sketch_kmeans(**ASK, columns=["weight", "height"])
    assert model.columns == ("weight", "height")
    # Rows are even over a square of sides 120, of which the centres have a half each.
    assert np.linalg.norm(np.diff(model.cluster_centers_, axis=0)) == pytest.approx(60, abs=10)
    np.testing.assert_allclose(model.weights_, 0.5, atol=0.02)
    np.testing.assert_array_equal(model.predict(model.cluster_centers_ + 1), [0, 1])
    receipt, sketch = model.receipt, model.sketch
    assert receipt is not None
    assert sketch is not None
    assert (receipt.entry, receipt.free, receipt.replayed, receipt.price.rho) == (2, False, False, 0.1)
    assert uuid.UUID(receipt.request_id)
    assert sketch.receipt == receipt
    assert (sketch.columns, sketch.n_rows) == (("weight", "height"), 1000.0)


def test_a_mixture_may_be_decoded_instead(server: FakeServer, toy: bursar.Dataset) -> None:
    """The decoding decides the type of the result; covariances are diagonal."""
    model = toy.fit_sketch_kmeans(**ASK, decoding="mixture")
    assert isinstance(model, bursar.GaussianMixture)
    assert (model.covariance_type, model.covariances_.shape) == ("diag", (2, 2))
    assert model.sketch is not None
    assert server.sketch_requests[0].decoding == fit_pb2.DECODING_MIXTURE


def test_what_is_left_out_is_left_to_the_server(server: FakeServer, toy: bursar.Dataset) -> None:
    """Defaults: all numeric columns, a pilot for the scale, the server's m, every row at all frequencies."""
    toy.fit_sketch_kmeans(**ASK, request_id="one")
    (sent,) = server.sketch_requests
    assert sent == fit_pb2.FitSketchKMeansRequest(
        request_id="one",
        dataset="toy",
        columns=["height", "weight"],
        spend=types_pb2.Spend(rho=0.1),
        n_clusters=2,
        decoding=fit_pb2.DECODING_KMEANS,
        decode_on_client=True,
        new_sketch=fit_pb2.NewSketch(
            law=fit_pb2.FREQUENCY_LAW_ADAPTED_RADIUS,
            structure=fit_pb2.FREQUENCY_STRUCTURE_DENSE,
            signature=fit_pb2.SIGNATURE_EXPONENTIAL,
            units=fit_pb2.COLUMN_UNITS_COMMON,
            public_seed=sent.new_sketch.public_seed,
            pilot=fit_pb2.PilotSketch(),
        ),
    )


def check_every(sent: fit_pb2.FitSketchKMeansRequest) -> None:
    """What EVERY says is in a request."""
    assert list(sent.columns) == ["weight"]
    assert sent.new_sketch == fit_pb2.NewSketch(
        n_frequencies=40,
        frequencies_per_row=30,
        law=fit_pb2.FREQUENCY_LAW_GAUSSIAN,
        structure=fit_pb2.FREQUENCY_STRUCTURE_HADAMARD,
        signature=fit_pb2.SIGNATURE_ONE_BIT,
        units=fit_pb2.COLUMN_UNITS_BOUNDS,
        public_seed=2**64 - 1,
        sigma=0.25,
    )


def test_every_argument_is_sent(server: FakeServer, toy: bursar.Dataset) -> None:
    """What the caller sets arrives as it was set, and the sketch is what was asked for."""
    model = toy.fit_sketch_kmeans(**EVERY, n_clusters=3, spend=bursar.pure(0.5), n_init=7, decoder_seed=11)
    (sent,) = server.sketch_requests
    check_every(sent)
    assert (sent.spend.epsilon, sent.n_clusters, sent.n_init, sent.public_seed) == (0.5, 3, 7, 11)
    sketch = model.sketch
    assert sketch is not None
    assert sketch.frequencies == Frequencies(40, 1, 2**64 - 1, 0.25, "gaussian", "hadamard")
    assert (sketch.signature, sketch.frequencies_per_row, sketch.unit[0]) == ("one_bit", 30, 60.0)


def test_a_sketch_and_a_preview_send_the_same(server: FakeServer, toy: bursar.Dataset) -> None:
    """All three ask for one and the same sketch; a preview of a sketch alone asks for no clusters."""
    asked: list[fit_pb2.FitSketchKMeansRequest] = []

    class Asked(FakeServer):
        def Preview(self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext) -> fit_pb2.PreviewResponse:
            asked.append(request.sketch_kmeans)
            return super().Preview(request, context)

    toy.sketch(**EVERY, spend=bursar.rho(0.1), n_clusters=5)
    check_every(server.sketch_requests[0])
    assert (server.sketch_requests[0].n_clusters, server.sketch_requests[0].n_init) == (5, 1)
    with fake_server(Asked) as other, other.client() as client:
        client.dataset("toy").preview_sketch(**EVERY, spend=bursar.rho(0.1), n_clusters=5)
        client.dataset("toy").preview_sketch(**EVERY, spend=bursar.rho(0.1))
    for sent in asked:
        check_every(sent)
        assert sent.request_id
    assert [sent.n_clusters for sent in asked] == [5, 0]


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("pilot", fit_pb2.NewSketch(pilot=fit_pb2.PilotSketch())),
        (bursar.Pilot(), fit_pb2.NewSketch(pilot=fit_pb2.PilotSketch())),
        (bursar.Pilot(0.2, 128), fit_pb2.NewSketch(pilot=fit_pb2.PilotSketch(share=0.2, n_frequencies=128))),
        ("schema", fit_pb2.NewSketch(schema=fit_pb2.ScaleFromSchema())),
        (np.float64(0.5), fit_pb2.NewSketch(sigma=0.5)),
    ],
)
def test_every_kind_of_scale_is_sent(
    server: FakeServer, toy: bursar.Dataset, scale: Any, expected: fit_pb2.NewSketch
) -> None:
    """A pilot with its settings, the schema, or a number; which of them a sketch says, too."""
    sketch = toy.sketch(spend=bursar.rho(0.1), scale=scale)
    sent = server.sketch_requests[0].new_sketch
    assert sent.WhichOneof("scale") == expected.WhichOneof("scale")
    assert (sent.pilot, sent.sigma) == (expected.pilot, expected.sigma)
    assert (sketch.pilot_sigma is not None) == (expected.WhichOneof("scale") == "pilot")


def test_a_seed_differs_between_requests_and_not_between_repetitions(server: FakeServer, toy: bursar.Dataset) -> None:
    """It follows from the request_id, so that asking again is the same request; a given one is sent."""
    for request_id in ("a", "a", "b", None, None):
        toy.sketch(spend=bursar.rho(0.1), request_id=request_id)
    assert server.sketch_requests[0] == server.sketch_requests[1]
    assert len({request.new_sketch.public_seed for request in server.sketch_requests}) == 4
    toy.sketch(spend=bursar.rho(0.1), public_seed=0)
    assert server.sketch_requests[-1].new_sketch.public_seed == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": 2.5}, "n_clusters"),
        ({"spend": 0.1}, "spend"),
        ({"columns": "height"}, "columns"),
        ({"n_frequencies": 0}, "new_sketch.n_frequencies"),
        ({"n_frequencies": 2**14 + 1}, "new_sketch.n_frequencies"),
        ({"frequencies_per_row": 0}, "new_sketch.frequencies_per_row"),
        ({"n_frequencies": 10, "frequencies_per_row": 11}, "new_sketch.frequencies_per_row"),
        ({"law": "cauchy"}, "new_sketch.law"),
        ({"structure": "sparse"}, "new_sketch.structure"),
        ({"signature": "two_bits"}, "new_sketch.signature"),
        ({"units": "metres"}, "new_sketch.units"),
        ({"public_seed": 2**64}, "new_sketch.public_seed"),
        ({"scale": "data"}, "new_sketch.scale"),
        ({"scale": None}, "new_sketch.scale"),
        ({"scale": float("nan")}, "new_sketch.sigma"),
        ({"scale": 1e-5}, "new_sketch.sigma"),
    ],
)
def test_what_no_server_would_accept_is_not_sent(
    server: FakeServer, toy: bursar.Dataset, change: dict[str, Any], field: str
) -> None:
    """The error names the argument, for a fit, a sketch and a preview."""
    for ask in (toy.fit_sketch_kmeans, toy.sketch, toy.preview_sketch):
        with pytest.raises(bursar.InvalidRequestError) as caught:
            ask(**{**ASK, **change})
        assert caught.value.violations[0][0] == field
    assert server.sketch_requests == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_init": 0}, "n_init"),
        ({"decoder_seed": -1}, "decoder_seed"),
        ({"decoding": "median"}, "decoding"),
        ({"decoded_by": "nobody"}, "decoded_by"),
        ({"spend": None}, "spend"),
        ({"sketch": 2}, "spend"),
        ({"spend": None, "sketch": 0}, "entry"),
        ({"spend": None, "sketch": "mine"}, "entry"),
        ({"foreign": ["mine"]}, "foreign"),
        ({"foreign": 3}, "foreign"),
    ],
)
def test_what_cannot_be_decoded_is_not_sent(
    server: FakeServer, toy: bursar.Dataset, change: dict[str, Any], field: str
) -> None:
    """Exactly one source, of the right type; the error says what to give."""
    with pytest.raises(bursar.InvalidRequestError) as caught:
        toy.fit_sketch_kmeans(**{**ASK, **change})
    assert caught.value.violations[0][0] == field
    assert server.sketch_requests == []


@pytest.mark.parametrize("name", EVERY)
def test_a_new_sketchs_argument_for_an_earlier_one_is_an_error(toy: bursar.Dataset, name: str) -> None:
    """Instead of being ignored, which would look as if it had been obeyed."""
    paid = toy.sketch(spend=bursar.rho(0.1))
    with pytest.raises(bursar.InvalidRequestError, match=f"{name}: is for a new sketch"):
        toy.fit_sketch_kmeans(n_clusters=2, sketch=paid, **{name: EVERY[name]})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: bursar.Pilot(share=0.04), "new_sketch.pilot.share"),
        (lambda: bursar.Pilot(share=float("nan")), "new_sketch.pilot.share"),
        (lambda: bursar.Pilot(n_frequencies=15), "new_sketch.pilot.n_frequencies"),
        (lambda: bursar.Pilot(n_frequencies=513), "new_sketch.pilot.n_frequencies"),
    ],
)
def test_a_pilot_checks_itself(make: Any, field: str) -> None:
    """One that cannot be is refused where it is made."""
    with pytest.raises(bursar.InvalidRequestError) as caught:
        make()
    assert caught.value.violations[0][0] == field


def test_an_earlier_sketch_is_decoded_for_nothing(server: FakeServer, toy: bursar.Dataset) -> None:
    """Named by itself, its receipt or its entry; the receipt says that it was free, and of which debit."""
    paid = toy.sketch(spend=bursar.rho(0.1))
    assert paid.receipt is not None
    for source in (paid, paid.receipt, paid.receipt.entry):
        model = toy.fit_sketch_kmeans(n_clusters=3, sketch=source, n_init=1)
        assert model.n_clusters == 3
        assert model.sketch is not None
        assert same(model.sketch, paid)
        receipt = model.receipt
        assert receipt is not None
        assert (receipt.free, receipt.entry, receipt.price.cost_units) == (True, 2, 0)
        assert receipt.ledger_head == paid.receipt.ledger_head
        assert "entry 2 of 'toy', decoded for nothing" in repr(model)
    assert len(toy.releases()) == 1
    with pytest.raises(bursar.InvalidRequestError, match="an earlier sketch of yours"):
        toy.fit_sketch_kmeans(n_clusters=3, sketch=77)


def test_a_sketch_at_hand_is_decoded_without_a_call(server: FakeServer, toy: bursar.Dataset) -> None:
    """What is named by its receipt or entry is fetched, and nothing is decoded there; the three models are one."""
    paid = toy.sketch(spend=bursar.rho(0.1))
    assert paid.receipt is not None
    calls, asked = len(server.metadata), len(server.sketch_requests)
    here = toy.fit_sketch_kmeans(n_clusters=2, sketch=paid, n_init=1, request_id="mine")
    assert (len(server.metadata), len(server.sketch_requests)) == (calls, asked)
    assert here.receipt is not None
    assert (here.receipt.request_id, here.receipt.remaining) == ("mine", paid.receipt.remaining)
    for source in (paid.receipt, paid.receipt.entry):
        fetched = toy.fit_sketch_kmeans(n_clusters=2, sketch=source, n_init=1)
        sent = server.sketch_requests[-1]
        assert (sent.entry, sent.n_clusters, sent.HasField("spend"), sent.request_id) == (2, 0, False, "")
        np.testing.assert_array_equal(fetched.cluster_centers_, here.cluster_centers_)
    np.testing.assert_array_equal(paid.kmeans(2, n_init=1).cluster_centers_, here.cluster_centers_)


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        ({"n_clusters": 65}, "n_clusters"),
        ({"n_clusters": 64, "n_init": 2000}, "n_init"),
        ({"n_clusters": 2000}, "n_clusters"),
    ],
)
def test_a_free_decoding_has_the_limits_of_a_server(toy: bursar.Dataset, ask: dict[str, Any], field: str) -> None:
    """It ends in a minute or two: the error says how to do without the limit."""
    paid = toy.sketch(spend=bursar.rho(0.1), n_frequencies=64 if ask["n_clusters"] < 100 else 2**13)
    with pytest.raises(bursar.InvalidRequestError) as caught:
        toy.fit_sketch_kmeans(sketch=paid, **ask)
    assert caught.value.violations[0][0] == field


def test_the_server_decodes_if_it_is_asked_to(server: FakeServer, toy: bursar.Dataset) -> None:
    """A new sketch, an earlier one and foreign ones; what comes is what it decoded."""
    own = toy.sketch(spend=bursar.rho(0.1), public_seed=5, scale=0.3)
    sources: tuple[dict[str, Any], ...] = (
        ASK,
        {"n_clusters": 2, "sketch": own},
        {"n_clusters": 2, "foreign": [of_other_site(own)]},
    )
    for source in sources:
        model = toy.fit_sketch_kmeans(**source, decoded_by="server")
        assert not server.sketch_requests[-1].decode_on_client
        np.testing.assert_allclose(model.cluster_centers_, [[130.0, 60.0], [190.0, 120.0]])
        assert model.receipt is not None
        assert (model.sketch is None) == ("foreign" in source)


def test_a_request_that_is_repeated_gives_the_same_model(server: FakeServer, toy: bursar.Dataset) -> None:
    """Whoever decoded the first time: the sketch is stored, and the settings come with the request again."""
    for decoding, method in (("kmeans", "kmeans"), ("mixture", "gaussian_mixture")):
        ask: dict[str, Any] = {**ASK, "decoding": decoding, "request_id": method, "n_init": 1, "decoder_seed": 3}
        one, two = (toy.fit_sketch_kmeans(**ask) for _ in range(2))
        assert without_receipts(one) == without_receipts(two)
        assert two.receipt is not None
        assert two.receipt.replayed
        stored = toy.model(two.receipt)
        assert isinstance(stored, bursar.Sketch)
        again = getattr(stored, method)(2, n_init=1, public_seed=3)
        np.testing.assert_array_equal(again.weights_, one.weights_)
    assert len(toy.releases()) == 2


class Older(FakeServer):
    """Knows no `decode_on_client`, refuses what it does not know, and decodes."""

    def FitSketchKMeans(
        self, request: fit_pb2.FitSketchKMeansRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSketchKMeansResponse]:
        """The base's, after the check."""
        if request.decode_on_client:
            text = "has fields that this version does not know: 12"
            wrong = error_details_pb2.BadRequest.FieldViolation(field="request", description=text)
            self.fail_next(
                grpc.StatusCode.INVALID_ARGUMENT, text, [error_details_pb2.BadRequest(field_violations=[wrong])]
            )
        yield from super().FitSketchKMeans(request, context)


def test_a_server_of_an_older_version_decodes_itself() -> None:
    """It is asked as it was before; another refusal is one."""
    with fake_server(Older) as server, server.client() as client:
        toy = client.dataset("toy")
        model = toy.fit_sketch_kmeans(**ASK)
        np.testing.assert_allclose(model.cluster_centers_, [[130.0, 60.0], [190.0, 120.0]])
        assert len(toy.releases()) == 1
        server.fail_next(grpc.StatusCode.INVALID_ARGUMENT, "no")
        with pytest.raises(bursar.InvalidRequestError):
            toy.fit_sketch_kmeans(**ASK)


def test_an_earlier_sketch_can_be_had_again(server: FakeServer, toy: bursar.Dataset) -> None:
    """By its receipt or its entry, for nothing; nothing is decoded then, and the same numbers come."""
    paid = toy.sketch(spend=bursar.rho(0.1))
    assert paid.receipt is not None
    for entry in (paid.receipt, 2):
        again = toy.sketch(entry=entry)
        assert same(again, paid)
        assert again.receipt is not None
        assert again.receipt.free
        assert (server.sketch_requests[-1].n_clusters, server.sketch_requests[-1].entry) == (0, 2)
    with pytest.raises(bursar.InvalidRequestError, match="an earlier sketch of yours"):
        toy.sketch(entry=77)


def test_a_sketch_is_decoded_here(server: FakeServer, toy: bursar.Dataset) -> None:
    """Any k, k-means and mixtures, without another question to the server."""
    sketch = toy.sketch(spend=bursar.rho(0.1), n_clusters=2)
    calls = len(server.metadata)
    assert sketch.kmeans(1, n_init=1).n_clusters == 1
    assert sketch.gaussian_mixture(2, n_init=1).covariance_type == "diag"
    assert len(server.metadata) == calls


@pytest.mark.parametrize("signature", ["exponential", "one_bit"])
def test_the_fake_sketch_is_that_of_uniform_rows(toy: bursar.Dataset, signature: Signature) -> None:
    """So one cluster is in the middle of the bounds."""
    sketch = toy.sketch(spend=bursar.rho(0.1), signature=signature, frequencies_per_row=32, scale=0.5)
    np.testing.assert_allclose(sketch.moments().imag, 0, atol=1e-12)
    np.testing.assert_allclose(sketch.kmeans(1, n_init=1).cluster_centers_, [[160.0, 90.0]], atol=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"receipt": None}, "has no receipt; give its entry, or decode it here"),
        ({"receipt": "another"}, "of dataset 'people', not of 'toy'"),
        ({"receipt": "entryless"}, "free and names no entry"),
    ],
)
def test_a_sketch_that_was_not_paid_for_here_is_not_sent(
    toy: bursar.Dataset, change: dict[str, Any], message: str
) -> None:
    """The error says what else can be done with it."""
    sketch = toy.sketch(spend=bursar.rho(0.1))
    receipts = {
        None: None,
        "another": _convert.receipt_from(
            types_pb2.Receipt(dataset="people", entry=2, adjacency=types_pb2.ADJACENCY_REPLACE_ONE), replayed=False
        ),
        "entryless": _convert.receipt_from(
            types_pb2.Receipt(dataset="toy", adjacency=types_pb2.ADJACENCY_REPLACE_ONE, free=True), replayed=False
        ),
    }
    with pytest.raises(bursar.InvalidRequestError, match=message):
        toy.fit_sketch_kmeans(n_clusters=2, sketch=of_other_site(sketch, receipt=receipts[change["receipt"]]))


def test_foreign_sketches_are_merged_with_a_source(server: FakeServer, toy: bursar.Dataset) -> None:
    """With a new one or an earlier one; the model's sketch is the caller's own."""
    own = toy.sketch(spend=bursar.rho(0.1), public_seed=5, scale=0.3)
    site = of_other_site(own, n_rows=500.0)
    model = toy.fit_sketch_kmeans(n_clusters=2, sketch=own, foreign=[site, site])
    assert model.n_rows == 2000.0
    assert model.sketch is not None
    assert same(model.sketch, own)
    np.testing.assert_array_equal(model.cluster_centers_, own.merge(site, site).kmeans(2).cluster_centers_)
    model = toy.fit_sketch_kmeans(**ASK, public_seed=5, scale=0.3, foreign=(site,))
    sent = server.sketch_requests[-1]
    assert sent.WhichOneof("source") == "new_sketch"
    assert [(message.n_rows, message.entry) for message in sent.foreign] == [(500.0, 0)]
    assert model.n_rows == 1500.0


def test_foreign_sketches_alone_have_a_free_receipt_without_entry(server: FakeServer, toy: bursar.Dataset) -> None:
    """Nothing of this server's is in them, so the model has no sketch of its own, and says so."""
    site = of_other_site(toy.sketch(spend=bursar.rho(0.1)))
    asked = len(server.sketch_requests)
    model = toy.fit_sketch_kmeans(n_clusters=2, foreign=[site], request_id="mine")
    assert len(server.sketch_requests) == asked
    assert model.sketch is None
    receipt = model.receipt
    assert receipt is not None
    assert (receipt.free, receipt.entry, receipt.ledger_head, receipt.request_id) == (True, 0, "", "mine")
    assert receipt.remaining == toy.remaining()
    assert "from releases of other servers" in repr(model)
    elsewhere = of_other_site(site, columns=("height", "length"))
    with pytest.raises(bursar.InvalidRequestError, match="dataset 'toy' has other numeric columns: height, weight"):
        toy.fit_sketch_kmeans(n_clusters=2, foreign=[elsewhere])


def test_sketches_that_do_not_go_together_are_not_sent(server: FakeServer, toy: bursar.Dataset) -> None:
    """The error names what differs."""
    own = toy.sketch(spend=bursar.rho(0.1), public_seed=1)
    other = of_other_site(toy.sketch(spend=bursar.rho(0.1), public_seed=2))
    sources: tuple[dict[str, Any], ...] = ({"sketch": own}, {"foreign": [of_other_site(own), other]})
    for source in sources:
        with pytest.raises(bursar.InvalidRequestError, match="do not go together: frequencies") as caught:
            toy.fit_sketch_kmeans(**{"n_clusters": 2, "foreign": [other], **source})
        assert caught.value.violations[0][0] == "foreign"
    assert len(server.sketch_requests) == 2


@pytest.mark.parametrize("scale", ["pilot", bursar.Pilot()])
def test_a_pilot_cannot_find_the_scale_of_foreign_sketches(toy: bursar.Dataset, scale: Any) -> None:
    """So it is not paid for; the error says which number to give."""
    site = of_other_site(toy.sketch(spend=bursar.rho(0.1), scale=0.125))
    with pytest.raises(bursar.InvalidRequestError, match=r"scale=0\.125") as caught:
        toy.fit_sketch_kmeans(**ASK, scale=scale, foreign=[site])
    assert caught.value.violations[0][0] == "new_sketch.scale"


def test_progress_counts_pilot_sketch_and_decoding(toy: bursar.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps follow from the request: releases, and one for what is decoded."""
    toy.fit_sketch_kmeans(**ASK, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_a_broken_stream_is_asked_for_again(server: FakeServer, toy: bursar.Dataset) -> None:
    """With the same request_id and seed, so that it is paid for once; what is free is simply asked again."""
    server.break_next(2)
    sketch = toy.sketch(spend=bursar.rho(0.1))
    assert len(server.sketch_requests) == 3
    assert server.sketch_requests[0] == server.sketch_requests[2]
    assert sketch.receipt is not None
    assert (sketch.receipt.replayed, sketch.receipt.entry) == (True, 2)
    server.break_next()
    model = toy.fit_sketch_kmeans(n_clusters=2, sketch=sketch.receipt)
    assert model.receipt is not None
    assert (model.receipt.free, model.receipt.replayed, len(toy.releases())) == (True, False, 1)


def test_a_stream_that_keeps_breaking_can_be_resumed(server: FakeServer, toy: bursar.Dataset) -> None:
    """By the request_id that the error has, although the seed was left to the SDK; what is free has none."""
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError) as caught:
        toy.fit_sketch_kmeans(**ASK)
    toy.fit_sketch_kmeans(**ASK, request_id=caught.value.request_id)
    assert server.sketch_requests[-1] == server.sketch_requests[0]
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError) as caught:
        toy.fit_sketch_kmeans(n_clusters=2, sketch=2)
    assert caught.value.request_id is None


@pytest.fixture
def remembering(server: FakeServer, tmp_path: Path) -> Iterator[tuple[bursar.Dataset, Path]]:
    """A dataset through a client that keeps what it saw of the ledger in a file, and that file."""
    file = tmp_path / "history.json"
    with bursar.Client(grpc.insecure_channel(server.address), retry_delays=(), history=file) as client:
        yield client.dataset("toy"), file


def seen(file: Path) -> tuple[int, str]:
    """Size and head that a file has."""
    (record,) = json.loads(file.read_text())["servers"].values()
    return record["size"], record["head"]


def test_free_receipts_leave_the_history_as_it_was(remembering: tuple[bursar.Dataset, Path]) -> None:
    """One without an entry has no head, and one of an earlier entry has the head of then; neither is the newest."""
    toy, file = remembering
    own = toy.sketch(spend=bursar.rho(0.1))
    newest = toy.sketch(spend=bursar.rho(0.1))
    assert newest.receipt is not None
    before = seen(file)
    assert before == (3, newest.receipt.ledger_head)
    toy.fit_sketch_kmeans(n_clusters=1, foreign=[of_other_site(own)])
    assert seen(file) == before
    toy.fit_sketch_kmeans(n_clusters=1, sketch=own)
    assert seen(file) == before
    toy.remaining()


def test_a_rolled_back_ledger_is_noticed_by_what_is_free(
    server: FakeServer, remembering: tuple[bursar.Dataset, Path]
) -> None:
    """Nothing is sent to it, not even a question that costs nothing."""
    toy, _ = remembering
    own = toy.sketch(spend=bursar.rho(0.1))
    server.roll_back()
    with pytest.raises(bursar.HistoryError):
        toy.fit_sketch_kmeans(n_clusters=1, sketch=own.receipt)
    assert len(server.sketch_requests) == 1


class Lying(FakeServer):
    """Answers a sketch with the model that it is given, changed by a function."""

    change: Any = staticmethod(lambda model: None)

    def FitSketchKMeans(
        self, request: fit_pb2.FitSketchKMeansRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSketchKMeansResponse]:
        """The base's, changed."""
        for response in super().FitSketchKMeans(request, context):
            if response.HasField("model"):
                type(self).change(response.model)
            yield response


def set_sketch(**values: Any) -> Any:
    """Changes fields of the sketch, or of its frequencies."""

    def change(model: fit_pb2.SketchModel) -> None:
        for name, value in values.items():
            message = model.sketch if name in fit_pb2.Sketch.DESCRIPTOR.fields_by_name else model.sketch.frequencies
            setattr(message, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.ClearField("sketch"), "no sketch, nor what was to be decoded"),
        (set_sketch(digest=bytes(32)), "draws other frequencies for the public seed"),
        (set_sketch(digest=b""), "draws other frequencies for the public seed"),
        (set_sketch(m=63), "draws other frequencies for the public seed"),
        (set_sketch(d=2**31), r"no valid sketch: frequencies.d: expected 2"),
        (set_sketch(m=0), "no valid sketch: m: expected"),
        (set_sketch(law=0), "install a newer bursar"),
        (set_sketch(structure=9), "install a newer bursar"),
        (set_sketch(signature=0), "install a newer bursar"),
        (set_sketch(noise_std=-1.0), "no valid sketch: noise_std"),
        (lambda model: model.sketch.sums.values.pop(), "values for an array of shape"),
        (lambda model: model.sketch.unit.values.__setitem__(0, 0.0), "no valid sketch: unit"),
    ],
)
def test_a_sketch_that_is_none_is_the_servers_error(change: Any, message: str) -> None:
    """Frequencies that this client draws otherwise above all: everything decoded from them would be wrong."""
    Lying.change = staticmethod(change)
    with fake_server(Lying) as server, server.client() as client, pytest.raises(bursar.ServerError, match=message):
        client.dataset("toy").fit_sketch_kmeans(**ASK)


def test_a_missing_sketch_is_the_servers_error() -> None:
    """Of a request for nothing but the sketch."""
    Lying.change = staticmethod(lambda model: model.ClearField("sketch"))
    with fake_server(Lying) as server, server.client() as client, pytest.raises(bursar.ServerError, match="no sketch"):
        client.dataset("toy").sketch(spend=bursar.rho(0.1))


def test_sketches_are_listed_without_their_numbers(toy: bursar.Dataset) -> None:
    """In the order in which they were paid for, with all that is known of them; other fits are not among them."""
    assert toy.sketches() == []
    toy.fit_dpem(n_components=1, spend=bursar.rho(0.1))
    toy.sketch(**EVERY, spend=bursar.rho(0.1), request_id="mine")
    (summary,) = toy.sketches()
    assert summary == bursar.SketchSummary(
        entry=3,
        dataset="toy",
        request_id="mine",
        price=bursar.Price(2**40, 0, 0.1),
        time="",
        columns=("weight",),
        m=40,
        r=30,
        law="gaussian",
        structure="hadamard",
        signature="one_bit",
        sigma=0.25,
        noise_std=0.0,
        n_rows=1000.0,
    )
    assert toy.sketch(entry=summary.entry).m == 40
    assert [release.method for release in toy.releases()] == ["FitDPEM", "FitSketchKMeans"]


class Paging(FakeServer):
    """Looks through one debit a page."""

    def ListSketches(
        self, request: catalog_pb2.ListSketchesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListSketchesResponse:
        """As the base does, but shorter."""
        request.page_size = 1
        return super().ListSketches(request, context)


def test_sketches_are_read_page_by_page() -> None:
    """Pages may be empty and not the last; the caller sees one list in order."""
    with fake_server(Paging) as server, server.client() as client:
        toy = client.dataset("toy")
        for name in ("a", "b"):
            toy.sketch(spend=bursar.rho(0.1), request_id=name)
            toy.fit_dpem(n_components=1, spend=bursar.rho(0.1))
        toy.fit_dpem(n_components=1, spend=bursar.rho(0.1))
        toy.sketch(spend=bursar.rho(0.1), request_id="c")
        assert [(sketch.request_id, sketch.entry) for sketch in toy.sketches()] == [("a", 2), ("b", 4), ("c", 7)]


def test_a_preview_predicts_and_warns(server: FakeServer, toy: bursar.Dataset) -> None:
    """It debits nothing; a preview of another fit has no predictions."""
    preview = toy.preview_sketch(spend=bursar.rho(0.1), n_clusters=4)
    assert server.sketch_requests == []
    assert (preview.predicted_snr, preview.predicted_relative_sse) == (1000.0, 1.1)
    assert preview.warnings == ("this server has no rows",)
    first, *_, ratio, squares, warning = repr(preview).splitlines()
    assert first == "Preview: debits rho=0.1 of rho=0.9 left; affordable, 9 like it are left"
    assert ratio == "  predicted signal-to-noise ratio: 1e+03"
    assert squares == "  predicted sum of squares over Lloyd's: 1.1"
    assert warning == "  warning: this server has no rows"
    assert toy.preview_sketch(spend=bursar.rho(0.1)).predicted_relative_sse is None
    other = toy.preview_dpem(n_components=2, spend=bursar.rho(0.1))
    assert (other.predicted_snr, other.predicted_relative_sse, other.warnings) == (None, None, ())
    assert "predicted" not in repr(other)


def test_a_sketch_survives_a_file(toy: bursar.Dataset, tmp_path: Path) -> None:
    """Every bit of it but the receipt; the file is the wire's message, with the entry that paid."""
    sketch = toy.sketch(spend=bursar.rho(0.1), signature="one_bit", structure="hadamard", law="multiscale")
    sums = np.array([1 / 3, -1e-300, 1e300, 2.0**60 + 2**8] * 32).reshape(2, 64)
    awkward = of_other_site(
        sketch, sums=sums, noise_std=0.1, n_rows=-0.5, n_rows_std=np.nextafter(2, 3), receipt=sketch.receipt, sites=3
    )
    path = tmp_path / "sketch.json"
    bursar.save_sketch(awkward, path)
    loaded = bursar.load_sketch(str(path))
    assert loaded.receipt is None
    assert same(loaded, awkward)
    np.testing.assert_array_equal(loaded.sums, sums)
    np.testing.assert_array_equal(loaded.moments(), awkward.moments())
    message = json_format.Parse(path.read_text(), fit_pb2.Sketch())
    assert (message.entry, message.sites) == (2, 3)
    bursar.save_sketch(loaded, path)
    assert json_format.Parse(path.read_text(), fit_pb2.Sketch()).entry == 0
    assert "pilot_sigma" not in path.read_text()


def test_a_sketch_without_names_survives_a_file(toy: bursar.Dataset, tmp_path: Path) -> None:
    """Its frame says how many columns it has."""
    nameless = of_other_site(toy.sketch(spend=bursar.rho(0.1)), columns=())
    bursar.save_sketch(nameless, tmp_path / "sketch.json")
    assert same(bursar.load_sketch(tmp_path / "sketch.json"), nameless)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is no sketch that this version can read"),
        (b"\xff", "is no sketch that this version can read"),
        (b"{}", "is no sketch that this version can read"),
        (b'{"rows": [1, 2]}', "rows"),
    ],
)
def test_what_is_no_sketch_is_not_loaded(tmp_path: Path, text: bytes, message: str) -> None:
    """The error names the file."""
    path = tmp_path / "sketch.json"
    path.write_bytes(text)
    with pytest.raises(bursar.InvalidRequestError, match=message) as caught:
        bursar.load_sketch(path)
    assert str(path) in str(caught.value)


def test_a_file_whose_frequencies_are_drawn_otherwise_is_not_loaded(toy: bursar.Dataset, tmp_path: Path) -> None:
    """Rather than decoded at the wrong frequencies."""
    path = tmp_path / "sketch.json"
    bursar.save_sketch(toy.sketch(spend=bursar.rho(0.1), public_seed=1), path)
    path.write_text(path.read_text().replace('"public_seed": "1"', '"public_seed": "2"'))
    with pytest.raises(bursar.InvalidRequestError, match="draws other frequencies for the public seed 2"):
        bursar.load_sketch(path)


def test_a_sketch_says_how_good_it_is(toy: bursar.Dataset) -> None:
    """As the preview's prediction does, from its own numbers."""
    sketch = toy.sketch(spend=bursar.rho(0.1))
    assert sketch.snr() == predicted_snr(n_rows=1000, m=64, frequencies_per_row=64, noise_std=0.0)
