"""A study: several requests with their spends under one name, as a file that analysts run and owners read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from bursar_models.budget import Amount, EpsilonDelta, Pure, Rho
from bursar_models.errors import InvalidRequestError
from bursar_models.files import write_whole
from bursar_models.requests._json import told
from bursar_models.requests._request import Request

VERSION = 1
"""Version of the JSON form."""

_AMOUNTS: dict[str, type[Amount]] = {"rho": Rho, "epsilon_delta": EpsilonDelta, "pure": Pure}


@dataclass(frozen=True)
class Study:
    """Requests in their order, with their spends.

    Attributes:
        name: of the study, 1 to 56 characters of [A-Za-z0-9_.:-]; the request ids begin with it.
        dataset: name of the dataset.
        requests: what is to be fitted.
        spends: what each of them may cost; None for one that uses earlier releases alone.

    Raises:
        InvalidRequestError: there are not as many spends as requests.
    """

    name: str
    dataset: str
    requests: tuple[Request, ...]
    spends: tuple[Amount | None, ...]

    def __post_init__(self) -> None:
        if len(self.spends) != len(self.requests):
            raise InvalidRequestError.of("spends", f"must be {len(self.requests)}, got {len(self.spends)}")

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Idempotency keys of the fits: the name with their numbers."""
        return tuple(f"{self.name}-{place}" for place in range(1, len(self.requests) + 1))

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which `load` reads; an older file is replaced. Raises OSError."""
        fits = [
            {"request": request.to_dict(), "spend": None if spend is None else _written(spend)}
            for request, spend in zip(self.requests, self.spends, strict=True)
        ]
        content = {"kind": "Plan", "version": VERSION, "name": self.name, "dataset": self.dataset, "fits": fits}
        write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the study that `save` wrote.

        Raises:
            OSError: the file cannot be read.
            InvalidRequestError: it holds no study that this version can read.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["kind"] != "Plan" or content["version"] != VERSION:
                raise ValueError(f"expected a Plan of version {VERSION}")
            fits = content["fits"]
            requests = tuple(Request.from_dict(one["request"]) for one in fits)
            spends = tuple(None if one["spend"] is None else _read(one["spend"]) for one in fits)
            return cls(str(content["name"]), str(content["dataset"]), requests, spends)
        except InvalidRequestError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError.of("path", f"{path} holds no plan: {error!r}") from error


def _written(spend: Amount) -> dict[str, Any]:
    (name,) = (name for name, kind in _AMOUNTS.items() if type(spend) is kind)
    return {"kind": name, **asdict(spend)}


def _read(content: Any) -> Amount:
    if not isinstance(content, Mapping):
        raise ValueError(f"expected a spend, got {told(content)}")
    numbers = {name: one for name, one in content.items() if name != "kind"}
    return _AMOUNTS[content["kind"]](**numbers)
