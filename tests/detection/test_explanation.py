"""What people expect of a detector from elsewhere: probabilities, importances, pictures, PyOD's names, scorers."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fvnce.detection import Explanation, InvertedScoreWarning, LatentDetector, NoiseContrastiveDetector, scorers

Array = NDArray[np.float64]

QUICK: dict[str, Any] = {"n_trees": 20, "members": ("mixture_forest", "outlier_forest"), "calibration_folds": 2}


def problem() -> tuple[Array, NDArray[np.int64]]:
    """Three columns, of which the first is constant and the last tells the outliers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(260, 3))
    X[:, 0] = 1.0
    X[240:, 2] += 5
    return X, np.repeat([0, 1], [240, 20])


@pytest.fixture(scope="module")
def fitted() -> NoiseContrastiveDetector:
    X, y = problem()
    return NoiseContrastiveDetector(**QUICK).fit(pd.DataFrame(X, columns=["site", "flow", "heat"]), y)


@pytest.fixture(scope="module")
def latent() -> LatentDetector:
    return LatentDetector(epochs=2, hidden=(8,), latent=2).fit(*problem())


def frame() -> pd.DataFrame:
    return pd.DataFrame(problem()[0], columns=["site", "flow", "heat"])


def test_probabilities_of_both_kinds_sum_to_one(fitted: NoiseContrastiveDetector) -> None:
    found = fitted.predict_proba(frame())
    assert found.shape == (260, 2)
    np.testing.assert_array_equal(found[:, 1], fitted.outlier_probability(frame()))
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_array_equal(found[:, 1] > 0.5, fitted.predict(frame()) == -1)
    assert not hasattr(LatentDetector, "predict_proba")  # which has no probabilities


def test_training_rows_have_scores_and_labels_as_in_pyod(
    fitted: NoiseContrastiveDetector, latent: LatentDetector
) -> None:
    X, y = problem()
    for detector, rows in ((fitted, frame()), (latent, X)):
        np.testing.assert_allclose(detector.decision_scores_, detector.anomaly_score(rows), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(detector.labels_, detector.predict(rows) == -1)
        assert detector.threshold_ == -detector.offset_
        assert roc_auc_score(y, detector.decision_scores_) > 0.9
    # Rows of weight zero are not learnt from and have a score all the same.
    weights = np.ones(260)
    weights[[3, 250]] = 0
    weighted = NoiseContrastiveDetector(**QUICK).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(weighted.decision_scores_, weighted.anomaly_score(X), atol=1e-12)
    unfitted = NoiseContrastiveDetector()
    for name in ("decision_scores_", "labels_", "threshold_", "evidence_", "feature_importances_"):
        assert not hasattr(unfitted, name)


def test_a_fit_that_fails_leaves_no_findings_of_the_one_before() -> None:
    X, y = problem()
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    with pytest.raises(ValueError, match="infinity"):
        detector.fit(np.where(X > 5, np.inf, X), y)
    assert not hasattr(detector, "evidence_")


def test_importances_are_shares_that_sum_to_one(fitted: NoiseContrastiveDetector, latent: LatentDetector) -> None:
    found = fitted.feature_importances_
    assert found[0] == 0  # a constant column
    assert found.argmax() == 2
    # By the definition, where all rows are explained.
    deviations = fitted.explain(frame()).total.std(0)
    np.testing.assert_allclose(found, deviations / deviations.sum(), atol=1e-9)
    images = np.random.default_rng(0).random((30, 5, 6))
    of_images = LatentDetector(epochs=1, hidden=(4,), latent=1).fit(images).feature_importances_
    for shares, width in ((found, 3), (latent.feature_importances_, 3), (of_images, 30)):
        assert shares.shape == (width,)
        assert shares.min() >= 0
        assert shares.sum() == pytest.approx(1, abs=1e-9)


def test_all_parts_sum_to_the_score(fitted: NoiseContrastiveDetector) -> None:
    found, score = fitted.explain(frame()), fitted.anomaly_score(frame())
    assert len(found) == 260
    assert found.columns == ("site", "flow", "heat")
    assert min(found.parts(0).values()) < 0
    for row in (0, 259):
        parts = found.parts(row)
        assert set(parts) == {"site", "flow", "heat", "base"}
        assert sum(parts.values()) == pytest.approx(score[row], abs=1e-9)
    assert max(found.parts(259), key=lambda name: found.parts(259)[name]) == "heat"
    some = found[[3, 259]]
    np.testing.assert_array_equal(some.anomaly, found.anomaly[[3, 259]])
    assert len(found[5]) == 1
    assert fitted.explain(frame())[:10].names == ("site", "flow", "heat")
    assert LatentDetector(epochs=1, hidden=(4,)).fit(*problem()).explain(problem()[0]).columns[1] == "column 1"


@pytest.mark.parametrize("kind", ["neighbors", "mixture_forest", "latent"])
def test_parts_of_padded_images_sum_to_the_score(kind: str) -> None:
    # 6 × 7 pixels are padded to 8 × 8, and what the padding adds belongs to no pixel: it is in the rest.
    images = np.random.default_rng(0).random((40, 6, 7))
    y = (np.arange(40) < 4).astype(int)
    detector: Any = (
        LatentDetector(epochs=1, hidden=(4,), latent=1)
        if kind == "latent"
        else NoiseContrastiveDetector(members=kind, n_trees=3, steps=3, calibration_folds=0)
    )
    found = detector.fit(images, y).explain(images)
    np.testing.assert_allclose(found.anomaly, detector.anomaly_score(images), atol=1e-6)
    assert found.columns[8] == "pixel (1, 1)"
    parts = found.parts(3)
    assert sum(parts.values()) == pytest.approx(float(found.anomaly[3]), abs=1e-9)
    image = found.plot(3).images[0]
    np.testing.assert_array_equal(image.get_array(), found.total[3])
    assert image.get_clim()[0] == -image.get_clim()[1]
    np.testing.assert_allclose(found.plot().images[0].get_array(), found.total.mean(0))


def test_bars_of_a_row_sum_to_its_score(fitted: NoiseContrastiveDetector) -> None:
    found = fitted.explain(frame())
    ax = found.plot(259)
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(found.anomaly[259])
    assert [label.get_text() for label in ax.get_yticklabels()][::-1][0] == "heat"
    assert f"{found.anomaly[259]:.2f}" in ax.get_title()
    # Many columns: the largest have a bar, and the others one together.
    rng = np.random.default_rng(0)
    wide = Explanation(rng.normal(size=(1, 30)), np.zeros((1, 30)), np.array([0.5]), 1.0)
    ax = wide.plot(top=5)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:3] == ["base", "rest", "25 other columns"]
    assert len(labels) == 8
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(wide.anomaly[0])
    with pytest.raises(ValueError, match="top"):
        wide.plot(top=0)
    with pytest.raises(ValueError, match="explanation"):
        wide[:0].plot()


