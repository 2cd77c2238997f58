"""Slider from spend to expected error, for notebooks. It asks for previews only, which are free, before it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bursar._preview import Preview, shown
from bursar_models.budget import Percent
from bursar_models.errors import InvalidRequestError
from bursar_models.optional import require

PERCENTS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0)
"""Spends that are tried, about evenly spaced on a logarithmic scale."""


def spend_slider(preview: Callable[[Percent], Preview], percents: Sequence[float]) -> Any:
    """Return the slider over spends in percent of the whole budget, in ascending order.

    Raises:
        MissingDependencyError: anywidget is not installed.
        InvalidRequestError: there are no spends, or they do not ascend.
    """
    if not percents or list(percents) != sorted(set(percents)):
        raise InvalidRequestError.of("percents", f"expected ascending numbers, got {list(percents)}")
    require("anywidget")
    import anywidget
    import traitlets

    class SpendSlider(anywidget.AnyWidget):
        """Slider over previews; `chosen` is the place of the spend that it shows."""

        _esm = Path(__file__).with_suffix(".mjs")
        points: Any = traitlets.List().tag(sync=True)
        chosen = traitlets.Int(0).tag(sync=True)

        @property
        def spend(self) -> Percent:
            """The spend that it shows."""
            return Percent(percents[self.chosen])

    return SpendSlider(points=[_point(each, preview(Percent(each))) for each in percents], chosen=len(percents) // 2)


def _point(percent: float, found: Preview) -> dict[str, Any]:
    """Return what is shown of one spend; `error` is the first expected number, 0 if there is none."""
    numbers = [each for value in found.expected.values() for each in _numbers(value)]
    verdict = f"affordable, {found.fits_left} like it are left" if found.affordable else "not affordable"
    lines = [f"{name}: {shown(name, found.in_space(value))}" for name, value in found.expected.items()]
    return {
        "percent": percent,
        "title": f"{found.price}: {verdict}",
        "lines": [*lines, *found.warnings],
        "error": numbers[0] if numbers else 0.0,
    }


def _numbers(value: float | Mapping[str, float]) -> list[float]:
    return list(value.values()) if isinstance(value, Mapping) else [value]
