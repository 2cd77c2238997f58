"""Clients that share no code with the SDK: Node.js with the .proto files, and one that has nothing but reflection."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.browser.npm import installed, node
from tests.e2e.conftest import PATIENCE, Server

NODE = Path(__file__).resolve().parent.parent.parent / "docs" / "node"


def _tour(server: Server, **changed: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "BURSAR_ADDRESS": server.address.replace("127.0.0.1", "localhost"),
        "BURSAR_TOKEN": server.home.tokens["analyst"],
        "BURSAR_CA": str(server.home.state.tls / "ca.pem"),
    }
    return subprocess.run(
        [node(), "tour.mjs", "people", "0.001"],
        cwd=NODE,
        env=os.environ | variables | changed,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_the_node_tour_runs_against_a_real_server(shared: Server) -> None:
    """List, preview, fit, releases, refusal, over TLS with a token, from the contract alone."""
    installed(NODE)
    result = _tour(shared)
    assert result.returncode == 0, result.stderr
    said = result.stdout
    assert re.search(r"^people: \d+ % of the budget is left$", said, re.MULTILINE)
    price = r"^price: epsilon 0\.\d+ \([\d.]+ %\); \d+ like it are left; errors of means: [\d.]+,[\d.]+$"
    assert re.search(price, said, re.MULTILINE)
    entry = re.search(r"^receipt: entry (\d+), epsilon 0\.\d+", said, re.MULTILINE)
    assert entry is not None
    # Of two columns; so little is spent that noise may leave one component of two.
    assert len(re.findall(r"-?\d+(?:\.\d+)?", said.partition("means of x,y: ")[2].partition("\n")[0])) in (2, 4)
    assert f"bought: {entry[1]} FitDPEM RELEASE_STATE_RELEASED" in said
    assert re.search(r"^refused: RESOURCE_EXHAUSTED: the request costs epsilon \d+ ", said, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [({"BURSAR_TOKEN": "made-up"}, "UNAUTHENTICATED"), ({"BURSAR_CA": "/etc/hostname"}, "UNAVAILABLE|certificate|PEM")],
)
def test_the_node_tour_fails_where_it_should(shared: Server, changed: dict[str, str], said: str) -> None:
    """A made-up token and another authority: what the tour's success rests on can fail."""
    installed(NODE)
    result = _tour(shared, **changed)
    assert result.returncode != 0
    assert re.search(said, result.stderr)


def test_the_lock_file_names_no_host() -> None:
    """Versions and hashes only; where packages come from is the machine's business."""
    text = (NODE / "package-lock.json").read_text(encoding="utf-8")
    assert text.count('"integrity"') > 10
    assert "://" not in text


def test_the_tour_is_thirty_lines() -> None:
    """It is as short as the page says, without unreadable lines."""
    lines = (NODE / "tour.mjs").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 140


def _files(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...], symbol: str) -> descriptor_pool.DescriptorPool:
    """The contract as reflection tells it: the file of a symbol, and whatever it needs."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    pool = descriptor_pool.DescriptorPool()
    wanted = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)]
    known: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    while wanted:
        for answer in stub.ServerReflectionInfo(iter(wanted), metadata=metadata):
            for data in answer.file_descriptor_response.file_descriptor_proto:
                file = descriptor_pb2.FileDescriptorProto.FromString(data)
                known[file.name] = file
        missing = {name for file in known.values() for name in file.dependency} - set(known)
        wanted = [reflection_pb2.ServerReflectionRequest(file_by_filename=name) for name in sorted(missing)]
    done: set[str] = set()
    while len(done) < len(known):
        for name, file in known.items():
            if name not in done and done.issuperset(file.dependency):
                pool.Add(file)
                done.add(name)
    return pool


def test_reflection_is_enough_to_call(shared: Server) -> None:
    """It works as grpcurl does: list services, get their messages, make a call from JSON, without a .proto file."""
    metadata = shared.bearer()
    with shared.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listing = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata
        )
        services = {one.name for answer in listing for one in answer.list_services_response.service}
        assert {f"bursar.v1.{name}Service" for name in ("Catalog", "Fit", "Audit", "Admin")} <= services
        pool = _files(channel, metadata, "bursar.v1.CatalogService")
        method = pool.FindServiceByName("bursar.v1.CatalogService").methods_by_name["GetDataset"]
        request = message_factory.GetMessageClass(method.input_type)()
        json_format.Parse('{"dataset": "people"}', request, descriptor_pool=pool)
        call: grpc.UnaryUnaryMultiCallable[Message, Message] = channel.unary_unary(
            "/bursar.v1.CatalogService/GetDataset",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        answer = json_format.MessageToDict(call(request, metadata=metadata), descriptor_pool=pool)
    assert answer["dataset"]["name"] == "people"
    assert [column["name"] for column in answer["dataset"]["columns"]] == ["x", "y"]


@pytest.mark.parametrize("service", ["Catalog", "Fit", "Audit", "Admin"])
def test_reflection_describes_every_service(shared: Server, service: str) -> None:
    """All its methods with all their messages."""
    with shared.channel() as channel:
        pool = _files(channel, shared.bearer(), f"bursar.v1.{service}Service")
    found = pool.FindServiceByName(f"bursar.v1.{service}Service")
    assert found.methods
    assert all(method.input_type.full_name.startswith("bursar.v1.") for method in found.methods)


def test_who_asks_for_newer_reflection_is_told_that_it_is_not_there(shared: Server) -> None:
    """The answer makes grpcurl try the older one; a refusal for want of a right would end it there."""
    with shared.channel() as channel:
        ask: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        )
        answers = ask(iter([b""]), metadata=shared.bearer())
        assert answers.code() == grpc.StatusCode.UNIMPLEMENTED
