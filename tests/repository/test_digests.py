"""Seeded results are what they were: `tools/release/digests.py` records them, and compares every bit on one machine."""

import json
import math

import pytest
import torch

from tools.release import digests

RECORDED = json.loads(digests.SUMMARIES.read_text())


@pytest.mark.parametrize("name", digests.RECORDED)
def test_a_seeded_result_is_what_was_recorded(name):
    """To a tolerance: processors round differently. `python -m tools.release.digests write` records new results."""
    make, tolerance = digests.RECORDED[name]
    count, *numbers = digests.summary(make())
    expected_count, *expected = RECORDED[name]
    assert count == expected_count
    assert numbers == pytest.approx(expected, rel=tolerance, abs=tolerance * expected[1])


def test_everything_recorded_is_made():
    assert set(RECORDED) == set(digests.RECORDED)
    assert all(math.isfinite(number) for numbers in RECORDED.values() for number in numbers)


def test_a_digest_sees_one_bit_and_a_summary_sees_order():
    x = torch.linspace(-1, 2, 7, dtype=torch.float64)
    other = x.clone()
    other[3] = math.nextafter(float(x[3]), 1)
    assert digests.digest(x) == digests.digest(x.clone()) != digests.digest(other)
    assert digests.summary(x)[:3] == digests.summary(x.flip(0))[:3]
    assert digests.summary(x) != digests.summary(x.flip(0))
