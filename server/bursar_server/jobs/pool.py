"""Bounded pool: a place is reserved before a debit, so that a charged fit is never refused."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from bursar_server import log


class QueueFullError(Exception):
    """Error: all workers and queue places are taken, or the caller's share of them; nothing was debited.

    Attributes:
        seconds: time after which a retry makes sense; a constant, so it reveals nothing about running work.
    """

    def __init__(self, text: str, seconds: float = 5.0) -> None:
        super().__init__(text)
        self.seconds = seconds


class NoRoomError(Exception):
    """Error: the process lacks descriptors or memory for one more fit; nothing was debited."""


class StoppingError(Exception):
    """Error: the server is stopping and accepts no new work; nothing was debited."""


class Place:
    """Reserved place in a pool, used for one task or given back."""

    def __init__(self, pool: WorkerPool, principal: str) -> None:
        self._pool = pool
        self._principal = principal
        self._task: Callable[[], None] | None = None

    def run(self, task: Callable[[], None]) -> None:
        """Run a task in the pool; the place is free again when it ends."""
        self._task = task
        self._pool.submit(self._principal, task)

    def give_back(self) -> None:
        """Free the place without using it."""
        self._pool.free()

    def withdraw(self) -> bool:
        """Withdraw the task and free the place, unless a worker has begun it. Return whether it was withdrawn."""
        return self._task is not None and self._pool.withdraw(self._principal, self._task)


class WorkerPool:
    """Pool that runs at most `workers` tasks at a time and queues at most `queue_length` more.

    Principals whose tasks wait take turns, so that one with many tasks delays another by at most one of them. Tasks
    must not raise; a task that a worker has begun is finished.
    """

    def __init__(self, *, workers: int, queue_length: int) -> None:
        self._size = workers + queue_length
        # Places are counted apart from tasks: one is held from before the debit until its fit has ended.
        self._places = threading.BoundedSemaphore(self._size)
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by principal; the first one's turn is next
        self._closed = self._abandoned = self._ended = False
        # Started now, not with a task: a missing thread must not be discovered after a debit.
        self._threads = [threading.Thread(target=self._work, name=f"fit-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def reserve(self, principal: str = "") -> Place:
        """Reserve a place for a principal.

        Raises:
            QueueFullError: there is no place.
            StoppingError: the pool accepts no more tasks.
        """
        if self._closed:
            raise StoppingError
        if not self._places.acquire(blocking=False):
            raise QueueFullError("every worker is busy and the queue is full; nothing was debited, try again later")
        return Place(self, principal)

    def submit(self, principal: str, task: Callable[[], None]) -> None:
        """Run a principal's task that holds a place."""
        with self._changed:
            self._waiting.setdefault(principal, deque()).append(task)
            self._changed.notify()

    def withdraw(self, principal: str, task: Callable[[], None]) -> bool:
        """Remove a waiting task, and free its place. Return whether it was waiting."""
        with self._changed:
            tasks = self._waiting.get(principal, deque())
            if task not in tasks:
                return False
            tasks.remove(task)
            if not tasks:
                del self._waiting[principal]
        self.free()
        return True

    def free(self) -> None:
        """Free one place."""
        self._places.release()

    def close(self, seconds: float | None = None) -> bool:
        """Finish every accepted task, then stop; once.

        Args:
            seconds: time limit; None for none. After it no other task is begun, and running ones are left to the end of
                the process.

        Returns:
            Whether every task was finished.
        """
        self._closed = True
        until = None if seconds is None else time.monotonic() + seconds
        # A reserved place may be about to be charged, so its task, or its return, is awaited, too.
        for _ in range(self._size):
            if not self._places.acquire(timeout=None if until is None else max(0.0, until - time.monotonic())):
                self._abandoned = True
                return False
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        return True

    def _work(self) -> None:
        while (task := self._next()) is not None and not self._abandoned:
            try:
                task()
            except BaseException as error:
                log.failure(error)  # a bug; the thread continues for charged tasks
            finally:
                self.free()

    def _next(self) -> Callable[[], None] | None:
        """Wait for a task, and take the first one of the principal whose turn it is; None at the end of the pool."""
        with self._changed:
            # At the end tasks that wait are still handed out: they were accepted, and some are charged.
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                return None
            principal = next(iter(self._waiting))
            tasks = self._waiting.pop(principal)
            task = tasks.popleft()
            if tasks:
                self._waiting[principal] = tasks  # at the end: the others come first
            return task
