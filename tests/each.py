"""One test of many values: it tries all of them and tells at its end each that failed.

`pytest.mark.parametrize` makes a test of each value, which costs more to collect in every process, and to report, than
most values cost to try. For values of which there are dozens, and tests that take no fixture that they change.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest

LONGEST = 300
"""Letters of a value that are told."""

MOST_TOLD = 10
"""Failures that are told in full; of further ones the values."""


def each(
    names: str | tuple[str, ...], values: Iterable[Any], *, ids: object = None
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Try a test with each value, all of them even if some fail; arguments are those of `pytest.mark.parametrize`."""
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        tried = [value if len(names) > 1 else (value,) for value in values]
        if not tried:
            raise ValueError(f"{test.__name__} has no value to try")

        def all_of_them(**others: Any) -> None:
            failed: list[str] = []
            for value in tried:
                try:
                    test(**dict(zip(names, value, strict=True)), **others)
                except (Exception, pytest.fail.Exception) as error:
                    told = "".join(traceback.format_exception(error)) if len(failed) < MOST_TOLD else ""
                    failed.append(f"{str(dict(zip(names, value, strict=True)))[:LONGEST]}\n{told}")
            if failed:
                pytest.fail(f"{len(failed)} of {len(tried)} failed\n" + "\n".join(failed), pytrace=False)

        left = [one for name, one in inspect.signature(test).parameters.items() if name not in names]
        functools.update_wrapper(all_of_them, test)
        del all_of_them.__wrapped__  # type: ignore[attr-defined] # else pytest would look for the names as fixtures
        all_of_them.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined] # inspect reads it
        return all_of_them

    return decorate
