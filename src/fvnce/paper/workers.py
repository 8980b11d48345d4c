"""Independent pieces of work side by side, in processes of one thread each.

Two processes of one thread use two cores better than one process of two threads. A piece gives the same result in
whichever process it is done: it gets all it depends on as arguments, and always runs on one thread. Results are left on
disk by the work itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

#: Time a process has for ending by itself before it is ended.
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Work:
    """A function of the top level of a module, called with these arguments, and a name for the user."""

    name: str
    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()


class WorkError(RuntimeError):
    """A piece of work failed; the message names it and says why."""


def do_all(pieces: Sequence[Work], jobs: int, say: Callable[[str], None] = lambda text: None) -> None:
    """Do every piece, ``jobs`` at a time, and say which is done.

    Raises:
        WorkError: a piece failed or its process died. The others are stopped; what is finished stays.
    """
    start = time.perf_counter()
    done = 0

    def finished(name: str, seconds: float) -> None:
        nonlocal done
        done += 1
        say(f"{name}: {seconds:.0f} s ({done} of {len(pieces)}, {time.perf_counter() - start:.0f} s in all)")

    if jobs == 1 or len(pieces) < 2:
        for piece in pieces:
            begun = time.perf_counter()
            with one_thread():
                piece.function(*piece.arguments)
            finished(piece.name, time.perf_counter() - begun)
        return
    crew = [_Worker() for _ in range(min(jobs, len(pieces)))]
    try:
        _share_out(deque(pieces), crew, finished)
    finally:
        for worker in crew:
            worker.end()


class one_thread:
    """One thread inside, as many as before outside."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)


class _Worker:
    """A process that does what it is sent, one piece after another."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other,), daemon=True)
        self.busy: Work | None = None
        self.begun = 0.0
        self._start()
        other.close()

    def _start(self) -> None:
        # Read by the numerical libraries when the new process loads them: one thread from the start.
        before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        os.environ.update(dict.fromkeys(before, "1"))
        try:
            self.process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def give(self, piece: Work) -> None:
        self.busy, self.begun = piece, time.perf_counter()
        self.pipe.send(piece)

    def end(self) -> None:
        """Let an idle process leave, and stop a busy one."""
        self.pipe.close()
        if self.busy is not None:
            self.process.terminate()
        self.process.join(_GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _share_out(waiting: deque[Work], crew: list[_Worker], finished: Callable[[str, float], None]) -> None:
    for worker in crew:
        worker.give(waiting.popleft())
    by_pipe = {worker.pipe: worker for worker in crew}
    while any(worker.busy for worker in crew):
        for ready in wait([worker.pipe for worker in crew if worker.busy]):
            worker = by_pipe[ready]  # type: ignore[index]
            piece = worker.busy
            assert piece is not None
            try:
                problem: str | None = worker.pipe.recv()
            except EOFError:
                worker.process.join(_GRACE_SECONDS)
                code = worker.process.exitcode
                raise WorkError(f"{piece.name}: its process ended with code {code} before it was done") from None
            worker.busy = None
            if problem is not None:
                raise WorkError(f"{piece.name}: {problem}")
            finished(piece.name, time.perf_counter() - worker.begun)
            if waiting:
                worker.give(waiting.popleft())


def _work(pipe: Connection) -> None:
    """What a process does. Ctrl-C on the terminal reaches it too, and is left to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    while True:
        try:
            piece: Work = pipe.recv()
        except EOFError:
            return
        problem = None
        try:
            piece.function(*piece.arguments)
        except Exception as error:  # noqa: BLE001  told to the user by the other process, with the name of the work
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
        try:
            pipe.send(problem)
        except OSError:  # nobody listens any more
            return
