"""The tests, as a package of their own: some distributions install a top-level `tests`, which must not shadow it."""
