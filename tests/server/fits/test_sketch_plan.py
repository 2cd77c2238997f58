"""A plan of a sketch refuses what is wrong by its name, and its events cost what was offered, not a bit more."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent
from bursar_models import MAX_FREQUENCIES
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, InvalidFieldsError, PublicTable, sketch
from tests.each import each
from tests.server.fits.running import expected_number, nothing_released, table
from tests.server.fits.sketching import PURE, RHO, foreign_sketch, new_request, nothing, plan, run

NAN, INF = float("nan"), float("inf")
AR = Adjacency.ADD_REMOVE_ONE


def tensor(*values: float, shape: tuple[int, ...]) -> types_pb2.Tensor:
    """A tensor."""
    return types_pb2.Tensor(shape=shape, values=values)


def refused(request: fit_pb2.FitSketchKMeansRequest, released: Any = nothing_released, d: int = 2) -> list[str]:
    """Names of the fields for which a request is refused."""
    with pytest.raises(InvalidFieldsError) as caught:
        sketch.plan(request, table(d), released)
    names = [name for name, _ in caught.value.violations]
    assert len(set(caught.value.violations)) == len(names)
    return names


WRONG_NEW: list[tuple[str, dict[str, Any]]] = [
    ("spend", {"spend": None}),
    ("n_clusters", {"n_clusters": 257}),
    ("n_clusters", {"n_clusters": 101}),
    ("n_init", {"n_init": 101}),
    ("n_clusters", {"n_clusters": 256, "new_sketch": {"n_frequencies": MAX_FREQUENCIES, "sigma": 0.1}}),
    ("n_init", {"n_clusters": 64, "n_init": 100, "new_sketch": {"n_frequencies": MAX_FREQUENCIES, "sigma": 0.1}}),
    ("new_sketch.n_frequencies", {"new_sketch": {"n_frequencies": MAX_FREQUENCIES + 1}}),
    ("new_sketch.frequencies_per_row", {"new_sketch": {"frequencies_per_row": 101}}),
    *(("new_sketch.sigma", {"new_sketch": {"sigma": x}}) for x in (0.0, -1.0, 1e-5, 1e5)),
    *(("new_sketch.pilot.share", {"new_sketch": {"pilot": fit_pb2.PilotSketch(share=x)}}) for x in (0.01, 0.6, -0.1)),
    *(
        ("new_sketch.pilot.n_frequencies", {"new_sketch": {"pilot": fit_pb2.PilotSketch(n_frequencies=x)}})
        for x in (15, 513)
    ),
    ("foreign", {"foreign": [foreign_sketch()] * 65}),
    ("n_clusters", {"foreign": [foreign_sketch()], "n_clusters": 0}),
    ("new_sketch.scale", {"foreign": [foreign_sketch()], "new_sketch": {}}),
    ("foreign[0].frequencies", {"foreign": [foreign_sketch()]}),
]


@each(("field", "fields"), WRONG_NEW, ids=lambda value: str(value).replace("\n", " ")[:60])
def test_wrong_field_of_a_new_sketch_is_named(field: str, fields: dict[str, Any]) -> None:
    """The refusal has the field's name, once, before any price is known."""
    assert field in refused(new_request(**fields))


@pytest.mark.parametrize(
    "bounds",
    [[(-1e308, 1e308)], [(-1e200, 1e200), (0.0, 1.0)], [(-1e101, 1e101)], [(0.0, 1e-101)]],
    ids=["huge", "one huge", "large", "tiny"],
)
def test_bounds_that_leave_the_doubles_are_refused(bounds: list[tuple[float, float]]) -> None:
    """Columns without usable bounds have no frame."""
    wide = PublicTable("w", tuple(BoundedColumn(f"x{i}", *b) for i, b in enumerate(bounds)), AR, 1, None)
    with pytest.raises(InvalidFieldsError, match="bounds") as caught:
        plan(wide)
    assert [name for name, _ in caught.value.violations] == ["columns"]


def test_a_request_without_a_source_is_refused() -> None:
    """A new sketch, an earlier one or foreign ones: one of them has to be there."""
    assert refused(fit_pb2.FitSketchKMeansRequest(n_clusters=2)) == ["source"]