def test_dots_of_many_rows_are_their_contributions(fitted: NoiseContrastiveDetector) -> None:
    import matplotlib.pyplot as plt

    found = fitted.explain(frame())
    ax = found.plot()
    order = np.argsort(np.abs(found.total).mean(0))
    assert [label.get_text() for label in ax.get_yticklabels()] == [found.columns[column] for column in order]
    offsets = np.asarray(ax.collections[2].get_offsets())
    np.testing.assert_array_equal(offsets[:, 0], found.total[:, 2])
    figure, own = plt.subplots()
    assert found.plot(ax=own, top=1) is own
    assert len(own.collections) == 1
    plt.close(figure)
    assert plt.get_fignums() == []  # a picture of its own is no window


@pytest.mark.parametrize(("shape", "axis"), [((5, 6), None), ((3, 5, 6), 0), ((5, 6, 3), 2)])
def test_a_heat_map_has_the_sides_of_the_image(shape: tuple[int, ...], axis: int | None) -> None:
    parts = np.random.default_rng(0).normal(size=(2, *shape))
    found = Explanation(parts, np.zeros_like(parts), np.zeros(2), 0.0)
    shown = found.plot(row=1).images[0].get_array()
    np.testing.assert_allclose(shown, parts[1] if axis is None else parts[1].sum(axis))


def test_words_mark_outliers_wherever_labels_are_given(fitted: NoiseContrastiveDetector) -> None:
    X, y = frame(), problem()[1]
    words = np.where(y == 1, "Outlier", "inlier")
    for scorer in (scorers.roc_auc, scorers.average_precision, scorers.precision_at_k):
        assert scorer(fitted, X, words) == scorer(fitted, X, y)
    assert fitted.score(X, words) == fitted.score(X, y)
    assert len(fitted.plot_scores(X, words).patches) == len(fitted.plot_scores(X, y).patches)
    for refused in (np.where(y == 1, "a", "b"), np.where(y == 1, -1, 1)):
        with pytest.raises(ValueError, match=r"^y "):
            fitted.score(X, refused)
        with pytest.raises(ValueError, match=r"^y "):
            fitted.plot_scores(X, refused)


