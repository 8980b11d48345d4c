"""The page of the reproduction claims no more than its numbers bear."""

import re

import numpy as np

from tools.pages.paper_table import against_vae, reading

LABELS = {"ae": "AE", "vae": "VAE", "1-64": "(1/64, 0)", "0,1": "(0, 1)"}


def record(seeds, shift, noise=0.0):
    """Rows at (700, −1600) with seeds' own levels, moved by ``shift`` (data, noise) and by noise of their own."""
    rng = np.random.default_rng(0)
    cells = []
    for seed in range(seeds):
        level = rng.normal(0, 50)
        for row in LABELS:
            data, other = shift.get(row, (0.0, 0.0))
            errors = rng.normal(0, noise, 2)
            numbers = {"train": 700 + level + data + errors[0], "noise": -1600 + level + other + errors[1]}
            cells.append({"network": "n", "row": row, "seed": seed} | numbers)
    rows = {name: {"label": label, "paper": [[1, 2, 3]]} for name, label in LABELS.items()}
    return {"settings": {"data": "digits"}, "seeds": seeds, "rows": rows, "cells": cells}


def test_one_seed_claims_no_order_and_says_where_the_data_term_fell():
    text = " ".join(reading(record(1, {"ae": (0, 500), "0,1": (-80, -5)})))
    assert "<" not in text
    assert "≈" not in text
    assert "--seeds 3" in text
    assert "(0, 1) (data -80)" in text


def test_an_order_is_claimed_beyond_its_error_only():
    text = " ".join(reading(record(4, {"ae": (0, 500), "1-64": (-10, -300), "0,1": (0, 3)}, noise=5.0)))
    assert " AE < " in text
    assert " ≈ " in text
    assert text.index("≈") < text.index("< (1/64, 0)")  # (0, 1) and VAE cannot be told apart
    assert re.search(r"\(1/64, 0\) lies \d+ nats", text)
    assert text.endswith("(0, 1).")  # within its error


def test_a_difference_that_comes_from_the_data_term_is_said_so():
    text = " ".join(reading(record(3, {"ae": (0, 500), "0,1": (-90, -10)}, noise=0.5)))
    sentences = {row: text.partition(f"{row} lies")[2].partition(";")[0] for row in ("AE", "(0, 1)")}
    assert re.search(r"8\d nats below the VAE because its data term fell by 9\d", sentences["(0, 1)"])
    assert "data term" not in sentences["AE"]


def test_within_the_error_nothing_is_said():
    assert against_vae("a", [1.0, 5.0], [0.0, 0.0], [3.0, 2.0], [0.0, 0.0]) is None
