"""Generate the reference pages that are made from code: the manifest, the errors and the wire.

Tests compare the pages with the code. After a change of a manifest's field, a status or a .proto file:

    python -m tests.refresh_reference
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2
from pydantic import BaseModel

from bursar._errors import ServerError
from bursar._wire_errors import _BY_CODE, _BY_REASON
from bursar_ledger import BudgetExhaustedError
from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs.errors import CallTooLongError
from bursar_server.tables._manifest import Boolean, Categorical, Csv, Dates, Manifest, Numeric, Unit
from bursar_server.wire import statuses
from tests.refresh_configuration import meanings

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MARK = "<!-- Written by tests/refresh_reference.py -->\n"

EXAMPLE = """\
name = "clinic"
description = "Visits to a clinic, one row for each visit"
adjacency = "replace_one"
public_rows = 50000

[unit]
column = "patient"
max_rows = 10

[csv]
delimiter = ";"
encoding = "cp1252"

[[columns]]
kind = "numeric"
name = "age"
description = "age at the visit, years"
lower = 0
upper = 110
bins = [0, 18, 40, 65, 110]
nullable = true
decimal = ","
thousands = "."
null_values = ["n/a", 999]

[[columns]]
kind = "numeric"
name = "admitted"
description = "months since January 2000"
lower = 0
upper = 360
date = { unit = "months", since = 2000-01-01, format = "%d.%m.%Y" }

[[columns]]
kind = "numeric"
name = "bill"
description = "what the visit cost, in euros"
lower = 0
upper = 50000
transform = "log1p"

[[columns]]
kind = "categorical"
name = "ward"
description = "where the visit took place"
categories = ["surgery", "medicine", "rest"]
aliases = { chir = "surgery", "" = "rest" }
case = "ignore"
trim = true
other = "rest"
null_values = ["?"]

[[columns]]
kind = "categorical"
name = "diagnosis"
description = "first letter of the code of ICD-10"
categories = ["A", "C", "E", "rest"]
first = 1
aliases = { B = "A" }
other = "rest"

