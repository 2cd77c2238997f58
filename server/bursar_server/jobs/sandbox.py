"""Processes of fits: each fit runs in its own, with limits on memory and time, so that it cannot harm server or others.

The server forks the parent of all fits when it starts, before it has a thread, a key, a token or the ledger. The parent
compiles the kernels and waits; for every fit it forks a child, which has only what the parent had and a socket. The
socket carries the job (`bursar_server.jobs.runner.Job`) to the child, and progress and the model's bytes back, or the
type and the place of an exception. These are parsed as untrusted bytes: a damaged child can give a wrong answer, and
nothing worse.

    server ── parent of fits ── fit, fit, ...

The kernel kills each process in this chain when the one to its left has died (PR_SET_PDEATHSIG), however that happened.
The server kills a fit that exceeds its time. A fit that exceeds its memory gets none (RLIMIT_DATA), and if the machine
itself runs out of memory, fits are killed first (oom_score_adj).

`bursar_server.jobs.paid` describes which deaths a fit may have, and what they mean for a debit. This module
distinguishes the cases: whether the child was about to open rows, whether it had opened them, as it announced before,
and whether the server was ending. Noise is not shared: nothing is drawn in the parent, and OpenDP's generator detects a
fork (a test compares the noise of children).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import resource
import select
import selectors
import signal
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from bursar_server import log
from bursar_server.jobs import hardening
from bursar_server.jobs.job import CutOffError, NoRoomError, NotBegunError, NothingReadError
from bursar_server.jobs.runner import Fits, Job, Progress, model_of, open_session

_HEAD = struct.Struct("!cQ")
_STEP = struct.Struct("!II")
_STATUS = struct.Struct("!i")
_JOB = b"J"
_OPENING, _OPENED, _PROGRESS, _MODEL, _RAISED, _NOTHING_READ = b"B", b"O", b"P", b"M", b"X", b"N"
_LARGEST = {_OPENING: 0, _OPENED: 0, _PROGRESS: _STEP.size, _MODEL: 2**30, _RAISED: 2**12, _NOTHING_READ: 2**12}
"""Kinds of a child's messages, and their maximum sizes in bytes."""

_AFTER_OPENING = ((True, True),)
_WHEN = {
    _OPENING: ((False, False),),
    _OPENED: ((True, False),),
    _NOTHING_READ: ((False, False), (True, False)),
}
"""Announcements that a child must have made before each kind of message: that it opens rows, that it opened them."""

_READY = b"ready"
_COMPILES = b"compiles "
_NOT_BEGUN = b"-"
_PROPERLY = "exit status 0"
_OUT_OF_TIME = "out of time"
_AT_ONCE = 2**20
"""Maximum bytes of one read from a socket: most answers are smaller, and take one read."""

_REAP_SECONDS = 10.0
"""Seconds for the kernel to end a killed process. It takes milliseconds; later the process hangs in the kernel."""


class ChildrenError(Exception):
    """Error: fits cannot be run here."""


class _OverstayedError(Exception):
    """Error: a child must be killed; the message has the reason."""


@dataclass(frozen=True)
class FitLimits:
    """Resource limits of one fit.

    Attributes:
        memory_mib: MiB that it may allocate, beside mapped tables.
        wall_seconds: maximum time from start to end, in seconds.
        lock_memory: True if its memory is kept out of the swap.
    """

    memory_mib: int
    wall_seconds: float
    lock_memory: bool = False


