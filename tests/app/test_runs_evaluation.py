"""``fvnce evaluate``: how well labeled outliers are found, with intervals that cover."""

import csv
import io
import json

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score

from commands import QUICK, fvnce
from fvnce.app.runs import load_run
from fvnce.app.runs.evaluation import evaluate
from fvnce.detection.scorers import precision_at_k
from fvnce.tables import FileError


def test_numbers_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    outlier = np.arange(200) < 30
    scores = np.round(rng.normal(size=200) + 1.5 * outlier, 1)  # with ties

    class Fixed:
        def score_samples(self, X):
            return -scores

    for k in (None, 1, 17, 200):
        numbers = evaluate(scores, scores > 1.0, outlier, 1.0, k).numbers
        flagged = scores > 1.0
        expected = {
            "auroc": roc_auc_score(outlier, scores),
            "average_precision": average_precision_score(outlier, scores),
            "precision_at_threshold": precision_score(outlier, flagged),
            "recall_at_threshold": recall_score(outlier, flagged),
            "precision_at_k": precision_at_k(Fixed(), scores, outlier.astype(int), k),
        }
        for name, value in expected.items():
            assert numbers[name].value == pytest.approx(value, abs=1e-12)
            assert 0 <= numbers[name].low <= numbers[name].high <= 1
        assert numbers["recall_at_k"].value == pytest.approx(expected["precision_at_k"] * (k or 30) / 30)
    nothing = evaluate(scores, scores > 99.0, outlier, 99.0)
    assert nothing.numbers["precision_at_threshold"] is None
    assert nothing.numbers["recall_at_threshold"].value == 0
    for wrong in (np.zeros(200, bool), np.ones(200, bool)):
        with pytest.raises(FileError, match=r"labels must .*found (0|200) outliers"):
            evaluate(scores, scores > 1.0, wrong, 1.0)
    with pytest.raises(FileError, match=r"--k .*200, found 201"):
        evaluate(scores, scores > 1.0, outlier, 1.0, 201)


@pytest.mark.slow
@pytest.mark.parametrize("outliers", [3, 20])
def test_intervals_cover(outliers):
    """Normal scores that are 2 apart, the threshold 1.5 above the others: of each number, 93 % of 100 intervals or more
    hold the truth of the distribution."""
    rng = np.random.default_rng(0)
    others, threshold = 200, 1.5
    outlier = np.arange(outliers + others) < outliers

    def share(t):
        """Of all rows, how many score above t."""
        return (outliers * norm.sf(t - 2) + others * norm.sf(t)) / (outliers + others)

    at_k = brentq(lambda t: share(t) - outliers / (outliers + others), -9, 9)
    t = np.linspace(-9, 12, 20_001)
    precision = outliers * norm.sf(t - 2) / (outliers * norm.sf(t - 2) + others * norm.sf(t))
    truth = {
        "auroc": norm.cdf(2**0.5),
        "average_precision": trapezoid(precision * norm.pdf(t - 2), t),
        "precision_at_threshold": np.interp(threshold, t, precision),
        "recall_at_threshold": norm.sf(threshold - 2),
        "precision_at_k": np.interp(at_k, t, precision),
        "recall_at_k": norm.sf(at_k - 2),
    }
    covered = dict.fromkeys(truth, 0)
    for _ in range(100):
        scores = rng.normal(size=len(outlier)) + 2 * outlier
        numbers = evaluate(scores, scores > threshold, outlier, threshold).numbers
        for name, true in truth.items():
            covered[name] += numbers[name] is None or numbers[name].low <= true <= numbers[name].high
    assert min(covered.values()) >= 0.93 * 100, covered


