"""Attacks on sketches: what one pays for once and may use for ever, what is named by a number, and what others send."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf.message import Message

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import sketch
from bursar_server.vault import Session
from tests.attacks.asking import Careless, Metadata, analyst, differs, heard, refused
from tests.attacks.deaf import Deaf, Seeded
from tests.audit.wire import Miswired

if TYPE_CHECKING:
    from tests.attacks.conftest import Pair

PairWith = Callable[..., "Pair"]
METHOD = "FitSketchKMeans"
NEW = fit_pb2.NewSketch(n_frequencies=8, sigma=0.2, public_seed=7)
_IDS = itertools.count()


def asked(dataset: str, **fields: Any) -> fit_pb2.FitSketchKMeansRequest:
    """A request under an id of its own."""
    return fit_pb2.FitSketchKMeansRequest(request_id=f"sketch-{next(_IDS)}", dataset=dataset, **fields)


def paid(dataset: str, **fields: Any) -> fit_pb2.FitSketchKMeansRequest:
    """A request that pays for a sketch at eight frequencies."""
    defaults: dict[str, Any] = {"new_sketch": NEW, "spend": types_pb2.Spend(rho=0.1)}
    return asked(dataset, **(defaults | fields))


def sums(answer: list[Any]) -> list[float]:
    """The noisy sums of an answer."""
    return list(answer[-1].model.sketch.sums.values)


def test_the_seeds_of_a_sketch_do_not_reach_its_noise(pair: Pair) -> None:
    """Ask twice with the same seeds of frequencies and decoder: same frequencies, other noise in every number."""
    first, second = (heard(pair, paid("here", public_seed=3, n_clusters=2, n_init=1)) for _ in range(2))
    assert first[-1].model.sketch.frequencies == second[-1].model.sketch.frequencies
    assert all(a != b for a, b in zip(sums(first), sums(second), strict=True))
    assert first[-1].model.sketch.n_rows != second[-1].model.sketch.n_rows


def test_the_rivals_seed_does(pair_with: PairWith) -> None:
    """The same attack on seeded noise: two requests, one draw."""
    pair = pair_with(Miswired(Seeded(), fit=sketch), METHOD)
    first, second = (sums(heard(pair, paid("here"))) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_decoding_a_sketch_again_tells_nothing_new(pair: Pair) -> None:
    """Decode one sketch thirty times, in hope of fresh noise: the same bytes, and the ledger does not move."""
    entry = heard(pair, paid("here"))[0].receipt.entry
    before = pair.ledger.newest()
    answers = [heard(pair, asked("here", entry=entry, n_clusters=2, n_init=1)) for _ in range(30)]
    assert len({answer[-1].SerializeToString(deterministic=True) for answer in answers}) == 1
    assert all(answer[0].receipt.free and answer[0].receipt.entry == entry for answer in answers)
    assert pair.ledger.newest() == before


def test_what_is_decoded_holds_the_sketch_that_was_paid_for(pair: Pair) -> None:
    """A free answer repeats the stored sums to the last bit, whatever is decoded from them."""
    first = heard(pair, paid("here"))
    assert first[-1].model.sketch.entry == first[0].receipt.entry
    for fields in ({}, {"n_clusters": 1}, {"n_clusters": 3, "decoding": fit_pb2.DECODING_MIXTURE, "n_init": 2}):
        again = heard(pair, asked("here", entry=first[0].receipt.entry, **fields))
        assert sums(again) == sums(first)


def strange_entries(pair: Pair) -> dict[str, tuple[int, Metadata]]:
    """Entries under which the caller has no sketch of "here", by what they are."""
    mallory = analyst(pair, f"mallory-{next(_IDS)}")  # type: ignore[arg-type] # has a ledger, too
    of_dpem = pair.fit("here")[0].receipt.entry
    mine, elsewhere = (heard(pair, paid(name))[0].receipt.entry for name in ("here", "there"))
    return {
        "another's sketch": (mine, mallory),
        "a sketch of another table": (elsewhere, pair.bearer),
        "a model of another method": (of_dpem, pair.bearer),
        "an entry that is no debit": (1, pair.bearer),
        "nothing": (0, pair.bearer),
        "an entry to come": (10**6, pair.bearer),
        "the last number": (2**64 - 1, pair.bearer),
    }


def test_a_number_opens_only_ones_own_sketches_of_a_table(pair: Pair) -> None:
    """Name whatever entry one likes: one answer for all that is not one's own, which so tells nothing."""
    answers = set()
    for entry, bearer in strange_entries(pair).values():
        code, fields, text = refused(pair, asked("here", entry=entry, n_clusters=2), bearer)
        assert (code, fields) == ("INVALID_ARGUMENT", ("entry",))
        answers.add(text.replace(str(entry), "#"))
    assert len(answers) == 1


