"""p-values are super-uniform on rows like those of training, and alarms keep their false discovery rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fvnce.detection import Conformal, LatentDetector, NoiseContrastiveDetector
from fvnce.detection.trust.calibration import most_hidden
from fvnce.detection.trust.conformal import draw_split, reject
from fvnce.io import FileError
from fvnce.tables.frame import Frame
from fvnce.tables.schema import learn_types, plain_matrix, read_by, text_bytes

Array = NDArray[np.float64]

QUICK: dict[str, Any] = {"n_trees": 6, "n_networks": 1, "steps": 10, "expert": {"batch_size": 32, "hidden": (8,)}}
#: One tree for the p-values' model, one member: a detector that takes a few milliseconds.
TINY: dict[str, Any] = {"n_trees": 3, "members": "isolation_forest"}


#: Draws of n scores of normal rows.
SHAPES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "t4": lambda rng, n: rng.standard_t(4, size=n),
    "uniform": lambda rng, n: 3 * rng.random(n),
    "lognormal": lambda rng, n: np.exp(0.5 * rng.normal(size=n)),
}


def problem(seed: int = 0, rows: int = 400, hidden: int = 10, known: int = 10) -> tuple[Array, NDArray[np.int64]]:
    """Gaussian rows and a cluster of outliers, of which the last are known."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(size=(rows, 3)), rng.normal(4, 0.5, size=(hidden + known, 3))])
    return X, np.repeat([0, 1], [rows + hidden, known])


@pytest.mark.parametrize("scores", [np.arange(20.0), np.array([0.0] * 7 + [1.0] * 10 + [2.0] * 3)])
def test_each_of_exchangeable_rows_may_be_the_new_one(scores: Array) -> None:
    # Exact, by going through all of them: the share with p ≤ t is at most t, and is t where no scores are equal.
    p = [Conformal.of(np.delete(scores, i), np.ones(19)).p_value(scores[i : i + 1])[0] for i in range(20)]
    for t in np.linspace(0, 1, 41):
        assert np.mean(p <= t + 1e-12) <= t + 1e-12
    if len(set(scores)) == 20:
        np.testing.assert_allclose(np.sort(p), np.arange(1, 21) / 20)


def test_a_weight_is_a_count_of_rows() -> None:
    scores, new = np.array([3.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.5, 4.0])
    counted = Conformal.of(scores, np.array([2.0, 1.0, 1.0]))
    repeated = Conformal.of(np.array([3.0, 3.0, 1.0, 2.0]), np.ones(4))
    np.testing.assert_allclose(counted.p_value(new), repeated.p_value(new))
    np.testing.assert_allclose(counted.p_value(new), [1, 1, 3 / 5, 1 / 5])
    # Weights that are no counts: only their ratios matter.
    for factor in (0.3, 7.7):
        found = Conformal.of(scores, factor * np.array([1.0, 1.0, 0.5])).p_value(new)
        np.testing.assert_allclose(found, Conformal.of(scores, np.array([0.4, 0.4, 0.2])).p_value(new))


def _rates(
    contamination: float, strange: float, *, discount: bool = False, shape: str = "normal", away: float = 4.0
) -> tuple[Array, Array]:
    """False discovery proportion and power of 200 repetitions at fdr = 0.2."""
    rates = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        scores = SHAPES[shape](rng, 1000) + away * (rng.random(1000) < contamination)
        outlier = np.arange(200) < 200 * strange
        p = Conformal.of(scores, np.ones(1000)).p_value(SHAPES[shape](rng, 200) + away * outlier, discount=discount)
        flagged = reject(p, 0.2)
        rates.append(((flagged & ~outlier).sum() / max(1, flagged.sum()), flagged[outlier].mean() if strange else 0.0))
    false, power = np.array(rates).T
    return false, power