class Children:
    """Runner of fits in processes of their own (`bursar_server.jobs.runner.Runner`).

    Forks: create it before any thread.

    Attributes:
        limits: resource limits of each fit.
        control: socket over which the parent of all fits is asked for one.
        ending: True once `close` has begun.
    """

    def __init__(self, fits: Fits, limits: FitLimits) -> None:
        self.limits = limits
        self.ending = False
        self._lost = threading.Event()
        # `bool` serves as the function that does nothing, here and below: it takes one argument or none.
        self._tell_lost: Callable[[], object] = bool
        self._watcher: threading.Thread | None = None
        # SOCK_SEQPACKET keeps one request apart from the next, and carries descriptors.
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Asked for before the fork: in the child `os.getppid` may name another process if the server has died by then.
        server = os.getpid()
        try:
            self._parent = os.fork()
        except OSError as error:
            raise ChildrenError(f"no process can be had for fits: {error.strerror}") from None
        if self._parent == 0:
            _never_returns(lambda: _Parent(theirs, fits, limits).live(server))
        theirs.close()

    def ready(self, lost: Callable[[], object] = bool, compiles: Callable[[str], object] = bool) -> None:
        """Wait until kernels are compiled.

        Args:
            lost: called, in a thread, if the parent of all fits dies; then no fit can run any more.
            compiles: called with the name of each fit whose kernels are compiled next.

        Raises:
            ChildrenError: compiling failed.
        """
        while (said := self.control.recv(2**12)).startswith(_COMPILES):
            compiles(said.removeprefix(_COMPILES).decode())
        if said != _READY:
            raise ChildrenError(
                f"the process that fits are run from ended: {said.decode(errors='replace') or 'killed'}"
            )
        self._tell_lost = lost
        self._watcher = threading.Thread(target=self._watch, name="fits", daemon=True)
        self._watcher.start()

    @property
    def lost(self) -> bool:
        """Return whether the parent of all fits has died unexpectedly."""
        return self._lost.is_set()

    @contextlib.contextmanager
    def reserve(self) -> Iterator[_Reserved]:
        """Implement `Runner.reserve`. Takes the four descriptors of a fit's sockets."""
        with contextlib.ExitStack() as stack:
            try:
                ours, data = map(stack.enter_context, socket.socketpair())
                # Four descriptors at once and before the debit: a fit that was charged must not fail for want of one.
                life, held = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            except OSError as error:
                raise NoRoomError from error
            yield _Reserved(self, ours, data, life, held)

    def close(self) -> None:
        """Kill all running fits, and end; the fits are interrupted, as by the end of this process."""
        self.ending = True
        # Killed, because it may still be compiling. Its number is not reused before it is waited for.
        os.kill(self._parent, signal.SIGKILL)
        os.waitpid(self._parent, 0)
        if self._watcher is not None:
            self._watcher.join()
        self.control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            self.control.recv(1)
        if not self.ending:
            self._lost.set()
            self._tell_lost()


@dataclass
class _Reserved:
    """Sockets of one fit (`bursar_server.jobs.runner.Reserved`).

    Attributes:
        children: runner that forks the fit.
        ours: server's end of the fit's socket.
        data: fit's end of that socket, which is sent to it.
        life: server's end of the socket that reports the fit's end and kills it.
        held: parent's end of that socket, which is sent to it.
    """

    children: Children
    ours: socket.socket
    data: socket.socket
    life: socket.socket
    held: socket.socket
    _killed: bool = False

    def run(self, job: Job, progress: Progress) -> bytes:
        """Implement `Reserved.run`."""
        until = time.monotonic() + self.children.limits.wall_seconds
        if self._cut_off:
            raise CutOffError
        try:
            # Before the child is asked for: a job that cannot be sent must not leave a process that waits for it.
            told = _framed(_JOB, pickle.dumps(job))
            socket.send_fds(self.children.control, [b"fit"], [self.data.fileno(), self.held.fileno()])
            # The fit's own ends: while this process holds them, it would not see them close when the fit dies.
            self.data.close()
            self.held.close()
        except Exception as error:
            raise NotBegunError from error
        return self._followed(told, progress, until)

    def kill(self) -> None:
        """Implement `Reserved.kill`."""
        self._killed = True
        _kill(self.life)  # harmless before it has begun: then its process is killed as soon as there is one

    @property
    def _cut_off(self) -> bool:
        return self._killed or self.children.ending

    def _followed(self, told: bytes, progress: Progress, until: float) -> bytes:
        heard = _Heard(progress)
        error: Exception
        try:
            _tell(self.ours, told, until)
            heard.listen(self.ours, self.life, until)
            # All that it said is there now; a proper end comes after a last word.
            ended = _end_of(self.life)
            heard.rest(self.ours)
            if ended == _PROPERLY and heard.model is not None:
                return heard.model
            error = heard.error if ended == _PROPERLY and heard.error else log.ElsewhereError("FitEnded", ended)
            if self._cut_off and ended != _PROPERLY:
                raise CutOffError from error
        except _OverstayedError as over:
            error = log.ElsewhereError("FitKilled", str(over))
            _kill(self.life)
            _end_of(self.life)
        # Which of the three decides whether the debit may run again; see `bursar_server.jobs.paid`.
        if heard.opened:
            raise error
        raise (NothingReadError if heard.opening else NotBegunError) from error


