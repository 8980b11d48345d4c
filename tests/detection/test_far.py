"""Rows far outside of training: no model was shown any, and none must pass for usual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fvnce import NoiseContrastiveDetector
from fvnce.detection.ensemble import Span
from fvnce.detection.trust.drift import UnlikeTrainingWarning
from fvnce.io import FileError

SMALL: dict[str, Any] = {"n_trees": 30, "n_networks": 3, "steps": 60}


def table(columns: int = 20, rows: int = 600, known: int = 20) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Normal rows, and known outliers that differ from them in the first two columns only."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows + known, columns))
    X[rows:, :2] += 4.0
    return X, np.repeat([0, 1], [rows, known])


def far_rows(X: NDArray[np.float64], size: float) -> NDArray[np.float64]:
    """Training rows of which each has one number so far away, in every column but the first two."""
    far = X[: X.shape[1] - 2].copy()
    far[np.arange(len(far)), np.arange(2, X.shape[1])] = size
    return far


@pytest.mark.parametrize("size", [50.0, -50.0, 1e12, 1e300])
def test_a_row_far_outside_in_one_column_is_flagged_although_no_known_outlier_is_like_it(size: float) -> None:
    X, y = table()
    detector = NoiseContrastiveDetector(**SMALL).fit(X, y)
    assert (detector.predict(far_rows(X, size)) == -1).all()
    assert np.isfinite(detector.anomaly_score(far_rows(X, size))).all()


def test_nothing_is_added_to_what_is_within_twice_the_range() -> None:
    X, y = table()
    detector = NoiseContrastiveDetector(**SMALL).fit(X, y)
    span = detector.ensemble_.span
    assert span is not None
    rows = detector.preprocessor_.encode(X[y == 0])
    assert (span.excess(rows) == 0).all()
    assert (span.excess(span.middle + 2 * (rows - span.middle)) < 1e-12).all()
    fresh = np.random.default_rng(1).normal(size=(20_000, 20))
    # A normal number more than six deviations out: once in 500 million, and here are 400,000 (false alarm: 1e-3).
    assert (span.excess(detector.preprocessor_.encode(fresh)) == 0).all()


def test_the_column_that_lies_outside_explains_the_row_and_the_parts_still_sum_to_the_score() -> None:
    X, y = table()
    detector = NoiseContrastiveDetector(**SMALL).fit(X, y)
    far = far_rows(X, 50.0)
    found = detector.explain(far)
    np.testing.assert_allclose(found.anomaly, detector.anomaly_score(far), atol=1e-8)
    np.testing.assert_array_equal(found.total.argmax(1), np.arange(2, 20))


def test_a_known_outlier_far_outside_is_scored_alike_in_training_and_afterwards() -> None:
    X, y = table()
    X[-1, 7] = 80.0
    detector = NoiseContrastiveDetector(**SMALL).fit(X, y)
    np.testing.assert_array_equal(detector.decision_scores_, -detector.score_samples(X))
    assert detector.predict(X[-1:])[0] == -1


def test_without_labels_in_many_columns() -> None:
    X = np.random.default_rng(0).normal(size=(800, 200))
    far = far_rows(X, 50.0)
    with pytest.warns(UnlikeTrainingWarning, match="above the threshold"):
        assert (NoiseContrastiveDetector().fit(X).predict(far) == -1).mean() > 0.95


def test_p_values_see_it_too() -> None:
    X, y = table()
    p = NoiseContrastiveDetector(**SMALL).fit(X, y).p_value(far_rows(X, 50.0))
    assert p.max() <= 0.01


def with_texts(n: int, shares: list[float], seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    country = np.array([f"c{i}" for i in range(len(shares))])[rng.choice(len(shares), n, p=shares)]
    return pd.DataFrame({"a": rng.normal(size=n), "b": rng.exponential(size=n), "country": country})


def test_an_unseen_text_is_novel_where_texts_repeat() -> None:
    training, new = with_texts(900, [0.6, 0.3, 0.1], 0), with_texts(200, [0.6, 0.3, 0.1], 1)
    known = new[:5].assign(a=9.0)
    for labels in (None, np.repeat([0, 1], [900, 5])):
        X = training if labels is None else pd.concat([training, known], ignore_index=True)
        detector = NoiseContrastiveDetector(**SMALL).fit(X, labels)
        unseen = new.assign(country="KP")
        assert detector.scores(unseen).flagged.mean() > 0.9
        assert (detector.predict(new) == -1).mean() < 0.05
        explained = detector.explain(unseen)
        assert (explained.ratio[:, 2] - detector.explain(new).ratio[:, 2]).min() > (2.5 if labels is None else 0.0)


def test_an_unseen_text_is_usual_where_many_texts_occur_once() -> None:
    span = Span.learn(np.c_[np.zeros(1000), np.eye(1000, 6)], np.ones(1000))
    np.testing.assert_array_equal(span.excess(np.eye(1, 7)), np.zeros((1, 7)))
    few = Span.learn(np.zeros((100, 1)), np.ones(100))  # too few rows to call anything rare
    np.testing.assert_array_equal(few.excess(np.ones((1, 1))), [[0.0]])


def test_texts_that_raise_novelty_are_as_rare_in_new_rows_as_promised() -> None:
    rng, found, expected = np.random.default_rng(0), [], []
    for _ in range(400):  # shares of texts, many of them rare, of which a column knows those that were drawn
        shares = rng.dirichlet(np.full(30, rng.choice([0.05, 0.2, 1.0])))
        training, new = (rng.choice(30, n, p=shares) for n in (1000, 500))
        seen = np.unique(training)
        encoded = np.c_[training[:, None] == seen, np.zeros(1000)].astype(float)
        if Span.learn(encoded, np.ones(1000)).unseen > 0:
            once = (encoded.sum(0) == 1).sum()
            found.append(1 - np.isin(new, seen).mean())
            expected.append((1 + once) / 1001)
    away = np.array(found) - np.array(expected)
    assert len(found) > 100
    assert max(expected) <= 0.005
    assert away.mean() <= 2 * away.std() / len(away) ** 0.5


def test_a_forged_excess_of_unseen_texts_is_refused() -> None:
    arrays = {"middle": np.zeros(1), "half": np.zeros(1), "unseen": np.array(1e300)}
    with pytest.raises(FileError, match="excess"):
        Span.from_state(arrays, 1)