def test_the_false_discovery_rate_holds_over_200_repetitions() -> None:
    false, power = _rates(0.0, 0.1)
    # Proved: E ≤ 0.2 · 0.9. One-sided at 4 standard errors of the mean, a false alarm in 30,000 sets of repetitions.
    assert false.mean() <= 0.18 + 4 * false.std() / np.sqrt(200)
    assert power.mean() > 0.9
    assert false.mean() > 0.1  # and is not idle


def test_what_hidden_outliers_do_to_it() -> None:
    clean, few, same = (_rates(share, 0.1) for share in (0.0, 0.01, 0.1))
    # Fewer false alarms, and less is found: nothing at all where new rows hold what the training rows held.
    assert few[0].mean() < clean[0].mean()
    assert few[1].mean() > 0.75
    assert same[1].mean() < 0.02
    # Discounted, they are found again.
    false, power = _rates(0.1, 0.1, discount=True)
    assert power.mean() > 0.6
    assert false.mean() < 0.2


@pytest.mark.parametrize("away", [3.0, 4.0, 6.0])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_discounting_hidden_outliers_keeps_the_rate(shape: str, share: float, away: float) -> None:
    false, power = _rates(share, share, discount=True, shape=shape, away=away)
    # One-sided at 3.5 standard errors: over all settings a false alarm in 100 sets of repetitions.
    assert false.mean() <= 0.2 + 3.5 * false.std() / np.sqrt(200)
    # Without hidden outliers nothing changes. With them at 6 deviations most are found again.
    if share == 0:
        plain, _ = _rates(share, share, shape=shape, away=away)
        assert abs(false.mean() - plain.mean()) < 0.03
    elif away == 6:
        assert power.mean() > 5 * _rates(share, share, shape=shape, away=away)[1].mean()


def test_no_row_is_discounted_where_the_scale_of_the_tail_is_unknown() -> None:
    new = np.linspace(0, 3, 50)
    for scores in (np.repeat([0.0, 1.0, 2.0], [950, 40, 10]), np.zeros(100), np.arange(4.0)):
        conformal = Conformal.of(scores, np.ones(len(scores)))
        np.testing.assert_array_equal(conformal.p_value(new, discount=True), conformal.p_value(new))


def test_discounted_p_values_fall_with_the_score_and_are_no_larger() -> None:
    rng = np.random.default_rng(0)
    conformal = Conformal.of(np.concatenate([rng.normal(size=900), rng.normal(6, 1, size=60)]), np.ones(960))
    new = np.linspace(-4, 12, 300)
    p = conformal.p_value(new, discount=True)
    assert (np.diff(p) <= 0).all()
    assert (p <= conformal.p_value(new)).all()
    assert p[-1] == 1 / 961
    # Twice each row is a weight of two.
    twice = Conformal.of(np.repeat(conformal.scores, 2), np.ones(1920))
    weighted = Conformal.of(conformal.scores, np.full(960, 2.0))
    np.testing.assert_allclose(twice.p_value(new, discount=True), weighted.p_value(new, discount=True))


def test_no_more_rows_are_discounted_than_may_be_hidden_outliers() -> None:
    # Eight inliers of a hundred are a cluster of their own, far above the others.
    rng = np.random.default_rng(0)
    scores, new = (np.where(rng.random(n) < 0.08, 8.0, 0.0) + rng.normal(size=n) for n in (1000, 200))
    conformal = Conformal.of(scores, np.ones(1000))
    assert reject(conformal.p_value(new, discount=True), 0.1).sum() > 10  # taken for outliers
    for hidden in (0.0, 0.01):
        p, plain = replace(conformal, hidden=hidden).p_value(new, discount=True), conformal.p_value(new)
        assert (p <= plain).all()
        assert (p >= plain - hidden - 1e-12).all()
        assert not reject(p, 0.1).any()


