"""bursar_amounts: units of cost, their conversion to epsilon, amounts as people read them; the standard library alone.

Everything here rounds in a stated direction: an epsilon is never too small, and its text by less than 1e-9 of it.
"""

from ._amounts import (
    COST_UNIT,
    DELTA_UNIT,
    Part,
    amount_text,
    best_order,
    bound_text,
    divergence_cap,
    epsilon_of,
    epsilon_text,
    exact_text,
    float_down,
    float_up,
    left_share,
    lower,
    odds_factor,
    percent_text,
    precise,
    rho_of,
    to_decimal,
    total_text,
    upper,
)

__all__ = [
    "COST_UNIT",
    "DELTA_UNIT",
    "Part",
    "amount_text",
    "best_order",
    "bound_text",
    "divergence_cap",
    "epsilon_of",
    "epsilon_text",
    "exact_text",
    "float_down",
    "float_up",
    "left_share",
    "lower",
    "odds_factor",
    "percent_text",
    "precise",
    "rho_of",
    "to_decimal",
    "total_text",
    "upper",
]