def test_a_notebook_shows_the_fit_and_not_only_the_settings(fitted: NoiseContrastiveDetector) -> None:
    first = str(fitted.evidence_).splitlines()[0]
    for shown in (fitted._repr_html_(), fitted._repr_mimebundle_()["text/html"]):
        assert first in shown
        assert "NoiseContrastiveDetector" in shown
        assert "P(outlier | x)" in shown
    assert "are flagged" not in NoiseContrastiveDetector()._repr_html_()
    with config_context(display="text"):
        assert not hasattr(fitted, "_repr_html_")
        assert set(fitted._repr_mimebundle_()) == {"text/plain"}


def test_codes_are_a_transformation_with_names(latent: LatentDetector) -> None:
    X, y = problem()
    np.testing.assert_array_equal(latent.transform(X), latent.codes(X))
    assert latent.get_feature_names_out().tolist() == ["latentdetector0", "latentdetector1"]
    with config_context(transform_output="pandas"):
        assert list(latent.transform(X).columns) == ["latentdetector0", "latentdetector1"]
    made = LatentDetector(epochs=1, hidden=(4,), latent=1).set_output(transform="pandas")
    assert isinstance(made.fit_transform(X, y), pd.DataFrame)
    piped = make_pipeline(LatentDetector(epochs=1, hidden=(4,), latent=2), IsolationForest(n_estimators=5))
    assert piped.fit(X, y).predict(X).shape == (260,)


def test_scorers_are_the_right_way_round(fitted: NoiseContrastiveDetector) -> None:
    X, y = frame(), problem()[1]
    anomaly = fitted.anomaly_score(X)
    assert scorers.roc_auc(fitted, X, y) == fitted.score(X, y) == roc_auc_score(y, anomaly) > 0.9
    assert scorers.average_precision(fitted, X, y) == average_precision_score(y, anomaly)
    top = np.argsort(-anomaly)[:10]
    assert scorers.precision_at_k(fitted, X, y, k=10) == y[top].mean()
    assert scorers.precision_at_k(fitted, X, y) == y[np.argsort(-anomaly)[:20]].mean()
    # Equal scores that straddle the k-th place count by their share: 1 of 2 outliers among 4 places for 8 rows.
    level = IsolationForest(n_estimators=2).fit(np.zeros((8, 1)))
    assert scorers.precision_at_k(level, np.zeros((8, 1)), np.arange(8) < 2, k=4) == 0.25
    with pytest.raises(ValueError, match="k must be at most"):
        scorers.precision_at_k(fitted, X, y, k=261)
    for scorer in (scorers.roc_auc, scorers.average_precision, scorers.precision_at_k):
        with pytest.raises(ValueError, match="found 0 outliers in 260"):
            scorer(fitted, X, np.zeros(260))
        with pytest.raises(ValueError, match="found -1"):
            scorer(fitted, X, 1 - 2 * y)


def test_scorers_serve_searches_without_a_warning() -> None:
    X, y = problem()
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), NoiseContrastiveDetector(n_trees=5, calibration_folds=0)),
        {"noisecontrastivedetector__members": ["outlier_forest", "mixture_forest"]},
        cv=folds,
        scoring={
            "auroc": scorers.roc_auc,
            "ap": scorers.average_precision,
            "p5": partial(scorers.precision_at_k, k=5),
        },
        refit="ap",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = search.fit(X, y).cv_results_
    assert found["mean_test_auroc"].min() > 0.9
    assert found["mean_test_p5"].min() > 0.5


@pytest.mark.parametrize("scoring", ["roc_auc", "average_precision", "accuracy"])
@pytest.mark.parametrize("piped", [False, True])
def test_a_scorer_with_the_other_sign_is_noticed(scoring: str, piped: bool) -> None:
    X, y = problem()
    detector: Any = NoiseContrastiveDetector(n_trees=3, members="outlier_forest", calibration_folds=0)
    detector = make_pipeline(StandardScaler(), detector) if piped else detector
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    with pytest.warns(InvertedScoreWarning, match=r"fvnce\.detection\.scorers\.roc_auc"):
        cross_val_score(detector, X, y, cv=folds, scoring=scoring)


def test_only_scorers_are_warned_of(fitted: NoiseContrastiveDetector) -> None:
    y = problem()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert roc_auc_score(y, -fitted.decision_function(frame())) > 0.9
        fitted.predict(frame())
        folds = StratifiedKFold(2, shuffle=True, random_state=0)
        cross_val_score(NoiseContrastiveDetector(n_trees=3, members="outlier_forest"), *problem(), cv=folds)


def test_one_column_that_has_no_bar_of_its_own_is_told_in_the_singular():
    found = Explanation(np.array([[2.0, 1.0, -0.5]]), np.zeros((1, 3)), np.zeros(1), 0.25)
    for top, words in ((2, "1 other column"), (1, "2 other columns")):
        assert words in [label.get_text() for label in found.plot(0, top=top).get_yticklabels()]