def test_the_fraction_of_hidden_outliers_is_bounded_by_known_ones() -> None:
    # Of 1,000 rows 80 score higher than the others, of which 20 score like four known outliers.
    unlabeled = np.concatenate([np.zeros(920), np.full(60, 5.0), np.full(20, 9.0)])
    for times in (1.0, 0.5):  # only the ratios of weights matter
        most = most_hidden(unlabeled, np.full(1000, times), np.full(4, 8.0), np.full(4, times))
        assert 0.02 < most < 0.06
    assert most_hidden(unlabeled, np.ones(1000), np.full(4, 10.0), np.ones(4)) < 0.002
    # One known outlier below all 80 leaves the bound of the other three, where they alone count.
    assert most_hidden(unlabeled, np.ones(1000), np.array([4.0, 8.0, 8.0, 8.0]), np.ones(4)) < 0.1


def test_a_minority_of_inliers_is_not_taken_for_hidden_outliers() -> None:
    rng = np.random.default_rng(0)
    X, new = (rng.normal(size=(n, 3)) - 6 * (rng.random(n) < 0.08)[:, None] * [1, 0, 0] for n in (600, 400))
    known = rng.normal(4, 1, size=(10, 3))
    detector = NoiseContrastiveDetector(n_trees=20, n_networks=1, steps=50)
    detector.fit(np.concatenate([X, known]), np.repeat([0, 1], [600, 10]))
    assert detector.discounts
    assert detector.conformal_.hidden < 0.04
    assert (detector.p_value(new, discount=True) < 0.02).mean() < 0.04