def test_evaluate_tells_what_is_found(payments, tmp_path):
    out, said = fvnce("evaluate", payments / "run", payments / "later.csv", "--plot", tmp_path / "found.png")
    found = json.loads(fvnce("evaluate", payments / "run", payments / "later.csv", "--json")[0])
    assert (found["rows"], found["outliers"], found["k"]) == (300, 18, 18)
    assert f"{found['found']} of 18 outliers are found" in out
    assert f"{found['flagged'] - found['found']} of 282 other rows are flagged" in out
    for name in ("auroc", "average_precision", "precision_at_threshold", "recall_at_k"):
        assert f"{found[name]['value']:.3f}" in out
        assert f"{found[name]['low']:.3f} to {found[name]['high']:.3f}" in out
    assert found["auroc"]["value"] > 0.9
    assert "trained on" not in said
    assert imread(tmp_path / "found.png").shape[1] > 1000
    # The numbers are those of the scores that fvnce score writes.
    scored, said = fvnce("score", payments / "run", payments / "later.csv")
    rows = list(csv.DictReader(io.StringIO(scored)))
    truth = [line["fraud"] == "yes" for line in csv.DictReader((payments / "later.csv").read_text().splitlines())]
    assert found["auroc"]["value"] == pytest.approx(roc_auc_score(truth, [float(row["score"]) for row in rows]))
    assert f"'fraud' of {payments / 'later.csv'} holds labels" in said
    assert "labels" not in fvnce("score", payments / "run", payments / "unknown.csv")[1]
    assert "too optimistic" in fvnce("evaluate", payments / "run", payments / "payments.csv")[1]


def test_scores_have_p_values(payments):
    run = load_run(payments / "run")
    scored = list(csv.DictReader(io.StringIO(fvnce("score", payments / "run", payments / "unknown.csv", "-q")[0])))
    names = ["row", "score", "probability", "p_value", "like_known", "novelty", "kind", "outlier"]
    assert list(scored[0]) == names
    assert {(row["kind"] != "") for row in scored if row["outlier"] == "1"} == {True}
    assert {row["kind"] for row in scored if row["outlier"] == "0"} == {""}
    blind = fvnce("score", payments / "blind", payments / "unknown.csv", "-q")[0].splitlines()[0].split(",")
    assert blind == [name for name in names if name not in ("like_known", "novelty", "kind")]
    values = np.array([float(row["p_value"]) for row in scored])
    assert (values > 0).all()
    assert (values <= 1).all()
    frauds = np.arange(300) % 25
    frauds = (frauds == 3) | (frauds == 11)
    assert np.median(values[frauds]) < 0.1 < np.median(values[~frauds])
    lines = fvnce("score", payments / "run", payments / "unknown.csv", "-q", "--json", "--top", "3")[0].splitlines()
    assert all(0 < json.loads(line)["p_value"] <= 1 for line in lines)
    assert run.detector.findings_.conformal is not None


def test_labels_of_arrays_are_found(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) >= 110
    X = rng.normal(size=(120, 3)) + 6 * y[:, None]
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.save(tmp_path / "b.npy", np.column_stack([X[:, :1], y, X[:, 1:]]))
    fvnce("fit", tmp_path / "a.npz", "--label", "y", "--out", tmp_path / "run", *QUICK, "-q")
    one = json.loads(fvnce("evaluate", tmp_path / "run", tmp_path / "a.npz", "--json", "-q")[0])
    other = json.loads(fvnce("evaluate", tmp_path / "run", tmp_path / "b.npy", "--label", "2", "--json", "-q")[0])
    assert one == other
    assert one["outliers"] == 10
    np.save(tmp_path / "c.npy", X)
    assert "has no column 'y'" in fvnce("evaluate", tmp_path / "run", tmp_path / "c.npy", code=1)[1]
    np.savez(tmp_path / "far.npz", X=X * 1e6, y=y)
    assert "deviations" in fvnce("evaluate", tmp_path / "run", tmp_path / "far.npz")[1]


def test_mistakes_of_evaluate_are_one_line(payments, tmp_path):
    unknown, run = payments / "unknown.csv", payments / "run"
    for arguments, code, words in (
        ([payments / "blind", unknown], 1, "--label COLUMN"),
        ([run, unknown], 1, "has no column 'fraud'"),
        ([run, payments / "later.csv", "--label", "fraud=maybe"], 1, "never holds 'maybe'"),
        ([run, payments / "later.csv", "--k", "301"], 1, "--k"),
        ([run, payments / "later.csv", "--plot", "x.doc"], 2, "--plot"),
        ([tmp_path, payments / "later.csv"], 1, "config.toml is missing"),
    ):
        said = fvnce("evaluate", *arguments, code=code)[1]
        assert words in said
        assert len(said.splitlines()) == 1