def free(**fields: Any) -> fit_pb2.FitSketchKMeansRequest:
    """A request that decodes one foreign sketch but for what is given."""
    defaults: dict[str, Any] = {"dataset": "people", "n_clusters": 2, "n_init": 1, "foreign": [foreign_sketch()]}
    return fit_pb2.FitSketchKMeansRequest(**{**defaults, **fields})


def bad(**fields: Any) -> list[fit_pb2.Sketch]:
    """A good foreign sketch and a bad one."""
    return [foreign_sketch(), foreign_sketch(**fields)]


def frequencies(**fields: Any) -> fit_pb2.Frequencies:
    """Those of the foreign sketch but for what is given."""
    message = fit_pb2.Frequencies()
    message.CopyFrom(foreign_sketch().frequencies)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


WRONG_FREE: list[tuple[str, dict[str, Any]]] = [
    ("spend", {"spend": RHO}),
    ("spend", {"spend": types_pb2.Spend()}),
    ("columns", {"columns": ["x1", "x0"]}),
    ("n_clusters", {"n_clusters": 21}),
    ("n_clusters", {"n_clusters": 0}),
    ("foreign", {"foreign": [foreign_sketch()] * 65}),
    ("foreign[1].columns", {"foreign": bad(columns=[])}),
    ("foreign[1].columns", {"foreign": bad(columns=["x0"] * 2)}),
    ("foreign[1].columns", {"foreign": bad(columns=[f"x{i}" for i in range(65)])}),
    ("foreign[1].columns", {"foreign": bad(columns=["x1", "x0"])}),
    ("foreign[1].columns", {"foreign": bad(columns=["x0", "salary"])}),
    ("foreign[1].columns", {"foreign": [foreign_sketch(), foreign_sketch(d=1)]}),
    ("foreign[1].centre", {"foreign": bad(centre=tensor(0.0, shape=(1,)))}),
    ("foreign[1].centre", {"foreign": bad(centre=tensor(0.0, 1.0, shape=(2,)))}),
    ("foreign[1].centre", {"foreign": bad(centre=tensor(0.0, NAN, shape=(2,)))}),
    ("foreign[1].unit", {"foreign": bad(unit=tensor(10.0, 20.0, shape=(2,)))}),
    ("foreign[1].unit", {"foreign": bad(unit=tensor(10.0, 0.0, shape=(2,)))}),
    ("foreign[1].unit", {"foreign": bad(unit=tensor(10.0, -10.0, shape=(2,)))}),
    ("foreign[1].lower", {"foreign": bad(lower=tensor(-10.0, 10.0, shape=(2,)))}),
    ("foreign[1].lower", {"foreign": bad(lower=tensor(-10.0, -9.0, shape=(2,)))}),
    ("foreign[1].upper", {"foreign": bad(upper=tensor(10.0, 9.0, shape=(2,)))}),
    ("foreign[1].frequencies.d", {"foreign": bad(frequencies=frequencies(d=3))}),
    ("foreign[1].frequencies.m", {"foreign": bad(frequencies=frequencies(m=0))}),
    ("foreign[1].frequencies.m", {"foreign": bad(frequencies=frequencies(m=MAX_FREQUENCIES + 1))}),
    ("foreign[1].frequencies.law", {"foreign": bad(frequencies=frequencies(law=77))}),
    ("foreign[1].frequencies.structure", {"foreign": bad(frequencies=frequencies(structure=77))}),
    ("foreign[1].frequencies.sigma", {"foreign": bad(frequencies=frequencies(sigma=NAN))}),
    ("foreign[1].frequencies.digest", {"foreign": bad(frequencies=frequencies(digest=b"0" * 32))}),
    ("foreign[1].frequencies", {"foreign": bad(frequencies=frequencies(public_seed=1))}),
    ("foreign[1].signature", {"foreign": bad(signature=77)}),
    ("foreign[1].signature", {"foreign": bad(signature=fit_pb2.SIGNATURE_ONE_BIT)}),
    ("foreign[1].frequencies_per_row", {"foreign": bad(frequencies_per_row=0)}),
    ("foreign[1].frequencies_per_row", {"foreign": bad(frequencies_per_row=21)}),
    ("foreign[1].sums", {"foreign": bad(sums=tensor(*[0.0] * 39, shape=(2, 20)))}),
    ("foreign[1].sums", {"foreign": bad(sums=tensor(*[0.0] * 40, shape=(40,)))}),
    ("foreign[1].sums", {"foreign": bad(sums=tensor(*[0.0] * 39, NAN, shape=(2, 20)))}),
    ("foreign[1].sums", {"foreign": bad(sums=tensor(*[0.0] * 39, 1e200, shape=(2, 20)))}),
    *(("foreign[1].noise_std", {"foreign": bad(noise_std=x)}) for x in (0.0, -1.0, NAN, INF)),
    *(("foreign[1].n_rows", {"foreign": bad(n_rows=x)}) for x in (NAN, INF, -INF)),
    *(("foreign[1].n_rows_std", {"foreign": bad(n_rows_std=x)}) for x in (-1.0, NAN, INF)),
    *(("foreign[1].pilot_sigma", {"foreign": bad(pilot_sigma=x)}) for x in (-1.0, NAN, INF)),
    *(("foreign[1].sites", {"foreign": bad(sites=x)}) for x in (0, 2**32 - 1)),
    # Each by itself in its range, but the box is not in the frame.
    ("foreign[1].unit", {"foreign": bad(unit=tensor(1.0, 1.0, shape=(2,)))}),
    ("foreign[1].unit", {"foreign": bad(centre=tensor(1e9, 0.0, shape=(2,)))}),
]


