"""Dask engine: runs tasks on the workers of a cluster, one task for each partition of the table.

Workers hold rows while they read them, and the sums of their partitions. They never hold noise or any part of the
ledger. Sums are integers, and a partition's sum is a pure function of the partition: when a worker is lost, another
worker computes the same numbers again.
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
"""Timeout of connecting to the scheduler, in seconds. Chosen, not tuned: a nearby scheduler answers within one."""
_AT_ONCE = 64
"""Number of partitions whose sums are fetched together. Chosen, not tuned: bounds this process's memory to 64 sums."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameter numbers of glibc's `mallopt`, from `malloc.h`."""

_VERSIONED = ("bursar", "numpy", "numba", "pyarrow")
"""Packages whose versions must agree: they compute or read the rows, so another version could round otherwise."""


@dataclass(frozen=True)
class DaskEngine:
    """Settings of a cluster; an `EngineSettings`.

    Attributes:
        scheduler: address of the scheduler, tls://host:port.
        ca: PEM file of the authority that signed the certificates of scheduler, workers and this server.
        cert: PEM file with this server's certificate.
        key: PEM file with the certificate's private key.
        seconds: time limit of one pass over the rows, retries of lost workers included.
        threads: number of threads that sum rows in this process's own memory (`Engine.threads`).
    """

    scheduler: str
    ca: str
    cert: str
    key: str
    seconds: float = 3600.0
    threads: int = 1

    @contextlib.contextmanager
    def open(self) -> Iterator[Engine]:
        """Implement `EngineSettings.open`: connect, and check that all workers have one environment."""
        with self._client() as client:
            yield _Cluster(client, _agreed(client, self.scheduler), self.seconds, self.threads)

    def check(self) -> None:
        """Implement `EngineSettings.check`: open a connection and close it."""
        with self.open():
            pass

    @contextlib.contextmanager
    def _client(self) -> Iterator[Client]:
        try:
            import dask
            from distributed import Client
            from distributed.security import Security
        except ImportError:
            raise EngineError("a Dask cluster needs: pip install './bursar[server,dask]'") from None
        try:
            security = Security(
                tls_ca_file=self.ca, tls_client_cert=self.cert, tls_client_key=self.key, require_encryption=True
            )
            # A kernel's parameters may be some MB; they are sent once, which is what the library's warning asks for.
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
            # Not as the default client: no other code of this process may compute there by accident.
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
    """Engine on an open connection to a cluster.

    Attributes:
        client: connected client.
        environment: `worker_environment` of all workers at the time of connecting.
        seconds: time limit of one pass over the rows.
        threads: number of threads that sum rows in this process's own memory.
    """

    client: Client
    environment: str
    seconds: float
    threads: int

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """Implement `Engine.run`. Rows in this process's memory are summed by this process."""
        if not isinstance(rows, SpreadRows):
            return LocalEngine(self.threads).run(task, rows, columns)
        return task.whole(self._parts(pickle.dumps(task), rows.parts, columns))

    def _parts(self, task: bytes, parts: Sequence[RowsPart], columns: int) -> Iterator[Any]:
        """Yield the task's result for each partition, in the order of the partitions."""
        until = time.monotonic() + self.seconds
        futures: list[Future[Any]] = []
        try:
            # Submitted as a task of its own: the parameters are sent once, and Dask restores them after a lost worker.
            sent = self.client.submit(bytes, task, pure=False)
            # `pure=False`: otherwise Dask names a task by its arguments, and could answer with the result of an earlier
            # pass.
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
            # Tasks are total functions of rows, so an exception comes from machines and says nothing about data.
            raise EngineError(f"Dask's workers did not finish a pass over the rows ({type(error).__name__})") from error
        finally:
            if futures:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.client.cancel(futures)

    def _fetched(self, futures: Sequence[Future[Any]], seconds: float) -> Sequence[Any]:
        """Return the results of `futures`, in their order. Raises TimeoutError, or what a task raised."""

        # `Client.gather` has no time limit; `sync`, which runs it, has one.
        async def gather() -> Sequence[Any]:
            return list(await self.client.gather(futures, asynchronous=True))

        found: Sequence[Any] = self.client.sync(gather, callback_timeout=seconds)
        return found


def part_of(part: RowsPart, task: bytes, *, columns: int, environment: str) -> Any:
    """Run a task on one partition; called on a worker.

    Args:
        part: partition; opens its rows.
        task: pickled `Task`.
        columns: number of columns of the rows.
        environment: environment of the workers with which the fit began; another worker may round otherwise.

    Raises:
        EngineError: this worker's environment differs, or the partition is not as it was written. Does not depend on
            what rows contain.
    """
    _keep_freed_memory()
    if environment != worker_environment():
        raise EngineError("a worker came that has other versions, or another processor, than those that were there")
    with part.open() as rows:
        return pickle.loads(task).part(rows, columns, range(0, part.slots, CHUNK))  # noqa: S301 - the server's own


@functools.cache
def _keep_freed_memory() -> None:
    """Let the heap of this worker process keep some freed memory; runs once a process.

    Dask's nannies set glibc to return all of it at once (MALLOC_TRIM_THRESHOLD_). A kernel's buffers are then mapped,
    cleared and unmapped for every block of rows, which costs a tenth of a pass.
    """
    with contextlib.suppress(AttributeError):  # musl has no such function
        mallopt = ctypes.CDLL(None).mallopt
        # 64 and 32 MB: chosen, not tuned, above the size of a kernel's buffers.
        for parameter, size in ((_M_TRIM_THRESHOLD, 2**26), (_M_MMAP_THRESHOLD, 2**25)):
            mallopt(parameter, size)


@functools.cache
def worker_environment() -> str:
    """Return the versions and CPU features on which a row's integers may depend, as text."""
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    processor = hashlib.sha256(repr((platform.machine(), extensions)).encode()).hexdigest()[:8]
    return f"{_versions()}, processor {processor}"


def _versions() -> str:
    named = (f"{name} {importlib.metadata.version(name)}" for name in _VERSIONED)
    return f"Python {platform.python_version()}, {', '.join(named)}"


def _agreed(client: Client, scheduler: str) -> str:
    """Return the environment that all workers share.

    Raises:
        EngineError: there are no workers, their environments differ, or their versions are not this server's.
    """
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
