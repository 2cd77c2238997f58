"""The server's settings: a TOML file in the state directory, overridden by the command line. Public values only.

Nothing here reaches a budget, a sensitivity or the noise: those are in the ledger and in the code.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bursar_ledger.checkpoints import parse_place


class ConfigError(Exception):
    """The settings cannot be used; one line per problem, each naming the setting."""


_Count = Annotated[int, Field(ge=1, le=1024)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


def _place(text: str) -> str:
    parse_place(text, Path())
    return text


class Checkpoints(BaseModel):
    """When and where signed checkpoints of the ledger are written.

    Attributes:
        every: a checkpoint is due after this many entries; there is one more at the start and at the end.
        places: "file:PATH", "git:FOLDER" or "stdout"; relative paths start from the state directory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    places: tuple[Annotated[str, AfterValidator(_place)], ...] = ("file:checkpoints",)


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
        recovery: what becomes of a fit that was debited and then cut off, by a crash or by a full disk. "rerun": asking
            again runs it again under the same debit; nothing of the first time was ever sent. "lost": it is never run
            again, whoever asked pays anew; for owners who want one draw of noise at most of every debit.
        reflection: whether holders of a token may ask which services there are.
        checkpoints: the table [checkpoints].
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
    recovery: Literal["rerun", "lost"] = "rerun"
    reflection: bool = True
    checkpoints: Checkpoints = Checkpoints()

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
    config = Config()
    settings = config.model_dump(exclude={"threads_per_fit", "checkpoints"})
    return "".join(
        (
            "# Settings of bursar-server; remove the # to change one. They can lower no protection.\n",
            *(f"# {name} = {_toml(value)}\n" for name, value in settings.items()),
            _CHECKPOINTS_COMMENT,
            *(f"# {name} = {_toml(value)}\n" for name, value in config.checkpoints.model_dump().items()),
        )
    )


_CHECKPOINTS_COMMENT = """
## Signed checkpoints of the ledger; this table stays at the end of the file. A history in the state directory goes back
## in time with the ledger when an old copy of the directory is put back: a file on a second disk, or a git folder that
## is pushed elsewhere, is what catches that. For instance:
##   places = ["file:checkpoints", "file:/mnt/second/bursar-checkpoints", "git:/srv/witness"]
## A new place is begun with: bursar-admin checkpoint write
# [checkpoints]
"""


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
