"""Sketches through the client: what is sent, what comes back and from whom, what is free, and what files hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

import bursar
from bursar import _convert
from bursar_models import Frequencies, predicted_snr
from bursar_proto.v1 import catalog_pb2, fit_pb2, types_pb2
from tests import asking
from tests.client.line import Line, array

ASK: dict[str, Any] = {"n_clusters": 2, "spend": bursar.rho(0.1)}
EVERY: dict[str, Any] = {
    "columns": ["weight"],
    "n_frequencies": 40,
    "frequencies_per_row": 30,
    "law": "multiscale",
    "structure": "hadamard",
    "signature": "one_bit",
    "units": "bounds",
    "scale": 0.25,
    "public_seed": 2**64 - 1,
}


def same(one: bursar.Sketch, other: bursar.Sketch) -> bool:
    """Return whether two sketches have the same numbers and names, whatever their receipts."""
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
    model = asking.fit(toy, bursar.SketchKMeans, **{**ASK, "spend": bursar.rho(10)}, columns=["weight", "height"])
    assert model.columns == ("weight", "height")
    # Rows are even over a square of sides 120, of which the centres have a half each.
    assert np.linalg.norm(np.diff(model.cluster_centers_, axis=0)) == pytest.approx(60, abs=15)
    np.testing.assert_allclose(model.weights_, 0.5, atol=0.2)
    np.testing.assert_array_equal(model.predict(model.cluster_centers_ + 1), [0, 1])
    receipt, sketch = model.receipt, model.sketch
    assert receipt is not None
    assert sketch is not None
    assert (receipt.free, receipt.replayed, receipt.price.rho) == (False, False, pytest.approx(10))
    assert re.fullmatch("[0-9a-f]{16}-1", receipt.request_id)
    assert sketch.receipt == receipt
    assert (sketch.columns, sketch.n_rows) == (("weight", "height"), 1000.0)


def test_a_mixture_may_be_decoded_instead(server: Line, toy: bursar.Dataset) -> None:
    """The decoding decides the type of the result; covariances are diagonal."""
    model = asking.fit(toy, bursar.SketchKMeans, **ASK, decoding="mixture")
    assert isinstance(model, bursar.GaussianMixture)
    assert (model.covariance_type, model.covariances_.shape) == ("diag", (2, 2))
    assert model.sketch is not None
    assert server.sketch_requests[0].decoding == fit_pb2.DECODING_MIXTURE


def test_the_sketch_is_the_requested_one(toy: bursar.Dataset) -> None:
    """It says every argument that it was made with."""
    model = asking.fit(
        toy, bursar.SketchKMeans, **EVERY, n_clusters=3, spend=bursar.pure(0.5), n_init=7, decoder_seed=11
    )
    sketch = model.sketch
    assert sketch is not None
    assert sketch.frequencies == Frequencies(40, 1, 2**64 - 1, 0.25, "multiscale", "hadamard")
    assert (sketch.signature, sketch.frequencies_per_row, sketch.unit[0]) == ("one_bit", 30, 60.0)


@pytest.mark.parametrize("scale", ["pilot", bursar.Pilot(0.2, 128), "schema", np.float64(0.5)])
def test_a_sketch_says_whether_a_pilot_found_its_scale(toy: bursar.Dataset, scale: Any) -> None:
    """A pilot with its settings, the schema, or a number."""
    sketch = toy.fit(bursar.SketchKMeans(decoding="none", scale=scale), spend=bursar.rho(0.1))
    assert (sketch.pilot_sigma is not None) == (scale == "pilot" or isinstance(scale, bursar.Pilot))


def test_a_seed_differs_between_requests_and_not_between_repetitions(server: Line, toy: bursar.Dataset) -> None:
    """It follows from the request_id, so that asking again is the same request; a given one is sent."""
    for request_id in ("a", "a", "b", None, None):
        toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1), request_id=request_id)
    assert server.sketch_requests[0] == server.sketch_requests[1]
    assert len({request.new_sketch.public_seed for request in server.sketch_requests}) == 4
    toy.fit(bursar.SketchKMeans(decoding="none", public_seed=0), spend=bursar.rho(0.1))
    assert server.sketch_requests[-1].new_sketch.public_seed == 0


@pytest.mark.parametrize("name", EVERY)
def test_a_new_sketchs_argument_for_an_earlier_one_is_an_error(toy: bursar.Dataset, name: str) -> None:
    """Instead of being ignored, which would look as if it had been obeyed."""
    paid = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    with pytest.raises(bursar.InvalidRequestError, match=f"{name}: is for a new sketch"):
        asking.fit(toy, bursar.SketchKMeans, n_clusters=2, sketch=paid, **{name: EVERY[name]})


def test_an_earlier_sketch_is_decoded_for_nothing(server: Line, toy: bursar.Dataset) -> None:
    """Named by itself, its receipt or its entry; the receipt says that it was free, and of which debit."""
    paid = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    assert paid.receipt is not None
    for source in (paid, paid.receipt, paid.receipt.entry):
        model = toy.fit(bursar.SketchKMeans(n_clusters=3, sketch=source, n_init=1))
        assert model.n_clusters == 3
        assert model.sketch is not None
        assert same(model.sketch, paid)
        receipt = model.receipt
        assert receipt is not None
        assert (receipt.free, receipt.entry, receipt.price.cost_units) == (True, paid.receipt.entry, 0)
        assert receipt.ledger_head == paid.receipt.ledger_head
        assert f"entry {receipt.entry} of 'toy', decoded for free" in repr(model)
    assert len(toy.releases()) == 1
    with pytest.raises(
        bursar.InvalidRequestError, match="no sketch of yours of this dataset is stored under entry 1099511627776"
    ):
        toy.fit(bursar.SketchKMeans(n_clusters=3, sketch=2**40))


def test_a_sketch_at_hand_is_decoded_without_a_call(server: Line, toy: bursar.Dataset) -> None:
    """A receipt or an entry fetches the sketch, and nothing is decoded there; the three models are one."""
    paid = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    assert paid.receipt is not None
    calls, asked = len(server.metadata), len(server.sketch_requests)
    here = toy.fit(bursar.SketchKMeans(n_clusters=2, sketch=paid, n_init=1), request_id="mine")
    assert (len(server.metadata), len(server.sketch_requests)) == (calls, asked)
    assert here.receipt is not None
    assert (here.receipt.request_id, here.receipt.remaining) == ("mine", paid.receipt.remaining)
    for source in (paid.receipt, paid.receipt.entry):
        fetched = toy.fit(bursar.SketchKMeans(n_clusters=2, sketch=source, n_init=1))
        sent = server.sketch_requests[-1]
        assert (sent.entry, sent.n_clusters, sent.HasField("spend"), sent.request_id) == (
            paid.receipt.entry,
            0,
            False,
            "",
        )
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
    paid = toy.fit(
        bursar.SketchKMeans(decoding="none", n_frequencies=64 if ask["n_clusters"] < 100 else 2**13),
        spend=bursar.rho(0.1),
    )
    with pytest.raises(bursar.InvalidRequestError) as caught:
        asking.fit(toy, bursar.SketchKMeans, sketch=paid, **ask)
    assert caught.value.violations[0][0] == field


def test_the_server_decodes_if_it_is_asked_to(server: Line, toy: bursar.Dataset) -> None:
    """A new sketch, an earlier one and foreign ones; what comes is what it decoded."""
    own = toy.fit(bursar.SketchKMeans(decoding="none", public_seed=5, scale=0.3), spend=bursar.rho(0.1))
    sources: tuple[dict[str, Any], ...] = (
        ASK,
        {"n_clusters": 2, "sketch": own},
        {"n_clusters": 2, "foreign": [of_other_site(own)]},
    )
    for source in sources:
        model = asking.fit(toy, bursar.SketchKMeans, **source, decoded_by="server")
        assert not server.sketch_requests[-1].decode_on_client
        np.testing.assert_array_equal(model.cluster_centers_, array(server.model.decoded.means))
        assert model.receipt is not None
        assert (model.sketch is None) == ("foreign" in source)


def test_a_request_that_is_repeated_gives_the_same_model(server: Line, toy: bursar.Dataset) -> None:
    """The sketch is stored, and the settings come with the request again, whoever decoded first."""
    for decoding, method in (("kmeans", "kmeans"), ("mixture", "gaussian_mixture")):
        ask: dict[str, Any] = {**ASK, "decoding": decoding, "request_id": method, "n_init": 1, "decoder_seed": 3}
        one, two = (asking.fit(toy, bursar.SketchKMeans, **ask) for _ in range(2))
        assert without_receipts(one) == without_receipts(two)
        assert two.receipt is not None
        assert two.receipt.replayed
        stored = toy.model(two.receipt)
        assert isinstance(stored, bursar.Sketch)
        again = getattr(stored, method)(2, n_init=1, public_seed=3)
        np.testing.assert_array_equal(again.weights_, one.weights_)
    assert len(toy.releases()) == 2


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
    sketch = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
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
        toy.fit(bursar.SketchKMeans(n_clusters=2, sketch=of_other_site(sketch, receipt=receipts[change["receipt"]])))


def test_foreign_sketches_are_merged_with_a_source(server: Line, toy: bursar.Dataset) -> None:
    """The source is new or earlier; the model's sketch is the caller's own."""
    own = toy.fit(bursar.SketchKMeans(decoding="none", public_seed=5, scale=0.3), spend=bursar.rho(0.1))
    site = of_other_site(own, n_rows=500.0)
    model = toy.fit(bursar.SketchKMeans(n_clusters=2, sketch=own, foreign=[site, site]))
    assert model.n_rows == 2000.0
    assert model.sketch is not None
    assert same(model.sketch, own)
    np.testing.assert_array_equal(model.cluster_centers_, own.merge(site, site).kmeans(2).cluster_centers_)
    model = asking.fit(toy, bursar.SketchKMeans, **ASK, public_seed=5, scale=0.3, n_frequencies=own.m, foreign=(site,))
    sent = server.sketch_requests[-1]
    assert sent.WhichOneof("source") == "new_sketch"
    assert [(message.n_rows, message.entry) for message in sent.foreign] == [(500.0, 0)]
    assert model.n_rows == 1500.0


def test_foreign_sketches_alone_have_a_free_receipt_without_entry(server: Line, toy: bursar.Dataset) -> None:
    """Nothing of this server's is in them, so the model has no sketch of its own, and says so."""
    site = of_other_site(toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1)))
    asked = len(server.sketch_requests)
    model = toy.fit(bursar.SketchKMeans(n_clusters=2, foreign=[site]), request_id="mine")
    assert len(server.sketch_requests) == asked
    assert model.sketch is None
    receipt = model.receipt
    assert receipt is not None
    assert (receipt.free, receipt.entry, receipt.ledger_head, receipt.request_id) == (True, 0, "", "mine")
    assert receipt.remaining == toy.remaining()
    assert "from releases of other servers" in repr(model)
    elsewhere = of_other_site(site, columns=("height", "length"))
    with pytest.raises(bursar.InvalidRequestError, match="dataset 'toy' has other numeric columns: height, weight"):
        toy.fit(bursar.SketchKMeans(n_clusters=2, foreign=[elsewhere]))