def test_at_a_careless_rival_they_open_anothers(pair_with: PairWith) -> None:
    """The same attack on a fit with a memory of its own: mallory decodes what she did not pay for."""
    pair = pair_with(Careless(sketch), METHOD)
    mine, mallory = heard(pair, paid("here")), analyst(pair, "mallory")  # type: ignore[arg-type] # likewise
    stolen = heard(pair, asked("here", entry=mine[0].receipt.entry, n_clusters=2, n_init=1), mallory)
    assert sums(stolen) == sums(mine)


def spoil(path: str, value: object) -> Callable[[fit_pb2.Sketch], object]:
    """Sets one field of a sketch, or of a message in it."""

    def change(one: fit_pb2.Sketch) -> None:
        *outer, name = path.split(".")
        message: Any = one
        for part in outer:
            message = getattr(message, part)
        if isinstance(value, list):
            getattr(message, name)[: len(value)] = value
        else:
            setattr(message, name, value)

    return change


NAN, INF = float("nan"), float("inf")
SPOILT: dict[str, tuple[Callable[[fit_pb2.Sketch], object], str]] = {
    "sums that are not numbers": (spoil("sums.values", [NAN]), "sums"),
    "infinite sums": (spoil("sums.values", [-INF]), "sums"),
    "sums near the largest number": (spoil("sums.values", [1e308]), "sums"),
    "too few sums": (lambda one: one.sums.values.pop(), "sums"),
    "sums of another shape": (spoil("sums.shape", [4, 4]), "sums"),
    "sums without a shape": (lambda one: one.sums.ClearField("shape"), "sums"),
    "no frequencies": (spoil("frequencies.m", 0), "frequencies.m"),
    "more frequencies than there may be": (spoil("frequencies.m", 2**32 - 1), "frequencies.m"),
    "more frequencies than sums": (spoil("frequencies.m", 2**14), "sums"),
    "other columns than it says": (spoil("frequencies.d", 2**32 - 1), "frequencies.d"),
    "a scale of nothing": (spoil("frequencies.sigma", 0.0), "frequencies.sigma"),
    "a scale that is no number": (spoil("frequencies.sigma", NAN), "frequencies.sigma"),
    "another law": (spoil("frequencies.law", 99), "frequencies.law"),
    "another structure": (spoil("frequencies.structure", 99), "frequencies.structure"),
    "another seed under the old digest": (spoil("frequencies.public_seed", 8), "frequencies"),
    "another digest": (spoil("frequencies.digest", b"\0" * 32), "frequencies.digest"),
    "no digest": (spoil("frequencies.digest", b""), "frequencies.digest"),
    "another signature": (spoil("signature", 99), "signature"),
    "signs for cosines": (spoil("signature", fit_pb2.SIGNATURE_ONE_BIT), "signature"),
    "noise of no size": (spoil("noise_std", 0.0), "noise_std"),
    "noise that is no number": (spoil("noise_std", NAN), "noise_std"),
    "endless noise": (spoil("noise_std", INF), "noise_std"),
    "rows that are no number": (spoil("n_rows", NAN), "n_rows"),
    "rows below none": (spoil("n_rows", -1e300), "n_rows"),
    "noise of rows below none": (spoil("n_rows_std", -1.0), "n_rows_std"),
    "frequencies per row beyond all": (spoil("frequencies_per_row", 9), "frequencies_per_row"),
    "no frequency per row": (spoil("frequencies_per_row", 0), "frequencies_per_row"),
    "no site": (spoil("sites", 0), "sites"),
    "a pilot that is no number": (spoil("pilot_sigma", NAN), "pilot_sigma"),
    "a box inside out": (spoil("lower.values", [1e9]), "lower"),
    "a unit of nothing": (spoil("unit.values", [0.0]), "unit"),
    "a middle that is no number": (spoil("centre.values", [NAN]), "centre"),
    "a middle of another shape": (spoil("centre.shape", [9]), "centre"),
    "a column that is not there": (spoil("columns", ["z"]), "columns"),
    "a column twice": (spoil("columns", ["y"]), "columns"),
    "no columns": (lambda one: one.ClearField("columns"), "columns"),
}
"""Wrong sketches from elsewhere, and the field that must be named."""


