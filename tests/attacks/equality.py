"""Worlds in which an owner imports tables, and an analyst and an auditor ask whether two of them are equal.

Equality of two tables of people is an exact query without noise: a table and the same without one person are
neighbours. So what clients see is compared for a second table that equals the first, and for one that has another row
or lacks one, after the same commands. The planted bugs are what was found here once, and what could bring it back.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import pyarrow.csv as pc
import pyarrow.parquet as pq
from click.testing import CliRunner

from bursar_ledger import AccountConflictError, DebitRequest, GaussianEvent, Ledger, Role
from bursar_proto.v1 import audit_pb2, audit_pb2_grpc, catalog_pb2, fit_pb2, types_pb2
from bursar_server.access.auth import hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.admin.cli import main as admin
from bursar_server.config import Config
from bursar_server.fits.registry import FITS
from bursar_server.state import State
from bursar_server.tables import Fingerprint
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import register
from bursar_server.wire.server import BursarServer
from tests.attacks.asking import PATIENCE, Metadata
from tests.attacks.streams import heard, stream

SCHEMA = """
name = "{name}"
adjacency = "{adjacency}"
{unit}
[[columns]]
name = "{x}"
kind = "numeric"
lower = {lower}
upper = 3.0
[[columns]]
name = "{c}"
kind = "categorical"
categories = {categories}
"""
PEOPLE = [(f"{1 + i / 40}", "here" if i % 3 else "there") for i in range(40)]
TOTAL = ("--epsilon", "1", "--delta", "1e-6")
SAME = ("--same-people-as", "people")
OTHERS = (*TOTAL, "--other-people")

_RANDOM = re.compile(r"[0-9a-f]{16,}|\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{40,}")
"""Ids, hashes and tags; and the public key of checkpoints."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|\+00:00)")


@dataclass
class World:
    """An owner with a state directory; its table "people" is registered and partly spent.

    Attributes:
        folder: for files and the state directory.
        adjacency: of all tables.
    """

    folder: Path
    adjacency: str = "add_remove_one"

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.words("init")
        self.state = State.open(self.folder / "state")
        self._bearers: dict[Role, Metadata] = {}
        self.given("import", "people", PEOPLE, *TOTAL)
        with Ledger.open(self.state.ledger) as ledger:
            for role in (Role.ANALYST, Role.AUDITOR):
                token = new_token(role)
                ledger.issue_credential(f"the-{role.value}", role, hash_token(token), actor="test", reason="")
                self._bearers[role] = (("authorization", f"Bearer {token}"),)
            event = GaussianEvent(1, Fraction(10))
            ledger.debit(DebitRequest("people", "the-analyst", "before", bytes(32), "FitDPEM", (event,)))

    def words(self, *words: str) -> bool:
        """Return whether an administrator's act was done; if not, known rows were the only reason."""
        result = CliRunner().invoke(admin, [*words, "--state", str(self.folder / "state")])
        assert result.exit_code == 0 or "these rows are known" in result.output, result.output
        return result.exit_code == 0

    def given(
        self, act: str, name: str, rows: Sequence[Sequence[str]], *options: str, kind: str = "csv", **schema: str
    ) -> bool:
        """Import rows, or give them to a dataset as a snapshot; whether that was done."""
        header = [schema.pop("first", "x"), schema.pop("second", "c"), *(["who"] if "unit" in schema else [])]
        fields = {"x": "x", "c": "c", "lower": "0.0", "unit": "", "categories": '["here", "there"]', **schema}
        file, manifest = self.folder / f"{name}.csv", self.folder / f"{name}.toml"
        with file.open("w", newline="") as target:
            csv.writer(target).writerows([header, *rows])
        if kind == "parquet":
            pq.write_table(pc.read_csv(file), file := file.with_suffix(".parquet"))
        manifest.write_text(SCHEMA.format(name=name, adjacency=self.adjacency, **fields))
        return self.words(act, "--manifest", str(manifest), f"--{kind}", str(file), *options)

    def view(self) -> Mapping[str, Any]:
        """All that an analyst and an auditor see, with random numbers named in the order in which they come."""
        with contextlib.ExitStack() as stack:
            ledger = stack.enter_context(Ledger.open(self.state.ledger))
            config = Config(address="127.0.0.1:0", threads_per_fit=1, response_quantum_seconds=0.01)
            datasets = Datasets(ledger, self.state.datasets)
            server = BursarServer(state=self.state, config=config, ledger=ledger, datasets=datasets, fits=FITS)
            stack.enter_context(server)
            credentials = grpc.ssl_channel_credentials(Certificates(self.state.tls).ca.read_bytes())
            channel = stack.enter_context(grpc.secure_channel(server.address, credentials))
            names: dict[str, str] = {}
            return {
                question: _TIME.sub("#", _RANDOM.sub(lambda found: names.setdefault(found[0], f"#{len(names)}"), seen))
                for question, seen in self._asked(channel)
            }

    def _asked(self, channel: grpc.Channel) -> Iterator[tuple[str, str]]:
        bearer, auditor = self._bearers[Role.ANALYST], self._bearers[Role.AUDITOR]
        listed = catalog_pb2.ListDatasetsRequest()
        yield (
            "catalogue",
            str(
                heard(stream(channel, "CatalogService/ListDatasets", listed, catalog_pb2.ListDatasetsResponse, bearer))
            ),
        )
        for name in ("people", "second"):
            for rho in (0.001, 0.0195, 1.0):
                wanted = fit_pb2.FitDPEMRequest(
                    request_id=f"{name} {rho}", dataset=name, spend=types_pb2.Spend(rho=rho), n_components=1
                )
                preview = fit_pb2.PreviewRequest(dpem=wanted)
                told = stream(channel, "FitService/Preview", preview, fit_pb2.PreviewResponse, bearer)
                yield f"preview of {rho} from {name}", str(heard(told))
            for question, kind in (
                (catalog_pb2.GetDatasetRequest(dataset=name), "GetDataset"),
                (catalog_pb2.ListReleasesRequest(dataset=name), "ListReleases"),
            ):
                told = stream(
                    channel, f"CatalogService/{kind}", question, getattr(catalog_pb2, f"{kind}Response"), bearer
                )
                yield f"{kind} {name}", str(heard(told))
        entries = audit_pb2_grpc.AuditServiceStub(channel).ListEntries(
            audit_pb2.ListEntriesRequest(), metadata=auditor, timeout=PATIENCE
        )
        for entry in entries:
            yield f"entry {entry.entry}", json.dumps(json.loads(entry.body), sort_keys=True) + entry.hash.hex()


