"""Prediction whether a fit finds its components, and how well: rules of thumb, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from bursar_proto.v1 import fit_pb2
from bursar_server.fits.mixtures.statistics import LATTICE, moment_bounds
from bursar_server.fits.separated_gmm._aggregate import answer_std, blocks_of, of_answers
from bursar_server.fits.separated_gmm._estimate import precisions, released_components
from bursar_server.fits.separated_gmm._locate import BLIND, radii, round_share
from bursar_server.fits.separated_gmm._parts import SplitSettings
from bursar_server.fits.separated_gmm._tree import LOCATION
from bursar_server.vault import gaussian_for, noise_std, part_sensitivity

ESTIMATION = 0.6
"""Share of the budget that remains for estimates after ordinary splits, approximately."""

_SPLIT, _DIRECTIONS = 65.0, 2.0
"""Rows of the smallest component, over sqrt(levels / rho) and over k times those that noise on second moments hides.

Fitted to fits of components ten deviations apart: nine of ten found them all, k = 2 to 8, d = 2 to 100. For sample and
aggregate, on its answers: with all margins at one, 36 of 36 found them all, k = 2 to 6, d = 2 to 20.
"""

_SPLIT_OF_FEW, _FEW = 40.0, 2
"""Constant for few columns, in which a gap shows in most directions; and their number. Fitted to the same fits."""

_BALLS = 80.0
"""Constant of the easy case, where every component costs a part of the budget.

Fitted to 30 fits, k = 4 to 8, d = 10 and 30.
"""

_HIDDEN = 2.0
"""Margin of principal directions below which half of a search uses random directions."""

_MANY = 12
"""Maximum number of components that the easy case was measured to find."""

_WIDER = 1.5
"""Radius of a ball about a group of answers over the one that holds nearly all of them. Chosen, not tuned."""

_FAINT, _CLOSE = 0.15, 4.0
"""Margin of gaps, and distance of means in sqrt(sigma_min sigma_max), below which FitDPEM finds more components.

Measured in bounds a few times as wide as the rows: with margins from 0.14 up this fit found as many or more in five
worlds, k = 5 to 10, d = 5 to 20; at 0.10 it found 2 and 8 of 10, FitDPEM 7 and 8; at three deviations 5 and 6 of 6
against 6 and 6.
"""

_REPLACING = 2.0
"""Factor of a search's cost under REPLACE_ONE."""


def preflight(settings: SplitSettings, rows: int | None) -> fit_pb2.Preflight | None:
    """Return the rules with their margins; None if the number of rows is neither public nor declared."""
    if not rows:
        return None
    margins = _margins(settings, rows, float(settings.rho))
    return fit_pb2.Preflight(
        rules=[fit_pb2.PreflightRule(name=name, margin=margin) for name, margin in margins.items()],
        predicted_found=_predicted(settings.k, margins),
        expected_covariance_error=_covariance_error(settings, rows),
        suggested_rho=_suggested(settings, rows) * float(1 + settings.form / settings.rho),
    )


def expected_mean_error(settings: SplitSettings, rows: int | None) -> tuple[float, ...]:
    """Return the noise on a mean of one of k equal components of medium size, (d,), in the data's units."""
    if not rows:
        return ()
    s = settings
    if s.aggregate:
        error = _of_answers(s, rows) * _answer_radius(s, rows)
    else:
        noise = _noise(s) / precisions(s.d, s.moments).b * s.k / rows
        error = noise * math.sqrt((1.6 * s.d + 2.0) * s.sigma_min * s.sigma_max)
    return tuple(float(x) for x in error * s.frame.scale)


def warnings(settings: SplitSettings, rows: int | None) -> tuple[str, ...]:
    """Return warnings for the analyst before the debit."""
    found = []
    if settings.easy and settings.k > _MANY:
        found.append(f"balls are looked for among public points; tried with no more than {_MANY} components")
    if rows:
        margins = _margins(settings, rows, float(settings.rho))
        failed = [name for name, margin in margins.items() if margin < 1.0]
        if failed:
            found.append(f"fewer components than asked for may be found: too little for {' and '.join(failed)}")
        close = settings.separation < _CLOSE * math.sqrt(settings.sigma_min * settings.sigma_max)
        if settings.k > 1 and (close or margins[_GAPS] < _FAINT):
            what = "components are too close for gaps" if close else "noise hides nearly all gaps"
            found.append(f"{what}: FitDPEM finds more of them, in bounds that are not much wider than the rows")
    return tuple(found)


