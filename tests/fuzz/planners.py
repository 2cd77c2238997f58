"""Validators and planners of every request, called in this process: no network, no fit, hundreds of calls a second.

A call through a server takes tens of milliseconds, so that a defect at one number of one field is met by chance. Here a
request meets only the code that decides on it. Every result is judged: a plan whose releases have finite and positive
prices, whose numbers are finite, whose events the ledger can write and read again, and which costs at most what was
offered; or a refusal that names fields.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st
from pydantic import ValidationError

import bursar
from bursar._preview import Preview, preview_from
from bursar._suggest import suggest
from bursar_amounts import rho_of
from bursar_ledger import (
    ApproximateEvent,
    Budget,
    ConcentratedEvent,
    DatasetState,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    PureEvent,
    Role,
    SelectionEvent,
    price,
)
from bursar_ledger._events import decode_event, encode_event
from bursar_proto.v1 import dummy_pb2, fit_pb2
from bursar_server import log
from bursar_server.access.auth import Principal, set_caller
from bursar_server.config import Config
from bursar_server.fits import Plan, PublicTable
from bursar_server.fits.contract import BY_FIELD, METHODS
from bursar_server.fits.registry import FITS
from bursar_server.jobs.job import Run
from bursar_server.jobs.limits import check_fit
from bursar_server.jobs.trial import Dummies
from bursar_server.tables import Manifest, ManifestError
from bursar_server.tables._manifest import Numeric
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import MAX_ROWS, MAX_UNIT_ROWS
from bursar_server.wire.admin_service import AdminService
from bursar_server.wire.audit_service import AuditService
from bursar_server.wire.catalog_service import CatalogService
from bursar_server.wire.fit_service import FitService
from bursar_server.wire.statuses import rpc_status, status_of
from tests.fuzz import files
from tests.fuzz.calls import Reply, check_status, doubles
from tests.fuzz.exploring import WrongError, explore
from tests.fuzz.messages import HUGE, LENGTHS, REAL, WHOLE, built, changed, encoded
from tests.fuzz.server import SETTINGS, prepare
from tests.fuzz.valid import VALID

_RELEASED_ENTRY = 25
"""The entry that requests of `VALID` name: here it has a model of every fit."""

_BUDGETS = (Budget(2.0**20, 1e-300), Budget(1e-3, 0.5), Budget(1.0, 1e-6), Budget(2.0**17, 1e-6))
"""Totals whose orders are far apart; what is planned is priced at each."""

_SAME_EVENTS = 40
"""Events of one plan whose codes are compared; later ones are made by the same code from the same numbers."""


class _Odd(Datasets):
    """Datasets whose public facts are exchanged for those of another manifest."""

    instead: PublicTable | None = None

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        super().__init__(ledger, directory)
        # Nothing here spends or registers, so that what was read once is still so.
        self._read = functools.cache(super().state)
        self._public = functools.cache(lambda name: super(_Odd, self).table(self._read(name)))

    def state(self, name: str) -> DatasetState:
        """Return what the ledger said the first time."""
        return self._read(name)

    def table(self, state: DatasetState) -> PublicTable:
        """Return those of the other manifest, if there is one."""
        return self.instead or self._public(state.name)


class _Planned:
    """A fit that remembers its newest plan.

    Args:
        fit: the fit.
        released: its model, for every request that names `_RELEASED_ENTRY`.
    """

    def __init__(self, fit: Any, released: Message | None = None) -> None:
        self.fit = fit
        self.released = released
        self.plans: list[Plan] = []

    def plan(self, request: Message, table: PublicTable, released: Callable[[int], Message | None]) -> Plan:
        """Plan, and remember the plan."""
        own = self.released
        made: Plan = self.fit.plan(request, table, lambda entry: own if entry == _RELEASED_ENTRY else released(entry))
        self.plans = [made]
        return made

    def run(self, plan: Any, session: Any) -> Any:
        """Run the fit."""
        return self.fit.run(plan, session)


class _Context:
    """A call's context, of which services use the metadata and whether the caller is there."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


CONTEXT: Any = _Context()
"""Context of every call."""


@dataclass
class Desk:
    """The services of a server that does not listen.

    Attributes:
        folder: for files.
        ledger: of the server.
        datasets: their public facts can be exchanged.
        fits: by method.
        fit_service: previews.
        dummies: plans of dummy runs.
        services: others, by their name on the wire.
        outcomes: of all calls, by target and outcome.
        slowest: seconds of the slowest call, by target.
    """

    folder: Path
    ledger: Ledger
    datasets: _Odd
    fits: Mapping[str, _Planned]
    fit_service: FitService
    dummies: Dummies
    services: Mapping[str, Any]
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)