@each(("field", "fields"), WRONG_FREE, ids=lambda value: str(value).replace("\n", " ")[:60])
def test_wrong_field_of_foreign_sketches_is_named(field: str, fields: dict[str, Any]) -> None:
    """Sketches of other sites are taken apart field by field, and must be of one kind."""
    assert field in refused(free(**fields), d=2)


def test_the_requests_that_wrong_ones_start_from_are_right() -> None:
    """The wrong requests of the tests above differ in nothing else."""
    assert plan().events
    assert sketch.plan(free(foreign=[foreign_sketch(), foreign_sketch(seed=1)]), table(), nothing_released).events == ()


@pytest.mark.parametrize("bounds", [(-9e99, 9e99), (0.0, 3e-100)], ids=["large", "small"])
def test_what_is_paid_for_can_be_used_again(bounds: tuple[float, float]) -> None:
    """No bounds that are accepted make a sketch that is refused as an earlier or a foreign one."""
    wide = PublicTable("w", (BoundedColumn("x0", *bounds),), AR, 1, None)
    model = run(plan(wide, n_clusters=0), np.full((5, 1), bounds[1]), adjacency=AR)
    for fields in ({"entry": 7}, {"foreign": [model.sketch]}):
        again = fit_pb2.FitSketchKMeansRequest(n_clusters=1, n_init=1, **fields)
        assert sketch.plan(again, wide, stored(model)).events == ()


@pytest.mark.parametrize("n_rows", [-5.0, 0.0, 0.3])
def test_a_small_site_may_have_a_number_of_rows_below_one(n_rows: float) -> None:
    """Its number of rows is noisy under ADD_REMOVE_ONE; only that of all sites together matters."""
    small = foreign_sketch(n_rows=n_rows, n_rows_std=20.0)
    for foreign in ([foreign_sketch(), small], [small]):
        made = sketch.plan(free(foreign=foreign), table(), nothing_released)
        decoded = run(made, nothing()).decoded
        assert decoded.n_rows == sum(one.n_rows for one in foreign)
        assert np.isfinite([*decoded.weights.values, *decoded.means.values]).all()


def test_errors_name_what_differs_between_frequencies() -> None:
    """Sites learn which of seed, scale and the rest they have to agree on."""
    other = foreign_sketch(frequencies=frequencies(public_seed=1, sigma=0.2))
    with pytest.raises(InvalidFieldsError) as caught:
        sketch.plan(free(foreign=[foreign_sketch(), other]), table(), nothing_released)
    ((field, text),) = caught.value.violations
    assert field == "foreign[1].frequencies"
    assert text.endswith("public_seed is 1 instead of 0; sigma is 0.2 instead of 0.1")


def stored(model: Message | None) -> Any:
    """Earlier releases of which the seventh is this one."""
    return lambda entry: model if entry == 7 else None


EARLIER = fit_pb2.SketchModel(sketch=foreign_sketch())


