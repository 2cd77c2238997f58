"""The committed gRPC code is what its .proto files say."""

from __future__ import annotations

import runpy
from pathlib import Path

import bursar_proto

COMMITTED = Path(next(iter(bursar_proto.__path__))) / "v1"
GENERATOR = COMMITTED.parents[1] / "generate.py"


def differences(tmp_path: Path) -> list[str]:
    """Names of generated files that are missing, different or left over."""
    runpy.run_path(str(GENERATOR))["generate"](tmp_path)
    fresh = tmp_path / "bursar_proto" / "v1"
    names = {path.name for folder in (fresh, COMMITTED) for path in folder.glob("*_pb2*.py*")}
    return sorted(name for name in names if not same(fresh / name, COMMITTED / name))


def same(one: Path, other: Path) -> bool:
    """Both exist with equal bytes."""
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


def test_generated_code_is_current(tmp_path: Path) -> None:
    """Regenerating changes nothing; if this fails, run `make proto`."""
    assert differences(tmp_path) == []