@contextmanager
def desk(folder: Path) -> Iterator[Desk]:
    """Make the services of a state directory in an empty folder."""
    prepared = prepare(folder)
    config = Config.model_validate(dict(SETTINGS))
    none: Any = None
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.open(prepared.state.ledger))
        datasets = _Odd(ledger, prepared.state.datasets)
        fits = {name: _Planned(fit) for name, fit in FITS.items()}
        made = Desk(
            folder=folder,
            ledger=ledger,
            datasets=datasets,
            fits=fits,
            # Requests as large as the software allows: the limits of a server only make them fewer.
            fit_service=FitService(
                fits=fits, datasets=datasets, ledger=ledger, runs=none, follower=none, events=log.Events()
            ),
            dummies=Dummies(
                fits=fits,
                facts=datasets.facts,
                check=lambda request, plan, rows: check_fit(config.limits, request, plan, rows),
            ),
            services={
                "CatalogService": CatalogService(ledger, datasets, none, str, config.limits),
                "AdminService": AdminService(ledger, config.tokens.days, events=log.Events()),
                "AuditService": AuditService(ledger, prepared.state.ledger, config.limits),
            },
        )
        for field_name, method in BY_FIELD.items():
            fits[method.name].released = _model(made.dummies, field_name)
        # What a service logs is no concern of a judge of answers.
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable()
        set_caller(Principal("the-analyst", Role.ANALYST))
        stack.callback(set_caller, None)
        yield made


def _model(dummies: Dummies, fit: str) -> Any:
    """Run a fit on synthetic rows: its model, as a release would have it."""
    valid: Sequence[Any] = VALID["/bursar.v1.FitService/Preview"]
    asked = next(one for one in valid if one.WhichOneof("fit") == fit)
    order = dummies.order(dummy_pb2.DummyRequest(fit=asked, rows=20))
    model: Any = getattr(dummy_pb2.DummyResponse.FromString(dummies.run(order, Run(incident=""))).model, fit)
    if fit == "sketch_kmeans":
        model.sketch.dummy = False
    return model


# What is asked.


def _places(message: Any) -> list[tuple[Any, FieldDescriptor]]:
    """List the fields with a number in a message and in the messages in it; real ones three times."""
    found = [(message, one) for one in message.DESCRIPTOR.fields if one.cpp_type in _VALUES]
    found += 2 * [(place, one) for place, one in found if one.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE]
    for one, value in message.ListFields():
        if one.message_type is not None:
            for part in [value] if isinstance(value, Message) else value[:_FIRST_PARTS]:
                found += _places(part)
    return found


_FIRST_PARTS = 8
"""Messages of a list that are looked into."""


def _whole(bits: int, *, signed: bool) -> tuple[int, ...]:
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    small, large = range(18), (-1, *WHOLE, *WHOLE, *HUGE, lowest, highest)
    return tuple(n for n in (*small, *large) if lowest <= n <= highest)


_REALS = (*REAL, *REAL, *REAL, *(-x for x in REAL))
_VALUES: Mapping[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: _REALS,
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_INT32: _whole(32, signed=True),
    FieldDescriptor.CPPTYPE_INT64: _whole(64, signed=True),
    FieldDescriptor.CPPTYPE_UINT32: _whole(32, signed=False),
    FieldDescriptor.CPPTYPE_UINT64: _whole(64, signed=False),
    FieldDescriptor.CPPTYPE_ENUM: (*range(8), 8, 99, -1),
}


