"""What all tests share: hypothesis never fails a test for being slow, and no test writes below the user's home."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("bursar", deadline=None)
settings.load_profile("bursar")


@pytest.fixture(scope="session", autouse=True)
def _no_history_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients, those of child processes included, keep what they saw of ledgers in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BURSAR_HISTORY", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-home")))
        yield