[[columns]]
kind = "boolean"
name = "emergency"
description = "true if the patient came without an appointment"
true = ["yes", 1]
false = ["no", 0]
null_values = ["n/a"]
"""

ERRORS: Mapping[str, tuple[str, str]] = {
    "INVALID_ARGUMENT": (
        "A field of the request is wrong: unknown, out of range, or in conflict with the schema or the owner's limits",
        "Correct the fields that are named. Nothing was debited",
    ),
    "UNAUTHENTICATED": (
        "The token is missing, unknown, revoked or expired",
        "Pass a valid token, or ask the administrator for one",
    ),
    "PERMISSION_DENIED": (
        "The role of the token may not call this method",
        "Use a token of the right role; `bursar-admin token list` shows the roles",
    ),
    "UNIMPLEMENTED": ("The server does not have this method", "Compare the versions of client and server"),
    "CANCELLED": ("The caller ended the call", "Send the request again with the same request_id"),
    "UNKNOWN_DATASET": ("There is no dataset of this name, or the token is not for it", "List the datasets"),
    "UNKNOWN_TOKEN": ("Nobody of this name holds a live token", "List the tokens"),
    "CREDENTIAL_EXISTS": ("This name holds a live token already", "Revoke that token first, or take another name"),
    "REQUEST_ID_REUSED": ("The request_id belongs to another request", "Take a new request_id. Nothing was debited"),
    "BUDGET_EXHAUSTED": (
        "The cost is above the remaining budget of the dataset, the analyst's allowance, or the maximum per request",
        "Request less, or preview what fits; the error names the limit and what is left. Nothing was debited",
    ),
    "DATASET_RETIRED": (
        "The owner retired the dataset",
        "Fetch earlier releases by their request_id; fit another dataset",
    ),
    "NAME_CONFLICT": (
        "The name differs only in case from one that the ledger has",
        "Ask the administrator for one spelling",
    ),
    "LAST_ADMINISTRATOR": (
        "The token is the last one of an administrator",
        "Issue another administrator's token first, or revoke it on the server's machine",
    ),
    "QUEUE_FULL": ("All places for fits or calls are taken", "Try again after the time that the error gives"),
    "ADDRESS_LOCKED_OUT": (
        "The token is missing or not valid, and so were those of too many calls from this address",
        "Get a valid token; it is accepted at once",
    ),
    "TOO_OFTEN": ("Too many calls or failures of this caller", "Wait for the time that the error gives"),
    "STOPPING": ("The server is stopping", "Try again when it has started"),
    "IDENTITY_PROVIDER_UNAVAILABLE": (
        "The server cannot fetch the keys of the identity provider",
        "Try again; the administrator checks the connection to the provider",
    ),
    "CALL_TOO_LONG": (
        "The call lasted longer than the server allows",
        "For a paid fit: send the same request_id again, the fit goes on. For a free one: request less",
    ),
    "LEDGER_UNAVAILABLE": (
        "The ledger cannot be read or written: a full disk, a lock, or replaced files",
        "Send the same request_id again; the administrator looks at the log",
    ),
    "ENGINE_UNAVAILABLE": ("The machines that hold the rows cannot be reached", "Try again later. Nothing was debited"),
    "ROWS_UNAVAILABLE": (
        "The rows are missing, or are not those that were registered",
        "The administrator restores them or imports a new snapshot. Nothing was debited",
    ),
    "NO_ROOM": ("The server lacks file descriptors for one more fit", "Try again later. Nothing was debited"),
    "FIT_NOT_BEGUN": ("The debit is stored, and the fit could not start", "Send the same request_id again: it is free"),
    "RELEASE_NOT_STORED": (
        "The release could not be stored, and was not sent",
        "Send the same request_id again: it is free",
    ),
    "RELEASE_LOST": (
        "The fit was cut off after its debit, and is not run again",
        "Send a new request; the debit stays",
    ),
    "UNKNOWN_RELEASE": ("The entry is no debit of the caller", "List the releases"),
    "NO_RELEASE_YET": ("The fit of this debit still runs, waits, or was interrupted", "Send its request_id again"),
    "INTERNAL": (
        "The fit or the server failed; the text is constant, so that it says nothing about rows",
        "Give the incident id to the administrator, who finds it in the log. A debit stays",
    ),
}
"""Cause and remedy of each status, by the reason of its `ErrorInfo` or, where it has none, by its code."""


def manifest_page() -> str:
    """Return the page of the manifest's fields."""
    example = tomllib.loads(EXAMPLE)
    numeric, dated, money, categorical, code, boolean = example["columns"]
    numeric["date"], numeric["transform"], categorical["first"] = dated["date"], money["transform"], code["first"]
    parts = (
        ("Table", "At the top of the file.", Manifest, {**example, "columns": "see below"}),
        ("[unit]", _about(Unit), Unit, example["unit"]),
        ("[csv]", _about(Csv), Csv, example["csv"]),
        ("[[columns]] of numbers", _about(Numeric), Numeric, numeric),
        ("date, of a column of numbers", _about(Dates), Dates, dated["date"]),
        ("[[columns]] of categories", _about(Categorical), Categorical, categorical),
        ("[[columns]] of two answers", _about(Boolean), Boolean, boolean),
    )
    lines = [
        "# Manifest\n",
        MARK,
        "A manifest is a TOML file in which the data owner declares what is public about a table. Nothing in it may be",
        "computed from the rows: see [choosing bounds](../choosing-bounds.md). `bursar-admin manifest new` writes a",
        "skeleton from names and types, or asks for every answer (`--ask`); `bursar-admin manifest check` names column",
        "and line of a wrong field.",
        "A field that is not listed here is refused. Editors that know JSON Schema complete and check the file with",
        "[manifest.schema.json](manifest.schema.json), which `bursar-admin manifest schema` writes: with Taplo, by",
        "a first line `#:schema manifest.schema.json`.\n",
        "```toml",
        EXAMPLE.rstrip(),
        "```",
    ]
    for title, about, model, values in parts:
        lines += [f"\n## {title}\n", about, "", *_fields(model, values)]
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Return the catalogue of the statuses that a client can meet."""
    lines = [
        "# Errors\n",
        MARK,
        "Every refusal is a gRPC status. Its reason is in `google.rpc.ErrorInfo` (domain `bursar`). The SDK raises the",
        "exception in the third column. Its message ends with the reason in brackets, such as `[UNKNOWN_DATASET]`, or",
        "with the status if there is no reason; `error.code` is the same word. `retry_after` is set where the server",
        "says when to try again. The command line prints the same text and ends with",
        "[an exit status of its own](../cli.md#scripts).\n",
        "| reason | status | exception | cause | what to do |",
        "|---|---|---|---|---|",
    ]
    for code, reason in sorted(_statuses(), key=lambda one: (one[1] or "", one[0].name)):
        cause, remedy = ERRORS[reason or code.name]
        raised = _BY_REASON.get(reason) or _BY_CODE.get(code, ServerError)
        lines.append(
            f"| {f'`{reason}`' if reason else ''} | `{code.name}` | `{raised.__name__}` | {cause} | {remedy} |"
        )
    return "\n".join(lines) + "\n"


def wire_page() -> str:
    """Return the reference of services, messages and enums, from the comments of the .proto files."""
    lines = [
        "# Wire\n",
        MARK,
        "The contract between client and server: gRPC over TLS 1.3, package `bursar.v1`, `proto/bursar_proto/v1/`.",
        "The token is sent as metadata: `authorization: Bearer TOKEN`. [Other languages](../node-client.md) has a",
        "client in Node.js. Meanings are comments of the files. A number keeps its meaning permanently.",
    ]
    for file in _described():
        comments = _comments(file)
        lines += [f"\n## {Path(file.name).name}\n", comments((12,))]
        for i, service in enumerate(file.service):
            lines += [
                f"\n### {service.name}\n",
                comments((6, i)),
                "\n| method | request | response | meaning |",
                "|---|---|---|---|",
            ]
            for j, method in enumerate(service.method):
                answer = ("stream of " if method.server_streaming else "") + _short(method.output_type)
                meaning = _cell(comments((6, i, 2, j)))
                lines.append(f"| `{method.name}` | {_short(method.input_type)} | {answer} | {meaning} |")
        for i, enum in enumerate(file.enum_type):
            lines += [f"\n### {enum.name}\n", comments((5, i)), "\n| value | number | meaning |", "|---|---|---|"]
            lines += [
                f"| `{value.name}` | {value.number} | {_cell(comments((5, i, 2, j)))} |"
                for j, value in enumerate(enum.value)
            ]
        for i, message in enumerate(file.message_type):
            lines += _message(message, (4, i), message.name, comments)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "manifest.md": manifest_page,
    "manifest.schema.json": lambda: json.dumps(Manifest.editor_schema(), indent=1) + "\n",
    "errors.md": errors_page,
    "wire.md": wire_page,
}
"""Pages of `docs/reference` by the function that writes them."""


def _about(model: type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").partition("\n\nAttributes:")[0].split())


def _fields(model: type[BaseModel], example: Mapping[str, Any]) -> Iterator[str]:
    schema, said = model.model_json_schema(), meanings(model)
    yield "| field | type | default | example | meaning |\n|---|---|---|---|---|"
    for name, field in model.model_fields.items():
        kind = _kind(schema["properties"][name], schema)
        default = (
            "required"
            if field.is_required()
            else "none"
            if field.default in (None, Unit(), Csv())
            else f"`{json.dumps(field.default)}`"
        )
        shown = example[name]
        value = (
            shown
            if shown == "see below"
            else "see above"
            if isinstance(shown, dict)
            else f"`{json.dumps(shown, default=str)}`"
        )
        yield f"| `{name}` | {kind} | {default} | {value} | {_cell(said[name])} |"


def _kind(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _kind(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema.get("enum", [schema.get("const")]))
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds and "type" not in schema:
        return " or ".join(_kind(one, whole) for one in kinds if one.get("type") != "null")
    match schema["type"]:
        case "array" if "type" not in schema["items"]:
            return "list of tables"
        case "array":
            return "list of numbers" if schema["items"]["type"] == "number" else "list of texts"
        case "integer":
            return f"integer, {schema['minimum']:,} to {schema['maximum']:,}"
        case "number":
            return "number"
        case "boolean":
            return "`true`, `false`"
        case "object":
            return "table"
    most = f", at most {schema['maxLength']:,} characters" if "maxLength" in schema else ""
    return f"text matching `{schema['pattern']}`" if "pattern" in schema else f"text{most}"


def _statuses() -> set[tuple[grpc.StatusCode, str]]:
    """Code and reason of each status of the server's table; the last is that of everything else."""
    made: list[Exception] = []
    for kind in (*statuses._TABLE, Exception):
        if kind is InvalidFieldsError:
            made.append(InvalidFieldsError(("field", "text")))
        elif kind is CallTooLongError:
            made.append(CallTooLongError(goes_on=True))
        elif kind is not BudgetExhaustedError:
            made.append(Exception.__new__(kind))
    found = (
        {(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED")} if BudgetExhaustedError in statuses._TABLE else set()
    )
    for error in made:
        code, _, details = statuses.status_of(error)
        found.add((code, next((one.reason for one in details if isinstance(one, error_details_pb2.ErrorInfo)), "")))
    return found


def _described() -> list[descriptor_pb2.FileDescriptorProto]:
    """Descriptors of the contract's files, with their comments."""
    import grpc_tools
    from grpc_tools import protoc

    sources = sorted((ROOT / "proto" / "bursar_proto" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "described"
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        options = (f"-I{ROOT / 'proto'}", f"-I{well_known}", "--include_source_info", f"--descriptor_set_out={out}")
        if protoc.main(["protoc", *options, *map(str, sources)]) != 0:
            raise RuntimeError("protoc refused a file")
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def _comments(file: descriptor_pb2.FileDescriptorProto) -> Callable[[tuple[int, ...]], str]:
    """Return a function from the path of a definition to its comment."""
    said = {
        tuple(one.path): "\n".join([*one.leading_detached_comments, one.leading_comments, one.trailing_comments])
        for one in file.source_code_info.location
    }
    return lambda path: "\n".join(line.removeprefix(" ").rstrip() for line in said.get(path, "").strip().splitlines())


def _message(
    message: descriptor_pb2.DescriptorProto,
    path: tuple[int, ...],
    name: str,
    comments: Callable[[tuple[int, ...]], str],
) -> Iterator[str]:
    yield f"\n### {name}\n"
    yield comments(path)
    maps = {nested.name: nested.field for nested in message.nested_type if nested.options.map_entry}
    if message.field:
        yield "\n| field | number | type | meaning |\n|---|---|---|---|"
    for j, field in enumerate(message.field):
        kind = _type(field)
        if (entry := maps.get(field.type_name.rpartition(".")[2])) is not None:
            kind = f"map of {_type(entry[0])} to {_type(entry[1])}"
        elif field.label == field.LABEL_REPEATED:
            kind = f"list of {kind}"
        if field.HasField("oneof_index") and not field.proto3_optional:
            kind += f", one of `{message.oneof_decl[field.oneof_index].name}`"
        elif field.proto3_optional:
            kind += ", optional"
        yield f"| `{field.name}` | {field.number} | {kind} | {_cell(comments((*path, 2, j)))} |"
    for j, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(nested, (*path, 3, j), f"{name}.{nested.name}", comments)


def _type(field: descriptor_pb2.FieldDescriptorProto) -> str:
    return _short(field.type_name) if field.type_name else field.Type.Name(field.type).removeprefix("TYPE_").lower()


def _short(name: str) -> str:
    name = name.removeprefix(".bursar.v1.")
    return name if "." in name else f"[{name}](#{name.lower()})"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
