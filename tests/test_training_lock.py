"""One writer at a time in the folder of a run; a dead one locks nobody out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fvnce.serialization.files import locked
from fvnce.training import Callback, FolderInUse, fit
from fvnce.training.checkpoint import Checkpoints
from training_runs import digest, rows, vae

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 10}

#: A run that tells when it has its folder and then waits for a word.
WRITER = """
import sys
from fvnce.training import fit
from training_runs import rows, vae
told = []
def wait(run):
    if not told:
        told.append(print("writing", flush=True))
        sys.stdin.readline()
fit(vae(), rows(20), seed=1, epochs=2, batch_size=10, checkpoint_dir=sys.argv[1], callbacks=[wait])
"""


def writer(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.slow
def test_a_second_writer_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    first = writer(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    for resume in (False, True):
        with pytest.raises(
            FolderInUse, match=rf"is being written by process {first.pid} on {socket.gethostname()}: wait"
        ):
            fit(vae(), rows(20), seed=2, checkpoint_dir=tmp_path, resume=resume, **SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    first.communicate("go on\n")
    assert first.returncode == 0
    assert Checkpoints(tmp_path).steps() == [2, 4]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_dead_writer_locks_nobody_out(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert (tmp_path / ".lock").exists()
    objective, never = vae(), vae()
    fit(objective, rows(20), seed=1, checkpoint_dir=tmp_path, resume=True, **SETTINGS)
    fit(never, rows(20), seed=1, **SETTINGS)
    assert digest(objective) == digest(never)
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    class Fails(Callback):
        def epoch(self, run: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(vae(), rows(20), seed=1, checkpoint_dir=tmp_path, callbacks=[Fails()], **SETTINGS)
    assert not (tmp_path / ".lock").exists()


def test_a_lock_holds_against_the_same_process_too(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock", tmp_path):
        with pytest.raises(FolderInUse, match=f"process {os.getpid()} "), locked(tmp_path / ".lock", tmp_path):
            pass
        with pytest.raises(FolderInUse):
            fit(vae(), rows(20), seed=1, checkpoint_dir=tmp_path, **SETTINGS)
    with locked(tmp_path / ".lock", tmp_path):
        pass


def test_many_that_come_and_go_are_never_two(tmp_path: Path) -> None:
    """Holders remove the file; whoever locked a removed one must notice that it locks nothing."""
    inside: list[int] = []
    most: list[int] = []

    def come_and_go() -> None:
        done = 0
        while done < 100:
            try:
                with locked(tmp_path / ".lock", tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    done += 1
            except FolderInUse:
                continue

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 400


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"\.lock"), locked(tmp_path / ".lock", tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
