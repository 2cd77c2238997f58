"""Discrete Markov random fields estimated from noisy contingency tables.

Imports numpy and scipy only, and works on released values. Source: Bernstein, McKenna, Sun, Sheldon, Hay, Miklau
(2017), "Differentially private learning of undirected graphical models using collective graphical models".
"""

from bursar_models.mrf._estimation import Estimate, estimate, estimate_chain, estimated_rows
from bursar_models.mrf._graph import (
    MAX_CELLS,
    MAX_CLIQUE,
    MAX_TABLE,
    MAX_TREE,
    MAX_VARIABLES,
    Graph,
    check_cliques,
    check_exact,
    largest_table,
)
from bursar_models.mrf._intervals import TableError
from bursar_models.mrf._learning import Learning, believed_rows, used_tables
from bursar_models.mrf._markov_random_field import MarkovRandomField, ReleasedTable
from bursar_models.mrf._problem import NoisyTable
from bursar_models.mrf._variables import NULL, Variable

__all__ = [
    "MAX_CELLS",
    "MAX_CLIQUE",
    "MAX_TABLE",
    "MAX_TREE",
    "MAX_VARIABLES",
    "NULL",
    "Estimate",
    "Graph",
    "Learning",
    "MarkovRandomField",
    "NoisyTable",
    "ReleasedTable",
    "TableError",
    "Variable",
    "believed_rows",
    "check_cliques",
    "check_exact",
    "estimate",
    "estimate_chain",
    "estimated_rows",
    "largest_table",
    "used_tables",
]