def test_every_rank_of_a_sorted_table_is_held_out_equally_often_at_one_seed() -> None:
    tables = [np.sort(np.random.default_rng(seed).normal(size=30)) for seed in range(400)]
    held = np.array([draw_split(table[:, None], np.ones(30), seed=0) for table in tables])
    assert (held.sum(1) == 15).all()
    # Of 400 fair draws each: 5 standard deviations, over 30 ranks a false alarm in 60,000.
    assert np.abs(held.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(400)
    # A row of weight 3 is three rows, drawn one by one; their number is hypergeometric with mean 1.5.
    counts = np.array([draw_split(table[:, None], np.repeat([1.0, 3.0], 15), seed=0) for table in tables])
    assert np.abs(counts.mean(0) - np.repeat([0.5, 1.5], 15)).max() < 5 * 0.9 / np.sqrt(400)
    assert set(np.unique(counts[:, 15:])) == {0, 1, 2, 3}
    first, second = (draw_split(tables[0][:, None], np.ones(30), seed=seed) for seed in (0, 1))
    assert first is not None
    assert second is not None
    assert (first == held[0]).all()
    assert (first != second).any()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one column", "counts", "known", "left over"])
def test_a_fitted_detector_is_super_uniform_on_rows_like_its_own(how: str) -> None:
    """At the default seed: what is drawn anew is the data, as for somebody who fits once."""
    options: dict[str, Any] = {
        "one column": {},
        "counts": TINY,
        "known": {"n_trees": 3, "members": ("neighbors", "outlier_forest"), "calibration_folds": 1},
        "left over": {"max_rows": 20},
    }[how]
    below: list[list[float]] = []
    levels = np.array([0.05, 0.1, 0.2, 0.25, 0.5])
    sets = 300 if how in ("one column", "left over") else 200
    for seed in range(sets):
        rng = np.random.default_rng(seed)
        # Rows of the second kind have many equals, which a split of whole groups would treat unequally.
        rows = rng.poisson(0.7, size=(120, 2)).astype(float) if how == "counts" else rng.normal(size=(120, 1))
        X, new = rows[:60], rows[60:]
        if how == "left over":  # of rows in order, as tables often are
            rows = rng.gamma(1.0, size=(100, 1))
            X, new = np.sort(rows[:40], axis=0), rows[40:]
        y = None
        if how == "known":
            X, y = np.concatenate([X, rng.normal(5, 1, size=(4, 1))]), np.repeat([0, 1], [60, 4])
        p = NoiseContrastiveDetector(**options).fit(X, y).p_value(new)
        below.append((p[:, None] <= levels + 1e-12).mean(0).tolist())
    mean, error = np.mean(below, 0), np.std(below, 0) / np.sqrt(sets)
    # Each one-sided at 3.5 standard errors over independent repetitions: for all twenty, a false alarm in 200.
    assert (mean <= levels + 3.5 * error).all(), (mean, error)


@pytest.mark.slow
@pytest.mark.parametrize("known", [0, 6])
def test_alarms_of_a_fitted_detector_keep_their_rate(known: int) -> None:
    options = {**TINY, "n_trees": 30}
    if known:
        options = {"n_trees": 9, "members": "outlier_forest", "calibration_folds": 1}
    rates = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        X = np.concatenate([rng.normal(size=(300, 2)), rng.normal(6, 1, size=(known, 2))])
        new = np.concatenate([rng.normal(size=(80, 2)), rng.normal(6, 1, size=(20, 2))])
        detector = NoiseContrastiveDetector(**options).fit(X, np.repeat([0, 1], [300, known]))
        flagged = detector.predict(new, fdr=0.2) == -1
        rates.append((flagged[:80].sum() / max(1, flagged.sum()), flagged[80:].mean()))
    false, power = np.array(rates).T
    # E ≤ 0.2 · 0.8, one-sided at 4 standard errors.
    assert false.mean() <= 0.16 + 4 * false.std() / np.sqrt(60)
    assert power.mean() > (0.5 if known else 0.1)  # beyond all rows, one cell of a broad forest is like another


def test_hidden_outliers_are_discounted_with_known_ones() -> None:
    X, y = problem(rows=1000, hidden=60, known=40)
    detector = NoiseContrastiveDetector(n_trees=60, members="mixture_forest").fit(X, y)
    new, fresh = problem(seed=1, hidden=40, known=0)[0], np.random.default_rng(2).normal(size=(400, 3))
    with pytest.warns(UserWarning, match=r"no alarm.*score as high.*label some outliers"):
        assert (detector.predict(new, fdr=0.1, discount=False) == 1).all()
    assert (detector.predict(new, fdr=0.2)[400:] == -1).mean() > 0.8  # where outliers are known, by default
    assert (detector.predict(new, fdr=0.2, discount=True) == detector.predict(new, fdr=0.2)).all()
    assert (detector.predict(fresh, fdr=0.2) == -1).mean() < 0.02
    # Without known outliers only if asked for.
    alone = NoiseContrastiveDetector(n_trees=60).fit(X)
    assert not alone.discounts
    with pytest.warns(UserWarning, match=r"no alarm"):
        assert (alone.predict(new, fdr=0.1) == 1).all()
    assert (alone.predict(new, fdr=0.2, discount=True)[400:] == -1).mean() > 0.8


def test_rows_in_another_order_and_weights_give_the_same_bits() -> None:
    X, y = problem()
    counts = np.random.default_rng(3).integers(0, 3, len(X))
    weighted = NoiseContrastiveDetector(**QUICK).fit(X, y, sample_weight=counts)
    order = np.random.default_rng(4).permutation(int(counts.sum()))
    repeated = NoiseContrastiveDetector(**QUICK).fit(X.repeat(counts, 0)[order], y.repeat(counts)[order])
    for discount in (False, True):
        np.testing.assert_array_equal(weighted.p_value(X, discount=discount), repeated.p_value(X, discount=discount))
    plain = {"auroc": None, "average_precision": None, "reason": None}
    assert {**weighted.evidence_.as_dict(), **plain} == {**repeated.evidence_.as_dict(), **plain}
    # A row of weight 2 is not two independent rows, as far as an interval is concerned.
    one, other = weighted.evidence_.auroc, repeated.evidence_.auroc
    assert one is not None
    assert other is not None
    assert one.value == pytest.approx(other.value)
    assert one.low < other.low < other.high < one.high
    np.testing.assert_array_equal(weighted.decision_scores_.repeat(counts)[order], repeated.decision_scores_)
    # What is no count is a weight, too.
    assert np.isfinite(NoiseContrastiveDetector(**QUICK).fit(X, y, sample_weight=counts / 3).p_value(X)).all()


def test_rows_that_are_left_over_measure_the_detector_itself() -> None:
    X, y = problem()
    detector = NoiseContrastiveDetector(**QUICK, max_rows=150).fit(X, y)
    assert detector.conformal_ is not None
    assert detector.conformal_.model is None
    assert len(detector.conformal_.scores) == 150
    anomaly, p = detector.anomaly_score(X), detector.p_value(X)
    assert (np.diff(p[np.argsort(anomaly)]) <= 0).all()
    with pytest.raises(AttributeError, match="max_rows = 150"):
        _ = detector.decision_scores_
    assert not hasattr(detector, "labels_")


@pytest.mark.parametrize("kind", ["known", "none", "left over", "latent", "images"])
def test_a_saved_detector_finds_the_same(kind: str, tmp_path: Path) -> None:
    X, y = problem()
    detector: Any = NoiseContrastiveDetector(**QUICK, max_rows=150 if kind == "left over" else 20_000)
    if kind == "latent":
        detector = LatentDetector(epochs=1, hidden=(4,), latent=1)
    if kind == "images":
        X = np.random.default_rng(0).random((40, 6, 7))
        y = np.repeat([0, 1], [36, 4])
        detector = NoiseContrastiveDetector(n_trees=3, members="mixture_forest")
    detector.fit(X, None if kind == "none" else y)
    loaded = type(detector).load(detector.save(tmp_path / "detector.safetensors"))
    np.testing.assert_array_equal(loaded.p_value(X), detector.p_value(X))
    np.testing.assert_array_equal(loaded.predict(X, fdr=0.6), detector.predict(X, fdr=0.6))
    np.testing.assert_array_equal(loaded.feature_importances_, detector.feature_importances_)
    assert loaded.evidence_ == detector.evidence_
    assert hasattr(loaded, "decision_scores_") == (kind != "left over")
    if kind != "left over":
        np.testing.assert_array_equal(loaded.decision_scores_, detector.decision_scores_)
    shown = str(detector.evidence_).splitlines()[0]
    assert all(shown in found for found in (loaded._repr_html_(), detector._repr_html_()))


def _conformal(**changes: Callable[[Conformal], Any]) -> Callable[[Any], Any]:
    def forge(findings: Any) -> Any:
        made = {name: change(findings.conformal) for name, change in changes.items()}
        return replace(findings, conformal=replace(findings.conformal, **made))

    return forge


FORGED: dict[str, Callable[[Any], Any]] = {
    "scores in disorder": _conformal(scores=lambda c: c.scores[::-1].copy()),
    "NaN": _conformal(scores=lambda c: np.full_like(c.scores, np.nan)),
    "weights below 0": _conformal(weights=lambda c: -c.weights),
    "too few weights": _conformal(weights=lambda c: c.weights[1:]),
    "another model": _conformal(
        model=lambda c: replace(c.model, ensemble=replace(c.model.ensemble, units=[(0.0, 0.0)] * 5))
    ),
    "p-values and why none": lambda f: replace(f, no_p_value="none"),
    "no p-values": lambda f: replace(f, conformal=None),
    "importances": lambda f: replace(f, importances=f.importances[:2]),
    "no scores": lambda f: replace(f, scores=None),
    "scores of NaN": lambda f: replace(f, scores=f.scores * np.nan),
    "AUROC of 3": lambda f: replace(f, evidence=replace(f.evidence, auroc=replace(f.evidence.auroc, value=3.0))),
    "AUROC of nobody": lambda f: replace(f, evidence=replace(f.evidence, auroc=None)),
    "a number as reason": lambda f: replace(f, evidence=replace(f.evidence, threshold_reason=3)),
    "NaN flagged": lambda f: replace(f, evidence=replace(f.evidence, flagged=float("nan"))),
}


@pytest.fixture(scope="module")
def fitted() -> NoiseContrastiveDetector:
    return NoiseContrastiveDetector(**QUICK).fit(*problem())


@pytest.mark.parametrize("case", FORGED)
def test_forged_findings_are_refused(case: str, fitted: NoiseContrastiveDetector, tmp_path: Path) -> None:
    path = tmp_path / "forged.safetensors"
    findings = fitted.findings_
    try:
        fitted.findings_ = FORGED[case](findings)
        fitted.save(path)
    finally:
        fitted.findings_ = findings
    with pytest.raises(FileError, match="not a detector that fvnce wrote"):
        NoiseContrastiveDetector.load(path)


def test_what_cannot_be_had_is_said(fitted: NoiseContrastiveDetector) -> None:
    X, y = problem()
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="fdr"):
            fitted.predict(X, fdr=wrong)
    with pytest.raises(ValueError, match=r"discount.*True"):
        fitted.predict(X, discount=True)
    with pytest.raises(ValueError, match="calibration_folds = 0"):
        NoiseContrastiveDetector(**QUICK, calibration_folds=0).fit(X, y).p_value(X)
    with pytest.raises(ValueError, match="fewer than 8"):
        NoiseContrastiveDetector(**TINY).fit(X[:7]).p_value(X)
    with pytest.raises(ValueError, match="validation = 0"):
        LatentDetector(epochs=1, hidden=(4,), validation=0.0).fit(X, y).p_value(X)


