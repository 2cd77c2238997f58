"""Releases on parts of a table that earlier releases defined, under accounts of paths.

A forest is one purchase of rho. Its trees divide the rows by released predicates; an operation on a part touches the
rows of that part alone, so what a row pays is the sum along the path of parts that hold it, not the sum of all. That is
what makes decision trees, histogram trees and recursive clustering affordable. Proof in `_parts.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_server.vault._engine import Engine
from bursar_server.vault._errors import OverspendError
from bursar_server.vault._noise import GaussianNoise, NoiseSource, SelectionNoise
from bursar_server.vault._rows import CHUNK, Rows
from bursar_server.vault._search import Family, FamilyScores, SearchSource
from bursar_server.vault._sensitivity import part_cost
from bursar_server.vault._statistic import Kernel, Statistic, Sum, kernel_on

MOST_WAYS = 2**15
"""Labels are 16-bit integers."""

MOST_LABELS = 2**28
"""Most labels that a forest notes: 256 MB."""

_BYTE_WAYS = 2**7
"""Labels up to here are noted."""

FloatBlock = NDArray[np.float64]


class Rule(Protocol):
    """A released predicate: which child of a part a row belongs to.

    A total function of one row's numbers and of public or released ones, as a statistic's kernel is: exact, or rounded
    in a way that does not depend on other rows or on the row's place in a block.
    """

    @property
    def ways(self) -> int:
        """Number of labels, 2 to `MOST_WAYS`."""

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """Fill `labels` (CHUNK,) for the rows of `block` (n_columns, CHUNK) with `present`; all are 0 before.

        Anything but 1 to `ways` - 1 counts as 0. Changes neither `block` nor `present`. May be asked by several threads
        at a time.
        """


@dataclass(frozen=True, eq=False)
class Node:
    """A part of a table: the rows that all rules on the way from its root put here. Made by `Forest` only.

    Attributes:
        parent: None for a root, which has all rows.
        rule: that divided the parent.
        ways: into how many children.
        label: of the rows that are here.
    """

    parent: Node | None = None
    rule: Rule | None = None
    ways: int = 1
    label: int = 0


@dataclass(frozen=True, eq=False)
class PartRelease:
    """One noisy release on a part as the audit's tap sees it: after noise.

    Attributes:
        node: whose rows were summed.
        statistic: what was summed.
        noisy: sum plus noise, in lattice units, shape `statistic.shape`.
        noise: what was added.
        rho: what the paths through the node were charged.
    """

    node: Node
    statistic: Statistic
    noisy: NDArray[np.int64]
    noise: GaussianNoise
    rho: Fraction


@dataclass(frozen=True, eq=False)
class PartSearch:
    """One search on a part as the audit's tap sees it: after noise.

    Attributes:
        node: whose rows were scored.
        family: of candidates.
        chosen: group, and index within the group.
        noise: of the scores.
        rho: what the paths through the node were charged.
    """

    node: Node
    family: Family
    chosen: tuple[int, int]
    noise: SelectionNoise
    rho: Fraction


PartTap = Callable[[PartRelease | PartSearch], None]


class PathMeter:
    """Stops operations that would take any path beyond rho.

    A path goes from one root down through the children of every division it meets, and likewise in every tree: it is
    what one row can be touched by. Sums are exact.
    """

    def __init__(self, rho: Fraction) -> None:
        self._rho = rho
        self._own: dict[Node, Fraction] = {}
        self._worst: dict[Node, Fraction] = {}
        self._divisions: dict[Node | None, list[tuple[Node, ...]]] = {None: []}

    def grow(self, parent: Node | None, children: tuple[Node, ...]) -> None:
        """Enter a division of a node, or a new root under None. Several divisions of one node add up."""
        self._divisions[parent].append(children)
        for node in children:
            self._own[node] = self._worst[node] = Fraction(0)
            self._divisions[node] = []

    def knows(self, node: Node) -> bool:
        """Whether a node was entered."""
        return node in self._own

    def left(self, node: Node) -> Fraction:
        """What an operation on a node may cost: rho less the dearest path through it."""
        spent, here = self._worst[node], node
        while True:
            parent = here.parent
            spent += sum((_dearest(self._worst, c) for c in self._divisions[parent] if here not in c), Fraction(0))
            if parent is None:
                return self._rho - spent
            spent, here = spent + self._own[parent], parent

    def charge(self, costs: Sequence[tuple[Node, Fraction]]) -> None:
        """Count operations. Raises OverspendError, and counts none of them, if one would take a path beyond rho."""
        before = dict(self._own), dict(self._worst)
        for node, rho in costs:
            if not rho <= self.left(node):
                left = self.left(node)
                self._own, self._worst = before
                raise OverspendError(
                    f"an operation on a part costs rho = {float(rho):.6g}, and its paths have {float(left):.6g} left; "
                    "a fit must stay within the rho of its forest"
                )
            self._own[node] += rho
            here: Node | None = node
            while here is not None:
                deeper = (_dearest(self._worst, children) for children in self._divisions[here])
                self._worst[here] = self._own[here] + sum(deeper, Fraction(0))
                here = here.parent


def _dearest(worst: dict[Node, Fraction], children: tuple[Node, ...]) -> Fraction:
    return max(worst[node] for node in children)


class Forest:
    """Operations on parts of a session's table that together are rho-zCDP. Made by `Session.forest`, which charges it.

    Args:
        rho: that every path may spend.
        rows: see `Session`; likewise columns, adjacency, unit_cap, source, search_source and engine.
        tap: sees every operation after noise.
    """

    def __init__(
        self,
        rho: Fraction,
        *,
        rows: Rows,
        columns: int,
        adjacency: Adjacency,
        unit_cap: int,
        source: NoiseSource,
        search_source: SearchSource,
        engine: Engine,
        tap: PartTap,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._adjacency = adjacency
        self._unit_cap = unit_cap
        self._source = source
        self._search_source = search_source
        self._engine = engine
        self._tap = tap
        self._meter = PathMeter(rho)
        self._labels = _Labels(rows.slots)

    def tree(self) -> Node:
        """Begin a new tree, a phase: its root is all rows. What rows spend in several trees adds up."""
        root = Node()
        self._meter.grow(None, (root,))
        return root

    def split(self, node: Node, rule: Rule) -> tuple[Node, ...]:
        """Divide a node by a released rule, for nothing: child i has the rows with label i.

        A node may be divided again by another rule; what rows spend below the two adds up.
        """
        self._check(node)
        ways = rule.ways
        if not 2 <= ways <= MOST_WAYS:
            raise ValueError(f"rule.ways: expected 2 to {MOST_WAYS}, got {ways}")
        children = tuple(Node(node, rule, ways, label) for label in range(ways))
        self._meter.grow(node, children)
        return children

    def left(self, node: Node) -> Fraction:
        """Rho that an operation on this node may still cost."""
        self._check(node)
        return self._meter.left(node)

    def noisy_sum(self, node: Node, statistic: Statistic, noise: GaussianNoise) -> NDArray[np.float64]:
        """Release the sum of a statistic over a node's rows, in real units, shape `statistic.shape`.

        Raises as `noisy_sums`.
        """
        return self.noisy_sums([(node, statistic, noise)])[0]

    def noisy_sums(self, asked: Sequence[tuple[Node, Statistic, GaussianNoise]]) -> list[NDArray[np.float64]]:
        """Release several sums, each over its own node's rows, with one pass over the table.

        Paths are charged first, for all of them; then rows are read. To a statistic, rows outside of its node are as
        null rows. Costs what the same releases one by one would.

        Raises:
            OverspendError: a path through one of the nodes has less left; nothing was charged or read.
            ValueError: a node of another forest, or bounds of a whole unit (`part_sensitivity`).
        """
        costs = []
        for node, statistic, noise in asked:
            self._check(node)
            costs.append(part_cost(statistic.bounds, self._adjacency, self._unit_cap, noise))
        self._meter.charge([(node, rho) for (node, _, _), rho in zip(asked, costs, strict=True)])
        sums = self._exact_sums([(node, statistic) for node, statistic, _ in asked])
        released = []
        for (node, statistic, noise), exact, rho in zip(asked, sums, costs, strict=True):
            noisy = self._source.add(exact, noise)
            self._tap(PartRelease(node, statistic, noisy, noise, rho))
            released.append(noisy.astype(np.float64) * statistic.lattice)
        return released

    def search(self, node: Node, family: Family, noise: SelectionNoise) -> tuple[int, int]:
        """Choose a candidate by its score on a node's rows: its group, and its index within the group.

        By the exponential mechanism over all candidates of all groups. Paths are charged first; then rows are read, one
        pass for every `family.batch` groups and, if there are more than that, one for the group of the choice. Raises
        as `noisy_sums`.
        """
        self._check(node)
        if not (family.groups >= 1 and family.batch >= 1):
            raise ValueError(f"family: expected at least one group and batch, got {family.groups} and {family.batch}")
        rho = part_cost(family.bounds, self._adjacency, self._unit_cap, noise)
        self._meter.charge([(node, rho)])
        scores = FamilyScores(family, lambda statistic: self._exact_sums([(node, statistic)])[0])
        chosen = self._search_source.draw(scores, noise)
        self._tap(PartSearch(node, family, chosen, noise, rho))
        return chosen

    def _exact_sums(self, asked: Sequence[tuple[Node, Statistic]]) -> list[NDArray[np.int64]]:
        """Exact sums over nodes' rows, which stay inside; for operations that have been paid for."""
        sizes = np.cumsum([0, *(statistic.size for _, statistic in asked)]).tolist()
        for node, _ in asked:
            self._labels.make_room(node)
        kernels = tuple((node, kernel_on(self._engine, statistic.kernel)) for node, statistic in asked)
        kernel = _OfParts(kernels, tuple(sizes), self._labels)
        sums = self._engine.run(Sum(kernel, sizes[-1]), self._rows, self._columns)
        return [
            sums[start:stop].reshape(statistic.shape)
            for (_, statistic), start, stop in zip(asked, sizes, sizes[1:], strict=False)
        ]

    def _check(self, node: Node) -> None:
        if not self._meter.knows(node):
            raise ValueError("node: expected one that this forest made")