@pytest.mark.parametrize(
    ("field", "fields", "model"),
    [
        ("entry", {"entry": 8}, EARLIER),
        ("entry", {"entry": 0}, EARLIER),
        ("entry", {"entry": 2**64 - 1}, EARLIER),
        ("entry", {}, fit_pb2.SketchModel()),
        ("entry", {}, fit_pb2.GaussianMixtureModel()),
        ("entry", {}, fit_pb2.SketchModel(sketch=foreign_sketch(frequencies=frequencies(digest=b"")))),
        ("spend", {"spend": RHO}, EARLIER),
        ("columns", {"columns": ["x0"]}, EARLIER),
        ("n_clusters", {"n_clusters": 21}, EARLIER),
        ("foreign[0].frequencies", {"foreign": [foreign_sketch(m=30)]}, EARLIER),
    ],
)
def test_wrong_use_of_an_earlier_sketch_is_named(field: str, fields: dict[str, Any], model: Message) -> None:
    """An entry has to be that of a sketch of the caller's, and it costs nothing."""
    request = fit_pb2.FitSketchKMeansRequest(**{"entry": 7, "n_clusters": 2, "n_init": 1, **fields})
    assert field in refused(request, stored(model))


def test_an_earlier_sketch_with_a_negative_number_of_rows_can_be_used() -> None:
    """Noise may make the number of rows negative under ADD_REMOVE_ONE; the paid sketch stays usable."""
    model = fit_pb2.SketchModel(sketch=foreign_sketch(n_rows=-5.0, n_rows_std=20.0))
    made = sketch.plan(fit_pb2.FitSketchKMeansRequest(entry=7, n_clusters=2, n_init=1), table(), stored(model))
    assert (made.events, made.of_entry, made.columns) == ((), 7, ("x0", "x1"))
    assert len(run(made, nothing()).decoded.weights.values) == 2


FIELDS = st.fixed_dictionaries(
    {
        "n_frequencies": st.integers(0, 300),
        "frequencies_per_row": st.integers(0, 40),
        "law": st.sampled_from(fit_pb2.FrequencyLaw.values()),
        "structure": st.sampled_from(fit_pb2.FrequencyStructure.values()),
        "signature": st.sampled_from(fit_pb2.Signature.values()),
        "units": st.sampled_from(fit_pb2.ColumnUnits.values()),
    },
).map(lambda fields: {**fields, "n_frequencies": fields["n_frequencies"] and max(fields["n_frequencies"], 40)})

SCALES = st.one_of(
    st.just({}),
    st.builds(lambda share: {"pilot": fit_pb2.PilotSketch(share=share)}, st.floats(0.05, 0.5)),
    st.just({"schema": fit_pb2.ScaleFromSchema()}),
    st.builds(lambda sigma: {"sigma": sigma}, st.floats(1e-4, 1e4)),
)


@settings(max_examples=60)
@given(
    FIELDS,
    SCALES,
    st.floats(1e-5, 1e3),
    st.booleans(),
    st.sampled_from(Adjacency),
    st.integers(1, 7),
    st.integers(1, 6),
    st.integers(0, 10),
)
def test_events_cost_what_was_offered(
    fields: dict[str, Any],
    scale: dict[str, Any],
    amount: float,
    pure: bool,
    adjacency: Adjacency,
    cap: int,
    d: int,
    k: int,
) -> None:
    """The releases together cost at most the spend, and within 1e-12 of it; as many as noise is shown for."""
    made = plan(
        table(d, adjacency=adjacency, unit_cap=cap),
        spend=types_pb2.Spend(epsilon=amount) if pure else types_pb2.Spend(rho=amount),
        new_sketch={**fields, **scale},
        n_clusters=k,
    )
    cost = Fraction()
    for event in made.events:
        assert isinstance(event, LaplaceEvent if pure else GaussianEvent)
        assert event.count == 1
        if isinstance(event, LaplaceEvent):
            cost += Fraction(event.l1) / event.scale
        elif isinstance(event, GaussianEvent):
            cost += Fraction(event.l2_squared) / (2 * event.scale**2)
    assert Fraction(amount) * (1 - Fraction(1, 10**12)) <= cost <= Fraction(amount)
    pilot = not scale or "pilot" in scale
    assert len(made.events) == len(made.noise) == 1 + pilot
    assert [noise.name for noise in made.noise] == ["pilot sketch", "sketch"][1 - pilot :]
    assert made.iterations == len(made.events) + (k > 0)


