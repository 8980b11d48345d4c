"""The page of the reproduction claims no more than its numbers bear."""

import numpy as np
import pytest

from fvnce.paper.cells import against, beyond_error, ordered
from fvnce.paper.table import reading

LABELS = {"ae": "AE", "vae": "VAE", "1-64": "(1/64, 0)", "0,1": "(0, 1)"}


def record(seeds, shift, noise=0.0):
    """Rows at (700, −1600) with seeds' own levels, moved by ``shift`` (data, noise) and by noise of their own."""
    rng = np.random.default_rng(0)
    cells = []
    for seed in range(seeds):
        level = rng.normal(0, 50)
        for row in LABELS:
            data, other = shift.get(row, (0.0, 0.0))
            own = rng.normal(0, noise, 2)
            found = {"train": 700 + level + data + own[0], "noise": -1600 + level + other + own[1]}
            cells.append({"network": "n", "row": row, "seed": seed} | found)
    rows = {name: {"label": label, "paper": [[1, 2, 3]]} for name, label in LABELS.items()}
    return {"settings": {"data": "digits"}, "seeds": seeds, "rows": rows, "cells": cells}


def test_one_seed_claims_no_order_and_says_where_the_data_term_fell():
    text = " ".join(reading(record(1, {"ae": (0, 500), "0,1": (-80, -5)})))
    assert "<" not in text
    assert "grows in the order" not in text
    assert "--seeds 3" in text
    assert "Below the VAE because the data term fell, not because of noise: (0, 1) (data -80)." in text


def test_an_order_is_claimed_beyond_its_error_only():
    text = " ".join(reading(record(4, {"ae": (0, 500), "1-64": (-10, -300), "0,1": (0, 3)}, noise=5.0)))
    assert "in the order AE < " in text
    assert " ≈ " in text
    assert text.index("≈") < text.index("< (1/64, 0)")  # (0, 1) and VAE cannot be told apart
    assert "(1/64, 0) lies" in text
    assert "Within their error of the VAE: (0, 1)." in text


def test_a_difference_that_comes_from_the_data_term_is_said_so():
    text = " ".join(reading(record(3, {"ae": (0, 500), "0,1": (-90, -10)}, noise=0.5)))
    assert "(0, 1) lies" in text
    assert "nats below the VAE because its data term fell by" in text
    assert "AE lies" in text
    assert "because its data term" not in text.partition("AE lies")[2].partition(";")[0]


def test_the_interval_of_paired_differences_covers():
    """Rows that do not differ are told apart in 5 % of 2,000 draws of three seeds; a false alarm of 1e-6 at 5 ± 2.4."""
    rng = np.random.default_rng(0)
    level = rng.normal(0, 100, (2000, 3))
    one, other = (level + rng.normal(0, 1, (2000, 3)) for _ in range(2))
    share = np.mean([beyond_error(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)])
    assert share == pytest.approx(0.05, abs=0.024)


def test_within_the_error_nothing_is_said():
    assert against("a", "b", [1.0, 5.0], [0.0, 0.0], [3.0, 2.0], [0.0, 0.0]) is None
    assert ordered({"a": [1.0]}) == "a"
