"""Calls of a server that is fuzzed, and what must be true of each of them."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from hypothesis import strategies as st

import bursar_proto.v1
from bursar_proto.v1 import fit_pb2
from bursar_server.fits.contract import METHODS
from tests.fuzz.exploring import WrongError, explore
from tests.fuzz.messages import bodies, decoded, encoded
from tests.fuzz.server import PATIENCE, TWINS, Metadata, Running
from tests.fuzz.valid import VALID


@dataclass(frozen=True)
class Method:
    """A method of the server, as its descriptor has it.

    Attributes:
        path: its name on the wire.
        asked: class of its requests.
        answered: class of its answers.
    """

    path: str
    asked: type[Message]
    answered: type[Message]

    @property
    def name(self) -> str:
        """Return the name without its service."""
        return self.path.rpartition("/")[2]


def _contract() -> Iterator[Any]:
    for module in pkgutil.iter_modules(bursar_proto.v1.__path__):
        if module.name.endswith("_pb2"):
            yield importlib.import_module(f"bursar_proto.v1.{module.name}")


ALL: tuple[Method, ...] = tuple(
    Method(
        f"/{service.full_name}/{method.name}",
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
    )
    for module in (*_contract(), health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
"""Every method of the contract's services, of health and of reflection."""

_FITS = {f"/bursar.v1.FitService/{method.name}": method.field for method in METHODS.values()}
"""Fields where a preview has the request of each fit."""

_PREVIEW = "/bursar.v1.FitService/Preview"

STATUSES = frozenset(
    {
        "OK",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "UNIMPLEMENTED",
    }
)
"""Statuses of a server that nothing happens to, of the table in `bursar_server.wire.statuses`."""

_AFTER_A_PREVIEW = frozenset({"BUDGET_EXHAUSTED", "REQUEST_ID_REUSED", "DATASET_RETIRED"})
"""Reasons to refuse a request that has a price."""

_INNARDS = re.compile(
    r"Traceback|Exception|File \"|\.py\b|site-packages|object at 0x|<class|<function|"
    r"\b[A-Z][A-Za-z]+Error\b|\b(bursar_server|bursar_ledger|numpy|numba|google\.protobuf|sqlite|pyarrow|opendp|hypothesis)\b|"
    r"/(work|tmp|usr|home|root|opt|var)/"
)
"""Texts that a caller must never read."""

_LONGEST_TEXT, _LONGEST_DETAILS = 900, 8000
"""Bytes of a status."""


@dataclass(frozen=True)
class Reply:
    """Reply to a caller.

    Attributes:
        status: name of its code.
        text: of a refusal.
        reason: of its details, if there is one.
        details: of the refusal, serialised, without incident ids.
        messages: as they came.
        replayed: whether it is the answer to an earlier request.
    """

    status: str
    text: str
    reason: str
    details: tuple[bytes, ...]
    messages: tuple[bytes, ...]
    replayed: bool


@dataclass(frozen=True)
class Books:
    """Facts that a refusal must not change: size and head of the ledger, and what every dataset has spent."""

    size: int
    head: bytes
    spent: tuple[tuple[str, int, int], ...]

    @property
    def units(self) -> int:
        """Spent in all."""
        return sum(cost for _, cost, _ in self.spent)


def books(running: Running) -> Books:
    """Return the books as they are now, read from the file."""
    size, head = running.ledger.newest()
    states = running.ledger.datasets()
    return Books(size, head, tuple((one.name, one.spent_cost_units, one.spent_delta_units) for one in states))


def call(running: Running, path: str, requests: Sequence[bytes], metadata: Metadata) -> Reply:
    """Call a method; on the wire they all take and give any number of messages."""
    method: Any = running.channel.stream_stream(path)
    under_way = method(iter(requests), metadata=metadata, timeout=PATIENCE)
    messages: list[bytes] = []
    try:
        messages += under_way
    except grpc.RpcError as error:
        details, reason = _details(error)
        return Reply(under_way.code().name, under_way.details() or "", reason, details, tuple(messages), False)
    trailing = dict(under_way.trailing_metadata() or ())
    return Reply("OK", "", "", (), tuple(messages), trailing.get("bursar-replayed") == "true")


def _details(error: Any) -> tuple[tuple[bytes, ...], str]:
    status = rpc_status.from_call(error)
    found, reason = [], ""
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            reason = info.reason
            info.metadata.pop("incident", None)
            found.append(encoded(info))
        else:
            found.append(detail.value)
    return tuple(found), reason


@dataclass
class Tally:
    """Tally of calls.

    Attributes:
        statuses: by method and status.
        debited: by method, calls that were admitted and debited.
        for_nothing: by method, fits that were answered without a debit: stored or free.
        twins: refusals and previews that were compared with those of a table of other rows.
    """

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    debited: Counter[str] = field(default_factory=Counter)
    for_nothing: Counter[str] = field(default_factory=Counter)
    twins: int = 0


