"""Training on a memory map takes the memory of the rows that are used, not of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fvnce.detection import NoiseContrastiveDetector

SMAPS = Path("/proc/self/smaps")


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as memory of this process."""
    total, inside = 0, False
    for line in SMAPS.read_text().splitlines():
        head = line.split(maxsplit=1)[0]
        if not head.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and head == "Rss:":
            total += 1024 * int(line.split()[1])
    return total


@pytest.fixture
def mapped(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(100_000, 20)))
    return path


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells what of a file is in memory")
def test_no_page_of_a_map_is_held_after_training(mapped):
    X = np.load(mapped, mmap_mode="r")
    float(X.sum())
    assert resident(mapped) > 15_000_000  # this is what is counted
    NoiseContrastiveDetector(n_trees=2, max_rows=3000).fit(X)
    assert resident(mapped) == 0


def test_a_map_gives_the_detector_of_the_array(mapped):
    settings = {"n_trees": 4, "max_rows": 3000}
    new = np.random.default_rng(1).normal(size=(20, 20))
    expected = NoiseContrastiveDetector(**settings).fit(np.load(mapped)).anomaly_score(new)
    for mode in ("r", "c"):
        found = NoiseContrastiveDetector(**settings).fit(np.load(mapped, mmap_mode=mode)).anomaly_score(new)
        np.testing.assert_array_equal(found, expected)


def test_what_was_written_to_a_private_map_stays(mapped):
    X = np.load(mapped, mmap_mode="c")
    X[:] = 0.0
    X[::2, 0] = 1.0
    NoiseContrastiveDetector(n_trees=2, max_rows=300).fit(X)
    assert X.sum() == len(X) / 2
