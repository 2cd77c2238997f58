"""Sketches in files: JSON of the wire's message, as `bursar-admin sketch` writes it at other sites."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import json_format

from bursar import _convert
from bursar._errors import ServerError
from bursar_models import Sketch
from bursar_models.errors import InvalidRequestError
from bursar_models.files import write_whole
from bursar_proto.v1 import fit_pb2


def save_sketch(sketch: Sketch, path: str | Path) -> None:
    """Write a sketch to a file, from which `load_sketch` gets the same numbers; an older file is replaced.

    It holds what was released and nothing else: the noisy sums, the public numbers that say what they are, and the
    entry of the ledger that paid for them. Whoever has it can decode it. The receipt is not in it.

    Args:
        sketch: any.
        path: of a JSON file.

    Raises:
        OSError: it cannot be written.
    """
    # A merged sketch has no receipt, and one that was decoded from other sites' sketches has entry 0.
    entry = sketch.receipt.entry if sketch.receipt else 0
    text = json_format.MessageToJson(_convert.sketch_to(sketch, entry=entry), preserving_proto_field_name=True)
    write_whole(path, f"{text}\n")


def load_sketch(path: str | Path) -> Sketch:
    """Return a sketch from a file that `save_sketch` or `bursar-admin sketch` wrote. It has no receipt.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be read.
        InvalidRequestError: it holds no sketch, or one whose frequencies this version draws otherwise.
    """
    message = fit_pb2.Sketch()
    try:
        json_format.Parse(Path(path).read_text(encoding="utf-8"), message)
        return _convert.sketch_from(message, None)
    except (json_format.ParseError, UnicodeDecodeError, ServerError) as error:
        raise InvalidRequestError.of("path", f"{path} is no sketch that this version can read: {error}") from error
