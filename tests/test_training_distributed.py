"""Two processes with batches of b do what one process with batches of 2b does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import two_processes
from fvnce.objectives._distributed import Shares, gather, mean_over_data, together

HERE = Path(__file__).parent
TOLERANCE = {"32-true": 1e-5, "64-true": 1e-11}


def launch(*command: str | Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=HERE, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process found; what two, launched by Fabric, found; what two, launched by torchrun, found."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return compute(tmp_path_factory.mktemp("processes"))
    # The workers of one test run share the results: the first to come computes them.
    folder = tmp_path_factory.getbasetemp().parent / f"processes-{run}"
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(3000):
            if (folder / "done").exists():
                return folder
            time.sleep(0.1)
        raise
    return compute(folder)


def compute(folder: Path) -> Path:
    launch("two_processes.py", folder, "1")
    launch("two_processes.py", folder, "2")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launch(*torchrun, "two_processes.py", folder, "torchrun")
    (folder / "done").touch()
    return folder


def losses(folder: Path, which: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{which}.json").read_text())
    return found


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
    for wanted, found, same in zip(one, two, other, strict=True):
        assert found == same
        assert found == pytest.approx(wanted, rel=TOLERANCE[precision], abs=TOLERANCE[precision])


def test_torchrun_gives_what_fabric_gives(results: Path) -> None:
    launched, ran = load_file(results / "2-0.safetensors"), load_file(results / "torchrun-0.safetensors")
    assert ran
    for key, value in ran.items():
        assert torch.equal(value, launched[key])


def test_two_processes_resume_bit_for_bit(results: Path) -> None:
    whole, pieces = losses(results, "2-0")["resumed"]
    assert whole == pieces
    names = sorted(path.name for path in (results / "resumed-2").glob("step-*"))
    assert names[-2:] == ["step-000000016.rank-1.safetensors", "step-000000016.safetensors"]


def test_random_streams_differ_between_processes(results: Path) -> None:
    one, two = losses(results, "2-0")["streams"], losses(results, "2-1")["streams"]
    assert len(one) == len(two) == 4
    assert not set(one) & set(two)


def test_an_objective_evaluated_by_one_process_waits_for_nobody() -> None:
    values = torch.arange(3.0)
    assert gather(values) is values
    assert mean_over_data(values) == 1
    with together(Shares(data=0.5)):
        assert mean_over_data(values) == 0.5
        assert gather(values) is values
    assert mean_over_data(values) == 1
