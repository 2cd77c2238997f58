"""Intervals of k-means from the noisy sums over the rows nearest to its centres."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar
from bursar_models import ClusterReport, KMeans
from bursar_models._cluster_report import report_shares

CENTRES = np.array([[-0.5, 0.1], [0.6, -0.2], [0.0, 0.7]])
SHARES = np.array([0.6, 0.3, 0.1])


def rows(n: int, rng: Any) -> Any:
    """Rows of three groups whose means are beside the centres; skewed, within [-1, 1]."""
    group = rng.choice(3, n, p=SHARES)
    return np.clip(CENTRES[group] + 0.05 + 0.15 * (rng.exponential(1, (n, 2)) - 1), -1, 1)


def released(seed: int, *, noise: float = 15.0, n: int = 4000) -> KMeans:
    """A model whose report has normal noise of this size on counts, clipped to radius 1."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    X = rows(n, rng)
    model = KMeans(CENTRES, SHARES, np.full(3, 0.02), columns=("a", "b"), n_rows=float(n))
    u = X - CENTRES[nearest := model.predict(X)]
    u /= np.maximum(np.linalg.norm(u, axis=1), 1.0)[:, None]
    sums, squares = (np.array([part[nearest == j].sum(axis=0) for j in range(3)]) for part in (u, u**2))
    report = ClusterReport(
        counts=np.bincount(nearest, minlength=3) + noise * rng.standard_normal(3),
        sums=sums + 0.5 * noise * rng.standard_normal((3, 2)),
        squares=squares + 2 * noise * rng.standard_normal((3, 2)),
        radii=np.ones(3),
        count_std=noise,
        sum_std=0.5 * noise,
        square_std=2 * noise,
    )
    return replace(model, report=report)


def truth() -> dict[str, float]:
    """Shares, means and mean squares of a million rows nearest to each centre."""
    X = rows(1_000_000, np.random.default_rng(99))  # noqa: TID251 - rows of a test
    nearest = released(0).predict(X)
    found = {f"weights_[{j}]": float(np.mean(nearest == j)) for j in range(3)}
    for j in range(3):
        means = X[nearest == j].mean(axis=0)
        found[f"variances_[{j}]"] = float(np.square(X[nearest == j] - CENTRES[j]).mean())
        found |= {f"cluster_centers_[{j}].{name}": float(mean) for name, mean in zip("ab", means, strict=True)}
    return found


def coverage(models: list[KMeans]) -> float:
    """The share of intervals that contain the population's number."""
    true = truth()
    return float(np.mean([row.low <= true[row.name] <= row.high for one in models for row in one.intervals()]))


@pytest.mark.slow
def test_intervals_contain_the_populations_shares_and_means() -> None:
    """They do in 95 % of 2,400 intervals; with noise a third smaller or larger they would not."""
    models = [released(seed) for seed in range(200)]
    assert all(len(one.intervals()) == 12 for one in models)
    assert 0.925 < coverage(models) < 0.972

    def lying(factor: float) -> list[KMeans]:
        reports = [one.report for one in models if one.report is not None]
        return [
            replace(
                one,
                report=replace(
                    report,
                    count_std=factor * report.count_std,
                    sum_std=factor * report.sum_std,
                    square_std=factor * report.square_std,
                ),
            )
            for one, report in zip(models, reports, strict=True)
        ]

    assert coverage(lying(1 / 1.5)) < 0.91
    assert coverage(lying(1.5)) > 0.972


