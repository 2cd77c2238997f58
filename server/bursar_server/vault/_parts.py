"""Releases on parts of a table that earlier releases defined, with privacy loss accounted along paths.

A forest is one debit of rho. Its trees divide the rows by released predicates. An operation on a part touches only that
part's rows, so a row's loss is the sum along the path of parts that contain it, not the sum over all parts. That makes
decision trees, histogram trees and recursive clustering affordable. Proof: `_parts.md`.
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
"""Maximum number of children of a division: labels are 16-bit integers."""

MOST_LABELS = 2**28
"""Maximum number of labels that a forest caches, one byte each: 256 MB. Chosen, not tuned; beyond it rules run again.
"""

_BYTE_WAYS = 2**7
"""Maximum number of children whose labels fit into a signed byte; only those labels are cached."""

FloatBlock = NDArray[np.float64]


class Rule(Protocol):
    """Released predicate: the child of a part to which a row belongs.

    A total function of one row's numbers and of public or released numbers, as a statistic's kernel is: exact, or
    rounded in a way that does not depend on other rows or on the row's place in a block.
    """

    @property
    def ways(self) -> int:
        """Number of labels, 2 to `MOST_WAYS`."""

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """Fill `labels` (CHUNK,) for the rows of `block` (n_columns, CHUNK) with `present`; all labels are 0 before.

        Values other than 1 to `ways` - 1 count as 0. Changes neither `block` nor `present`. Several threads may call it
        at the same time.
        """


@dataclass(frozen=True, eq=False)
class Node:
    """Part of a table: the rows that all rules on the way from the root put here. Only `Forest` makes nodes.

    Attributes:
        parent: node that was divided; None for a root, which contains all rows.
        rule: rule that divided the parent; None for a root.
        ways: number of children of that division.
        label: label of the rows in this node.
    """

    parent: Node | None = None
    rule: Rule | None = None
    ways: int = 1
    label: int = 0


@dataclass(frozen=True, eq=False)
class PartRelease:
    """One noisy release on a part, as an audit's tap receives it: after noise.

    Attributes:
        node: part whose rows were summed.
        statistic: statistic that was summed.
        noisy: sum plus noise, in lattice units, shape `statistic.shape`.
        noise: noise that was added.
        rho: cost charged to the paths through the node.
    """

    node: Node
    statistic: Statistic
    noisy: NDArray[np.int64]
    noise: GaussianNoise
    rho: Fraction


@dataclass(frozen=True, eq=False)
class PartSearch:
    """One search on a part, as an audit's tap receives it: after noise.

    Attributes:
        node: part whose rows were scored.
        family: candidates of the search.
        chosen: group, and index within the group.
        noise: noise on the scores.
        rho: cost charged to the paths through the node.
    """

    node: Node
    family: Family
    chosen: tuple[int, int]
    noise: SelectionNoise
    rho: Fraction


PartTap = Callable[[PartRelease | PartSearch], None]


class PathMeter:
    """Meter that refuses operations by which any path would cost more than rho.

    A path goes from one root down through one child of every division it meets, in every tree: it contains the
    operations that can touch one row. Sums are exact fractions.
    """

    def __init__(self, rho: Fraction) -> None:
        self._rho = rho
        # The dearest path below each node is kept up to date: only a charged node's ancestors are computed again.
        self._own: dict[Node, Fraction] = {}
        self._worst: dict[Node, Fraction] = {}
        self._divisions: dict[Node | None, list[tuple[Node, ...]]] = {None: []}

    def grow(self, parent: Node | None, children: tuple[Node, ...]) -> None:
        """Record a division of a node, or a new root under None. The costs of several divisions of one node add up."""
        self._divisions[parent].append(children)
        for node in children:
            self._own[node] = self._worst[node] = Fraction(0)
            self._divisions[node] = []

    def knows(self, node: Node) -> bool:
        """Return whether a node was recorded."""
        return node in self._own

    def left(self, node: Node) -> Fraction:
        """Return the rho that an operation on a node may cost: rho less the cost of its most expensive path."""
        # Going up, every other division of an ancestor adds its most expensive child: one row may be in all of these at
        # once.
        spent, here = self._worst[node], node
        while True:
            parent = here.parent
            spent += sum((_dearest(self._worst, c) for c in self._divisions[parent] if here not in c), Fraction(0))
            if parent is None:
                return self._rho - spent
            spent, here = spent + self._own[parent], parent

    def charge(self, costs: Sequence[tuple[Node, Fraction]]) -> None:
        """Charge operations to their nodes, all or none.

        Raises:
            OverspendError: an operation would take a path beyond rho; none is charged.
        """
        # Kept to undo: operations of one call may share paths, so each is checked after those before it were charged.
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
    # A row is in exactly one child of a division, so the children do not add up.
    return max(worst[node] for node in children)


class Forest:
    """Operations on parts of a session's table that together are rho-zCDP.

    `Session.forest` makes it and charges its rho.

    Args:
        rho: maximum cost of every path.
        rows: the table's rows.
        columns: number of columns.
        adjacency: neighbouring relation of the table.
        unit_cap: maximum number of rows of one privacy unit.
        source: source of noise on sums.
        search_source: source of the candidates of searches.
        engine: engine that reads the rows.
        tap: receives every operation after noise.
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
        """Begin a new tree and return its root, which contains all rows. A row's costs in several trees add up."""
        root = Node()
        self._meter.grow(None, (root,))
        return root

    def split(self, node: Node, rule: Rule) -> tuple[Node, ...]:
        """Divide a node by a released rule, free of charge: child i contains the rows with label i.

        A node may be divided again by another rule; a row's costs below the two divisions add up.

        Raises:
            ValueError: the node is of another forest, or `rule.ways` is out of range.
        """
        self._check(node)
        ways = rule.ways
        if not 2 <= ways <= MOST_WAYS:
            raise ValueError(f"rule.ways: expected 2 to {MOST_WAYS}, got {ways}")
        # Free: the rule is a function of public or released numbers, and labels do not leave the vault.
        children = tuple(Node(node, rule, ways, label) for label in range(ways))
        self._meter.grow(node, children)
        return children

    def left(self, node: Node) -> Fraction:
        """Return the rho that an operation on this node may still cost."""
        self._check(node)
        return self._meter.left(node)

    def noisy_sum(self, node: Node, statistic: Statistic, noise: GaussianNoise) -> NDArray[np.float64]:
        """Release the sum of a statistic over a node's rows, in real units, shape `statistic.shape`.

        Raises the exceptions of `noisy_sums`.
        """
        return self.noisy_sums([(node, statistic, noise)])[0]

    def noisy_sums(self, asked: Sequence[tuple[Node, Statistic, GaussianNoise]]) -> list[NDArray[np.float64]]:
        """Release several sums, each over its own node's rows, with one pass over the table.

        All paths are charged first; then rows are read. A statistic sees rows outside of its node as null rows. The
        cost is that of the same releases made one by one.

        Raises:
            OverspendError: a path through one of the nodes has less rho left; nothing was charged or read.
            ValueError: a node is of another forest, or bounds are those of a whole unit (`part_sensitivity`).
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
        """Choose a candidate by its score on a node's rows; return its group and its index within the group.

        The exponential mechanism over all candidates of all groups. Paths are charged first. Then rows are read, one
        pass for every `family.batch` groups and, if there is more than one batch, one more for the group of the choice.

        Raises:
            OverspendError: a path through the node has less rho left; nothing was charged or read.
            ValueError: the node is of another forest, or the family has no groups or an empty batch.
        """
        self._check(node)
        if not (family.groups >= 1 and family.batch >= 1):
            raise ValueError(f"family: expected at least one group and batch, got {family.groups} and {family.batch}")
        rho = part_cost(family.bounds, self._adjacency, self._unit_cap, noise)
        self._meter.charge([(node, rho)])
        # A function that sums, not the sums: memory holds those of one batch of groups at a time.
        scores = FamilyScores(family, lambda statistic: self._exact_sums([(node, statistic)])[0])
        chosen = self._search_source.draw(scores, noise)
        self._tap(PartSearch(node, family, chosen, noise, rho))
        return chosen

    def _exact_sums(self, asked: Sequence[tuple[Node, Statistic]]) -> list[NDArray[np.int64]]:
        """Return exact sums over nodes' rows.

        They must stay inside this class; call only for operations that were charged.
        """
        sizes = np.cumsum([0, *(statistic.size for _, statistic in asked)]).tolist()
        for node, _ in asked:
            # Memory for labels is allocated here, before the pass: its threads share the cache and must not change its
            # keys.
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
        asked: nodes and their kernels.
        places: first index of each kernel's numbers in the flat array, followed by the array's size.
        labels: cache of labels from earlier passes; it stays in the process that made it.
    """

    asked: tuple[tuple[Node, Kernel], ...]
    places: tuple[int, ...]
    labels: _Labels

    def __call__(self, first: int, block: FloatBlock, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        members = _Members(first, block, present, self.labels)
        for (node, kernel), start, stop in zip(self.asked, self.places, self.places[1:], strict=False):
            kernel(block, members.of(node), out[start:stop])


class _Labels:
    """Cache of the labels that a forest's rules give to all slots, so that a rule runs once.

    Labels are computed for all slots, whichever part an operation is on; they contain only what rows and released rules
    determine. A label takes one byte for each slot and rule. Rules with more ways than fit into a byte, and rules
    beyond `MOST_LABELS`, run in every pass.
    """

    def __init__(self, slots: int) -> None:
        self._blocks = -(-slots // CHUNK)
        self._notes: dict[tuple[Node | None, int], tuple[NDArray[np.int8], NDArray[np.bool_]]] = {}

    def __reduce__(self) -> tuple[type[_Labels], tuple[int]]:
        """Pickle an empty cache without room: labels are made of rows and must not leave this process."""
        return _Labels, (0,)

    def make_room(self, node: Node) -> None:
        """Allocate labels for the rules on the way to a node.

        Call it before a pass, because threads share the cache.
        """
        here: Node | None = node
        while here is not None and here.rule is not None:
            needed = (len(self._notes) + 1) * self._blocks * CHUNK
            if _division(here) not in self._notes and here.ways <= _BYTE_WAYS and needed <= MOST_LABELS:
                # The system maps pages of zeros when they are written, so blocks that no pass has reached take no
                # memory.
                labels = np.zeros((self._blocks, CHUNK), dtype=np.int8)
                self._notes[_division(here)] = labels, np.zeros(self._blocks, dtype=np.bool_)
            here = here.parent

    def of(self, node: Node, rule: Rule, first: int, block: FloatBlock, parent: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the labels, 0 to ways - 1, that a node's rule gives to the block whose first slot is `first`."""
        noted, place = self._notes.get(_division(node)), first // CHUNK
        if noted is not None and noted[1][place]:
            return np.asarray(noted[0][place])
        labels = np.zeros(CHUNK, dtype=np.int16)
        # Rows outside the parent keep label 0; `_Members` masks them with the parent again.
        rule(block, parent, labels)
        # A label out of range would drop rows from all children; the proof needs children that partition their parent.
        labels[(labels < 0) | (labels >= node.ways)] = 0
        if noted is not None:
            # Threads have disjoint blocks, so no lock is needed.
            noted[0][place], noted[1][place] = labels, True
        return labels


def _division(node: Node) -> tuple[Node | None, int]:
    """Return the key of the division that made a node. By `id`, because rules that hold arrays have no hash."""
    return node.parent, id(node.rule)


class _Members:
    """Masks of the parts of a table, for the rows of one block."""

    def __init__(self, first: int, block: FloatBlock, present: NDArray[np.bool_], labels: _Labels) -> None:
        self._first = first
        self._block = block
        self._labels = labels
        # Nodes of one pass share ancestors, so each mask is computed once for a block.
        self._masks: dict[Node | None, NDArray[np.bool_]] = {None: present}
        self._asked: dict[tuple[Node | None, int], NDArray[Any]] = {}

    def of(self, node: Node) -> NDArray[np.bool_]:
        """Return whether each row of the block is in a part, (CHUNK,)."""
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
