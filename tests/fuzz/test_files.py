"""Files and lines that are damaged, strange or from elsewhere: a documented error, no traceback, nothing half done."""

from __future__ import annotations

import pytest

from tests.fuzz.files import TARGETS, Desk, prepare, run

_FEW, _MANY = 2, 60
"""Examples of a target in the quick suite and in the long one; `make fuzz` has thousands."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A state directory with a table and a few debits."""
    return prepare(tmp_path_factory.mktemp("desk"))


@pytest.mark.parametrize("target", TARGETS)
def test_no_file_does_what_it_must_not(desk: Desk, target: str) -> None:
    """A file is taken or refused in plain words; a refused import registers and leaves nothing."""
    run(desk, target, _FEW, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_files_do_not(desk: Desk, target: str) -> None:
    """The same with more of them; some are taken, so that it is not always the same refusal that is seen."""
    # What the desk has, and so what a damage does to it, differs: of the checkpoints none is taken by one seed of four.
    for seed in range(1, 21):
        run(desk, target, _MANY, seed)
        if desk.outcomes[target, "taken"]:
            return
    pytest.fail("none was taken")