def test_the_pilot_gets_its_share() -> None:
    """A pilot takes 15 % of the spend, or the requested share; the sketch gets the rest exactly."""
    for share, expected in ((0.0, Fraction(15, 100)), (0.25, Fraction(1, 4))):
        made = plan(new_sketch={"pilot": fit_pb2.PilotSketch(share=share)})
        costs = [Fraction(e.l2_squared) / (2 * e.scale**2) for e in made.events if isinstance(e, GaussianEvent)]
        assert float(costs[0] / sum(costs)) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("spend", [RHO, PURE], ids=["rho", "epsilon"])
def test_noise_is_that_of_the_corrected_proposition(spend: types_pb2.Spend) -> None:
    """Unscaled sums under REPLACE_ONE have 2 sqrt(r) / sqrt(2 rho) Gaussian, 2 sqrt(2) r / epsilon Laplace."""
    (noise,) = plan(spend=spend, new_sketch={"sigma": 0.1, "frequencies_per_row": 4}).noise
    expected = 2 * 4**0.5 / 2**0.5 if spend.WhichOneof("amount") == "rho" else 2**0.5 * 2 * 2**0.5 * 4
    assert noise.sum_std == pytest.approx(expected, rel=1e-4)
    assert (noise.size, noise.count_std) == (200, 0.0)


def test_add_remove_one_counts_rows_and_needs_half_the_noise() -> None:
    """Presence moves a sum half as far as replacement; the number of rows is measured along with it."""
    replace, add = (plan(table(adjacency=adjacency)).noise[0] for adjacency in (Adjacency.REPLACE_ONE, AR))
    assert (replace.size, replace.count_std) == (200, 0.0)
    assert add.size == 201
    assert add.count_std > 0
    assert 0.5 <= add.sum_std / replace.sum_std <= 0.53


def test_a_unit_of_m_rows_needs_m_times_the_noise() -> None:
    """The cap of a unit scales the noise of every release."""
    one, four = (plan(table(unit_cap=cap), new_sketch={}) for cap in (1, 4))
    ratios = [b.sum_std / a.sum_std for a, b in zip(one.noise, four.noise, strict=True)]
    assert ratios == pytest.approx([4.0, 4.0])


def test_left_out_columns_mean_all_numeric_ones() -> None:
    """A request without columns is about all of them, in the schema's order."""
    assert plan(table(4)).columns == ("x0", "x1", "x2", "x3")
    assert plan(table(4), columns=["x3", "x1"]).columns == ("x3", "x1")


def chosen(public: PublicTable, **fields: Any) -> int:
    """Return how many frequencies the server chooses."""
    return int(str(plan(public, new_sketch={"n_frequencies": 0}, **fields).parameters["n_frequencies"]))


def test_the_number_of_frequencies_follows_the_number_of_parameters() -> None:
    """Thirty per coordinate of a centre up to 1,500, or ten, within bounds; for an unknown k as for ten clusters."""
    assert chosen(table(4), n_clusters=10) == chosen(table(4), n_clusters=0) == 1200
    assert chosen(table(10), n_clusters=10) == chosen(table(10), n_clusters=0) == 1500
    assert chosen(table(16), n_clusters=10) == 1600
    assert chosen(table(1), n_clusters=1) == 64
    assert chosen(table(30), n_clusters=20) == 4096


def test_pure_epsilon_has_fewer_frequencies_unless_noise_is_small_anyway() -> None:
    """Laplace noise grows with m, so m is small for few rows, and where nothing is known of their number."""
    few, ample, most = (chosen(table(5, rows=n), spend=PURE, n_clusters=5) for n in (10_000, 35_000, 10**8))
    assert chosen(table(5, adjacency=AR, rows=None), spend=PURE, n_clusters=5) == few == 100
    assert (ample, most) == (250, 750)
    assert chosen(table(1, rows=100), spend=PURE, n_clusters=2) == 24


def test_predictions_need_a_public_number_of_rows() -> None:
    """Nothing is promised or warned of without a public or declared number of rows."""
    made = plan(table(adjacency=AR, rows=None), spend=types_pb2.Spend(rho=1e-9))
    assert (made.expected, made.warnings) == ({}, ())
    few, many = (plan(table(rows=n)) for n in (100, 100_000))
    assert 0 < (expected_number(few, "snr") or 0) < (expected_number(many, "snr") or 0)
    assert (expected_number(few, "relative_sse") or 0) > (expected_number(many, "relative_sse") or 0) >= 1


def test_without_clusters_there_is_an_snr_and_no_sum_of_squares() -> None:
    """A sketch alone has no number of clusters to predict anything for."""
    made = plan(n_clusters=0)
    assert set(made.expected) == {"snr"}


