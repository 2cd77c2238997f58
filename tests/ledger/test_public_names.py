"""Public names of the package."""

from __future__ import annotations

import inspect

import bursar_ledger


def test_public_names_are_listed_and_documented() -> None:
    """`__all__` is what the namespace offers, and every name has a docstring."""
    offered = {n for n in vars(bursar_ledger) if not n.startswith("_") and not inspect.ismodule(vars(bursar_ledger)[n])}
    assert offered == set(bursar_ledger.__all__)
    for name in bursar_ledger.__all__:
        thing = getattr(bursar_ledger, name)
        assert not callable(thing) or name == "Event" or inspect.getdoc(thing), name