class _Heard:
    """Messages of a child so far.

    Attributes:
        opening: True if the child was about to open rows.
        opened: True if rows were opened, or might have been.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._buffer = bytearray()
        self._said_opened = self._damaged = self.opening = False
        self.model: bytes | None = None
        self.error: log.ElsewhereError | None = None

    @property
    def opened(self) -> bool:
        # Half a message counts as "opened": what it would have said is not known, and a second draw is worse than none.
        return self._said_opened or self._damaged or bool(self._buffer)

    def listen(self, data: socket.socket, life: socket.socket, until: float) -> None:
        """Receive messages until the child has ended. Raises _OverstayedError."""
        poll = select.poll()
        poll.register(data, select.POLLIN)
        poll.register(life, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            # An hour at most, because `poll` takes milliseconds as a 32-bit integer.
            ready = {descriptor for descriptor, _ in poll.poll(min(left, 3600.0) * 1000)}
            if data.fileno() in ready and not self._hear(data):
                poll.unregister(data)
            if life.fileno() in ready:
                return
        raise _OverstayedError(_OUT_OF_TIME)

    def rest(self, data: socket.socket) -> None:
        """Receive the messages that are already there. Raises _OverstayedError."""
        data.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._hear(data):
                pass

    def _hear(self, data: socket.socket) -> bool:
        """Receive one piece. Return False at the end."""
        try:
            piece = data.recv(_AT_ONCE)
        except ConnectionError:
            return False
        self._buffer += piece
        try:
            for kind, content in self._messages():
                self._take(kind, content)
        except (ValueError, struct.error):
            self._damaged = True
            raise _OverstayedError("an answer that is none") from None
        return bool(piece)

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while len(self._buffer) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._buffer)
            # A size is read before its content: a damaged child must not make the server allocate it.
            if not size <= _LARGEST.get(kind, -1):
                raise ValueError("no message of a child")
            end = _HEAD.size + size
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield kind, content

    def _take(self, kind: bytes, content: bytes) -> None:
        ended = self.model is not None or self.error is not None
        said = (self.opening, self._said_opened)
        # The child's word decides whether a debit runs again, so words are accepted in their one order only.
        if ended or said not in _WHEN.get(kind, _AFTER_OPENING):
            raise ValueError("a message out of turn")
        if kind == _OPENING:
            self.opening = True
        elif kind == _OPENED:
            self._said_opened = True
        elif kind == _PROGRESS:
            step, steps = _STEP.unpack(content)
            self._progress(step, steps)
        elif kind == _MODEL:
            self.model = content
        else:
            name, _, place = content.decode(errors="replace").partition("\n")
            self.error = log.ElsewhereError(name, place)


def _tell(data: socket.socket, told: bytes, until: float) -> None:
    """Send a child its job. Raises _OverstayedError."""
    data.settimeout(max(1e-3, until - time.monotonic()))
    try:
        data.sendall(told)
    except TimeoutError:
        raise _OverstayedError(_OUT_OF_TIME) from None
    except OSError:
        return  # it has ended, and how is told elsewhere
    finally:
        data.setblocking(False)


def _kill(life: socket.socket) -> None:
    with contextlib.suppress(OSError):
        life.shutdown(socket.SHUT_WR)


def _end_of(life: socket.socket) -> str:
    """Return how a child ended; waits for that, at most `_REAP_SECONDS`."""
    poll = select.poll()  # not `select`, which takes no descriptor above 1,023
    poll.register(life, select.POLLIN)
    if not poll.poll(_REAP_SECONDS * 1000):
        return "not yet, though it was killed"
    status = life.recv(_STATUS.size)
    if status == _NOT_BEGUN:
        return "never begun"
    if len(status) != _STATUS.size:
        return "with the parent of all fits"
    (code,) = _STATUS.unpack(status)
    return f"exit status {code}" if code >= 0 else f"signal {-code}"


def _framed(kind: bytes, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(content)) + content


# --- on the other side of the fork: the parent of all fits --------------------------------------------------


def _never_returns(body: Callable[[], object]) -> NoReturn:
    """Run a process after a fork; it ends here, because the stack above belongs to the parent."""
    status = 1
    try:
        body()
        status = 0
    finally:
        os._exit(status)


class _Parent:
    """Parent process of all fits: forks them, kills them on request, and reports how they ended.

    Reads no job and no row.
    """

    def __init__(self, control: socket.socket, fits: Fits, limits: FitLimits) -> None:
        self._control = control
        self._fits = fits
        self._limits = limits
        self._held: dict[int, socket.socket] = {}
        self._selector: selectors.BaseSelector = selectors.PollSelector()

    def live(self, server: int) -> None:
        """Serve until the server is gone."""
        gc.freeze()  # what came over with the fork is for the server to finalise, which has its threads and descriptors
        hardening.die_with_parent(server)
        os.setsid()  # what is typed at the server's terminal is for the server
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a supervisor may signal all processes; the server decides
        self._control = _alone_with(self._control)
        hardening.no_core_dumps()
        hardening.named("bursar-fits")
        try:
            for name, fit in self._fits.items():
                self._control.send(_COMPILES + name.encode())
                # Compiled before the first fork: children share the machine code, and no fit's time includes it.
                getattr(fit, "warm_up", lambda: None)()
        except BaseException as error:
            self._control.send(" at ".join(log.told(error)).encode())
            raise
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page that it looks at
        # They may name secrets, and a fit needs none of them.
        for name in [name for name in os.environ if name.startswith("BURSAR_")]:
            del os.environ[name]
        # Signals arrive as bytes of a pipe, so that one loop waits for requests and for the ends of children.
        reader, writer = os.pipe2(os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(reader, selectors.EVENT_READ)
        self._control.send(_READY)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    if not self._asked():
                        return
                elif key.fd == reader:
                    os.read(reader, 4096)
                    self._reap()
                elif key.data in self._held:  # the server's end says nothing; that it is closed says: kill
                    self._selector.unregister(key.fileobj)
                    _kill_group(key.data)

    def _asked(self) -> bool:
        """Fork a fit. Return False if the server is gone."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 16, 2)
        if not message:
            return False
        if len(descriptors) < 2:  # this process has no room for them: the server sees both closed, as of a dead child
            for descriptor in descriptors:
                os.close(descriptor)
            return True
        data, held = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        parent = os.getpid()
        # Closed here after the fork: while the parent holds it, the server would not see the fit's death.
        with data:
            try:
                child = os.fork()
            except OSError:  # no process or no memory to be had
                held.send(_NOT_BEGUN)
                held.close()
                return True
            if child == 0:
                _never_returns(lambda: _child(data, self._fits, self._limits, parent))
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # parent and child both do it: either may run first
        self._held[child] = held
        self._selector.register(held, selectors.EVENT_READ, child)
        return True

    def _reap(self) -> None:
        while self._held:
            # WNOWAIT leaves the ended child unreaped, so that its number still names its group when that is killed.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            _kill_group(ended.si_pid)  # its own children; the number is not reused before it is waited for
            status = os.waitstatus_to_exitcode(os.waitpid(ended.si_pid, 0)[1])
            held = self._held.pop(ended.si_pid)
            with contextlib.suppress(KeyError):
                self._selector.unregister(held)
            with held, contextlib.suppress(OSError):
                held.send(_STATUS.pack(status))


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _alone_with(one: socket.socket) -> socket.socket:
    """Close every other descriptor; standard input and output go to the null device."""
    kept = fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)  # who was started without them may have it among those
    one.detach()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, kept)
    os.closerange(kept + 1, most if most != resource.RLIM_INFINITY else 2**20)
    return socket.socket(fileno=kept)


