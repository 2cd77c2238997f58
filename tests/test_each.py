"""A test of many values tries all of them, and says which failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.each import each


def test_every_value_is_tried_and_those_that_fail_are_told() -> None:
    """An assertion, another exception, and an exception that did not come are failures."""
    tried = []

    @each("a, b", [(1, 1), (1, 2), (3, 0), (4, 4), (5, 5)])
    def test(a: int, b: int) -> None:
        tried.append(a)
        if a == 5:
            with pytest.raises(ValueError, match="never"):
                pass
        assert a // b == 1

    with pytest.raises(pytest.fail.Exception) as caught:
        test()
    said = str(caught.value)
    assert tried == [1, 1, 3, 4, 5]
    assert said.startswith("3 of 5 failed")
    assert all(f"{{'a': {a}, 'b': {b}}}" in said for a, b in ((1, 2), (3, 0), (5, 5)))
    assert "ZeroDivisionError" in said
    assert "'a': 4" not in said


SEEN: set[tuple[str, int]] = set()


@each("number", range(3))
@each("name", ["a", "b"])
def test_two_lists_are_tried_with_each_other_and_fixtures_are_passed(name: str, number: int, tmp_path: Path) -> None:
    """The parameters behave as those of `parametrize`."""
    SEEN.add((name, number))
    assert tmp_path.is_dir()
    assert len(SEEN) == 6 or (name, number) != ("b", 2)


def test_nothing_to_try_is_an_error() -> None:
    """Else a list that became empty would pass for ever."""
    with pytest.raises(ValueError, match="no value to try"):
        each("a", [])(lambda a: None)
