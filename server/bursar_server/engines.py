"""From the settings to what reads rows."""

from __future__ import annotations

from pathlib import Path

from bursar_server.config import Config
from bursar_server.state import State
from bursar_server.vault import DaskEngine, EngineSettings, LocalEngine


def engine_of(config: Config, state: State) -> EngineSettings:
    """The engine of the settings; reaches nobody yet."""
    engine, threads = config.engine, config.threads_per_fit
    if engine.kind == "local":
        return LocalEngine(threads, engine.device or None)
    ca, cert, key = (str(state.path / name) for name in (engine.ca, engine.cert, engine.key))
    return DaskEngine(engine.scheduler, ca, cert, key, engine.pass_seconds, threads)


def storage_of(config: Config) -> Path | None:
    """Where tables are partitioned to; None if they need not be."""
    return Path(config.engine.storage) if config.engine.kind == "dask" else None
