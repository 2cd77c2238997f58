"""Released models as plain JSON values and in files: back comes the same, and nothing else is taken for a model."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bursar
from bursar_models import (
    GaussianMixture,
    KMeans,
    Model,
    Sketch,
    load,
)
from bursar_models._portable import Portable, _made, _plain
from bursar_models.files import write_whole
from tests import asking
from tests.client.made_up_models import (
    MODELS,
    sketches,
)
from tests.each import each

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


def assert_same(one: Any, other: Any) -> None:
    """Assert the same types and the same bits."""
    assert type(one) is type(other)
    if is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert repr(one) == repr(other)


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_model_comes_back_from_json(kind: type[Model], data: st.DataObject) -> None:
    """Every number has the same bits, receipt and noise included, read-only as before."""
    model = data.draw(MODELS[kind])
    content = json.loads(json.dumps(model.to_dict(), allow_nan=False))
    assert_same(kind.from_dict(content), model)
    assert (content["kind"], content["version"]) == (kind.__name__, 1)


@settings(max_examples=25)
@given(sketches())
def test_every_sketch_comes_back_from_json(sketch: Sketch) -> None:
    """Its receipt included, and with the frequencies that it was made with."""
    again = Sketch.from_dict(json.loads(json.dumps(sketch.to_dict())))
    assert_same(again, sketch)
    np.testing.assert_array_equal(again.frequencies.matrix(), sketch.frequencies.matrix())


def test_all_models_are_tested() -> None:
    """A new kind of model comes into this file, too."""
    assert {kind.__name__ for kind in MODELS} | {"Sketch"} == set(Portable._kinds)


def fitted(toy: bursar.Dataset) -> list[Model]:
    """One model of every fit of the fake server."""
    ask: dict[str, Any] = {"spend": bursar.rho(0.1)}
    chain = bursar.Chain(["spring", "summer", "autumn"], null="unknown")
    return [
        asking.fit(toy, bursar.DPEM, n_components=2, **ask),
        asking.fit(toy, bursar.DPEM, n_components=2, mode="kmeans", **ask),
        asking.fit(toy, bursar.SketchKMeans, n_clusters=2, **ask),
        asking.fit(toy, bursar.SketchKMeans, n_clusters=2, decoding="mixture", **ask),
        asking.fit(toy, bursar.GradientEM, model="symmetric_mixture", **ask),
        asking.fit(toy, bursar.GradientEM, model="mixture_of_regressions", target="weight", **ask),
        asking.fit(toy, bursar.GradientEM, model="missing_covariates", target="weight", **ask),
        asking.fit(toy, bursar.MRF, cliques="tree", **ask),
        asking.fit(toy, bursar.MRF, cliques=chain, **ask),
    ]


def test_models_of_every_fit_are_saved_and_loaded(toy: bursar.Dataset, tmp_path: Path) -> None:
    """A model from a server comes back from a file as it was."""
    for number, model in enumerate(fitted(toy)):
        path = tmp_path / f"{number}.json"
        model.save(path)
        again = assert_type(load(path), Model)
        assert_same(again, model)
        assert repr(again) == repr(model)


def kmeans(**change: Any) -> KMeans:
    """Two clusters on a line."""
    noise = (bursar.ReleaseNoise("x", 1, 1.0, 1.0, 1.0, 1),)
    good: dict[str, Any] = {"cluster_centers_": [[1.0], [2.5]], "weights_": [0.5, 0.5], "variances_": [0.1, 0.2]}
    return KMeans(**{**good, "columns": ("a",), "noise": noise, **change})


@each(
    ("change", "message"),
    [
        ({"version": 2}, "version: 2 was written by a newer bursar"),
        ({"version": 0}, "version: expected 1, got 0"),
        ({"version": True}, "version: expected 1, got True"),
        ({"version": None}, "version: expected 1"),
        ({"kind": "Forest"}, "kind: expected one of"),
        ({"kind": ["KMeans"]}, "kind: expected one of"),
        ({"kind": "Sketch"}, "no such field"),
        ({"colour": 1}, "colour: KMeans has no such field"),
        ({"weights_": [0.5, 0.6]}, "weights_: expected a sum of 1"),
        ({"weights_": [0.5]}, r"weights_: expected shape \(2,\)"),
        ({"weights_": ["0.5", "0.5"]}, "weights_: expected lists of numbers"),
        ({"weights_": [None, 1]}, "weights_: expected lists of numbers"),
        ({"weights_": [[1], [1, 2]]}, "weights_: expected lists of numbers"),
        ({"columns": "a"}, "columns: expected a list, got 'a'"),
        ({"columns": [1]}, r"columns\[0\]: expected text, got 1"),
        ({"iterations": 2.5}, "iterations: expected a whole number"),
        ({"iterations": True}, "iterations: expected a whole number"),
        ({"n_rows": "many"}, "n_rows: expected a number"),
        ({"n_rows": False}, "n_rows: expected a number"),
        ({"n_rows": 10**400}, "n_rows: expected a number within the range"),
        ({"noise": [{}]}, r"noise\[0\].name: is missing"),
        ({"noise": [1]}, r"noise\[0\]: expected an object with the fields of ReleaseNoise"),
        ({"receipt": {"dataset": "x" * 99}}, "receipt.request_id: is missing"),
    ],
)
def test_what_is_no_model_is_refused(change: dict[str, Any], message: str) -> None:
    """The message names the wrong field."""
    with pytest.raises(ValueError, match=message):
        KMeans.from_dict({**kmeans().to_dict(), **change})


def test_a_receipt_has_the_types_of_a_receipt(toy: bursar.Dataset) -> None:
    """Flags are flags, and an adjacency is one that there is."""
    content = toy.fit(bursar.DPEM(n_components=1), spend=bursar.rho(0.1)).to_dict()
    for field, value in (("free", 1), ("adjacency", "replace_two"), ("adjacency", [])):
        with pytest.raises(ValueError, match=f"receipt.{field}: expected"):
            GaussianMixture.from_dict({**content, "receipt": {**content["receipt"], field: value}})
    with pytest.raises(ValueError, match="covariance_type: expected one of"):
        GaussianMixture.from_dict({**content, "covariance_type": "round"})


def test_a_field_that_is_missing_has_its_default_or_is_asked_for() -> None:
    """A file from before a field was added can still be read."""
    content = kmeans().to_dict()
    assert KMeans.from_dict({name: content[name] for name in content if name != "noise"}).noise == ()
    with pytest.raises(ValueError, match="variances_: is missing"):
        KMeans.from_dict({name: content[name] for name in content if name != "variances_"})


def test_a_class_takes_its_own_kind_only() -> None:
    """The message says which one it is."""
    with pytest.raises(ValueError, match="expected 'GaussianMixture', got 'KMeans'"):
        GaussianMixture.from_dict(kmeans().to_dict())
    assert_same(Model.from_dict(kmeans().to_dict()), kmeans())


def test_a_sketch_with_other_frequencies_is_refused(toy: bursar.Dataset) -> None:
    """It is worth nothing where other ones are drawn from its seed."""
    content = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1)).to_dict()
    frequencies = {**content["frequencies"], "public_seed": 99}
    with pytest.raises(ValueError, match="frequencies: this version of bursar draws others"):
        Sketch.from_dict({**content, "frequencies": frequencies})
    with pytest.raises(ValueError, match="frequencies: this version of bursar draws others"):
        Sketch.from_dict({**content, "frequencies": {k: v for k, v in content["frequencies"].items() if k != "digest"}})
    # Nothing of that size is drawn.
    with pytest.raises(ValueError, match="columns: expected 1000000000000 names"):
        Sketch.from_dict({**content, "frequencies": {**frequencies, "d": 10**12}})
    bad = {**content, "frequencies": {**frequencies, "m": 0}}
    within = {**kmeans().to_dict(), "sketch": {k: v for k, v in bad.items() if k not in ("kind", "version")}}
    with pytest.raises(ValueError, match=r"sketch\.frequencies\.m: expected 1"):
        KMeans.from_dict(within)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model that this version can read"),
        ("[1]", "expected an object with kind and version"),
        ("[" * 100_000, "no model that this version can read"),
        ('{"kind": "KMeans", "version": 1, "n_rows": NaN}', "NaN is no number in JSON"),
        ('{"columns": [], "frequencies": {}}', "use bursar.load_sketch"),
        ("\x80\x04\x95", "no model that this version can read"),
        ('{"kind": "KMeans", "version": 1, "\\u001b[2J": 1}', "KMeans has no such field here"),
    ],
)
def test_files_without_a_model_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file and what is wrong with it, and steers no terminal."""
    path = tmp_path / "some.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message) as refused:
        load(path)
    assert str(refused.value).isprintable()


