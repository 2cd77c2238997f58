"""Units of cost and of failure probability, which the ledger counts in integers."""

COST_UNIT = 2**40
"""Cost is counted in units of 1 / COST_UNIT of Renyi divergence at the dataset's order.

A unit is about 1e-12, so rounding a request up costs next to nothing, and the cap of the largest total (epsilon 2^20)
stays below 2^63, where SQLite's integers end.
"""
DELTA_UNIT = 2**60
"""Failure probability is counted in units of 1 / DELTA_UNIT, about 1e-18; a delta of 1 stays below 2^63."""
