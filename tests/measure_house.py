"""Measure the house: rooms, arrows between them, lines, words, and the files that one fit enters.

    python -m tests.measure_house

prints the numbers of the table at the end of `docs/architecture.md`.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tempfile
import threading
import tokenize
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import FrameType

from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from tests.fuzz.server import in_this_process

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "server" / "bursar_server"
PRODUCT = ("client", "models", "ledger", "server")
_GENERATED = frozenset(
    {
        *("cli.md", "cli-admin.md", "cli-audit.md", "configuration.md", "benchmarks.md", "real-tables.md"),
        "planted-bugs.md",
        *("manifest.md", "wire.md", "errors.md"),
    }
)

_RIDDLES = frozenset(
    """about after against among as at before behind beside between beyond by during for from how if in inside into like
    likewise near of off on once outside over per since that through to towards under until upon what whatever when
    where whether which while who whoever whom whose why with within without""".split()  # noqa: SIM905 - sixty words
)
"""First words of docstrings that leave out the noun or the verb (Contributing, "Style")."""

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler, ast.BoolOp, ast.comprehension)
_MANY = 8
"""Branches of a function in which a reader may stumble: one function in eighteen has as many."""


def tracked(*folders: str, suffix: str = ".py") -> list[Path]:
    """Files of the repository in these folders."""
    command = ["git", "ls-files", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if name.endswith(suffix)]


def lines(paths: Iterable[Path]) -> int:
    """Lines of all files together."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def rooms() -> set[str]:
    """Files and folders on the server's top floor."""
    return {path.stem for path in SERVER.iterdir() if path.name[:2] != "__" or path.name == "__main__.py"} - {"py"}


def arrows() -> int:
    """Pairs of rooms of which one imports the other."""
    found = set()
    for path in SERVER.rglob("*.py"):
        room = path.relative_to(SERVER).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and node.module == "bursar_server":
                names = [f"bursar_server.{one.name}" for one in node.names]
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            found |= {(room, name.split(".")[1]) for name in names if name.startswith("bursar_server.")}
    return len({(a, b) for a, b in found if a != b and b in rooms()})


def comments() -> tuple[float, float]:
    """Comments for each hundred lines of the product, and of its functions with many branches, docstrings left out."""
    everywhere, length, within = 0, 0, 0
    for path in tracked(*PRODUCT):
        text = path.read_text(encoding="utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found = [one.start[0] for one in tokens if one.type == tokenize.COMMENT and "type: ignore" not in one.string]
        everywhere += len(found)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and sum(isinstance(one, _BRANCHES) for one in ast.walk(node)) >= _MANY:
                first, last = node.body[ast.get_docstring(node) is not None].lineno, node.end_lineno or 0
                length += last - first + 1
                within += sum(first - 2 <= line <= last for line in found)
    return 100 * everywhere / lines(tracked(*PRODUCT)), 100 * within / length


def reasons() -> float:
    """Constants with a docstring below them, where a number has its reason, for each hundred lines of the product."""
    count = 0
    for path in tracked(*PRODUCT):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for constant, text in pairwise(body):
            told = (
                isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            )
            count += told and isinstance(constant, ast.Assign | ast.AnnAssign)
    return 100 * count / lines(tracked(*PRODUCT))


def riddles() -> int:
    """Count the docstrings, of tests and constants too, that begin with a preposition or a question word."""
    count = 0
    for path in tracked("."):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value = node.value if isinstance(node, ast.Expr) else None
            text = value.value if isinstance(value, ast.Constant) else None
            first = text.split(maxsplit=1)[0] if isinstance(text, str) and text.strip() else ""
            count += first.strip(",;.").lower() in _RIDDLES
    return count


def entered() -> int:
    """Product files that one FitDPEM enters on the server's threads, the child process of the fit not counted."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        files.add(frame.f_code.co_filename)

    request = fit_pb2.FitDPEMRequest(
        request_id="measured", dataset="people", n_components=2, iterations=3, spend=types_pb2.Spend(rho=0.001)
    )
    with tempfile.TemporaryDirectory() as folder, in_this_process(Path(folder)) as running:
        stub = fit_pb2_grpc.FitServiceStub(running.channel)
        threading.setprofile(note)  # of threads that begin now: the server makes them as calls come
        try:
            list(stub.FitDPEM(request, metadata=running.prepared.bearer("analyst")))
        finally:
            threading.setprofile(None)
    names = {path.as_posix() for path in tracked(*PRODUCT)}
    return len(files & names)


def words(generated: bool) -> int:
    """Words of the pages: what has a letter in it, unlike the figures, bars and rules of tables."""
    pages = [path for path in tracked("docs", "*.md", suffix=".md") if path.parent == ROOT or "docs" in path.parts[-3:]]
    chosen = [path for path in set(pages) if (path.name in _GENERATED) is generated]
    texts = (path.read_text(encoding="utf-8") for path in chosen)
    return sum(any(map(str.isalpha, word)) for text in texts for word in text.split())


def main() -> None:
    """Print every number."""
    product, tests, bench = (tracked(*one) for one in (PRODUCT, ("tests",), ("bench",)))
    everywhere, within = comments()
    numbers = {
        "rooms on the server's top floor": len(rooms()),
        "arrows between them": arrows(),
        "product files entered by one FitDPEM": entered(),
        "lines of the product": lines(product),
        "lines of the tests": lines(tests),
        "lines of the benchmarks": lines(bench),
        "lines of committed JSON": lines(tracked("bench", "tests", suffix=".json")),
        "comments for each hundred lines": round(everywhere, 1),
        f"comments for each hundred lines of functions with {_MANY} branches and more": round(within, 1),
        "constants with a reason below them for each hundred lines": round(reasons(), 1),
        "docstrings that begin with a preposition or a question word": riddles(),
        "lines of the README": lines([ROOT / "README.md"]),
        "words of pages that people wrote": words(generated=False),
        "words of pages that are generated": words(generated=True),
    }
    for name, number in numbers.items():
        print(f"{number:>10,}  {name}")  # noqa: T201


if __name__ == "__main__":
    main()