def test_they_say_what_they_are_about() -> None:
    """The mean is that of the nearest rows, not the centre; hidden clusters are named with the reason."""
    found = released(1).intervals()
    mean = found["cluster_centers_[0].a"]
    assert mean.about == "mean of 'a' over the rows nearest to centre 0"
    assert mean.estimate > -0.5 + 0.02
    assert "nearest to the returned centres" in found.target
    assert found.left_out == ()
    assert found["variances_[1]"].about == "mean squared distance per column over the rows nearest to centre 1"
    report = released(1).report
    assert report is not None
    hidden = replace(released(1), report=replace(report, counts=np.array([2400.0, 1200.0, 30.0])))
    assert "cluster_centers_[2]: noise hides" in hidden.intervals().left_out[0]
    assert "hidden by noise" in repr(hidden)
    assert "inf" not in repr(hidden)
    narrow, wide = (released(1).intervals(level)["weights_[0]"] for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_shares_among_much_noise_have_intervals_as_wide_as_their_errors() -> None:
    """A share of 3 to 10 % whose noise is half of it: 95 % are covered, and widths are those of the errors."""
    rng = np.random.default_rng(8)  # noqa: TID251 - noise of a test
    shares, n, noise = np.array([0.03, 0.05, 0.1, 0.22, 0.6]), 10_000, 250.0
    inside, errors, widths = [], [], []
    for _ in range(400):
        counts = rng.multinomial(n, shares) + noise * rng.standard_normal(5)
        report = ClusterReport(counts, np.zeros((5, 2)), np.ones((5, 2)), np.ones(5), noise, noise, noise)
        found, low, high = report_shares(report, 1.96)
        assert ((low >= 0) & (low <= found) & (found <= high) & (high <= 1)).all()
        inside.append((low <= shares) & (shares <= high))
        errors.append(found - shares)
        widths.append((high - low) / 2)
    assert 0.935 < np.mean(inside) < 0.975
    sharp = np.sqrt(np.square(widths).mean(axis=0) / np.square(errors).mean(axis=0)) / 1.96
    assert (sharp < 1.3).all()
    assert np.mean(np.abs(errors) < np.array(widths) / 1.5) < 0.9


def test_any_noise_gives_intervals_or_a_reason() -> None:
    """Negative counts, sums and squares raise nothing, and no share is outside of 0 to 1."""
    for counts in ([-50.0, -9.0, -1.0], [0.0, 0.0, 5000.0], [1e12, 1.0, -1e12]):
        report = released(2).report
        assert report is not None
        model = replace(released(2), report=replace(report, counts=np.array(counts), squares=-np.ones((3, 2))))
        ends = list(model.intervals())
        assert all(np.isfinite([row.low, row.high]).all() for row in ends)
        assert all(0 <= row.low <= row.high <= 1 for row in ends if row.name.startswith("weights_"))
        assert all(0 <= row.low <= row.high for row in ends if row.name.startswith("variances_"))


def test_files_prints_and_pictures_have_the_report() -> None:
    """JSON brings it back, a print has mean and error beside the centre, and bars are about the mean."""
    pytest.importorskip("matplotlib").use("agg")
    model = released(3)
    again = KMeans.from_dict(json.loads(json.dumps(model.to_dict())))
    assert repr(again.intervals()) == repr(model.intervals())
    assert "mean a" in repr(model)
    assert "±" in repr(model)
    assert "one standard error" in model._repr_html_()
    ax = model.plot()
    (first, *_) = ax.containers
    assert "2 standard errors of the mean of the nearest rows" in ax.get_legend().get_title().get_text()
    drawn = np.array([container.lines[0].get_xydata()[0] for container in ax.containers])
    estimates = [model.intervals()[f"cluster_centers_[{j}].a"].estimate for j in range(3)]
    assert sorted(drawn[:, 0]) == pytest.approx(sorted(estimates))
    assert first is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sums": np.zeros(3)}, r"sums: expected shape \(k, d\)"),
        ({"counts": np.zeros(2)}, "counts"),
        ({"squares": np.zeros((3, 1))}, "squares"),
        ({"radii": np.array([1.0, 0.0, 1.0])}, "radii: every entry"),
        ({"sum_std": float("nan")}, "sum_std: expected a number above 0"),
    ],
)
def test_wrong_reports_are_refused(change: dict[str, Any], message: str) -> None:
    """The message names the field."""
    report = released(0).report
    assert report is not None
    with pytest.raises(ValueError, match=message):
        replace(report, **change)


def test_a_report_of_other_centres_is_refused() -> None:
    """A model's report has its clusters and columns."""
    report = released(0).report
    with pytest.raises(ValueError, match="report: expected sums of shape"):
        bursar.KMeans(CENTRES[:2], np.ones(2) / 2, np.ones(2), report=report)
