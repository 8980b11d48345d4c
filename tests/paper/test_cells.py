"""Cells: work shared between processes is done, no process is left behind, and rows are compared by their error."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fvnce.paper.cells import Work, WorkError, beyond_error, do_all, ordered

ROOT = Path(__file__).resolve().parents[2]


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
        (Work("bad one", _refuse), r"bad one.*ValueError.*no good.*test_cells\.py, line \d+"),
        (Work("bad one", _die), r"bad one.*code 3"),
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
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.paper.test_cells import _stay\n"
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


def test_the_interval_of_paired_differences_covers():
    """Rows that do not differ are told apart in 5 % of 2,000 draws of three seeds; a false alarm of 1e-6 at 5 ± 2.4."""
    rng = np.random.default_rng(0)
    level = rng.normal(0, 100, (2000, 3))
    one, other = (level + rng.normal(0, 1, (2000, 3)) for _ in range(2))
    share = np.mean([beyond_error(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)])
    assert share == pytest.approx(0.05, abs=0.024)


def test_rows_of_one_seed_have_no_order_between_them():
    assert ordered({"a": [1.0]}) == "a"
    assert ordered({"a": [1.0], "b": [9.0]}) == "a ≈ b"
