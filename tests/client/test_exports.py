"""The public namespace is what `__all__` says."""

from __future__ import annotations

import inspect
import types

import pytest

import bursar
import bursar.local
import bursar.testing
import bursar_models


@pytest.mark.parametrize("module", [bursar, bursar.local, bursar_models, bursar.testing])
def test_all_is_sorted_complete_and_documented(module: types.ModuleType) -> None:
    """Every listed name exists, is listed once in the order of the linter, and says what it is."""
    names = set(module.__all__)
    assert list(module.__all__) == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in module.__all__:
        member = getattr(module, name)
        assert not inspect.isclass(member) or inspect.getdoc(member)
        assert not inspect.isfunction(member) or inspect.getdoc(member)


def test_nothing_public_is_left_out_of_all() -> None:
    """Every name without an underscore, other than a module, is in `__all__`."""
    shown = {name for name, value in vars(bursar).items() if not (name.startswith("_") or inspect.ismodule(value))}
    assert shown == set(bursar.__all__)


def test_every_error_has_one_base() -> None:
    """One `except bursar.Error` catches all that the package raises on purpose."""
    raised = [value for value in vars(bursar).values() if inspect.isclass(value) and issubclass(value, Exception)]
    errors = [error for error in raised if not issubclass(error, Warning)]
    assert len(errors) > 10
    assert all(issubclass(error, bursar.Error) for error in errors)


def test_every_public_method_is_documented() -> None:
    """Methods of public classes say what they do."""
    classes = [value for value in vars(bursar).values() if inspect.isclass(value)]
    methods = [
        method
        for cls in classes
        for name, method in vars(cls).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    assert len(methods) > 15
    assert [method.__qualname__ for method in methods if not inspect.getdoc(method)] == []