@pytest.fixture(scope="module")
def foreign(pair: Pair) -> fit_pb2.Sketch:
    """A sketch that could be merged with one at the same frequencies."""
    model: fit_pb2.SketchModel = heard(pair, paid("there"))[-1].model
    return model.sketch


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_sketch_from_elsewhere_is_refused_by_name(pair: Pair, foreign: fit_pb2.Sketch, name: str) -> None:
    """Send one to be merged into a sketch that is to be paid for: refused before the debit, alike for all tables."""
    spoil_it, field = SPOILT[name]
    bad = fit_pb2.Sketch.FromString(foreign.SerializeToString())
    spoil_it(bad)
    told = [refused(pair, paid(table, foreign=[bad], n_clusters=2, n_init=1)) for table in ("here", "there")]
    assert told[0][0] == "INVALID_ARGUMENT"
    assert any(one.startswith(f"foreign[0].{field}") for one in told[0][1]), told[0][1]
    assert told[0] == (*told[1][:2], told[1][2].replace("there", "here"))


def test_a_sound_sketch_from_elsewhere_is_merged(pair: Pair, foreign: fit_pb2.Sketch) -> None:
    """So that the refusals above mean something: unspoilt, the same sketch is accepted, with a debit for one's own."""
    debits = sum(entry.kind == "debit" for entry in pair.ledger.entries())
    *_, last = heard(pair, paid("here", foreign=[foreign, foreign], n_clusters=2, n_init=1))
    assert last.model.sketch.sites == 1
    assert last.model.decoded.n_rows == pytest.approx(last.model.sketch.n_rows + 2 * foreign.n_rows)
    assert sum(entry.kind == "debit" for entry in pair.ledger.entries()) == debits + 1


def test_sketches_from_elsewhere_alone_touch_nothing(pair: Pair, foreign: fit_pb2.Sketch) -> None:
    """Decode what others sent: no debit, no release of the table that is named, the same for every table."""
    before = pair.ledger.newest()
    models = [heard(pair, asked(table, foreign=[foreign], n_clusters=2, n_init=1))[-1] for table in ("here", "there")]
    assert models[0] == models[1]
    assert not models[0].model.HasField("sketch")
    assert pair.ledger.newest() == before


def test_extreme_sketches_from_elsewhere_are_decoded(pair: Pair, foreign: fit_pb2.Sketch) -> None:
    """Numbers as large as they may be are no way to make a server fail: the model has finite numbers."""
    for path, value in (("sums.values", [1e99] * 16), ("noise_std", 1e-300), ("n_rows", 1e-300), ("n_rows", 1e99)):
        odd = fit_pb2.Sketch.FromString(foreign.SerializeToString())
        spoil(path, value)(odd)
        decoded = heard(pair, asked("here", foreign=[odd], n_clusters=2, n_init=1))[-1].model.decoded
        assert np.isfinite([*decoded.weights.values, *decoded.means.values, *decoded.covariances.values]).all()


def test_who_has_a_sketch_is_not_made_to_pay(pair: Pair) -> None:
    """Offer a spend with an earlier sketch: refused, since nothing would come of it."""
    entry = heard(pair, paid("here"))[0].receipt.entry
    code, fields, _ = refused(pair, asked("here", entry=entry, n_clusters=2, spend=types_pb2.Spend(rho=0.1)))
    assert (code, fields) == ("INVALID_ARGUMENT", ("spend",))


REQUESTS: list[dict[str, Any]] = [
    {},
    {"n_clusters": 2, "n_init": 1},
    {"new_sketch": fit_pb2.NewSketch(n_frequencies=16, public_seed=7), "n_clusters": 2, "n_init": 1},
    {"new_sketch": fit_pb2.NewSketch(n_frequencies=16, sigma=0.2, signature=fit_pb2.SIGNATURE_ONE_BIT)},
]


def differ(pair: Pair, **fields: Any) -> bool:
    """Return whether anything but the noisy sums tells "here" from "there"."""

    def forget(model: fit_pb2.SketchModel) -> None:
        model.sketch.entry = 0

    return differs(pair, METHOD, "sketch_kmeans", lambda name: paid(name, **fields), forget)


@pytest.mark.parametrize("fields", REQUESTS)
def test_under_equal_noise_all_tables_have_one_sketch(pair_with: PairWith, fields: dict[str, Any]) -> None:
    """Compare all that two utterly different tables give when each noisy sum is the same for both.

    Frequencies, scale, box, number of rows, restarts of the decoder: nothing came past the noise. In the paper's
    experiments the scale comes from the rows, and so do the box and the choice among replicates.
    """
    assert not differ(pair_with(Miswired(Deaf(), fit=sketch), METHOD), **fields)


def box_of_rows(plan: Any, session: Session) -> Message:
    """A sketch whose box is that of its rows."""
    model = sketch.run(plan, session)
    model.sketch.upper.values[0] = float(session._rows.slots)
    return model


def test_a_rival_that_reads_its_box_off_the_rows_is_heard(pair_with: PairWith) -> None:
    """The same comparison finds a box that comes from the table."""
    assert differ(pair_with(Miswired(Deaf(), box_of_rows, sketch), METHOD))
