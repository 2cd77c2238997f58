"""Kinds of entries: no table forgets one."""

from __future__ import annotations

import pytest

from bursar_ledger import EntryKind
from bursar_ledger._entries import by_kind
from tests.ledger.history import KINDS

HALF, OTHER = list(EntryKind)[::2], list(EntryKind)[1::2]


def test_a_table_has_all_kinds_by_their_text() -> None:
    """Kinds are written as entries hold them; a kind that is left out on purpose is not found."""
    table = by_kind(dict.fromkeys(HALF, 1), without=OTHER)
    assert [table.get(kind.value) for kind in EntryKind] == [1 if kind in HALF else None for kind in EntryKind]
    assert table.get("unheard of") is None


@pytest.mark.parametrize("kind", EntryKind)
def test_a_forgotten_kind_is_named(kind: EntryKind) -> None:
    """The import of the table's module names it; as it does one that is in the table and left out."""
    others = [other for other in EntryKind if other is not kind]
    with pytest.raises(ValueError, match=f"not so for {kind.value}$"):
        by_kind(dict.fromkeys(others, 1))
    with pytest.raises(ValueError, match=f"not so for {kind.value}$"):
        by_kind(dict.fromkeys(EntryKind, 1), without=(kind,))


def test_the_recorded_history_has_every_kind() -> None:
    """All but the one that another version makes are there; so the bytes of each are recorded."""
    assert {*KINDS, "upgrade"} == {kind.value for kind in EntryKind}