@pytest.mark.slow
def test_a_latent_detector_is_super_uniform_too() -> None:
    levels, below = np.array([0.1, 0.25, 0.5]), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows = rng.gamma(1.0, size=(160, 2))
        X = rows[:100][np.argsort(rows[:100, 0])]  # as tables often are
        detector = LatentDetector(epochs=1, hidden=(4,), latent=1, validation=0.3).fit(X)
        below.append((detector.p_value(rows[100:])[:, None] <= levels + 1e-12).mean(0))
    mean, error = np.mean(below, 0), np.std(below, 0) / np.sqrt(40)
    # One-sided at 4 standard errors over independent repetitions.
    assert (mean <= levels + 4 * error).all()


def payments(rows: int = 120, seed: int = 0) -> Any:
    """A row counter, names of rows, rare towns, amounts in text, and dates that seldom tell day from month."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "row": 1000 * seed + np.arange(rows),
            "payment": [f"P{seed}-{i}" for i in range(rows)],
            "town": [f"town {i}" for i in rng.zipf(1.6, rows).clip(max=40)],
            "amount": [f"{value:,.2f}" for value in rng.lognormal(6, 1, rows)],
            "date": [
                f"{d}/{m}/2024" for d, m in zip(rng.integers(1, 14, rows), rng.integers(1, 13, rows), strict=True)
            ],
        }
    )


def test_tables_of_different_texts_have_splits_of_their_own() -> None:
    """Codes of different texts are 0 … n − 1 in every table; amounts of money as text are such a column."""
    pd = pytest.importorskip("pandas")
    held = set()
    for seed in range(5):
        amounts = np.random.default_rng(seed).normal(5000, 1000, size=40)
        table = Frame.of(pd.DataFrame({"amount": [f"${value:09.2f}" for value in np.sort(amounts)]}))
        drawn = draw_split(plain_matrix(table), np.ones(40), 0, *text_bytes(table, np.ones(40, dtype=bool)))
        assert drawn is not None
        held.add(drawn.tobytes())
    assert len(held) == 5


@pytest.mark.slow
def test_p_values_of_money_as_text_are_super_uniform_at_the_default_seed() -> None:
    pd = pytest.importorskip("pandas")
    below = []
    for seed in range(60):
        amounts = np.random.default_rng(seed).normal(5000, 1000, size=172)
        frame = pd.DataFrame({"amount": [f"${value:09.2f}" for value in amounts]})
        detector = NoiseContrastiveDetector().fit(frame.iloc[:72])
        below.append((detector.p_value(frame.iloc[72:]) <= 0.2).mean())
    # 0.309 ± 0.006 with a split that is the same for every table.
    assert np.mean(below) < 0.2 + 3 * np.std(below) / np.sqrt(len(below))


def test_a_weight_that_all_rows_have_changes_no_p_value() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    plain, heavy = (NoiseContrastiveDetector().fit(X, sample_weight=weight) for weight in (None, np.full(60, 10.0)))
    np.testing.assert_array_equal(plain.p_value(X), heavy.p_value(X))


@pytest.mark.filterwarnings("ignore:column 'row':UserWarning", "ignore:column 'payment':UserWarning")
def test_how_columns_are_read_is_learnt_without_the_rows_that_are_held_out() -> None:
    frame = payments()
    detector = NoiseContrastiveDetector(n_trees=3).fit(frame)
    table = Frame.of(frame)
    order = np.lexsort(plain_matrix(table).T[::-1])
    every = np.ones(120, dtype=bool)
    texts = text_bytes(table.take(order), every)
    held = draw_split(plain_matrix(table)[order], np.ones(120), np.random.RandomState(0).randint(2**31 - 1), *texts)
    assert held is not None
    kept = order[held == 0]
    conformal = detector.conformal_
    assert conformal is not None
    assert conformal.model is not None
    readings = getattr(conformal.model.preprocessor, "readings", None)
    assert readings == learn_types(table.take(kept), of=120)
    assert set(readings[2].codes) == set(frame["town"].iloc[kept]) < set(frame["town"])
    # Half of a row counter is one too, and half of the names of rows.
    assert [reading.ignored for reading in readings] == [True, True, False, False, False]
    assert np.median(detector.p_value(payments(seed=1))) > 0.3


@pytest.mark.filterwarnings("ignore:column 'row':UserWarning", "ignore:column 'payment':UserWarning")
@pytest.mark.parametrize("kind", ["left over", "latent"])
def test_rows_that_measure_the_detector_itself_have_no_part_in_its_readings(kind: str) -> None:
    frame = payments()
    detector: Any = LatentDetector(epochs=1, hidden=(4,), validation=0.4)
    if kind == "left over":
        detector = NoiseContrastiveDetector(n_trees=3, max_rows=60)
    detector.fit(frame)
    readings = detector.preprocessor_.readings
    assert set(readings[2].codes) < set(frame["town"])
    assert [reading.ignored for reading in readings] == [True, True, False, False, False]
    assert np.isfinite(detector.p_value(payments(seed=1).replace({"town": {"town 1": "town 99"}}))).all()


def test_a_part_of_a_table_says_how_the_others_are_read() -> None:
    columns = {"amount": ["1.5", "2", "1e9x", "x", "inf"], "day": ["1/3/2024", "2/3/2024", "13/3/2024", None, "x"]}
    frame = Frame({name: np.array(values, dtype=object) for name, values in columns.items()})
    matrix, readings = read_by(frame, np.arange(2), of=5)
    assert [reading.kind for reading in readings] == ["number", "time"]
    np.testing.assert_array_equal(matrix[:, 0], [1.5, 2.0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(np.isnan(matrix[:, 1]), [False, False, True, True, True])


@pytest.mark.filterwarnings("ignore:column 'row':UserWarning", "ignore:column 'payment':UserWarning")
def test_a_data_frame_in_another_order_and_weights_give_the_same_bits() -> None:
    frame, y = payments(), np.repeat([0, 1], [110, 10])
    counts = np.random.default_rng(3).integers(1, 3, 120)
    weighted = NoiseContrastiveDetector(**QUICK).fit(frame, y, sample_weight=counts)
    order = np.random.default_rng(4).permutation(120)
    shuffled = NoiseContrastiveDetector(**QUICK).fit(frame.iloc[order], y[order], sample_weight=counts[order])
    for discount in (False, True):
        np.testing.assert_array_equal(
            weighted.p_value(frame, discount=discount), shuffled.p_value(frame, discount=discount)
        )
    assert np.isfinite(NoiseContrastiveDetector(**QUICK).fit(frame, y, sample_weight=counts / 3).p_value(frame)).all()