class Fuzzed:
    """A server under calls, each of which is judged.

    Args:
        running: the server.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self.tally = Tally()

    def cases(self, method: Method) -> st.SearchStrategy[tuple[tuple[bytes, ...], str]]:
        """Requests of a method, and who sends them."""
        body = bodies(method.asked.DESCRIPTOR, VALID[method.path])
        one = body.map(lambda only: (only,))
        sent = st.one_of(one, st.lists(body, max_size=3).map(tuple)) if _is_odd(method) else one
        usual = _caller_of(method)
        callers = st.sampled_from((*[usual] * 40, *_CALLERS, _LINE))
        return st.tuples(sent, callers.flatmap(lambda who: _LINES if who == _LINE else st.just(who)))

    def check(self, method: Method, requests: Sequence[bytes], who: str) -> None:
        """Make one call. Raises WrongError for what must not be."""
        metadata = self._metadata(who)
        # Of several messages, where there is to be one, the first is what was asked.
        request: Any = decoded(requests[0], method.asked) if requests else None
        priced = request is not None and method.path in _FITS
        quote = self._preview(_FITS[method.path], request, metadata) if priced else None
        before = books(self._running)
        reply = call(self._running, method.path, requests, metadata)
        after = books(self._running)
        check_status(reply)
        self.tally.statuses[method.path, reply.status] += 1
        if not self._running.alive():
            raise WrongError("the server is gone")
        if method.path in _FITS and reply.status == "OK":
            self._check_fit(method, reply, quote, before, after)
        elif not (reply.status == "OK" and "AdminService" in method.path):
            _unchanged(before, after)
        elif before.spent != after.spent:
            raise WrongError("an act changed what was spent")
        if quote is not None:
            _check_agreement(quote, reply)
        self._nothing_is_held()
        if request is not None and len(requests) == 1 and who != "scoped" and zlib.crc32(requests[0]) % 3 == 0:
            self._check_twin(method, request, reply, metadata)

    def _metadata(self, who: str) -> Metadata:
        if who.startswith(_LINE):
            return (("authorization", who.removeprefix(_LINE)),)
        return _NOBODIES[who] if who in _NOBODIES else self._running.prepared.bearer(who)

    def _preview(self, name: str, request: Any, metadata: Metadata) -> Reply:
        asked = encoded(fit_pb2.PreviewRequest(**{name: request}))
        before = books(self._running)
        reply = call(self._running, _PREVIEW, (asked,), metadata)
        check_status(reply)
        _unchanged(before, books(self._running))
        return reply

    def _check_fit(self, method: Method, reply: Reply, quote: Reply | None, before: Books, after: Books) -> None:
        answers: list[Any] = [decoded(message, method.answered) for message in reply.messages]
        if not answers or any(answer is None for answer in answers) or not answers[0].HasField("receipt"):
            raise WrongError("a fit does not begin with a receipt")
        receipt, last = answers[0].receipt, answers[-1]
        if not last.HasField("model"):
            raise WrongError("a fit ended without a model")
        if strange := [path for path, number in doubles(last.model, "model") if not math.isfinite(number)]:
            raise WrongError(f"a model has numbers that are none: {strange[:5]}")
        if receipt.free or reply.replayed:
            self.tally.for_nothing[method.path] += 1
            _unchanged(before, after)
            return
        self.tally.debited[method.path] += 1
        price = receipt.price.cost_units
        if after.units - before.units != price or price <= 0:
            raise WrongError(f"the receipt says {price} units, the ledger {after.units - before.units}")
        if after.size - before.size != 2:
            raise WrongError(f"a fit made {after.size - before.size} entries, expected debit and release")
        if quote is None or quote.status != "OK":
            raise WrongError("a request was debited that has no preview")
        quoted = fit_pb2.PreviewResponse.FromString(quote.messages[0])
        if (quoted.price.cost_units, quoted.price.delta_units) != (price, receipt.price.delta_units):
            raise WrongError(f"debited {price} units, previewed {quoted.price.cost_units}")
        if not quoted.affordable:
            raise WrongError("debited what was not affordable")

    def _nothing_is_held(self) -> None:
        """A worker gives its place back just after its caller was answered."""
        until = time.monotonic() + 600
        while held := self._running.held():
            if time.monotonic() > until:
                raise WrongError(f"a call that is over holds something: {held}")
            time.sleep(0.002)

    def _check_twin(self, method: Method, request: Any, reply: Reply, metadata: Metadata) -> None:
        """The same asked of a table with other rows has the same refusal, or the same preview."""
        inner = getattr(request, request.WhichOneof("fit") or "fit", None) if method.path == _PREVIEW else request
        dataset: str = getattr(inner, "dataset", "")
        if inner is None or dataset not in TWINS or _tells_of_the_ledger(inner):
            return
        refused = reply.status not in ("OK", "RESOURCE_EXHAUSTED", "ALREADY_EXISTS")
        if not refused and method.path != _PREVIEW:
            return
        inner.dataset = TWINS[dataset]
        before = books(self._running)
        other = call(self._running, method.path, (encoded(request),), metadata)
        _unchanged(before, books(self._running))
        self.tally.twins += 1
        if _without_budgets(reply, dataset) != _without_budgets(other, TWINS[dataset]):
            raise WrongError(f"two tables of one schema are told apart: {reply.text!r} and {other.text!r}")


def run(fuzzed: Fuzzed, method: Method, examples: int, seed: int) -> None:
    """Check so many calls of a method. Raises the first WrongError."""
    explore(fuzzed.cases(method), lambda case: fuzzed.check(method, *case), examples, seed)


_CALLERS = ("analyst", "auditor", "admin", "scoped", "nobody", "stranger", "two", "malformed", "basic")
_NOBODIES: dict[str, Metadata] = {
    "nobody": (),
    "stranger": (("authorization", "Bearer bursar_analyst_" + "A" * 43),),
    "two": (("authorization", "Bearer x"), ("authorization", "Bearer y")),
    "malformed": (("authorization", "Bearer bursar_admin_" + "A" * 42),),
    "basic": (("authorization", "Basic YWRtaW46YWRtaW4="), ("user-name", "the-admin")),
}
_LINE = "line of a token: "
_WORDS = st.sampled_from(("Bearer ", "bearer  ", "Bearer bursar_analyst_", "Bearer eyJhbGciOiJub25lIn0.e30.", "Basic "))
_LINES = st.builds(
    lambda start, rest: (_LINE + start + rest).strip(),
    _WORDS,
    st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), max_size=60),
)
"""Texts that may stand where a token is expected."""


def _caller_of(method: Method) -> str:
    for service, role in (("AdminService", "admin"), ("AuditService", "auditor")):
        if service in method.path:
            return role
    return "analyst"


def _is_odd(method: Method) -> bool:
    """Return whether it is sometimes sent no message, or several: reflection takes them, others must cope."""
    return "Reflection" in method.path or zlib.crc32(method.path.encode()) % 4 == 0


def check_status(reply: Reply) -> None:
    """Check that a status is a documented one, in plain and short words. Raises WrongError."""
    if reply.status not in STATUSES:
        raise WrongError(f"{reply.status}: {reply.text}")
    told = reply.text + "".join(one.decode(errors="replace") for one in reply.details)
    if found := _INNARDS.search(told):
        raise WrongError(f"a refusal shows {found.group()!r}: {reply.text}")
    if any(b"Traceback" in message for message in reply.messages):
        raise WrongError("an answer has a traceback")
    if len(reply.text.encode()) > _LONGEST_TEXT or sum(map(len, reply.details)) > _LONGEST_DETAILS:
        raise WrongError(f"a refusal of {len(reply.text)} characters")
    if reply.status != "OK" and not reply.text:
        raise WrongError(f"{reply.status} without a word")


def _unchanged(before: Books, after: Books) -> None:
    if before != after:
        raise WrongError(f"the ledger moved from {before.size} entries, {before.units} units to {after}")


def _check_agreement(quote: Reply, reply: Reply) -> None:
    """A fit is refused as its preview is, unless it is about the id, the ledger, or an answer that is stored."""
    if quote.status != "OK":
        if reply.status == "OK" and not reply.replayed:
            raise WrongError(f"refused as a preview, admitted as a fit: {quote.text}")
    elif reply.status != "OK" and reply.reason not in _AFTER_A_PREVIEW and "request_id" not in reply.text:
        raise WrongError(f"a request with a price was refused: {reply.status} {reply.text}")


def doubles(message: Any, path: str) -> Iterator[tuple[str, float]]:
    """Find all real numbers of a message that are set, by their path from `path`."""
    for one, value in message.ListFields():
        name = f"{path}.{one.name}"
        if one.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from doubles(part, name)
        elif one.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            for number in value if one.is_repeated else [value]:
                yield name, number


def _tells_of_the_ledger(message: Any) -> bool:
    """Return whether it names entries, or spends what is left: its answer then depends on what was asked before."""
    if "spend" in message.DESCRIPTOR.fields_by_name and message.spend.WhichOneof("amount") == "remaining":
        return True
    return any(one.name in ("released", "reuse", "entry") for one, _ in message.ListFields())


def _without_budgets(reply: Reply, dataset: str) -> tuple[Any, ...]:
    """A preview without what was spent before, and a refusal without the name of the table."""
    messages = reply.messages
    if reply.status == "OK":
        shown: Any = fit_pb2.PreviewResponse.FromString(messages[0])
        for budget in ("remaining", "available", "affordable", "fits_left"):
            shown.ClearField(budget)
        messages = (encoded(shown),)
    name, blank = dataset.encode(), b"#" * len(dataset)
    details = tuple(one.replace(name, blank) for one in reply.details)
    return reply.status, reply.text.replace(dataset, blank.decode()), details, messages
