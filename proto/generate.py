"""Regenerate the committed gRPC code: ``python proto/generate.py [output root]``.

Messages and services are typed by mypy-protobuf; gRPC modules are written only for files that declare a service.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Write the Python modules and type stubs of every ``.proto`` file below ``out``.

    Raises RuntimeError if protoc refuses a file.
    """
    import grpc_tools
    from grpc_tools import protoc

    # protoc looks for plugins on PATH, where an environment that is not activated does not stand.
    plugins = Path(sys.executable).parent
    for source in sorted((ROOT / "bursar_proto" / "v1").glob("*.proto")):
        arguments = [
            "protoc",
            f"-I{ROOT}",
            f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}",
            f"--mypy_out=quiet:{out}",
        ]
        if "\nservice " in source.read_text():
            arguments += [f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"]
        if protoc.main([*arguments, str(source)]) != 0:
            raise RuntimeError(f"protoc refused {source.name}")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    target.mkdir(parents=True, exist_ok=True)
    generate(target)
