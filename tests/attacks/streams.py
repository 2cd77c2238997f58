"""Messages that a caller receives, one by one."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_status import rpc_status

from tests.attacks.asking import PATIENCE, Metadata

_UNLIKE = frozenset({"ledger_head", "head", "head_at_size", "ledger_id", "time", "checkpoint"})
"""Fields that have a time or a random id in them, or a hash of one."""


def scrubbed(message: Any) -> Any:
    """A message without such fields."""
    for field, value in message.ListFields():
        if field.name in _UNLIKE:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in [value] if isinstance(value, Message) else value:
                scrubbed(part)
    return message


def heard(call: Any) -> list[str]:
    """Messages, and code, text and details of a refusal; of progress how many steps there are, not which were told."""
    found: list[Any] = []
    try:
        for message in call:
            steps = message.progress.steps if "progress" in message.DESCRIPTOR.fields_by_name else 0
            found.append(steps or encoded(message))
    except grpc.RpcError as error:
        status = rpc_status.from_call(error)
        found += [call.code(), call.details(), [one.value for one in status.details] if status else []]
    return list(dict.fromkeys(map(str, found)))


def stream(channel: grpc.Channel, method: str, request: Message, answer: Any, bearer: Metadata) -> Any:
    """A call of a method with one answer, as if it were a stream; so that all calls end in the same way."""
    call: Any = channel.unary_stream(f"/bursar.v1.{method}", None, answer.FromString)
    return call(request.SerializeToString(), metadata=bearer, timeout=PATIENCE)


def encoded(message: Any) -> bytes:
    """Bytes of a message without what is random in it."""
    return bytes(scrubbed(message).SerializeToString(deterministic=True))