def test_sketches_that_do_not_go_together_are_not_sent(server: Line, toy: bursar.Dataset) -> None:
    """The error names what differs."""
    own = toy.fit(bursar.SketchKMeans(decoding="none", public_seed=1), spend=bursar.rho(0.1))
    other = of_other_site(toy.fit(bursar.SketchKMeans(decoding="none", public_seed=2), spend=bursar.rho(0.1)))
    sources: tuple[dict[str, Any], ...] = ({"sketch": own}, {"foreign": [of_other_site(own), other]})
    for source in sources:
        with pytest.raises(bursar.InvalidRequestError, match="do not go together: frequencies") as caught:
            asking.fit(toy, bursar.SketchKMeans, **{"n_clusters": 2, "foreign": [other], **source})
        assert caught.value.violations[0][0] == "foreign"
    assert len(server.sketch_requests) == 2


@pytest.mark.parametrize("scale", ["pilot", bursar.Pilot()])
def test_a_pilot_cannot_find_the_scale_of_foreign_sketches(toy: bursar.Dataset, scale: Any) -> None:
    """So it is not paid for; the error says which number to give."""
    site = of_other_site(toy.fit(bursar.SketchKMeans(decoding="none", scale=0.125), spend=bursar.rho(0.1)))
    with pytest.raises(bursar.InvalidRequestError, match=r"scale=0\.125") as caught:
        asking.fit(toy, bursar.SketchKMeans, **ASK, scale=scale, foreign=[site])
    assert caught.value.violations[0][0] == "scale"


