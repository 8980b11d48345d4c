"""Known inliers: rows whose label y = 0 is the truth."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fvnce import NoiseContrastiveDetector
from fvnce.detection.rows import TrainingRows, merge
from fvnce.detection.trust.calibration import calibrate_with_outliers, calibrate_without, estimate_prior

QUICK = {"n_trees": 30, "n_networks": 1, "steps": 50}


@pytest.fixture(scope="module")
def table():
    """300 rows, 5 of 20 outliers known, and a group of inliers that looks like them in one column."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    X[280:] += [2.5, 2.5, 0, 0]
    X[260:280] += [2.5, 0, 2.5, 0]
    y = np.zeros(300, dtype=int)
    y[280:285] = 1
    return X, y


def everything(detector, X):
    scores = detector.scores(X)
    return np.stack([scores.anomaly, scores.line, scores.novelty, detector.p_value(X), detector.outlier_probability(X)])


@pytest.mark.parametrize("known", [True, False])
def test_no_row_checked_changes_no_bit(table, known):
    X, y = table
    y = y if known else np.zeros_like(y)
    without, none = (NoiseContrastiveDetector(**QUICK).fit(X, y, checked=c) for c in (None, np.zeros(len(X), bool)))
    np.testing.assert_array_equal(everything(without, X), everything(none, X))
    assert without.prior_ == none.prior_


@pytest.mark.parametrize("known", [True, False])
def test_a_known_inlier_and_rows_like_it_become_less_probable_outliers(table, known):
    X, y = table
    y = y if known else np.zeros_like(y)
    checked = np.zeros(len(X), dtype=bool)
    checked[260:270] = True
    before = NoiseContrastiveDetector(**QUICK).fit(X, y)
    after = NoiseContrastiveDetector(**QUICK).fit(X, y, checked=checked)
    change = after.outlier_probability(X) - before.outlier_probability(X)
    assert (change[260:270] <= 0).mean() >= 0.9
    assert change[260:270].mean() < 0
    assert change[270:280].mean() < 0


def test_a_checked_outlier_is_a_known_outlier(table):
    X, y = table
    first, second = (NoiseContrastiveDetector(**QUICK).fit(X, y, checked=c) for c in (None, y == 1))
    np.testing.assert_array_equal(everything(first, X), everything(second, X))


def test_weights_are_counts_of_rows_and_the_order_of_rows_does_not_matter(table):
    X, y = table
    checked = np.zeros(len(X), dtype=bool)
    checked[[3, 4, 261, 262]] = True
    weights = np.ones(len(X))
    weights[[3, 261, 281, 7]] = 2
    again = np.repeat(np.arange(len(X)), weights.astype(int))
    again = np.random.default_rng(1).permutation(again)
    once = NoiseContrastiveDetector(**QUICK).fit(X, y, weights, checked=checked)
    often = NoiseContrastiveDetector(**QUICK).fit(X[again], y[again], checked=checked[again])
    np.testing.assert_array_equal(everything(once, X), everything(often, X))


def test_equal_rows_stay_apart_if_only_some_are_checked():
    X, known = np.ones((4, 1)), np.zeros(4, dtype=bool)
    rows, _, weights, place = merge(X, known, np.ones(4), np.array([True, False, False, True]))
    assert len(rows) == 2
    assert weights.tolist() == [2, 2]
    assert place.tolist() == [1, 0, 0, 1]


def test_files_clones_and_frames_keep_what_known_inliers_taught(table, tmp_path):
    X, y = table
    checked = np.zeros(len(X), dtype=bool)
    checked[260:270] = True
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y, checked=checked)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "detector.safetensors"))
    np.testing.assert_array_equal(everything(detector, X), everything(loaded, X))
    frame = pd.DataFrame(X, columns=list("abcd"))
    by_frame = clone(detector).fit(frame, pd.Series(y), checked=pd.Series(checked, dtype="boolean"))
    np.testing.assert_array_equal(detector.anomaly_score(X), by_frame.anomaly_score(frame))


def test_where_all_rows_are_checked_or_rows_are_left_over_it_fits(table):
    X, y = table
    complete = NoiseContrastiveDetector(**QUICK).fit(X, y, checked=np.ones(len(X), dtype=bool))
    assert 0 < complete.prior_ < 0.5
    checked = np.arange(len(X)) % 2 == 0
    thinned = NoiseContrastiveDetector(**QUICK, max_rows=100).fit(X, y, checked=checked)
    assert np.isfinite(everything(thinned, X)).all()


