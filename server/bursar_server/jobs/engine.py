"""Row engine, built from the settings."""

from __future__ import annotations

from pathlib import Path

from bursar_server.config import Config
from bursar_server.state import State
from bursar_server.vault import DaskEngine, EngineSettings, LocalEngine


def engine_of(config: Config, state: State) -> EngineSettings:
    """Return the engine settings of the configuration; opens no connection yet."""
    engine, threads = config.engine, config.threads_per_fit
    if engine.kind == "local":
        return LocalEngine(threads, engine.device or None)
    ca, cert, key = (str(state.path / name) for name in (engine.ca, engine.cert, engine.key))
    return DaskEngine(engine.scheduler, ca, cert, key, engine.pass_seconds, threads)


def storage_of(config: Config) -> Path | None:
    """Return the storage of the tables' partitions; None if fits need none."""
    return Path(config.engine.storage) if config.engine.kind == "dask" else None