def test_a_noisy_sketch_is_warned_of_with_what_would_help() -> None:
    """Below SNR m / (k d) = 100 the analyst is told before paying, and what to change."""
    public = table(rows=300)
    (warning,) = plan(public, spend=types_pb2.Spend(rho=0.001)).warnings
    assert "too noisy for 3 clusters" in warning
    assert "a larger spend, more rows, fewer clusters" in warning
    assert "frequencies" not in warning
    (pure,) = plan(public, spend=types_pb2.Spend(epsilon=0.1), new_sketch={"sigma": 0.1}).warnings
    assert "fewer frequencies" in pure
    (masked,) = plan(
        public, spend=types_pb2.Spend(rho=0.001), new_sketch={"sigma": 0.1, "frequencies_per_row": 50}
    ).warnings
    assert "all frequencies for every row" in masked
    (one,) = plan(public, spend=types_pb2.Spend(rho=1e-7), n_clusters=0).warnings
    assert "even one cluster" in one
    assert plan(table(rows=10**6)).warnings == ()


def test_too_few_frequencies_are_warned_of_and_nothing_is_promised() -> None:
    """Fewer than two frequencies for each coordinate of a centre often lead a decoder to a wrong place."""
    for m, few in ((29, True), (59, True), (60, False)):
        made = plan(table(10, rows=10**6), new_sketch={"sigma": 0.1, "n_frequencies": m}, n_clusters=3)
        assert any(f"{m} frequencies are too few for the 30 coordinates" in text for text in made.warnings) is few
        assert ("relative_sse" in made.expected) is not few


def test_restarts_are_twenty_or_as_many_as_there_is_time_for() -> None:
    """Large decodings get fewer restarts by default, and none is refused that a smaller number would allow."""
    small, large = (
        plan(table(d), n_clusters=k, n_init=0, new_sketch={"n_frequencies": m, "sigma": 0.1}).parameters["n_init"]
        for d, k, m in ((20, 20, 4096), (20, 30, 4096))
    )
    assert small == 20
    assert large == 9


def test_foreign_rows_count_in_the_prediction() -> None:
    """A new sketch that is merged with a precise foreign one has more rows and a better ratio than alone."""
    fields: dict[str, Any] = {"new_sketch": {"n_frequencies": 20, "sigma": 0.1}, "spend": types_pb2.Spend(rho=0.01)}
    foreign = foreign_sketch(n_rows=1e6, noise_std=1.0)
    alone, together = (plan(**fields, foreign=others) for others in ([], [foreign]))
    assert (expected_number(together, "snr") or 0) > 10 * (expected_number(alone, "snr") or 0) > 0
    assert alone.events == together.events


def test_units_are_common_or_each_columns_own() -> None:
    """Distances are the data's by default; on request each column is measured by its bounds."""
    public = PublicTable("p", (BoundedColumn("a", 0.0, 2.0), BoundedColumn("b", -8.0, 0.0)), AR, 1, None)
    for units, expected in ((fit_pb2.COLUMN_UNITS_COMMON, [4.0, 4.0]), (fit_pb2.COLUMN_UNITS_BOUNDS, [1.0, 4.0])):
        made = plan(public, new_sketch={"sigma": 0.1, "units": units})
        assert made.settings.new is not None
        frame = made.settings.new.frame
        assert np.array_equal(frame.unit, expected)
        assert np.array_equal(frame.centre, [1.0, -4.0])


def test_parameters_say_what_an_auditor_wants() -> None:
    """Everything that decides a release is in the ledger's entry, in words."""
    parameters = plan(columns=["x1"], new_sketch={"public_seed": 2**63}, public_seed=5).parameters
    assert parameters["columns"] == ["x1"]
    assert parameters["n_frequencies"] == parameters["frequencies_per_row"] == 100
    assert (parameters["law"], parameters["structure"]) == ("adapted_radius", "dense")
    assert (parameters["signature"], parameters["units"]) == ("exponential", "common")
    assert (parameters["public_seed"], parameters["scale"], parameters["sigma"]) == (str(2**63), "pilot", None)
    assert isinstance(parameters["pilot"], dict)
    assert parameters["pilot"]["n_frequencies"] == 64
    assert parameters["pilot"]["public_seed"] != str(2**63)
    assert plan().parameters["sigma"] == 0.1
