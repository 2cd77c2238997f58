"""Rows on several machines: tasks go to the workers of a Dask cluster, one for each part of the table.

Workers hold rows while they read them, and the sums of their parts; never the noise, and nothing of the ledger. Sums
are of integers, and a part's is a pure function of the part: a worker that is lost is replaced, and its parts are read
again somewhere else, to the same numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import pickle
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bursar_server.vault._engine import Engine, EngineError, LocalEngine, RowsPart, SpreadRows, Task
from bursar_server.vault._rows import CHUNK, Rows

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_AT_ONCE = 64
"""Sums of parts that are fetched together."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""

_VERSIONED = ("bursar", "numpy", "numba", "pyarrow")


@dataclass(frozen=True)
class DaskEngine:
    """The settings of a cluster, an `EngineSettings`.

    Attributes:
        scheduler: its address, tls://host:port.
        ca: PEM file of the authority that signed the certificates of scheduler, workers and this server.
        cert: PEM file with this server's certificate.
        key: PEM file with the certificate's key.
        seconds: longest that one pass over the rows may take, lost workers included.
        threads: see `Engine`.
    """

    scheduler: str
    ca: str
    cert: str
    key: str
    seconds: float = 3600.0
    threads: int = 1

    @contextlib.contextmanager
    def open(self) -> Iterator[Engine]:
        """See `EngineSettings`: connects, and looks at the workers there are."""
        with self._client() as client:
            yield _Cluster(client, _agreed(client, self.scheduler), self.seconds, self.threads)

    def check(self) -> None:
        """See `EngineSettings`."""
        with self.open():
            pass

    @contextlib.contextmanager
    def _client(self) -> Iterator[Client]:
        try:
            import dask
            from distributed import Client
            from distributed.security import Security
        except ImportError:
            raise EngineError("a Dask cluster needs: pip install 'bursar[server,dask]'") from None
        try:
            security = Security(
                tls_ca_file=self.ca, tls_client_cert=self.cert, tls_client_key=self.key, require_encryption=True
            )
            # A kernel's parameters may be some MB; they are sent once, which is what the library's warning asks for.
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
            client = Client(self.scheduler, security=security, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise EngineError(
                f"Dask's scheduler {self.scheduler} cannot be reached ({type(error).__name__}); see docs/operations.md"
            ) from None
        try:
            yield client
        finally:
            client.close()


@dataclass(frozen=True)
class _Cluster:
    """An open `DaskEngine`.

    Attributes:
        client: connected.
        environment: that all workers had when this was opened.
        seconds: see `DaskEngine`.
        threads: see `Engine`.
    """

    client: Client
    environment: str
    seconds: float
    threads: int

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """See `Engine`. Rows in this process's memory are read here."""
        if not isinstance(rows, SpreadRows):
            return LocalEngine(self.threads).run(task, rows, columns)
        return task.whole(self._parts(pickle.dumps(task), rows.parts, columns))

    def _parts(self, task: bytes, parts: Sequence[RowsPart], columns: int) -> Iterator[Any]:
        """What a task makes of each part, in their order."""
        until = time.monotonic() + self.seconds
        futures: list[Future[Any]] = []
        try:
            # A task of its own, so that the parameters go out once, and are there again when their worker is lost.
            sent = self.client.submit(bytes, task, pure=False)
            futures = self.client.map(
                functools.partial(part_of, columns=columns, environment=self.environment),
                parts,
                task=sent,
                pure=False,
            )
            while futures:
                yield from self._fetched(futures[:_AT_ONCE], max(0.0, until - time.monotonic()))
                del futures[:_AT_ONCE]
        except EngineError:
            raise
        except Exception as error:
            # Whatever it was, it is of machines: tasks are total.
            raise EngineError(f"Dask's workers did not finish a pass over the rows ({type(error).__name__})") from error
        finally:
            if futures:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.client.cancel(futures)

    def _fetched(self, futures: Sequence[Future[Any]], seconds: float) -> Sequence[Any]:
        """Results, in their order. Raises TimeoutError, or what a task raised."""

        async def gather() -> Sequence[Any]:
            return list(await self.client.gather(futures, asynchronous=True))

        found: Sequence[Any] = self.client.sync(gather, callback_timeout=seconds)
        return found


def part_of(part: RowsPart, task: bytes, *, columns: int, environment: str) -> Any:
    """What a task makes of one part; on a worker.

    Args:
        part: says where its rows are.
        task: pickled.
        columns: of the rows.
        environment: of the workers that the fit began with; another worker's rounding may be another.

    Raises EngineError, whatever the rows hold, if this is not such a worker, or the part is not as it was written.
    """
    _keep_freed_memory()
    if environment != worker_environment():
        raise EngineError("a worker came that has other versions, or another processor, than those that were there")
    with part.open() as rows:
        return pickle.loads(task).part(rows, columns, range(0, part.slots, CHUNK))  # noqa: S301 - the server's own


@functools.cache
def _keep_freed_memory() -> None:
    """Let a worker's heap keep some of what it gave back, once a process.

    Dask's nannies set glibc to return all of it at once (MALLOC_TRIM_THRESHOLD_). A kernel's buffers are then mapped,
    cleared and unmapped for every block of rows, which costs a tenth of a pass.
    """
    with contextlib.suppress(AttributeError):  # musl has no such function
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in ((_M_TRIM_THRESHOLD, 2**26), (_M_MMAP_THRESHOLD, 2**25)):
            mallopt(parameter, size)


@functools.cache
def worker_environment() -> str:
    """All that the integers of a row may depend on beside the row: versions, and what the processor can do."""
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    processor = hashlib.sha256(repr((platform.machine(), extensions)).encode()).hexdigest()[:8]
    return f"{_versions()}, processor {processor}"


def _versions() -> str:
    named = (f"{name} {importlib.metadata.version(name)}" for name in _VERSIONED)
    return f"Python {platform.python_version()}, {', '.join(named)}"


def _agreed(client: Client, scheduler: str) -> str:
    """The environment that all workers have. Raises EngineError if there is none, or not one, or of other versions."""
    try:
        found = sorted(set(client.run(worker_environment).values()))
    except Exception as error:
        raise EngineError(
            f"the workers of {scheduler} do not answer as workers of bursar do ({type(error).__name__}); install "
            "bursar[server,dask] there, of this server's version"
        ) from None
    if not found:
        raise EngineError(f"Dask's scheduler {scheduler} has no workers; start some, see docs/operations.md")
    if len(found) > 1 or not found[0].startswith(_versions() + ","):
        raise EngineError(
            f"the workers of {scheduler} must all have the versions of this server ({_versions()}) and one kind of "
            f"processor; they have: {'; '.join(found)}"
        )
    return str(found[0])
