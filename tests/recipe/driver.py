"""Use of the example's fit, from preview to command line, in a tree to which the recipe was applied.

Run by `test_recipe.py` in a process of its own, with that tree first on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import psutil

import bursar
import bursar.testing
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, dummy_pb2, dummy_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2

ROWS = 1000
SCHEMA = f"""
name = "people"
description = "synthetic"
adjacency = "replace_one"
public_rows = {ROWS}
[[columns]]
name = "height"
kind = "numeric"
lower = 100.0
upper = 220.0
"""
EVERYWHERE: Any = fit_pb2
EVERYTHING: Any = bursar
"""Contract and client with the example in them, which no type checker knows."""


def asked(rho: float, request_id: str = "") -> Any:
    """Return a request for the mean height."""
    spend = types_pb2.Spend(rho=rho)
    return EVERYWHERE.FitMeanRequest(request_id=request_id, dataset="people", columns=["height"], spend=spend)


class Analyst:
    """Calls by an analyst, without the client."""

    def __init__(self, server: bursar.testing.Server) -> None:
        credentials = grpc.ssl_channel_credentials(server.ca.read_bytes())
        self.channel = grpc.secure_channel(server.address, credentials)
        self.fits: Any = fit_pb2_grpc.FitServiceStub(self.channel)
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(self.channel)
        self.dummies = dummy_pb2_grpc.DummyServiceStub(self.channel)
        self.bearer = (("authorization", f"Bearer {server.tokens['analyst']}"),)

    def fit(self, request: Any) -> list[bytes]:
        """Return the messages of a fit, as bytes."""
        return [one.SerializeToString() for one in self.fits.FitMean(request, metadata=self.bearer)]


def reaped(server: bursar.testing.Server) -> int:
    """Return the page faults of the processes that the parent of all fits has waited for, which only grow."""
    for process in psutil.Process().children(recursive=True):
        if process.name() == "bursar-fits":
            return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[8])
    raise LookupError(f"no parent of fits below this process; log: {server.log.read_text()}")


def main() -> None:
    """Print one line for each thing that was seen; raise at the first that was not."""
    with bursar.testing.serve(SCHEMA) as server:
        analyst = Analyst(server)
        preview = analyst.fits.Preview(fit_pb2.PreviewRequest(mean=asked(0.01)), metadata=analyst.bearer)  # type: ignore[call-arg]  # of the recipe
        (error,) = preview.expected
        see("previewed", (error.name, list(error.columns)) == ("mean_error", ["height"]) and 0 < error.values[0] < 60)
        before = reaped(server)
        messages = analyst.fit(asked(0.01, "r1"))
        receipt, *_, answer = map(EVERYWHERE.FitMeanResponse.FromString, messages)
        see("charged", receipt.receipt.price == preview.price and receipt.receipt.remaining.rho < preview.remaining.rho)
        see("fitted", abs(answer.model.mean - 160) < 60 and abs(answer.model.n_rows - ROWS) < ROWS)
        see("run in a child process", reaped(server) > before)
        see("replayed", analyst.fit(asked(0.01, "r1"))[-1] == messages[-1])
        released = analyst.catalog.GetRelease(
            catalog_pb2.GetReleaseRequest(entry=receipt.receipt.entry), metadata=analyst.bearer
        )
        see("stored", getattr(released, "mean") == answer.model)  # noqa: B009  the field of the recipe
        see("refused", refusal(lambda: analyst.fit(asked(1e5, "r2"))) is grpc.StatusCode.RESOURCE_EXHAUSTED)
        see("checked", refusal(lambda: analyst.fit(asked(-1.0, "r3"))) is grpc.StatusCode.INVALID_ARGUMENT)
        (listed,) = analyst.catalog.ListReleases(catalog_pb2.ListReleasesRequest(), metadata=analyst.bearer).releases
        see("listed", (listed.method, listed.released) == ("FitMean", True))
        trial = dummy_pb2.DummyRequest(fit=fit_pb2.PreviewRequest(mean=asked(0.01)))  # type: ignore[call-arg]  # of the recipe
        *_, last = analyst.dummies.RunDummy(trial, metadata=analyst.bearer)
        see("tried on synthetic rows", str(last.model.WhichOneof("model")) == "mean")
        with server.client() as client:
            people, request = client.dataset("people"), EVERYTHING.Mean(columns=["height"])
            mean = people.fit(request, spend=bursar.rho(0.01), request_id="r1")
            see("fitted by the client", mean == answer.model.mean == people.model(receipt.receipt.entry))
            found = people.suggest_spend(request, target=bursar.Target(mean_error=5.0))
            see("suggested a spend", 0 < found.expected["mean_error of height"] <= 5)
        shown = command(server, "preview", "mean", "people", "--columns", "height", "--rho", "0.01")
        listed_too = "FitMean" in command(server, "releases", "people")
        see("shown by the command line", "expected error of a component's mean: height" in shown and listed_too)


def see(thing: str, seen: bool) -> None:
    """Print what was seen. Raises RuntimeError if it was not."""
    if not seen:
        raise RuntimeError(f"not {thing}")
    print(thing, flush=True)  # noqa: T201  the answer


def refusal(call: Any) -> grpc.StatusCode | None:
    """Return the status of a call that is refused."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return None


def command(server: bursar.testing.Server, *words: str) -> str:
    """Return what `bursar` prints."""
    environment = {**os.environ, "BURSAR_TOKEN": server.tokens["analyst"]}
    options = ("--server", server.address, "--ca", str(server.ca))
    line = [sys.executable, "-c", "from bursar._cli import main; main()", *words, *options]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
