"""Makes the state directories of earlier versions that the tests of upgrades open.

    .venv/bin/python -m tests.states.make

For each commit of `VERSIONS` its tree is taken out of git, and its own `bursar-admin` and `bursar-server` make a
state directory, in processes of their own that see that tree only: tables, tokens, a release, and a debit whose
release was cut off by a crash. The result is an archive here, without certificates (a test makes its own) and without
anything secret: all rows are made up, and the keys protect nothing. Another run gives other archives, since keys and
noise are drawn; what is committed is what was made once, of which `facts.json` in each archive says what a client of
that time saw.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

VERSIONS = {
    # No accounts, no checkpoints, no limits; the first schema of the ledger.
    "first": ("853be6d", "bursar_server.admin_cli"),
    # Accounts, checkpoints, allowances, snapshots and sketches; no counts of a unit's rows, no end of tokens.
    "accounts": ("553c11f", "bursar_server.admin.cli"),
    # Tokens that end and that see some tables only, counts of a unit's rows; one key for all tables.
    "shared-key": ("d3ad41b", "bursar_server.admin.cli"),
}
"""Name of the archive: the commit, and where its `bursar-admin` is."""

MANIFEST = """
name = "{name}"
adjacency = "add_remove_one"
[unit]
column = "who"
max_rows = {most}
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
[[columns]]
name = "y"
kind = "numeric"
lower = 0.0
upper = 10.0
"""

# Runs under the tree of an earlier version: imports nothing of today's.
_THEN = r'''
import json, os, pathlib, re, signal, subprocess, sys
import grpc
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2

admin_module, version, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
state = folder / "state"
CRASHING = """
import os, sys
from bursar_ledger import Ledger
from bursar_server.__main__ import main
if sys.argv.pop(1) == "crash":
    Ledger.store_release = lambda *_: os._exit(9)
main()
"""

def admin(*words):
    program = f"from {admin_module} import main; main()"
    command = [sys.executable, "-c", program, *words, "--state", str(state)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

def token(name, role, *more):
    return re.search(r"\S{40,}", admin("token", "issue", "--name", name, "--role", role, *more))[0]

def serve(how):
    command = [sys.executable, "-c", CRASHING, how, "run", "--state", str(state), "--address", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=(folder / "log").open("a"), text=True)
    return server, server.stdout.readline().split()[-1]

def ask(where, method, request, token):
    authority = (state / "tls" / "ca.pem").read_bytes()
    with grpc.secure_channel(where, grpc.ssl_channel_credentials(authority)) as channel:
        call = getattr(fit_pb2_grpc.FitServiceStub(channel), method)
        return list(call(request, metadata=(("authorization", "Bearer " + token),), timeout=300))

def request(request_id, kind=fit_pb2.FitDPEMRequest, **fields):
    return kind(request_id=request_id, dataset="people", spend=types_pb2.Spend(rho=0.002), columns=["x", "y"], **fields)

admin("init")
if version == "shared-key":  # the tokens end in 2036
    (state / "config.toml").write_text("[tokens]\ndays = 3650\n")
for name in ("people", "towns"):
    admin("import", "--manifest", str(folder / f"{name}.toml"), "--csv", str(folder / f"{name}.csv"),
          "--epsilon", "1", "--delta", "1e-6")
tokens = {"alice": token("alice", "analyst"), "eve": token("eve", "auditor")}
asked = [("FitDPEM", request("r1", n_components=1))]
if version != "first":
    admin("allowance", "set", "people", "--analyst", "alice", "--share", "1/2")
    admin("snapshot", "--manifest", str(folder / "towns.toml"), "--csv", str(folder / "more-towns.csv"), "--yes")
    admin("import", "--manifest", str(folder / "again.toml"), "--csv", str(folder / "people.csv"))
    sketch = fit_pb2.NewSketch(n_frequencies=20, sigma=0.3)
    asked.append(("FitSketchKMeans", request("r2", fit_pb2.FitSketchKMeansRequest, n_clusters=2, new_sketch=sketch)))
if version == "shared-key":
    tokens["bob"] = token("bob", "analyst", "--dataset", "towns")
server, where = serve("run")
facts = []
for method, one in asked:
    answers = ask(where, method, one, tokens["alice"])
    facts.append([method, one.SerializeToString().hex(), [each.SerializeToString().hex() for each in answers]])
server.send_signal(signal.SIGTERM)
server.wait(120)
server, where = serve("crash")
cut_off = request("r9", n_components=1)
try:
    ask(where, "FitDPEM", cut_off, tokens["alice"])
except grpc.RpcError:
    pass
assert server.wait(120) == 9
(folder / "facts.json").write_text(json.dumps({
    "tokens": tokens, "released": facts, "cut_off": cut_off.SerializeToString().hex()}, indent=1))
'''


def _tables(folder: Path) -> None:
    lines = [f"{(i * 37 % 100) / 50 - 1:.2f},{(i * 61 % 100) / 10:.1f},p{i % 23}\n" for i in range(60)]
    for name, most in (("people", 2), ("again", 2), ("towns", 1)):
        (folder / f"{name}.toml").write_text(MANIFEST.format(name=name, most=most))
    (folder / "people.csv").write_text("x,y,who\n" + "".join(lines))
    (folder / "towns.csv").write_text("x,y,who\n" + "".join(lines[:40]))
    (folder / "more-towns.csv").write_text("x,y,who\n" + "".join(lines[5:50]))


def _without_secrets(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and folders that a test opens, with nobody's name and no time."""
    if {"tls", "admin.token"} & set(Path(entry.name).parts) or entry.name.endswith(".lock"):
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def make(name: str) -> Path:
    """Makes the archive of one version; its path."""
    commit, admin = VERSIONS[name]
    with tempfile.TemporaryDirectory(prefix="bursar-then-") as temporary:
        tree, folder = Path(temporary) / "tree", Path(temporary) / "made"
        folder.mkdir()
        command = ["git", "archive", commit, "client", "server", "ledger", "proto"]
        archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(tree, filter="data")
        _tables(folder)
        path = os.pathsep.join(str(tree / part) for part in ("client", "server", "ledger", "proto"))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        (folder / "then.py").write_text(_THEN, encoding="utf-8")
        command = [sys.executable, str(folder / "then.py"), admin, name, str(folder)]
        subprocess.run(command, cwd=temporary, env=environment, check=True)
        target = Path(__file__).with_name(f"{name}.tar.xz")
        with tarfile.open(target, "w:xz") as made:
            for part in ("facts.json", "state", "people.csv", "people.toml"):
                made.add(folder / part, arcname=part, filter=_without_secrets)
    return target


def facts(folder: Path) -> dict[str, Any]:
    """What a client of the time saw, of an unpacked archive."""
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return found


def unpack(name: str, folder: Path) -> None:
    """Unpacks the archive of a version."""
    with tarfile.open(Path(__file__).with_name(f"{name}.tar.xz")) as files:
        files.extractall(folder, filter="data")


if __name__ == "__main__":
    for version in sys.argv[1:] or VERSIONS:
        made = make(version)
        print(f"{made}: {made.stat().st_size} bytes")  # noqa: T201