def _predicted(k: int, margins: Mapping[str, float]) -> int:
    """Return about how many components are found: some of those with too noisy gaps, few without directions.

    At least one.
    """
    if margins[_BALL] < 1.0:
        return 1
    space = min(1.0, margins.get(_SPACE, 1.0))
    least = min(margin for name, margin in margins.items() if name != _ANSWERS)
    return max(1, round(k * min(space**2, math.sqrt(min(1.0, least)))))


_BALL, _SPACE, _ANSWERS = "bounding ball", "principal directions", "balls of answers"
_GAPS = "gaps between components"


def _margins(settings: SplitSettings, rows: int, rho: float) -> Mapping[str, float]:
    s = settings
    if s.aggregate:  # the recursion on answers of blocks
        answers, blocks = replace(of_answers(s), aggregate=False), blocks_of(s, rows).blocks
        rho *= float(answers.rho / s.rho)
        return {**_margins(answers, s.k * blocks, rho), _ANSWERS: _ball(answers, blocks, rho)}
    smallest = s.min_weight * rows
    factor = s.unit_cap * (_REPLACING if s.replaces else 1.0)
    margins = {_BALL: _ball(s, rows, rho)}
    if s.k == 1:
        return margins | {"estimates": smallest * math.sqrt(rho) / (10.0 * factor * math.sqrt(s.d))}
    levels = s.k if s.easy else min(s.k - 1, math.ceil(math.log2(s.k)) + 1)
    needed = _SPLIT_OF_FEW if s.d <= _FEW else _BALLS if s.easy else _SPLIT
    gaps = smallest / (needed * factor) * math.sqrt(rho / levels)
    if s.d > s.k:
        relative = s.d * s.sigma_min * s.sigma_max / s.separation**2
        typical = max(smallest, 0.5 * rows / s.k)  # directions show large components; gaps among them, small ones
        directions = typical / (_DIRECTIONS * s.k * factor * (0.5 + relative) * math.sqrt(s.d / rho))
        margins[_SPACE] = directions
        gaps *= math.sqrt(0.5) if directions < _HIDDEN else 1.0
    return {_GAPS: gaps} | margins


def _ball(settings: SplitSettings, rows: int, rho: float) -> float:
    """Return rows over those that a radius needs to be requested at all; without it, components are not located."""
    s = settings
    share = 0.5 * round_share(s.k, s.d, s.sigma_min, LOCATION)
    scale = 2.0 * s.unit_cap * (math.sqrt(2.0) if s.replaces else 1.0) / math.sqrt(8.0 * rho * share)
    return BLIND * rows / (scale * (math.log(radii(s, np.zeros(s.d), 1.0).steps) + 4.0))


def _suggested(settings: SplitSettings, rows: int) -> float:
    """Return a sufficient rho: margins grow at least with its square root."""
    worst = min(_margins(settings, rows, 1.0).values())
    rho = 1.0 / worst**2 if worst > 0 else 0.0
    worst = min(_margins(settings, rows, rho).values()) if 0 < rho < math.inf else 1.0
    return float(rho / min(1.0, worst) ** 2)


def _noise(settings: SplitSettings) -> float:
    """Return the deviation of the noise on a sum of moments, all releases of the last phase together."""
    s = settings
    bounds = moment_bounds(released_components(s), s.d, s.moments, precisions(s.d, s.moments))
    noise = gaussian_for(part_sensitivity(bounds, s.adjacency, s.unit_cap), s.rho * Fraction(ESTIMATION))
    return noise_std(noise, LATTICE)


def _of_answers(settings: SplitSettings, rows: int) -> float:
    """Return the deviation of the noise on an average of answers, in clip radii."""
    return answer_std(settings, ESTIMATION) / blocks_of(settings, rows).blocks


def _answer_radius(settings: SplitSettings, rows: int) -> float:
    """Return the radius of a ball about a group of answers.

    It holds means of a component's rows in a block, or is the whole ball if none is located.
    """
    s = settings
    if not _margins(s, rows, float(s.rho))[_ANSWERS] >= 1.0:
        return 1.0
    deviation = math.sqrt(s.sigma_min * s.sigma_max * s.k * blocks_of(s, rows).blocks / rows)
    return min(1.0, _WIDER * deviation * (math.sqrt(s.d) + 3.0))


def _covariance_error(settings: SplitSettings, rows: int) -> float:
    """Return the relative error of a covariance before shrinkage."""
    s = settings
    if s.aggregate:
        noise = _of_answers(s, rows) * 2.0 * math.log(s.sigma_max / s.sigma_min)
        return float(np.sqrt(noise**2 + 2.0 * s.k / (s.d * rows)))
    numbers = s.moments.size(s.d) / s.d
    noise = _noise(s) / precisions(s.d, s.moments).c * s.k / rows * (1.6 * s.d + 2.0)
    return float(np.sqrt(numbers * (noise**2 + 2.0 * s.k / rows)))