def test_progress_counts_pilot_sketch_and_decoding(toy: bursar.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps follow from the request: releases, and one for what is decoded."""
    asking.fit(toy, bursar.SketchKMeans, **ASK, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_a_free_request_whose_stream_broke_is_sent_again(server: Line, toy: bursar.Dataset) -> None:
    """Nothing is replayed, and nothing debited."""
    sketch = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    assert sketch.receipt is not None
    server.break_next()
    model = toy.fit(bursar.SketchKMeans(n_clusters=2, sketch=sketch.receipt))
    assert model.receipt is not None
    assert (model.receipt.free, model.receipt.replayed, len(toy.releases())) == (True, False, 1)


def test_a_stream_that_keeps_breaking_can_be_resumed(server: Line, toy: bursar.Dataset) -> None:
    """The error has the request_id, although the seed was left to the SDK; a free request has none."""
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError) as caught:
        asking.fit(toy, bursar.SketchKMeans, **ASK)
    model = asking.fit(toy, bursar.SketchKMeans, **ASK, request_id=caught.value.request_id)
    assert server.sketch_requests[-1] == server.sketch_requests[0]
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError) as caught:
        toy.fit(bursar.SketchKMeans(n_clusters=2, sketch=model.receipt.entry))
    assert caught.value.request_id is None


@pytest.fixture
def remembering(server: Line, tmp_path: Path) -> Iterator[tuple[bursar.Dataset, Path]]:
    """A dataset through a client that keeps what it saw of the ledger in a file, and that file."""
    file = tmp_path / "history.json"
    with server.client(retry_delays=(), history=file) as client:
        yield client.dataset("toy"), file


def seen(file: Path) -> tuple[int, str]:
    """Size and head that a file has."""
    (record,) = json.loads(file.read_text())["servers"].values()
    return record["size"], record["head"]


def test_free_receipts_leave_the_history_as_it_was(remembering: tuple[bursar.Dataset, Path]) -> None:
    """One without an entry has no head, and one of an earlier entry has the head of then; neither is the newest."""
    toy, file = remembering
    own = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    newest = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    assert newest.receipt is not None
    before = seen(file)
    assert before[0] == newest.receipt.entry + 1  # its release is an entry, too
    toy.fit(bursar.SketchKMeans(n_clusters=1, foreign=[of_other_site(own)]))
    assert seen(file) == before
    toy.fit(bursar.SketchKMeans(n_clusters=1, sketch=own))
    assert seen(file) == before
    toy.remaining()


def test_a_rolled_back_ledger_is_noticed_by_what_is_free(
    server: Line, remembering: tuple[bursar.Dataset, Path]
) -> None:
    """Nothing is sent to it, not even a question that costs nothing."""
    toy, _ = remembering
    own = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    server.roll_back()
    with pytest.raises(bursar.HistoryError):
        toy.fit(bursar.SketchKMeans(n_clusters=1, sketch=own.receipt))
    assert len(server.sketch_requests) == 1


def test_sketches_are_listed_without_their_numbers(toy: bursar.Dataset) -> None:
    """The list has the order of payment and all that is known of them; other fits are not in it."""
    assert toy.sketches() == []
    toy.fit(bursar.DPEM(n_components=1), spend=bursar.rho(0.1))
    spend = bursar.rho(0.1)
    sketch = asking.fit(toy, bursar.SketchKMeans, decoding="none", **EVERY, spend=spend, request_id="mine")
    (summary,) = toy.sketches()
    assert summary == bursar.SketchSummary(
        entry=sketch.receipt.entry,
        dataset="toy",
        request_id="mine",
        price=sketch.receipt.price,
        time=summary.time,
        columns=("weight",),
        m=40,
        r=30,
        law="multiscale",
        structure="hadamard",
        signature="one_bit",
        sigma=0.25,
        noise_std=sketch.noise_std,
        n_rows=1000.0,
    )
    assert toy.fit(bursar.SketchKMeans(decoding="none", sketch=summary.entry)).m == 40
    assert [release.method for release in toy.releases()] == ["FitDPEM", "FitSketchKMeans"]


def test_sketches_are_read_page_by_page(server: Line, toy: bursar.Dataset) -> None:
    """Pages may be empty and not the last; the caller sees one list in order."""
    entries = []
    for name in ("a", "b"):
        sketch = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1), request_id=name)
        entries.append((name, sketch.receipt.entry if sketch.receipt else 0))
        toy.fit(bursar.DPEM(n_components=1), spend=bursar.rho(0.1))
    server.before["CatalogService/ListSketches"] = lambda request: setattr(request, "page_size", 1)
    assert [(sketch.request_id, sketch.entry) for sketch in toy.sketches()] == entries
    assert len(server.sent(catalog_pb2.ListSketchesRequest)) > 1


def test_a_preview_predicts_and_warns(server: Line, toy: bursar.Dataset) -> None:
    """It debits nothing; a preview of another fit has no predictions."""
    preview = toy.preview(bursar.SketchKMeans(n_clusters=4), spend=bursar.rho(0.0001))
    assert server.sketch_requests == []
    assert set(preview.expected) == {"snr", "relative_sse"}
    assert preview.warnings
    text = repr(preview)
    assert text.startswith("Preview: debits epsilon 0.0538 (")
    assert f"  predicted signal-to-noise ratio: {preview.expected['snr']:.3g}" in text
    assert f"  predicted sum of squares over Lloyd's: {preview.expected['relative_sse']:.3g}" in text
    assert f"  warning: {preview.warnings[0]}" in text
    alone = toy.preview(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    assert set(alone.expected) == {"snr"}
    other = toy.preview(bursar.DPEM(n_components=2), spend=bursar.rho(0.1))
    assert (set(other.expected), other.warnings) == ({"mean_error"}, ())
    assert "predicted" not in repr(other)


def test_a_sketch_survives_a_file(toy: bursar.Dataset, tmp_path: Path) -> None:
    """Every bit of it but the receipt; the file is the wire's message, with the entry that paid."""
    sketch = toy.fit(
        bursar.SketchKMeans(
            decoding="none", n_frequencies=64, signature="one_bit", structure="hadamard", law="multiscale"
        ),
        spend=bursar.rho(0.1),
    )
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
    assert (message.entry, message.sites) == (sketch.receipt.entry if sketch.receipt else 0, 3)
    bursar.save_sketch(loaded, path)
    assert json_format.Parse(path.read_text(), fit_pb2.Sketch()).entry == 0
    assert "pilot_sigma" not in path.read_text()


def test_a_sketch_without_names_survives_a_file(toy: bursar.Dataset, tmp_path: Path) -> None:
    """Its frame says how many columns it has."""
    nameless = of_other_site(toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1)), columns=())
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
    bursar.save_sketch(toy.fit(bursar.SketchKMeans(decoding="none", public_seed=1), spend=bursar.rho(0.1)), path)
    path.write_text(path.read_text().replace('"public_seed": "1"', '"public_seed": "2"'))
    with pytest.raises(bursar.InvalidRequestError, match="draws other frequencies for the public seed 2"):
        bursar.load_sketch(path)


def test_a_sketch_says_how_good_it_is(toy: bursar.Dataset) -> None:
    """Its own numbers say it, as the preview's prediction does."""
    sketch = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    expected = predicted_snr(
        n_rows=sketch.n_rows,
        m=sketch.m,
        frequencies_per_row=sketch.frequencies_per_row,
        noise_std=sketch.noise_std,
    )
    assert sketch.snr() == expected