def test_a_sketch_is_no_model(toy: bursar.Dataset, tmp_path: Path) -> None:
    """It has its own files, which other programs read, too."""
    sketch = toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
    bursar.save_sketch(sketch, tmp_path / "sketch.json")
    with pytest.raises(ValueError, match=r"use bursar\.load_sketch"):
        load(tmp_path / "sketch.json")
    (tmp_path / "dict.json").write_text(json.dumps(sketch.to_dict()))
    with pytest.raises(ValueError, match=r"use bursar\.Sketch\.from_dict"):
        load(tmp_path / "dict.json")


def test_numbers_of_numpy_are_plain_in_json() -> None:
    """A caller's own model may have them."""
    model = kmeans(iterations=np.int64(3), n_rows=np.float64(0.1))
    assert json.dumps(model.to_dict())
    assert KMeans.from_dict(model.to_dict()).iterations == 3


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older file stays if the disk is full, and nothing else; a link stays one."""
    path, link = tmp_path / "model.json", tmp_path / "link.json"
    kmeans().save(path)
    link.symlink_to(path)
    kmeans(cluster_centers_=[[7.0], [8.0]]).save(link)
    assert link.is_symlink()
    model = load(path)
    assert isinstance(model, KMeans)
    assert model.cluster_centers_.tolist() == [[7.0], [8.0]]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        kmeans().save(path)
    assert_same(load(path), model)
    assert {one.name for one in tmp_path.iterdir()} == {"model.json", "link.json"}


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The name is the one that was asked for, and not that of a temporary file."""
    path = tmp_path / "no" / "model.json"
    with pytest.raises(FileNotFoundError) as refused:
        kmeans().save(path)
    assert refused.value.filename == str(path)


def test_files_have_the_permissions_that_were_asked_for(tmp_path: Path) -> None:
    """Permissions follow the user's umask, or are for the owner alone; a device is written to and stays one."""
    umask = os.umask(0o027)
    try:
        kmeans().save(tmp_path / "model.json")
        write_whole(tmp_path / "secret.json", "{}", mode=0o600)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "model.json").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "secret.json").stat().st_mode) == 0o600
    kmeans().save(os.devnull)
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_come_back_as_they_were(value: float) -> None:
    """JSON has no names for them, so a file has names of its own."""
    left = bursar.Remaining(1, 1, 1, 1, value, 1.0, 1.0)
    plain = json.loads(json.dumps(_plain(left), allow_nan=False))
    assert repr(_made(bursar.Remaining, plain, "").rho) == repr(value)