def test_pi_is_the_share_among_rows_that_nobody_checked():
    rng = np.random.default_rng(0)
    inliers, hidden, known = rng.normal(size=900), rng.normal(4, 1, size=50), rng.normal(4, 1, size=40)
    false = rng.normal(4, 1, size=50)  # inliers that score like outliers
    rows, ones = np.concatenate([inliers, hidden, false]), np.ones(1000)
    checked = np.arange(1000) >= 950
    plain, _ = calibrate_with_outliers(rows, ones, known, np.ones(40), None)
    told, _ = calibrate_with_outliers(rows, ones, known, np.ones(40), None, checked)
    assert told.prior == estimate_prior(rows[:950], ones[:950], known, np.ones(40))[0]
    assert told.prior < 0.75 * plain.prior
    assert told.probability(rows[:950]).mean() == pytest.approx(told.prior, rel=1e-6)
    # So high is the line that it pays to look again at what lies near it.
    assert told.threshold > plain.threshold
    assert calibrate_without(rows, ones, None, checked).prior < calibrate_without(rows, ones, None).prior


def test_known_inliers_weigh_more_in_members_the_rarer_known_outliers_are():
    rows = TrainingRows(np.zeros((10, 1)), np.ones(10), np.ones((2, 1)), np.ones(2), np.arange(10) < 3)
    weights = rows.emphasized().weights
    assert (weights[3:] == 1).all()
    assert (weights[:3] == weights[0]).all()
    assert weights[0] > 1


@pytest.mark.parametrize(
    ("checked", "y", "words"),
    [
        ([True, False], [0] * 10, ["checked", "10", "2"]),
        (np.zeros(10), [0] * 10, ["checked", "float64"]),
        ([True] * 10, None, ["checked", "row 0", "label"]),
        ([False, True] * 5, [0.0, np.nan] + [0.0] * 8, ["checked", "row 1", "label"]),
        (pd.array([True, None] * 5, dtype="boolean"), [0] * 10, ["checked", "object"]),
    ],
)
def test_wrong_marks_are_refused(checked, y, words):
    with pytest.raises(ValueError, match="checked") as refused:
        NoiseContrastiveDetector(**QUICK).fit(np.arange(20.0).reshape(10, 2), y, checked=checked)
    assert all(word in str(refused.value) for word in words)


def test_p_values_of_normal_rows_hold_after_a_review():
    small = {"members": ["neighbors", "outlier_forest"], "n_trees": 6}
    below = []
    for seed in range(40):
        rng = np.random.default_rng([7, seed])
        outlier = np.arange(120) >= 110
        X = rng.normal(size=(120, 2)) + 1.8 * outlier[:, None]
        y = np.repeat([0, 1, 0], [110, 3, 7])
        checked = np.zeros(120, dtype=bool)
        checked[NoiseContrastiveDetector(**small).fit(X, y).review(X, 20, reviewed=y == 1)] = True
        detector = NoiseContrastiveDetector(**small).fit(X, np.where(checked, outlier, y), checked=checked)
        below.append((detector.p_value(rng.normal(size=(400, 2))) <= 0.1).mean())
    assert np.mean(below) <= 0.1 + 2 * np.std(below) / len(below) ** 0.5


def test_review_takes_the_first_unreviewed_rows_of_three_lists_in_turn(table):
    X, y = table
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    scores, reviewed = detector.scores(X), y == 1
    lists = scores.anomaly, scores.novelty, -np.abs(scores.line - scores.threshold)
    for _ in range(3):
        rows = detector.review(X, 9, reviewed=reviewed)
        assert len(set(rows)) == 9
        assert not reviewed[rows].any()
        rest = ~reviewed & ~np.isin(np.arange(len(X)), rows)
        for each in lists:  # three rows of each list at least
            assert np.sort(each[rows])[-3] >= each[rest].max()
        np.testing.assert_array_equal(detector.review(X, 4, reviewed=reviewed), rows[:4])
        reviewed = reviewed | np.isin(np.arange(len(X)), rows)
    assert len(detector.review(X, 1000, reviewed=reviewed)) == (~reviewed).sum()
    with pytest.raises(ValueError, match="reviewed"):
        detector.review(X, reviewed=reviewed[:5])
