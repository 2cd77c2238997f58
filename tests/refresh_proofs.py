"""Currency of proofs: each `_name.md` proves definitions of `_name.py` beside it and records their fingerprints.

A proof begins with front matter in TOML between two lines `+++`:

    +++
    [proves]
    sensitivity = "<SHA-256 of the definition>"
    "Meter.charge" = "<...>"
    "_kernel:moment_sums" = "<of _kernel.py in the same folder>"
    "../_arrays:in_order" = "<of _arrays.py in the folder above>"
    +++

The fingerprint covers the tokens of a definition without comments and docstrings, so it changes when the code does.
When a test says that a proof is stale, read it against the new code, correct it, and only then record what was read:

    python tests/refresh_proofs.py server/bursar_server/vault/_sensitivity.md
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

FENCE = "+++\n"
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
_LAYOUT = {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: "\n"}


class ProofError(Exception):
    """A proof that cannot be compared with code; the message says why."""


def front_matter(proof: Path) -> dict[str, str]:
    """Definitions that a proof names, with the recorded fingerprints. Raises ProofError without such front matter."""
    parts = proof.read_text(encoding="utf-8").split(FENCE, maxsplit=2)
    if len(parts) != 3 or parts[0]:
        raise ProofError(f"{proof.name} must begin with front matter between two lines of +++")
    proves = tomllib.loads(parts[1]).get("proves")
    if not proves:
        raise ProofError(f"{proof.name} must name what it proves in a table [proves]")
    return dict(proves)


def stale(proof: Path) -> list[str]:
    """Definitions whose code is not the code that the proof was read against."""
    return [name for name, recorded in front_matter(proof).items() if _fingerprint_beside(proof, name) != recorded]


def refresh(proof: Path) -> list[str]:
    """Record the present fingerprints; returns the names whose fingerprints changed."""
    changed, text = stale(proof), proof.read_text(encoding="utf-8")
    lines = "".join(f'"{name}" = "{_fingerprint_beside(proof, name)}"\n' for name in front_matter(proof))
    proof.write_text(f"{FENCE}[proves]\n{lines}{FENCE}{text.split(FENCE, maxsplit=2)[2]}", encoding="utf-8")
    return changed


def fingerprint(source: str, name: str) -> str:
    """SHA-256 of the tokens of a definition (`function`, `Class`, `Class.method` or `CONSTANT`) of a module's source.

    Raises ProofError if the source does not define the name.
    """
    node = _find(_parsed(source).body, name.split("."))
    if node is None:
        raise ProofError(f"the source defines no {name}; correct the name or the proof")
    # Whole lines: `ast.get_source_segment` splits all of the source anew for each name.
    segment = "\n".join(source.split("\n")[node.lineno - 1 : node.end_lineno])
    return hashlib.sha256("".join(_tokens(segment)).encode()).hexdigest()


@functools.lru_cache(maxsize=4)
def _parsed(source: str) -> ast.Module:
    """Parse a source once for all of the names that a proof takes from it."""
    return ast.parse(source)


def _fingerprint_beside(proof: Path, name: str) -> str:
    module, _, definition = name.rpartition(":")
    return fingerprint((proof.parent / f"{module or proof.stem}.py").read_text(encoding="utf-8"), definition)


def _find(body: list[ast.stmt], path: list[str]) -> ast.stmt | None:
    for node in body:
        if path[0] in _names(node):
            return node if len(path) == 1 else _find(getattr(node, "body", []), path[1:])
    return None


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _tokens(segment: str) -> Iterator[str]:
    """Tokens one by one, each line's docstring left out; the same for every version of Python."""
    line: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(_dedented(segment)).readline):
        if token.type in _SILENT:
            continue
        line.append(token)
        if token.type == tokenize.NEWLINE:
            words = [t for t in line if t.type not in _LAYOUT]
            docstring = len(words) == 1 and words[0].type == tokenize.STRING
            yield from (_LAYOUT.get(t.type, t.string) for t in line if not docstring or t.type != tokenize.STRING)
            line = []
    yield from (_LAYOUT.get(t.type, t.string) for t in line)


def _dedented(segment: str) -> str:
    indent = len(segment) - len(segment.lstrip(" "))
    return "".join(line[min(indent, len(line) - len(line.lstrip(" "))) :] for line in segment.splitlines(keepends=True))


@click.command()
@click.argument("proofs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(proofs: tuple[Path, ...]) -> None:
    """Record that each of PROOFS has been read against the code as it is now."""
    for proof in proofs:
        changed = refresh(proof)
        click.echo(f"{proof}: {', '.join(changed) if changed else 'was current'}")


if __name__ == "__main__":
    main()
