"""Tables of other libraries into models, and synthetic tables out of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bursar
from bursar_models import GaussianMixture, KMeans, LinearRegression, MixtureOfRegressions, SymmetricMixture

X = np.array([[1.0, 10.0], [2.0, 30.0], [-1.0, 20.0]])
DATA: dict[str, Any] = {"spare": ["p", "q", "r"], "b": X[:, 1], "a": X[:, 0]}


class Frame:
    """The least of a table: `columns` with names, columns by name that are no arrays."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self.columns = list(data)

    def __getitem__(self, name: str) -> Any:
        return self._data[name]


TABLES = {
    "mapping": DATA,
    "pandas": pd.DataFrame(DATA),
    "pandas with null types": pd.DataFrame(DATA).convert_dtypes(),
    "pandas with Arrow types": pd.DataFrame(DATA).convert_dtypes(dtype_backend="pyarrow"),
    "arrow": pa.table(DATA),
    "arrow batch": pa.table(DATA).to_batches()[0],
    "polars": pl.DataFrame(DATA),
    "duck": Frame(DATA),
}


def models() -> list[Any]:
    """One of each kind that takes rows of numbers."""
    two = {"columns": ("a", "b")}
    return [
        GaussianMixture(np.ones(2) / 2, X[:2], np.ones((2, 2)), "diag", **two),  # type: ignore[arg-type]
        KMeans(X[:2], np.ones(2) / 2, np.ones(2), **two),  # type: ignore[arg-type]
        SymmetricMixture(X[0], X[1], np.ones(2), **two),  # type: ignore[arg-type]
        LinearRegression(X[0], 1.0, 1.0, **two),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_columns_are_taken_by_name(table: Any) -> None:
    """The order and further columns do not matter: answers are those for the array, in the order of the rows."""
    for model in models():
        np.testing.assert_array_equal(model.predict(table), model.predict(X))
    mixture, kmeans = models()[:2]
    np.testing.assert_array_equal(mixture.predict_proba(table), mixture.predict_proba(X))
    assert mixture.score(table) == mixture.score(X)
    np.testing.assert_array_equal(kmeans.transform(table), kmeans.transform(X))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_the_target_may_be_in_the_table(table: Any) -> None:
    """The name is the model's; a given target is used instead."""
    line = LinearRegression(np.array([3.0]), 1.0, 1.0, columns=("a",), target="b")
    assert line.score(table) == line.score(X[:, :1], X[:, 1])
    assert line.score(table, [0.0, 1.0, 2.0]) == line.score(X[:, :1], [0.0, 1.0, 2.0])
    lines = MixtureOfRegressions(
        np.array([[3.0], [1.0]]), np.zeros(2), np.ones(2) / 2, np.ones(2), columns=("a",), target="b"
    )
    assert lines.score(table) == lines.score(X[:, :1], X[:, 1])
    np.testing.assert_array_equal(lines.predict_proba(table), lines.predict_proba(X[:, :1], X[:, 1]))


def test_a_model_without_names_takes_all_columns_in_their_order() -> None:
    """There must be as many as it has features."""
    model = replace(models()[1], columns=())
    for table in (pd.DataFrame(X), pd.DataFrame(X, columns=["u", "v"]), pa.table({"u": X[:, 0], "v": X[:, 1]})):
        np.testing.assert_array_equal(model.transform(table), model.transform(X))
    np.testing.assert_array_equal(model.transform({"u": X[:, 0], "v": X[:, 1]}), model.transform(X))
    with pytest.raises(ValueError, match=r"expected shape \(n, 2\), got \(3, 1\)"):
        model.transform({"u": X[:, 0]})
    with pytest.raises(ValueError, match=r"expected shape \(n, 2\)"):
        model.transform({})


def test_null_is_a_missing_feature() -> None:
    """A model that knows what stands for null takes it; elsewhere the message says what to do."""
    model = LinearRegression(
        X[0], 1.0, 1.0, feature_means_=np.array([5.0, 6.0]), feature_std_=np.ones(2), columns=("a", "b")
    )
    expected = model.predict([[5.0, 3.0], [2.0, 6.0]])
    holes: dict[str, Any] = {"a": [None, 2], "b": [3, None]}
    for table in (pa.table(holes), pd.DataFrame(holes), pd.DataFrame(holes).convert_dtypes(), holes):
        np.testing.assert_allclose(model.predict(table), expected)
        with pytest.raises(ValueError, match="drop or fill missing values first"):
            models()[1].predict(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1.0]}, r"columns \['b'\] are missing"),
        ({"a": ["secret"], "b": [1]}, "column 'a': expected numbers"),
        ({"a": np.array(["2020-01-01"], dtype="datetime64[D]"), "b": [1]}, "column 'a': expected numbers"),
        (pa.table({"a": ["secret"], "b": [1]}), "column 'a': expected numbers"),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"]), "b": [1]}), "column 'a': expected numbers"),
        ({"a": [1, 2], "b": [1]}, "the same number of rows"),
        ([["secret", 1]], "X: expected numbers"),
        ([[1, 2], [1]], "X: expected numbers"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(table: Any, message: str) -> None:
    """The message names the column and shows no value."""
    with pytest.raises(ValueError, match=message) as caught:
        models()[1].predict(table)
    assert "secret" not in str(caught.value)


def test_a_target_that_is_not_there_is_asked_for() -> None:
    """The message says which column it would be."""
    line = LinearRegression(np.array([3.0]), 1.0, 1.0, columns=("a",), target="cost")
    for X_ in (DATA, X[:, :1]):
        with pytest.raises(ValueError, match=r"y: expected the target.*'cost'"):
            line.score(X_)
    with pytest.raises(ValueError, match="no name for its target"):
        replace(line, target="").score(DATA)
    with pytest.raises(ValueError, match="y: expected numbers"):
        line.score(DATA, ["secret", "q", "r"])


@pytest.mark.parametrize("model", [models()[0], models()[2]], ids=["mixture", "symmetric"])
def test_synthetic_rows_come_as_a_table(model: Any) -> None:
    """The same rows as the arrays, by column names, and the component beside them."""
    rows, labels = model.sample(5, random_state=1)
    for output in ("pandas", "arrow", "dict"):
        table = model.sample(5, random_state=1, output=output)
        np.testing.assert_array_equal(np.stack([np.asarray(table[name]) for name in ("a", "b")], axis=1), rows)
        np.testing.assert_array_equal(np.asarray(table["component"]), labels)
    assert list(model.sample(2, output="pandas").columns) == ["a", "b", "component"]
    with pytest.raises(ValueError, match="output: expected one of"):
        model.sample(2, output="excel")


def test_a_column_of_the_model_may_be_called_component() -> None:
    """It is the column then, not the number of the component."""
    model = replace(models()[0], columns=("component", "b"))
    rows, _ = model.sample(4, random_state=0)
    table = model.sample(4, random_state=0, output="dict")
    assert list(table) == ["component", "b"]
    np.testing.assert_array_equal(table["component"], rows[:, 0])


def test_polars_gets_its_own_tables(toy: bursar.Dataset) -> None:
    """Categories keep all their states."""
    table = models()[0].sample(5, random_state=1, output="polars")
    assert isinstance(table, pl.DataFrame)
    np.testing.assert_array_equal(table["a"].to_numpy(), models()[0].sample(5, random_state=1)[0][:, 0])
    field = toy.fit(bursar.MRF(cliques=[("group", "spring")]), spend=bursar.rho(0.1))
    synthetic, plain = (field.sample(9, random_state=1, output=output) for output in ("polars", "dict"))
    assert synthetic["spring"].dtype == pl.Enum(["well", "ill", "unknown"])
    assert synthetic["spring"].to_list() == plain["spring"].tolist()
    assert field.score(synthetic) == field.score(plain)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(bursar.MissingDependencyError, match="pip install polars"):
        models()[0].sample(1, output="polars")
