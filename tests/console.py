"""Pages whose command lines are typed in: the lines of their `console` blocks, and whether what they print was said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"^ *```console\n( *\$ .*?)^ *```$", re.MULTILINE | re.DOTALL)
_VARYING = re.compile(r"request id \w+|\d+(\.\d+)?(e-?\d+)?")


def lines(page: Path) -> Iterator[tuple[str, str]]:
    """The command lines of a page, each with what it is said to print."""
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for part in re.split(r"^ *\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, said = part.partition("\n")
            yield line, said


def matches(said: str, printed: str) -> bool:
    """Return whether a page's words are what was printed, but for numbers, keys and spaces, and where it has [...]."""
    parts = [_VARYING.sub("0", part).split() for part in said.split("[...]")]
    found = " ".join(_VARYING.sub("0", printed).split())
    return bool(re.fullmatch(".*".join(re.escape(" ".join(part)) for part in parts), found))