@dataclass(frozen=True)
class _OfParts:
    """Several kernels in one pass, each over the rows of its own node.

    Attributes:
        asked: nodes and kernels.
        places: where in the flat array each kernel's numbers begin; the last one is its size.
        labels: noted by earlier passes; notes stay in the process that made them.
    """

    asked: tuple[tuple[Node, Kernel], ...]
    places: tuple[int, ...]
    labels: _Labels

    def __call__(self, first: int, block: FloatBlock, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        members = _Members(first, block, present, self.labels)
        for (node, kernel), start, stop in zip(self.asked, self.places, self.places[1:], strict=False):
            kernel(block, members.of(node), out[start:stop])


class _Labels:
    """Labels of all slots by the rules of a forest, noted when a rule is first asked, so that it is not asked again.

    For all slots, whichever part an operation is on: notes say nothing that rows and released rules do not. A byte for
    each slot and rule; rules with more ways than fit, and those beyond `MOST_LABELS`, are asked in every pass.
    """

    def __init__(self, slots: int) -> None:
        self._blocks = -(-slots // CHUNK)
        self._notes: dict[tuple[Node | None, int], tuple[NDArray[np.int8], NDArray[np.bool_]]] = {}

    def __reduce__(self) -> tuple[type[_Labels], tuple[int]]:
        """Without the notes, and without room for any: they are made of rows, and elsewhere rules are asked again."""
        return _Labels, (0,)

    def make_room(self, node: Node) -> None:
        """For the rules on the way to a node; before a pass, as its threads must not."""
        here: Node | None = node
        while here is not None and here.rule is not None:
            needed = (len(self._notes) + 1) * self._blocks * CHUNK
            if _division(here) not in self._notes and here.ways <= _BYTE_WAYS and needed <= MOST_LABELS:
                labels = np.zeros((self._blocks, CHUNK), dtype=np.int8)
                self._notes[_division(here)] = labels, np.zeros(self._blocks, dtype=np.bool_)
            here = here.parent

    def of(self, node: Node, rule: Rule, first: int, block: FloatBlock, parent: NDArray[np.bool_]) -> NDArray[Any]:
        """Labels of the block whose first slot is `first` by the rule that made a node, from 0 to its ways - 1."""
        noted, place = self._notes.get(_division(node)), first // CHUNK
        if noted is not None and noted[1][place]:
            return np.asarray(noted[0][place])
        labels = np.zeros(CHUNK, dtype=np.int16)
        rule(block, parent, labels)
        labels[(labels < 0) | (labels >= node.ways)] = 0
        if noted is not None:
            noted[0][place], noted[1][place] = labels, True
        return labels


def _division(node: Node) -> tuple[Node | None, int]:
    """Of which node by which rule a node is a part; rules that hold arrays have no hash."""
    return node.parent, id(node.rule)


class _Members:
    """Which rows of a block are in which part."""

    def __init__(self, first: int, block: FloatBlock, present: NDArray[np.bool_], labels: _Labels) -> None:
        self._first = first
        self._block = block
        self._labels = labels
        self._masks: dict[Node | None, NDArray[np.bool_]] = {None: present}
        self._asked: dict[tuple[Node | None, int], NDArray[Any]] = {}

    def of(self, node: Node) -> NDArray[np.bool_]:
        """Whether each row is in a part, (CHUNK,)."""
        way = []
        here: Node | None = node
        while here is not None:
            way.append(here)
            here = here.parent
        for step in reversed(way):
            if step not in self._masks:
                self._masks[step] = self._inside(step)
        return self._masks[node]

    def _inside(self, node: Node) -> NDArray[np.bool_]:
        parent, key = self._masks[node.parent], _division(node)
        if node.rule is None:
            return parent
        if key not in self._asked:
            self._asked[key] = self._labels.of(node, node.rule, self._first, self._block, parent)
        return np.asarray(parent & (self._asked[key] == node.label))