def unlike(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    """Return what tells two views apart."""
    return sorted(question for question in {*one, *two} if one.get(question) != two.get(question))


def differences(
    world: Callable[..., World], act: str, name: str, *options: str, adjacency: str = "add_remove_one"
) -> list[str]:
    """Return what tells a second table that equals the first one from a neighbour: one row lacks, or is another."""
    views = []
    for rows in (PEOPLE, PEOPLE[1:] if adjacency == "add_remove_one" else [("3.0", "there"), *PEOPLE[1:]]):
        each = world(adjacency=adjacency)
        assert each.given(act, name, rows, *options)
        views.append(each.view())
    assert len(views[0]) > 12
    return unlike(*views)


COMMANDS = {
    "import, same people": ("import", "second", *SAME),
    "import, other people": ("import", "second", *OTHERS),
    "snapshot": ("snapshot", "people", "--yes"),
}


UNIT = '[unit]\ncolumn = "who"\nmax_rows = 2'
GUISES: Mapping[str, tuple[Sequence[Sequence[str]], Mapping[str, str]]] = {
    "rows in another order": (PEOPLE[::-1], {}),
    "a column of another name": (PEOPLE, {"first": "a", "x": "a"}),
    "the last column is the first": (PEOPLE, {"first": "zz", "x": "zz", "second": "b", "c": "b"}),
    "the file's columns in another order": ([(c, x) for x, c in PEOPLE], {"first": "c", "second": "x"}),
    "categories in another order": (PEOPLE, {"categories": '["there", "here"]'}),
    "categories of other names": (
        [(x, {"here": "2", "there": "1"}[c]) for x, c in PEOPLE],
        {"categories": '["0", "1", "2"]'},
    ),
    "numbers written otherwise": ([(f"{float(x):+.12e}", c) for x, c in PEOPLE], {}),
    "other bounds": (PEOPLE, {"lower": "1.5"}),
    "another kind of file": (PEOPLE, {"kind": "parquet"}),
    "a cap": ([(x, c, f"u{i % 9}") for i, (x, c) in enumerate(PEOPLE)], {"unit": UNIT}),
    "padding": ([*PEOPLE, ("?", "nowhere")] + [("", "")] * 9, {}),
}


def renewed(world: World) -> list[str]:
    """The guises in which people who have an account get another one, when the owner says nothing."""
    return [
        guise
        for i, (guise, (rows, schema)) in enumerate(GUISES.items())
        if world.given("import", f"again-{i}", rows, *TOTAL, **schema)
    ]


def joining_by_itself(*arguments: Any, **options: Any) -> Any:
    """A planted bug: what is known joins the account that it has."""
    try:
        return register(*arguments, **options)
    except AccountConflictError:
        return register(*arguments, **{**options, "same_people_as": "people"})


def noting_refusals(state: State, ledger: Ledger, *arguments: Any, **options: Any) -> Any:
    """A planted bug: a refusal leaves an entry."""
    try:
        return register(state, ledger, *arguments, **options)
    except AccountConflictError:
        ledger.set_allowance("people", "refused", Fraction(1, 2), actor="server", reason="rows are known")
        raise


class ByName(Fingerprint):
    """A planted bug: columns in the order of their names."""

    def __init__(self, manifest: Any) -> None:
        super().__init__(manifest)
        self._order = sorted(range(len(manifest.columns)), key=lambda j: manifest.columns[j].name)

    def digest(self) -> bytes:
        """Return a digest without sorting by content."""
        return hashlib.sha256(b"".join(self._complete.columns[j].tobytes() for j in self._order)).digest()


class ByList(Fingerprint):
    """A planted bug: categories in the order of the manifest."""

    def digest(self) -> bytes:
        """Return a digest without sorting the counts."""
        return hashlib.sha256(b"".join(sorted(column.tobytes() for column in self._complete.columns))).digest()


class Clipped(Fingerprint):
    """A planted bug: what is stored is compared, and not what was imported."""

    def __init__(self, manifest: Any) -> None:
        super().__init__(manifest)
        self._lower = manifest.columns[0].lower

    def add(self, raw: Any, present: Any) -> None:
        """Add within bounds."""
        super().add([raw[0].clip(self._lower), *raw[1:]], present)