# --- and the fit ------------------------------------------------------------------------------------------


def _child(data: socket.socket, fits: Fits, limits: FitLimits, parent: int) -> None:
    """Run one fit. Ends the process with its status in every case."""
    hardening.die_with_parent(parent)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data = _alone_with(data)
    opened = False
    try:
        hardening.named("bursar-fit")
        hardening.first_to_go()
        # An operator's PYTHONWARNINGS=error would end fits whose released numbers overflow.
        warnings.simplefilter("ignore")
        # Before the memory is limited: the job's size is the request's, which was checked, and no row's.
        job = _job(data)
        if limits.lock_memory:
            hardening.lock_memory()
        hardening.limit_memory(limits.memory_mib * 2**20)
        _say(data, _OPENING)
        with open_session(job, lambda step, steps: _say(data, _PROGRESS, _STEP.pack(step, steps))) as session:
            # Before a row is read: from here on it counts that this process ends without an answer.
            _say(data, _OPENED)
            opened = True
            model = model_of(fits, job, session)
        # After the session is closed, so that a failure to close an engine is no answer after the answer.
        _say(data, _MODEL, model)
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, NothingReadError) and error.__cause__ else error
        _say(data, _RAISED if opened else _NOTHING_READ, "\n".join(log.told(cause)).encode()[: 2**12])


def _job(data: socket.socket) -> Job:
    """Return the job that the server sent: the only thing that is unpickled, and it comes from the server alone."""
    with data.makefile("rb") as file:
        _, size = _HEAD.unpack(file.read(_HEAD.size))
        job: Job = pickle.loads(file.read(size))  # noqa: S301  from the server
        return job


def _say(data: socket.socket, kind: bytes, content: bytes = b"") -> None:
    data.sendall(_framed(kind, content))
