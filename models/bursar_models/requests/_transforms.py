"""The argument `transform` of requests, shared by the fits that have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from bursar_models.checks import choice
from bursar_models.errors import InvalidRequestError
from bursar_models.transforms import TRANSFORMS, Transform


def _by_column(field: str, value: object) -> dict[str, str]:
    """Return transforms by column, in the order of the names. Raises InvalidRequestError."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        text = f'must be a mapping from columns to transforms such as {{"income": "log1p"}}, got {value!r}'
        raise InvalidRequestError.of(field, text)
    # Sorted, because the order says nothing and must not change the message or the digest.
    return {name: choice(f"{field}[{name!r}]", value[name], TRANSFORMS) for name in sorted(value)}


Transforms: TypeAlias = Annotated[Mapping[str, Transform] | None, _by_column]
"""Transforms by column; None for those that the owner declared."""
