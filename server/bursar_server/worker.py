"""A bounded pool: a place is reserved before a debit, so that nobody pays for a fit that is then turned away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from bursar_server import logs


class QueueFullError(Exception):
    """Everything that could serve is busy, or the caller has his share of it; nothing was debited.

    Attributes:
        seconds: after which asking again makes sense. A constant: it says nothing about the work that is under way.
    """

    def __init__(self, text: str, seconds: float = 5.0) -> None:
        super().__init__(text)
        self.seconds = seconds


class StoppingError(Exception):
    """The server takes nothing new, because it stops; nothing was debited."""


class Place:
    """A reserved place in a pool, used for one task or given back."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def run(self, task: Callable[[], None]) -> None:
        """Run a task in the pool; the place is free again when it ends."""
        self._pool.submit(task)

    def give_back(self) -> None:
        """Free the place without having used it."""
        self._pool.free()


class WorkerPool:
    """Runs at most `workers` tasks at a time and holds at most `queue_length` more.

    Tasks must not raise; they are never cancelled, whatever becomes of the caller.
    """

    def __init__(self, *, workers: int, queue_length: int) -> None:
        self._size = workers + queue_length
        self._places = threading.BoundedSemaphore(self._size)
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = self._abandoned = False
        # Started now, not when a task comes: that a thread cannot be had must not be found out after a debit.
        self._threads = [threading.Thread(target=self._work, name=f"fit-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def reserve(self) -> Place:
        """Take a place. Raises QueueFullError if there is none, StoppingError if the pool takes no more tasks."""
        if self._closed:
            raise StoppingError
        if not self._places.acquire(blocking=False):
            raise QueueFullError("every worker is busy and the queue is full; nothing was debited, try again later")
        return Place(self)

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task that holds a place."""
        self._tasks.put(task)

    def free(self) -> None:
        """Free one place."""
        self._places.release()

    def close(self, seconds: float | None = None) -> bool:
        """Finish every task that was taken, then stop; once.

        Args:
            seconds: to wait for that; None for as long as it takes. Then no other task is begun, and those that run are
                left to the end of the process.

        Returns:
            Whether every task was finished.
        """
        self._closed = True
        until = None if seconds is None else time.monotonic() + seconds
        # A place that is held may be about to be paid for, so its task is waited for, too, or that it is given back.
        for _ in range(self._size):
            if not self._places.acquire(timeout=None if until is None else max(0.0, until - time.monotonic())):
                self._abandoned = True
                return False
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        return True

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None and not self._abandoned:
            try:
                task()
            except BaseException as error:
                logs.failure(error)  # a bug; the thread goes on for those who have paid
            finally:
                self.free()
