"""Smoothed truncation of Wang et al. 2020, and the polynomial by which kernels compute it.

For one release the smoothing is a public constant, so that the truncation is a function of one number: odd, smooth and
bounded. A polynomial in a bounded transform of that number has the same operations for every row, at a twentieth of the
closed form's time. Its accuracy affects utility only: sensitivity rests on the kernel's comparison.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em._kernel import CATONI, TERMS

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(128)
_NODES, _NODE_WEIGHTS = (_NODES + 1.0) / math.sqrt(2.0), _NODE_WEIGHTS / math.sqrt(2.0)
"""Nodes and weights of Gauss and Legendre's rule on (0, sqrt 2), where Catoni's function rises."""

_FAR = 9.0
"""Standard deviations beyond which a normal variable is neglected: its tail is 1e-19."""


def limit(root_beta: float) -> float:
    """Return the largest value of `smoothed`: c_phi (2 Phi(sqrt beta) - 1)."""
    return CATONI * math.erf(root_beta / math.sqrt(2.0))


def smoothed(a: FloatArray, root_beta: float) -> FloatArray:
    """Return E phi(a (1 + eta)) for a > 0, eta normal with standard deviation 1 / root_beta, phi Catoni's truncation.

    Wang et al. 2020, equations 9-12. Their closed form loses all digits to cancellation if a / root_beta is large; here
    the limit is subtracted under the integral instead. If a is small, phi is its cubic over the range of the normal
    variable. Accurate to 1e-13 of the limit.
    """
    size = a[..., None]
    density = [np.exp(-0.5 * (root_beta * (sign * _NODES / size - 1.0)) ** 2) for sign in (1.0, -1.0)]
    short = (CATONI - (_NODES - _NODES**3 / 6.0)) * (density[0] - density[1])
    large = limit(root_beta) - short @ _NODE_WEIGHTS * (root_beta / (a * math.sqrt(2.0 * math.pi)))
    small = a - a**3 / 6.0 * (1.0 + 3.0 / root_beta**2)
    return np.asarray(np.where(a * (1.0 + _FAR / root_beta) < math.sqrt(2.0), small, large))


@lru_cache(maxsize=64)
def curve(root_beta: float) -> tuple[float, FloatArray]:
    """Return the smoothed truncation over its limit for kernels: u P(2 u^2 - 1) with u = a / sqrt(a^2 + width^2).

    At u = 0 and u = 1 it is smooth in u^2: it is odd in a, and its series about infinity is one in 1 / a^2.

    Returns:
        width^2, and P's coefficients (TERMS,), the constant first. P interpolates at Chebyshev's points, so its error
        is within a small factor of the best polynomial's: below 1e-8 for root_beta up to 2, which is q / zeta = 9e6,
        below 1e-6 up to 4 (1e111), and 3e-6 at 5.3, the largest that a double zeta can ask for.
    """
    width = root_beta / math.hypot(2.0, root_beta)  # width of the transition, measured: others need more terms
    x = np.cos((np.arange(TERMS) + 0.5) * (math.pi / TERMS))
    u = np.sqrt((1.0 + x) / 2.0)
    values = smoothed(width * u / np.sqrt(1.0 - u**2), root_beta) / (limit(root_beta) * u)
    coefficients = np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebfit(x, values, TERMS - 1))
    # Not read-only: kernels would be compiled once more for that type.
    return width**2, np.asarray(coefficients, dtype=np.float64)
