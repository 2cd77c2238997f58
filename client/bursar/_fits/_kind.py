"""A kind of fit: how its request becomes a message, and its answer a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from bursar import _convert
from bursar_models import GaussianMixture, KMeans
from bursar_models.budget import Receipt, Spend
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import Request, arguments
from bursar_models.schema import Column, NumericColumn
from bursar_models.transforms import Transform
from bursar_proto.filling import MessageT, message_of
from bursar_proto.v1 import catalog_pb2

RequestT = TypeVar("RequestT", bound=Request)


class _Released(Protocol):
    """A model or a sketch: something that may have a receipt."""

    @property
    def receipt(self) -> Receipt | None: ...


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Everything in a message that is not in the request.

    Attributes:
        spend: what to spend; None for a request that uses earlier releases alone.
        request_id: the idempotency key; empty for what is free.
        refuse_useless: whether a server refuses it, before the debit, if noise leaves nothing of the answer.
        dry: whether it is for a dry run, which looks no earlier release up: numbers are sent instead.
    """

    dataset: str
    columns: Sequence[Column] = field(default=(), repr=False)
    spend: Spend | None = None
    request_id: str = ""
    refuse_useless: bool = False
    dry: bool = False

    def numeric(self, *, nullable: bool = False) -> list[str]:
        """Return the names of the numeric columns that are never null, or with `nullable` of all."""
        found = [column for column in self.columns if isinstance(column, NumericColumn)]
        return [column.name for column in found if nullable or not column.nullable]

    def transforms(self, columns: Sequence[str], asked: Mapping[str, Transform] | None) -> tuple[Transform, ...]:
        """Return the transform that each column will have: what is asked for, or what the owner declared."""
        declared = {column.name: column.transform for column in self.columns if isinstance(column, NumericColumn)}
        wanted = {**declared, **(asked or {})}
        return tuple(wanted.get(name, "none") for name in columns)


class Kind(ABC, Generic[RequestT]):
    """A kind of fit.

    Attributes:
        name: name of its field in the contract's oneofs: of previews, dry runs and stored releases.
        method: name of its method of the fit service.
    """

    name: ClassVar[str]
    method: ClassVar[str]

    @abstractmethod
    def message(self, request: RequestT, asked: Asked) -> Any:
        """Return the request on the wire.

        Raises:
            InvalidRequestError: the request does not go with this dataset, spend or earlier release.
        """

    @abstractmethod
    def result(self, request: RequestT, answer: Any, receipt: Receipt | None) -> Any:
        """Return the model of an answer, computed on this machine where the request says so.

        Raises:
            ServerError: the answer holds no valid model.
        """

    @abstractmethod
    def stored(self, message: catalog_pb2.GetReleaseResponse, receipt: Receipt) -> Any:
        """Return the model of a stored release. Raises ServerError if the message holds no valid model."""

    def filled(self, kind: type[MessageT], request: RequestT, asked: Asked, **found: Any) -> MessageT:
        """Return a message of what is found, of what all requests have, and of the request's fields by their names.

        Raises:
            InvalidRequestError: the spend is none.
        """
        if "columns" not in found:
            given = getattr(request, "columns", None)
            found["columns"] = asked.numeric() if given is None else given
        if "spend" not in found:
            found["spend"] = _convert.spend_to(asked.spend)
        if hasattr(request, "transform"):
            found["transforms"] = _convert.transforms_to(request.transform)
        return message_of(kind, request, request_id=asked.request_id, dataset=asked.dataset, **found)

    def steps_here(self, request: RequestT) -> bool:
        """Return whether the last step is done on this machine."""
        del request
        return False


def entry_of(field: str, released: _Released | Receipt, otherwise: str) -> int:
    """Return the ledger's entry of an earlier release, from its receipt or from what has the receipt.

    Raises:
        InvalidRequestError: there is no receipt, or it names no debit; the message says what to do `otherwise`.
    """
    receipt = released if isinstance(released, Receipt) else released.receipt
    if receipt is None:
        raise InvalidRequestError.of(field, f"this {type(released).__name__} has no receipt; {otherwise}")
    if receipt.entry < 1:
        raise InvalidRequestError.of(field, f"its receipt is free and names no entry of the ledger; {otherwise}")
    return receipt.entry


def check_start_space(field: str, start: object, columns: Sequence[str], transforms: Sequence[Transform]) -> None:
    """Check that a model to start from has the transforms that its columns will have.

    Raises:
        InvalidRequestError: it has others.
    """
    if not isinstance(start, GaussianMixture | KMeans) or start.n_features != len(columns):
        return
    ours = dict(zip(columns, transforms, strict=True))
    theirs = dict(zip(columns, start.transforms or ("none",) * len(columns), strict=True))
    if ours != theirs:
        differ = ", ".join(name for name in columns if ours[name] != theirs[name])
        raise InvalidRequestError.of(field, f"is a model with other transforms of {differ}; ask for transform={theirs}")


def check_dataset(field: str, released: _Released | Receipt, dataset: str, things: str) -> None:
    """Check that an earlier release is of the dataset that is asked.

    Raises:
        InvalidRequestError: it is of another one.
    """
    receipt = released if isinstance(released, Receipt) else released.receipt
    if receipt is not None and receipt.dataset != dataset:
        raise InvalidRequestError.of(field, f"{things} of dataset {receipt.dataset!r}, not of {dataset!r}")


def refuse_dry_runs(request: Request) -> None:
    """Check that no part of a request that is paid for was made by a dry run. Raises InvalidRequestError if one was."""
    for argument in arguments(type(request)):
        value = getattr(request, argument.name)
        for one in value if isinstance(value, tuple) else (value,):
            if getattr(one, "dummy_", False):
                text = "was made by a dry run on synthetic rows; use a released one, or make this a dry run, too"
                raise InvalidRequestError.of(argument.name, text)
