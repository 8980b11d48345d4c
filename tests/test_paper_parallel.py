"""Work that is shared between processes: it is done, what fails is named, and no process is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fvnce.paper.cells import Work, WorkError, do_all

HERE = Path(__file__).resolve().parent


def _leave(path, content):
    Path(path).write_text(f"{content} {torch.get_num_threads()}")


def _refuse():
    raise ValueError("no good")


def _die():
    os._exit(3)


@pytest.mark.slow
def test_work_is_shared_between_processes_of_one_thread(tmp_path):
    pieces = [Work(f"piece {i}", _leave, (tmp_path / f"{i}", i)) for i in range(3)]
    said = []
    do_all(pieces, 2, said.append)
    assert [(tmp_path / f"{i}").read_text() for i in range(3)] == ["0 1", "1 1", "2 1"]
    assert sorted(line.split(":")[0] for line in said) == ["piece 0", "piece 1", "piece 2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (Work("bad one", _refuse), r"^bad one: ValueError: no good \(test_paper_parallel\.py, line \d+\)$"),
        (Work("bad one", _die), r"bad one: its process ended with code 3 before it was done$"),
    ],
)
def test_work_that_fails_is_named_and_the_rest_is_stopped(tmp_path, piece, words):
    pieces = [Work("long one", _stay, (tmp_path,)), piece]
    with pytest.raises(WorkError, match=words):
        do_all(pieces, 2)
    _all_gone(tmp_path)


class _LongOnItsWay:
    """An argument that takes as long to be sent as on a busy machine."""

    def __reduce__(self):
        time.sleep(3)
        return (int, ())


@pytest.mark.slow
def test_no_process_leaves_while_its_work_is_on_its_way():
    said = []
    do_all([Work(f"piece {i}", abs, (_LongOnItsWay(),)) for i in range(2)], 2, said.append)
    assert len(said) == 2


def _stay(folder):
    """Leave the number of the process, and stay for longer than any test."""
    (Path(folder) / f"{os.getpid()}.pid").touch()
    time.sleep(600)


def _pids(folder):
    return [int(path.stem) for path in Path(folder).glob("*.pid")]


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _all_gone(folder):
    """Wait until no process that has left its number is alive; the machine may be slow, so for long."""
    end = time.monotonic() + 60
    while any(map(_alive, _pids(folder))):
        assert time.monotonic() < end, "a process was left behind"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", ["Ctrl-C", "killed"])
def test_no_process_outlives_the_one_that_started_it(tmp_path, how):
    code = (
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from test_paper_parallel import _stay\n"
        "from fvnce.paper.cells import Work, do_all\n"
        "try:\n"
        f"    do_all([Work(str(i), _stay, (Path({str(tmp_path)!r}),)) for i in range(3)], 2)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    # A group of its own: Ctrl-C reaches all of a group, as it does on a terminal.
    parent = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 120
        while len(_pids(tmp_path)) < 2:
            assert parent.poll() is None, parent.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        if how == "Ctrl-C":
            os.killpg(parent.pid, signal.SIGINT)
        else:
            parent.kill()
        _, said = parent.communicate(timeout=60)
        assert parent.returncode == (130 if how == "Ctrl-C" else -signal.SIGKILL)
        assert "Traceback" not in said
        _all_gone(tmp_path)
    finally:
        parent.kill()
        parent.wait()
        for pid in filter(_alive, _pids(tmp_path)):
            os.kill(pid, signal.SIGKILL)
