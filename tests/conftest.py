"""What all tests share: hypothesis never fails a test for being slow, since machines are shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("bursar", deadline=None)
settings.load_profile("bursar")
