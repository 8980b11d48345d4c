"""Two processes with batches of b do what one process with batches of 2b does."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import two_processes
from fvnce.objectives.batch import BatchPart, gather, mean_over_data
from fvnce.training import fit
from training_runs import contrastive, rows

pytestmark = pytest.mark.slow  # processes are started for almost all of them
HERE = Path(__file__).parents[1] / "support"
TOLERANCE = {"32-true": 1e-5, "64-true": 1e-11}


def launch(*command: str | Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def computed_once(factory: pytest.TempPathFactory, name: str, compute: Callable[[Path], None]) -> Path:
    """The workers of one test run share results: the first to come computes them, the others wait for its lock."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    folder = factory.mktemp(name) if run is None else factory.getbasetemp().parent / f"{name}-{run}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            compute(folder)
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process found; what two, launched by Fabric, found; what two, launched by torchrun, found."""
    return computed_once(tmp_path_factory, "processes", compute)


def compute(folder: Path) -> None:
    launch("two_processes.py", folder, "1")
    launch("two_processes.py", folder, "2")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launch(*torchrun, "two_processes.py", folder, "torchrun")


def losses(folder: Path, which: str) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads((folder / f"{which}.json").read_text())
    return actual


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", two_processes.CASES)
def test_gradients_do_not_depend_on_the_number_of_processes(results: Path, name: str, precision: str) -> None:
    """Eight steps of plain gradient descent, the last of each epoch with 3 and 2 rows, end at the same weights."""
    one, two, other = (load_file(results / f"{which}.safetensors") for which in ("1-0", "2-0", "2-1"))
    keys = [key for key in one if key.startswith(f"{precision}|{name}|")]
    assert keys
    start = dict(two_processes.CASES[name]().named_parameters())
    for key in keys:
        assert torch.equal(two[key], other[key])
        moved = one[key] - start[key.rsplit("|", 1)[1]].detach().to(one[key])
        scale = float(moved.abs().max()) + 1e-3 * float(one[key].abs().max())
        assert float((one[key] - two[key]).abs().max()) <= TOLERANCE[precision] * scale


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", two_processes.CASES)
def test_losses_and_validation_are_those_of_all_processes(results: Path, name: str, precision: str) -> None:
    key = f"{precision}|{name}"
    one, two, other = (losses(results, which)[key] for which in ("1-0", "2-0", "2-1"))
    for expected, actual, same in zip(one, two, other, strict=True):
        assert actual == same
        assert actual == pytest.approx(expected, rel=TOLERANCE[precision], abs=TOLERANCE[precision])


def test_torchrun_gives_what_fabric_gives(results: Path) -> None:
    launched, ran = load_file(results / "2-0.safetensors"), load_file(results / "torchrun-0.safetensors")
    assert ran
    for key, value in ran.items():
        assert torch.equal(value, launched[key])


def test_two_processes_resume_bit_for_bit(results: Path) -> None:
    whole, pieces = losses(results, "2-0")["resumed"]
    assert whole == pieces
    names = sorted(path.name for path in (results / "resumed-2").glob("step-*"))
    assert names[-1] == "step-000000016.safetensors"


def test_steps_are_scaled_by_the_first_batch_of_all_processes(results: Path) -> None:
    one, two, other = (losses(results, which)["spread"] for which in ("1-0", "2-0", "2-1"))
    assert two == other
    assert two == pytest.approx(one, rel=1e-12)


def test_random_streams_differ_between_processes(results: Path) -> None:
    one, two = losses(results, "2-0")["streams"], losses(results, "2-1")["streams"]
    assert len(one) == len(two) == 4
    assert not set(one) & set(two)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw when something failed on one of them."""
    folder = computed_once(tmp_path_factory, "failures", lambda place: launch("two_failures.py", place))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_full_disk_is_an_error_on_both(failures: list[dict[str, Any]]) -> None:
    """The main process cannot write the last checkpoint: none returns as if it had been, and none waits."""
    for actual in failures:
        assert actual["full"]["error"] == "OSError"
        assert "No space left on device" in actual["full"]["says"]
        assert actual["full"]["steps"] == [4]
        assert all("No space left" in text for text in actual["full"]["warnings"])


def test_a_damaged_checkpoint_sends_both_processes_back(failures: list[dict[str, Any]]) -> None:
    for actual in failures:
        assert actual["damaged"]["result"] == actual["never"]
        (text,) = actual["damaged"]["warnings"]
        assert "step-000000008" in text
        assert "goes on from step-000000004.safetensors" in text


def test_a_folder_in_use_and_another_run_are_refused_by_both(failures: list[dict[str, Any]]) -> None:
    for actual in failures:
        assert actual["locked"]["error"] == "FolderInUse"
        assert actual["changed"]["error"] == "ValueError"
        assert "lr was 0.001, is 0.5" in actual["changed"]["says"]


def test_how_long_processes_wait_can_be_set(failures: list[dict[str, Any]]) -> None:
    assert [actual["timeout"] for actual in failures] == [777.0, 777.0]


def test_an_objective_evaluated_by_one_process_waits_for_nobody() -> None:
    values = torch.arange(3.0)
    assert gather(values, None) is values
    assert mean_over_data(values, None) == 1
    assert mean_over_data(values, BatchPart(data=0.5)) == 0.5
    assert gather(values, BatchPart(data=0.5)) is values


LEAVING = """
import atexit, sys
from pathlib import Path

import torch

# Called last: what is registered first is called last.
atexit.register(lambda: Path(f"{sys.argv[1]}-{rank}").write_text(str(torch.distributed.is_initialized())))
from torch import nn

from fvnce.training import fit


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return ((x - self.mean) ** 2).mean()


fit(Mean(), torch.ones(8, 1), epochs=1, batch_size=2, seed=0, accelerator="cpu", progress=False)
rank = torch.distributed.get_rank()
"""


def test_the_group_of_processes_is_ended_before_the_interpreter_is(tmp_path):
    """Threads of a group that is left open abort a process now and then whose work is done."""
    (tmp_path / "train.py").write_text(LEAVING)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launch(*torchrun, tmp_path / "train.py", tmp_path / "left")
    assert [(tmp_path / f"left-{rank}").read_text() for rank in (0, 1)] == ["False", "False"]


def test_a_run_of_one_process_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a script has a process group of its own, and one of its processes trains alone."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("asked others")

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", world_size=1, rank=0)
    try:
        monkeypatch.setattr(dist, "all_gather", refuse)
        monkeypatch.setattr(dist, "all_reduce", refuse)
        history = fit(contrastive(partition="profiled"), rows(20), validation=rows(10), epochs=1, seed=1)
    finally:
        dist.destroy_process_group()
    assert len(history["val_loss"]) == 1


def test_no_process_stays_where_the_main_one_cannot_start(tmp_path: Path) -> None:
    """The port is taken: the main process fails, and the other must not try to reach it for half an hour."""
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nfrom fvnce.training import FitOptions, fit\n"
        "class Square(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.w = torch.nn.Parameter(torch.ones(2))\n"
        "    def forward(self, x):\n        return (x * self.w).square().mean()\n"
        "fit(Square(), torch.ones(8, 2), epochs=1, accelerator='cpu', options=FitOptions(devices=2, strategy='ddp'))\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1]), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, program], env={**os.environ, **address}, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            assert process.wait(300) != 0
            for _ in range(600):  # both are one group, which is gone when both are
                os.killpg(process.pid, 0)
                time.sleep(0.1)
            pytest.fail("a process of the training is still there")
        except ProcessLookupError:
            return
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
