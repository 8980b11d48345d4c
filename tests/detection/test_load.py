"""Many calls at once, and workers that die, change no bit of a score."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fvnce.detection import BatchScorer, NoiseContrastiveDetector

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="scorer")
def saved(tmp_path_factory: pytest.TempPathFactory) -> BatchScorer:
    rng = np.random.default_rng(0)
    detector = NoiseContrastiveDetector(n_trees=8, n_networks=1, steps=10).fit(rng.normal(size=(300, 3)))
    return BatchScorer(detector.save(tmp_path_factory.mktemp("load") / "detector.safetensors"))


def test_2000_calls_from_16_threads_give_the_bits_of_one(scorer: BatchScorer) -> None:
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=(int(rng.integers(1, 9)), 3)) for _ in range(2000)]
    alone = [scorer(batch).tobytes() for batch in batches]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda batch: scorer(batch).tobytes(), batches)) == alone


def test_a_worker_that_is_killed_changes_no_bit(scorer: BatchScorer, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    rng = np.random.default_rng(2)
    batches = [rng.normal(size=(20, 3)) for _ in range(40)]
    expected = [scorer(batch).tobytes() for batch in batches]

    def slowly(batch: Any) -> bytes:
        (tmp_path / f"started by {os.getpid()}").touch()
        time.sleep(0.05)
        return scorer(batch).tobytes()

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path / "dask")
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = client.run(os.getpid)
        futures = client.map(slowly, batches, pure=False)
        victim = next(iter(workers.values()))
        while not (tmp_path / f"started by {victim}").exists():
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        assert client.gather(futures) == expected
        assert victim not in client.run(os.getpid).values()
