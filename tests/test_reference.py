"""Reference pages that are generated from code are current, and their examples are valid."""

from __future__ import annotations

import tomllib

import pytest

from bursar_server.tables._manifest import Manifest
from tests.refresh_reference import ERRORS, EXAMPLE, PAGES, REFERENCE, _statuses


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    """Word for word. If not: .venv/bin/python -m tests.refresh_reference."""
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name]()


def test_the_example_of_a_manifest_is_one() -> None:
    """It has every field of the top, so that each has an example in its table."""
    manifest = Manifest.from_public(tomllib.loads(EXAMPLE))
    assert manifest.model_fields_set == set(Manifest.model_fields)
    assert manifest.unit.model_fields_set == set(type(manifest.unit).model_fields)
    for kind in {type(column) for column in manifest.columns}:
        given = [column.model_fields_set for column in manifest.columns if isinstance(column, kind)]
        assert set().union(*given) == set(kind.model_fields)


def test_every_status_has_a_cause_and_a_remedy() -> None:
    """And no text is left of a status that the server does not have."""
    assert {reason or code.name for code, reason in _statuses()} == set(ERRORS)
