"""The server's settings: a TOML file in the state directory, overridden by the command line. Public values only.

Nothing here reaches a budget, a sensitivity or the noise: those are in the ledger and in the code.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ConfigError(Exception):
    """The settings cannot be used; one line per problem, each naming the setting."""


_Count = Annotated[int, Field(ge=1, le=1024)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Config(BaseModel):
    """Limits of the server. Every one depends on public values only.

    Attributes:
        address: host:port to listen on; port 0 picks a free one.
        fit_workers: fits that run at the same time.
        queue_length: fits that may wait for a worker; one more is refused before its debit.
        threads_per_fit: threads that sum rows for one fit. Results do not depend on it.
        rpc_threads: calls that are served at the same time, those that wait for a fit included.
        max_request_bytes: largest message that a client may send.
        max_response_bytes: largest message that the server sends.
        call_seconds: longest a call may last; a fit goes on without it.
        calls_per_principal: calls that one principal may have under way, so that nobody holds every thread.
        fits_per_principal: fits of one principal that may run or wait, so that nobody holds every place.
        response_quantum_seconds: what follows a receipt leaves at multiples of this after the debit, so that time says
            less.
        shutdown_seconds: how long calls may go on after SIGTERM. Fits that were paid for are finished in any case.
        reflection: whether holders of a token may ask which services there are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field(default="127.0.0.1:8443", pattern=r"^[^\s]+:\d{1,5}$")
    fit_workers: _Count = 2
    queue_length: Annotated[int, Field(ge=0, le=1024)] = 16
    threads_per_fit: _Count = Field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 2))
    rpc_threads: _Count = 64
    max_request_bytes: Annotated[int, Field(ge=1024, le=2**26)] = 2**20
    max_response_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 2**26
    call_seconds: _Seconds = 3600.0
    calls_per_principal: _Count = 16
    fits_per_principal: _Count = 8
    response_quantum_seconds: Annotated[float, Field(ge=0.01, le=86_400, allow_inf_nan=False)] = 0.25
    shutdown_seconds: _Seconds = 30.0
    reflection: bool = True

    @classmethod
    def load(cls, path: Path, **overrides: object) -> Config:
        """Settings of a TOML file (all defaults if there is none); overrides that are not None win.

        Raises ConfigError naming every setting that is unknown or out of range.
        """
        try:
            settings: dict[str, object] = tomllib.loads(path.read_text()) if path.exists() else {}
            settings |= {name: value for name, value in overrides.items() if value is not None}
            return cls.model_validate(settings)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path.name} is not valid TOML: {error}") from None
        except ValidationError as error:
            raise ConfigError("\n".join(_problem(path, problem) for problem in error.errors())) from None


def _problem(path: Path, problem: object) -> str:
    if not isinstance(problem, dict):  # pydantic promises a dictionary; its type does not say so
        return f"{path.name}: {problem}"
    return f"{path.name}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def template() -> str:
    """A settings file with every setting at its default, commented out."""
    settings = Config().model_dump(exclude={"threads_per_fit"})
    lines = [f"# {name} = {_toml(value)}" for name, value in settings.items()]
    return (
        "# Settings of bursar-server; remove the # to change one. They can lower no protection.\n"
        + "\n".join(lines)
        + "\n"
    )


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