def varied(message: Any, chance: random.Random) -> Any:
    """Copy a request with up to three of its numbers at the edge of something, or at random."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        places = _places(copy)
        if not places:
            break
        place, one = chance.choice(places)
        values = getattr(place, one.name)
        number = chance.choice(_VALUES[one.cpp_type])
        if one.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE and chance.random() < _AT_RANDOM:
            number = math.exp(chance.uniform(-20.0, 20.0))
        if not one.is_repeated:
            setattr(place, one.name, number)
        elif len(values) and chance.random() < _ELEMENT:
            values[chance.randrange(len(values))] = number
        else:
            del values[:]
            values.extend([number] * chance.choice(LENGTHS))
    return copy


_AT_RANDOM, _ELEMENT = 0.5, 0.8
"""Real numbers that are at no edge; changes of a list that exchange an element of it."""

VARIANTS = 20
"""Calls made from one request of hypothesis, which takes longer to make one than the server to plan it."""


def _of_people(request: Any, chance: random.Random) -> Any:
    """Ask for a table that there is, nearly always: tables are exchanged below its name."""
    if isinstance(request, dummy_pb2.DummyRequest):
        if name := request.fit.WhichOneof("fit"):
            _of_people(getattr(request.fit, name), chance)
    elif chance.random() < _KNOWN:
        request.dataset = "people"
    return request


_KNOWN = 0.95
"""Requests for a table that there is."""


def _requests(valid: Sequence[Message]) -> st.SearchStrategy[tuple[Message, int]]:
    """Make requests with some fields exchanged, few of them from nothing; and a seed for `VARIANTS` of each."""
    whole, some, rare = st.sampled_from(valid), changed(valid), built(valid[0].DESCRIPTOR)
    request = st.integers(0, 15).flatmap(lambda kind: rare if kind == 0 else some if kind % 2 else whole)
    return st.tuples(request, st.integers(0, 2**32))


_BOUNDS = (
    *(0.0, -0.0, 5e-324, 2.2e-308, 1e-300, 1e-160, 1e-100, 1.1e-100, 1e-50, 1e-20, 1e-9, 0.1, 1.0, 1.0 + 2.0**-52),
    *(2.0, 10.0, 1e3, 1e6, 1e9, 1e20, 1e50, 1e99, 1e100),
)
_NULLABLE = 0.1
"""Columns that no fit but two takes."""
_NAMES = ("x", "y", "m", "a", "t1", "t2", "b")


_DECLARED = 0.7
"""Tables whose number of rows is public although one person changes it."""


def manifest(seed: int) -> dict[str, Any]:
    """Make a valid manifest as its file would have it, all of its numbers at edges."""
    chance = random.Random(seed)

    def numeric(name: str) -> dict[str, Any]:
        while True:
            lower, upper = sorted(chance.choice((-1.0, 1.0)) * chance.choice(_BOUNDS) for _ in range(2))
            bins = chance.choice((None, None, 1, 2, 7, 1000, [lower, upper], [lower, (lower + upper) / 2, upper]))
            about = {"name": name, "kind": "numeric", "lower": lower, "upper": upper, "bins": bins}
            with contextlib.suppress(ValidationError):
                Numeric.model_validate(about)
                return about | {"nullable": chance.random() < _NULLABLE}

    def categorical(name: str) -> dict[str, Any]:
        n = chance.choice((1, 2, 2, 3, 3, 17, 300, 5000))
        return {"name": name, "kind": "categorical", "categories": ["-", *(f"c{i}" for i in range(n))]}

    columns = [(numeric if chance.random() < (0.9, 0.1)[i > 2] else categorical)(n) for i, n in enumerate(_NAMES)]
    columns += [numeric(f"n{i}") for i in range(chance.choice((0, 0, 0, 1, 57, 58, 120, 200)))]
    person = chance.random() < 0.5
    cap = chance.choice((1, 2, 3, 1000, MAX_UNIT_ROWS)) if person else 1
    adjacency = chance.choice(("replace_one", "add_remove_one"))
    rows = chance.choice((1, 2, 3, 60, 10**4, 10**6, MAX_ROWS - 1, MAX_ROWS))
    return {
        "name": "people",
        "adjacency": adjacency,
        "columns": columns,
        **({"unit": {"column": "who", "max_rows": cap}} if person else {}),
        **({"public_rows": rows} if adjacency == "replace_one" or chance.random() < _DECLARED else {}),
    }


@functools.cache
def _table(seed: int) -> PublicTable | None:
    """Return the public facts of `manifest(seed)`; for every third seed None, for those of the dataset itself."""
    found = Manifest.from_public(manifest(seed))
    return None if seed % 3 == 0 else found.table(found.public_rows or 60)


_TABLES = 1000
"""Manifests, each of which is made once."""


# What must be true.


def _refusal(error: Exception) -> str:
    """Return the status of a refusal. Raises WrongError unless it is a documented one, in plain and short words."""
    status = status_of(error)
    code, text, _ = status
    if code is grpc.StatusCode.INTERNAL:
        raise error
    details = tuple(one.value for one in rpc_status(status).details)
    check_status(Reply(code.name, text, "", details, (), False))
    for place, told in getattr(error, "violations", ()):
        if not (place and told and place.isprintable()):
            raise WrongError(f"a refusal names no field, or says nothing: {place!r}: {told!r}")
    return code.name


def _finite(message: Message) -> None:
    if strange := [path for path, number in doubles(message, "") if not math.isfinite(number)]:
        raise WrongError(f"numbers that are none: {strange[:5]} of {message}")


def _most(spend: Any, order: Fraction) -> int | None:
    """Price all that was offered, in units; None for what is left."""
    match spend.WhichOneof("amount"):
        case "rho":
            return price([ConcentratedEvent(Fraction(spend.rho))], order).cost_units
        case "epsilon":
            return price([PureEvent(Fraction(spend.epsilon))], order).cost_units
        case "epsilon_delta":
            rho = rho_of(spend.epsilon_delta.epsilon, spend.epsilon_delta.delta)
            return price([ConcentratedEvent(Fraction(rho))], order).cost_units
    return None


def _check_plan(plan: Plan, request: Any) -> None:
    """Check what would be debited, and what is told of it."""
    for event in plan.events[:_SAME_EVENTS]:
        if decode_event(encode_event(event)) != event:
            raise WrongError(f"the ledger would read another event than {event}")
    for budget in _BUDGETS:
        cost = price(plan.events, budget.order)
        if (cost.cost_units > 0) != bool(plan.events) or cost.delta_units or not math.isfinite(cost.rho):
            raise WrongError(f"{plan.events} cost {cost}")
        most = _most(request.spend, budget.order) if plan.events else None
        if most is not None and cost.cost_units > most:
            raise WrongError(f"{plan.events} cost {cost}, and {most} were offered")
    if any(price([event], _BUDGETS[0].order).cost_units < 1 for event in plan.events[:_SAME_EVENTS]):
        raise WrongError(f"one of {plan.events} costs nothing")
    for release in plan.noise:
        stds = (release.count_std, release.sum_std, release.moment_std)
        if not (release.size >= 1 and release.times >= 1 and all(std >= 0 for std in stds)):
            raise WrongError(f"a release without a size or a noise: {release}")
    if not (plan.iterations >= 0 and all(map(math.isfinite, _numbers(plan.parameters)))):
        raise WrongError(f"parameters that the ledger cannot hold: {plan.parameters}")


def _numbers(tree: Any) -> Iterator[float]:
    if isinstance(tree, Mapping | list | tuple):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _numbers(part)
    elif isinstance(tree, int | float):
        yield tree


def _preview(desk: Desk, fit: str, request: Any, table: PublicTable | None) -> fit_pb2.PreviewResponse:
    """Preview a request for a table. Raises the refusal."""
    desk.datasets.instead = table
    try:
        return desk.fit_service.preview(fit_pb2.PreviewRequest(**{fit: request}), CONTEXT)
    finally:
        desk.datasets.instead = None


def _check_fit(desk: Desk, fit: str, request: Any, table: int) -> str:
    try:
        response = _preview(desk, fit, request, _table(table))
    except Exception as error:
        return _refusal(error)
    _finite(response)
    _check_plan(desk.fits[BY_FIELD[fit].name].plans[-1], request)
    repr(preview_from(response, request.columns))
    return "planned"


def _check_dummy(desk: Desk, request: Any, table: int) -> str:
    desk.datasets.instead = _table(table)
    try:
        order = desk.dummies.order(request)
    except Exception as error:
        return _refusal(error)
    finally:
        desk.datasets.instead = None
    _check_plan(order.plan, getattr(request.fit, request.fit.WhichOneof("fit")))
    if not (order.rows >= 1 and math.isfinite(order.price.rho)):
        raise WrongError(f"a dummy run of {order.rows} rows for {order.price}")
    return "planned"


_NEAR = st.sampled_from(_REALS)
_REACHED = {
    "dpem": ("mean_error", 1e9),
    "gradient_em": ("relative_error", 1e6),
    "mrf": ("table_error", 0.99),
    "separated_gmm": ("found", 1),
    "sketch_kmeans": ("snr", 1e-6),
}
"""A target of each fit that many of its requests reach."""
_AMOUNTS = st.one_of(_NEAR, st.sampled_from((1e-3, 0.01, 0.1)))
_TARGETED = ("mean_error", "coef_error", "relative_error", "covariance_error", "table_error", "snr", "relative_sse")


@st.composite
def _suggestions(draw: st.DrawFn) -> tuple[str, Message, int, dict[str, Any], Any]:
    fit = draw(st.sampled_from(sorted(BY_FIELD)))
    request = draw(st.sampled_from(VALID[f"/bursar.v1.FitService/{BY_FIELD[fit].name}"]))
    wanted: dict[str, Any] = draw(st.dictionaries(st.sampled_from(_TARGETED), _NEAR, max_size=2))
    wanted |= draw(st.sampled_from(({}, {}, {"found": draw(_NEAR)}, {"noise": {"sums": draw(_NEAR)}})))
    if draw(st.booleans()):  # with numbers at the edges alone nearly everything is refused, and little is judged
        wanted, kind = dict([_REACHED[fit]]), "rho"
    else:
        kind = draw(st.sampled_from(("rho", "pure", "pair", "rest")))
    return fit, request, draw(st.integers(0, 2**32)), wanted, (kind, draw(_AMOUNTS), draw(_NEAR))


def _check_suggestion(desk: Desk, case: tuple[str, Any, int, dict[str, Any], Any]) -> str:
    fit, valid, seed, wanted, (kind, first, second) = case
    request, table = varied(valid, random.Random(seed)), _table(seed % _TABLES)

    def ask(spend: Any) -> Preview:
        asked = type(request).FromString(encoded(request))
        match spend:
            case bursar.Rho():
                asked.spend.rho = spend.value
            case bursar.Pure():
                asked.spend.epsilon = spend.epsilon
            case _:
                asked.spend.epsilon_delta.epsilon, asked.spend.epsilon_delta.delta = spend.epsilon, spend.delta
        try:
            return preview_from(_preview(desk, fit, asked, table), asked.columns)
        except Exception as error:
            _refusal(error)
            raise bursar.InvalidRequestError(str(error), violations=getattr(error, "violations", ())) from error

    try:
        match kind:
            case "rho":
                spend: Any = bursar.rho(first)
            case "pure":
                spend = bursar.pure(first)
            case "pair":
                spend = bursar.epsilon_delta(first, second)
            case _:
                spend = bursar.what_is_left()
        found = suggest(ask, bursar.Target(**wanted), spend)
    except bursar.InvalidRequestError as error:
        if not str(error):
            raise WrongError("a refusal without a word") from error
        return "refused"
    repr(found)
    return "suggested"


@st.composite
def _others(draw: st.DrawFn) -> tuple[str, Message]:
    path = draw(st.sampled_from(_PATHS))
    return path, draw(st.one_of(changed(VALID[path]), built(VALID[path][0].DESCRIPTOR)))


_PATHS = tuple(path for path in VALID if path.startswith("/bursar.") and "Fit" not in path and "Dummy" not in path)
"""Methods that plan nothing."""


def _check_other(desk: Desk, case: tuple[str, Any]) -> str:
    path, request = case
    service, method = path.removeprefix("/bursar.v1.").split("/")
    try:
        answer = getattr(desk.services[service], method)(request, CONTEXT)
        for message in [answer] if isinstance(answer, Message) else answer:
            _finite(message)
    except Exception as error:
        return _refusal(error)
    return "answered"


@st.composite
def _manifests(draw: st.DrawFn) -> bytes:
    return files.toml(draw(files.exchanged(manifest(draw(st.integers(0, _TABLES))))))


def _check_manifest(desk: Desk, text: bytes) -> str:
    path = desk.folder / "given.toml"
    path.write_bytes(text)
    try:
        found = Manifest.load(path)
    except ManifestError as error:
        if files.INNARDS.search(str(error)):
            raise WrongError(f"a bad manifest shows innards: {error}") from error
        return "refused"
    numbers = [n for column in found.table(1).numeric for n in (column.lower, column.upper, *column.bins)]
    if not all(map(math.isfinite, numbers)) or Manifest.from_public(found.public()) != found:
        raise WrongError(f"a manifest that is not what it was, or has numbers that are none: {found}")
    return "taken"


def _check_settings(desk: Desk, given: tuple[bytes, Mapping[str, str]]) -> str:
    return files.load_configuration(desk.folder / "given-config.toml", *given)


@st.composite
def _amounts(draw: st.DrawFn) -> tuple[Any, ...]:
    number = st.one_of(_NEAR, _NEAR, st.sampled_from((0, 1, 2**20, 2**64, True, None, "1", 10**400)))
    part = st.one_of(number, st.fractions(), st.sampled_from((Fraction(1, 10), Fraction(0), Fraction(1))))
    return draw(number), draw(number), draw(part), draw(part), draw(st.integers(-1, 2**70))


def _check_amounts(desk: Desk, numbers: tuple[Any, ...]) -> str:
    """Check totals and events of any numbers: refused, or with finite and positive caps and prices."""
    epsilon, delta, share, scale, count = numbers
    makers: tuple[Callable[[], Any], ...] = (
        lambda: Budget(epsilon, delta, share),
        lambda: Budget(epsilon, delta),
        lambda: GaussianEvent(count, scale, count),
        lambda: LaplaceEvent(count, scale, count),
        lambda: PureEvent(scale, count),
        lambda: SelectionEvent(count, scale),
        lambda: ConcentratedEvent(scale),
        lambda: ApproximateEvent(PureEvent(scale), share),
    )
    made = 0
    for make in makers:
        try:
            value = make()
        except ValueError:
            continue
        made += 1
        if isinstance(value, Budget):
            if not (1 <= value.cap_cost_units < 2**63 and 0 <= value.cap_delta_units < 2**63 and value.order > 1):
                raise WrongError(f"a total without a sense: {value}, {value.cap_cost_units}")
        elif not price([value], _BUDGETS[0].order).cost_units > 0:
            raise WrongError(f"{value} costs nothing")
    return "taken" if made else "refused"


Checked = Callable[[Desk, Any], Iterator[str]]
"""Outcomes of the calls that are made of a case."""


def _once(check: Callable[[Desk, Any], str]) -> Checked:
    """Make one call of a case."""
    return lambda desk, case: iter([check(desk, case)])


def _planning(path: str, check: Callable[[Desk, Any, int], str]) -> tuple[st.SearchStrategy[Any], Checked]:
    """Make `VARIANTS` calls of a case, each for another table."""

    def checked(desk: Desk, case: tuple[Any, int]) -> Iterator[str]:
        message, seed = case
        for number in range(VARIANTS):
            chance = random.Random(seed + number)
            asked = _of_people(varied(message, chance), chance)
            try:
                yield check(desk, asked, chance.randrange(_TABLES))
            except Exception as error:
                error.add_note(f"the request: {asked!r:.1500}")
                raise

    return _requests(VALID[path]), checked


def _fit(fit: str) -> tuple[st.SearchStrategy[Any], Checked]:
    path = f"/bursar.v1.FitService/{BY_FIELD[fit].name}"
    return _planning(path, lambda desk, request, table: _check_fit(desk, fit, request, table))


TARGETS: Mapping[str, tuple[st.SearchStrategy[Any], Checked]] = {
    **{BY_FIELD[fit].name: _fit(fit) for fit in BY_FIELD},
    "RunDummy": _planning("/bursar.v1.DummyService/RunDummy", _check_dummy),
    "suggest_spend": (_suggestions(), _once(_check_suggestion)),
    "other methods": (_others(), _once(_check_other)),
    "manifest": (_manifests(), _once(_check_manifest)),
    "settings": (files.configurations(), _once(_check_settings)),
    "amounts": (_amounts(), _once(_check_amounts)),
}
"""Targets by name: what is asked, and what must be true of it."""

SHARES: Mapping[str, float] = dict.fromkeys(METHODS, 0.17) | {
    "RunDummy": 0.08,
    "suggest_spend": 0.005,
    "other methods": 0.02,
    "manifest": 0.01,
    "settings": 0.01,
    "amounts": 0.025,
}
"""Part of the calls that each target gets: most for what has the most numbers."""


def run(desk: Desk, target: str, calls: int, seed: int) -> None:
    """Check about so many calls of a kind. Raises what is wrong with the first wrong one."""
    cases, check = TARGETS[target]
    each = VARIANTS if target in _VARIED else 1

    def look(case: Any) -> None:
        begun = time.perf_counter()
        for outcome in check(desk, case):
            ended = time.perf_counter()
            desk.outcomes[target, outcome] += 1
            desk.slowest[target] = max(desk.slowest.get(target, 0.0), ended - begun)
            begun = ended

    explore(cases, look, max(1, calls // each), seed)


_VARIED = frozenset({*METHODS, "RunDummy"})
