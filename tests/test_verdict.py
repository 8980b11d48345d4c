"""The page of a run says how good it is, in words that are those of the numbers; labelled rows are evaluated."""

import csv
import io
import json
import re

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score

from fvnce import NoiseContrastiveDetector
from fvnce.app.commands import main
from fvnce.app.readers.errors import DataError
from fvnce.app.report import anomalies, verdict
from fvnce.app.report import health as health_part
from fvnce.app.report.context import build_context
from fvnce.app.runs import load_run
from fvnce.app.runs.evaluation import evaluate
from fvnce.app.runs.training_data import read_training_data
from fvnce.detection import Evidence
from fvnce.detection.evidence import HeldOut, make_evidence
from fvnce.detection.scorers import precision_at_k

QUICK = ["--set", "n_trees=20", "--set", "n_networks=1", "--set", "steps=30", "-q"]


@pytest.fixture
def fvnce(capsys):
    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        shown = capsys.readouterr()
        assert stop.value.code == code, shown.err
        return shown.out, shown.err

    return run


def facts_of(run, part):
    """What a part of the page is drawn from."""
    data = read_training_data(run.config.data, lambda sentence: None, run.config.seed)
    return part.build(build_context(run, data))


def called(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    assert stop.value.code == 0


def write_payments(path, seed, label=True):
    """An identifier, a date, a constant column, missing ages; 24 of 300 rows are frauds, and 18 of these are marked."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "day", "amount", "age", "bank", *(["fraud"] if label else [])])
        for i in range(300):
            bad = i % 25 in (3, 11)
            day = np.datetime64("2024-01-01") + np.timedelta64(int(rng.integers(0, 300)), "D")
            age = "" if i % 30 == 0 else rng.integers(18, 80)
            line = [f"P{seed}{i:05d}", day, f"${np.exp(rng.normal(7.5 if bad else 4.0, 0.6)):,.2f}", age, "one"]
            writer.writerow([*line, *(["yes" if bad and i % 4 else "no"] if label else [])])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("verdict")
    write_payments(place / "payments.csv", 0)
    write_payments(place / "later.csv", 1)
    write_payments(place / "unknown.csv", 2, label=False)
    called("fit", place / "payments.csv", "--label", "fraud", "--out", place / "run", *QUICK)
    called("fit", place / "unknown.csv", "--out", place / "blind", *QUICK)
    return place


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_the_page_opens_with_the_verdict_of_held_out_rows(folder):
    page = (folder / "run" / "report.html").read_text()
    evidence = load_run(folder / "run").detector.evidence_
    assert "<h1>payments.csv</h1>" in page
    assert "<title>payments.csv</title>" in page
    text = text_of(page[page.index("<h1>") :])
    start = text[: text.index("Higher scores are stranger")]
    known = 18
    assert f"300 rows, {known} of them known outliers" in start
    assert f"{evidence.found} of {known} known outliers are found when held out" in start
    assert f"{evidence.flagged} of {300 - known} other rows are flagged" in start
    for interval in (evidence.auroc, evidence.average_precision):
        for number in (interval.value, interval.low, interval.high):
            assert f"{number:.3f}" in start
    assert "rather too low than too high" in start
    assert f"The threshold is {evidence.threshold:.4g}: {evidence.threshold_reason}." in start.replace("&#34;", '"')
    assert "fvnce evaluate RUN LABELLED" in start
    assert "Label a few more outliers: 18 known ones" in start


def test_words_follow_the_lower_end_of_the_interval():
    base = {
        "rows": 100,
        "known": 30,
        "average_precision": {"value": 0.5, "low": 0.4, "high": 0.6},
        "found": 20,
        "flagged": 30,
        "held_out": True,
        "threshold": 1.0,
        "threshold_reason": "because",
        "prior": None,
        "reason": None,
    }
    scores = {"edges": [0.0, 2.0], "counts": {"training rows": [100]}, "threshold": 1.0}
    probability = {"score": [0.0, 1.0], "probability": [0.0, 1.0], "prior": 0.1, "known": 30}
    others = {"scores": scores, "probability": probability, "flagged": 30, "looked_at": 130, "unlabelled": 100}
    for low, value, high, words in (
        (0.96, 0.97, 0.98, "very well"),
        (0.9, 0.97, 0.98, "rows well:"),
        (0.6, 0.97, 0.98, "somewhat"),
        (0.45, 0.6, 0.69, "no better than by chance"),
        (0.45, 0.97, 1.0, "30 known outliers are too few to say how well"),
    ):
        facts = others | {"verdict": base | {"auroc": {"value": value, "low": low, "high": high}}}
        record = {"rows": 130, "known": 30, "layout": {"kinds": {}, "shape": None}}
        shown = text_of(str(verdict.show(facts, record)[0].blocks[0]))
        assert words in shown
        assert ("whether the label marks what you mean" in shown) == (value <= 0.7)
        assert "too many to look at" in shown


@pytest.mark.parametrize("known", [2, 3, 5, 20, 80])
def test_words_seldom_praise_more_than_the_truth_deserves(known):
    """Of 60 data sets each, at most 5 % of verdicts name a grade that the true AUROC does not reach.

    A share 2(1 − AUROC) of outliers scores like the other rows; the rest scores above all of them.
    """
    rng = np.random.default_rng(0)
    praised = 0
    for limit, _ in verdict.WORDS[:3]:
        for _ in range(60):
            scores = rng.normal(size=known) + 9 * (rng.random(known) > 2 * (1 - limit))
            rows = rng.normal(size=300)
            held = HeldOut(rows, np.ones(300), scores, np.ones(known))
            settings = {"threshold": 2.0, "threshold_reason": "", "prior": None, "reason": "", "seed": 0}
            headline = verdict._headline(make_evidence(held, rows, np.ones(300), float(known), **settings))
            named = next((low for low, grade in verdict.WORDS if f"rows {grade}" in headline), 0.0)
            praised += named >= limit
    assert praised <= 0.05 * 180, praised


def test_without_known_outliers_the_page_says_that_it_cannot_know(folder):
    text = text_of((folder / "blind" / "report.html").read_text())
    assert "How good this is cannot be said: no outlier is known." in text
    assert "AUROC" not in text[: text.index("Higher scores")]
    assert "the verdict counts rows that were held out" not in text  # none were
    assert "train again with --label COLUMN" in text


@pytest.mark.parametrize("name", ["run", "blind"])
def test_parts_of_top_anomalies_are_all_there_and_sum_to_the_score(folder, name):
    run = load_run(folder / name)
    facts = facts_of(run, anomalies)
    columns = set(run.layout.columns)
    negative = 0
    for entry in facts["top"]:
        assert {part[0] for part in entry["parts"]} == columns
        values = [part[1] for part in entry["parts"] + entry["whole"]]
        negative += sum(value < 0 for value in values)
        assert sum(values) == pytest.approx(entry["score"], abs=1e-9)
    assert negative > 0
    page = (folder / name / "report.html").read_text()
    shown = page[page.index('<ol class="anomalies">') : page.index("</ol>", page.index('<ol class="anomalies">'))]
    assert shown.count('class="down"') >= negative
    assert shown.count('<span class="part">') == len(facts["top"]) * (len(columns) + len(entry["whole"]))


def test_parts_of_a_detector_with_networks_sum_to_the_score():
    """Integrated gradients are a quadrature, and what it leaves is part of the rest."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [150, 10])
    X = rng.normal(size=(160, 4)) + 5 * y[:, None]
    detector = NoiseContrastiveDetector(n_trees=5, n_networks=1, steps=40, calibration_folds=0).fit(X, y)
    np.testing.assert_allclose(detector.explain(X).anomaly, detector.anomaly_score(X), atol=1e-9)


def test_importance_and_health_are_those_of_the_columns(folder):
    run = load_run(folder / "run")
    found = facts_of(run, anomalies)["importance"]
    importance = dict(zip(found["columns"], found["shares"], strict=True))
    for column, share in zip(run.layout.columns, run.detector.feature_importances_, strict=True):
        assert importance[column] == pytest.approx(share, rel=1e-4, abs=1e-12)
    assert next(iter(importance)) == "amount"
    health = {entry["name"]: entry for entry in facts_of(run, health_part)["health"]["columns"]}
    assert (health["age"]["missing"], health["day"]["missing"]) == (10, 0)
    assert (health["day"]["kind"], health["amount"]["kind"]) == ("date", "number")
    assert health["bank"]["note"] == "constant, not used"
    text = text_of((folder / "run" / "report.html").read_text())
    assert "fraud (the label)" in text
    assert "column 'number'" in text.replace("&#39;", "'").replace("&#x27;", "'")  # what the reader said of it
    assert re.search(r"age number 10 \(3\.3%\)", text)


# Labelled rows.


def test_numbers_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    outlier = np.arange(200) < 30
    scores = np.round(rng.normal(size=200) + 1.5 * outlier, 1)  # with ties

    class Fixed:
        def score_samples(self, X):
            return -scores

    for k in (None, 1, 17, 200):
        numbers = evaluate(scores, outlier, 1.0, k).numbers
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
    nothing = evaluate(scores, outlier, 99.0)
    assert nothing.numbers["precision_at_threshold"] is None
    assert nothing.numbers["recall_at_threshold"].value == 0
    for wrong in (np.zeros(200, bool), np.ones(200, bool)):
        with pytest.raises(DataError, match="mark some rows as outliers and leave others"):
            evaluate(scores, wrong, 1.0)
    with pytest.raises(DataError, match="--k must be from 1 to the number of rows, 200, found 201"):
        evaluate(scores, outlier, 1.0, 201)


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
        numbers = evaluate(rng.normal(size=len(outlier)) + 2 * outlier, outlier, threshold).numbers
        for name, true in truth.items():
            covered[name] += numbers[name] is None or numbers[name].low <= true <= numbers[name].high
    assert min(covered.values()) >= 0.93 * 100, covered


def test_evaluate_tells_what_is_found(fvnce, folder, tmp_path):
    out, said = fvnce("evaluate", folder / "run", folder / "later.csv", "--plot", tmp_path / "found.png")
    found = json.loads(fvnce("evaluate", folder / "run", folder / "later.csv", "--json")[0])
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
    scored, said = fvnce("score", folder / "run", folder / "later.csv")
    rows = list(csv.DictReader(io.StringIO(scored)))
    truth = [line["fraud"] == "yes" for line in csv.DictReader((folder / "later.csv").read_text().splitlines())]
    assert found["auroc"]["value"] == pytest.approx(roc_auc_score(truth, [float(row["score"]) for row in rows]))
    assert f"'fraud' of {folder / 'later.csv'} holds labels, which are ignored; fvnce evaluate" in said
    assert "labels" not in fvnce("score", folder / "run", folder / "unknown.csv")[1]
    assert "looks better than it is" in fvnce("evaluate", folder / "run", folder / "payments.csv")[1]


def test_scores_have_p_values(fvnce, folder):
    run = load_run(folder / "run")
    scored = list(csv.DictReader(io.StringIO(fvnce("score", folder / "run", folder / "unknown.csv", "-q")[0])))
    assert list(scored[0]) == ["row", "score", "probability", "p_value", "outlier"]
    values = np.array([float(row["p_value"]) for row in scored])
    assert (values > 0).all()
    assert (values <= 1).all()
    frauds = np.arange(300) % 25
    frauds = (frauds == 3) | (frauds == 11)
    assert np.median(values[frauds]) < 0.1 < np.median(values[~frauds])
    lines = fvnce("score", folder / "run", folder / "unknown.csv", "-q", "--json", "--top", "3")[0].splitlines()
    assert all(0 < json.loads(line)["p_value"] <= 1 for line in lines)
    assert run.detector.findings_.conformal is not None


def test_labels_of_arrays_are_found(fvnce, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) >= 110
    X = rng.normal(size=(120, 3)) + 6 * y[:, None]
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.save(tmp_path / "b.npy", np.column_stack([X[:, :1], y, X[:, 1:]]))
    fvnce("fit", tmp_path / "a.npz", "--label", "y", "--out", tmp_path / "run", *QUICK)
    one = json.loads(fvnce("evaluate", tmp_path / "run", tmp_path / "a.npz", "--json", "-q")[0])
    other = json.loads(fvnce("evaluate", tmp_path / "run", tmp_path / "b.npy", "--label", "2", "--json", "-q")[0])
    assert one == other
    assert one["outliers"] == 10
    assert "'y' of" in fvnce("score", tmp_path / "run", tmp_path / "a.npz")[1]
    np.save(tmp_path / "c.npy", X)
    assert "must hold labels as an array 'y'" in fvnce("evaluate", tmp_path / "run", tmp_path / "c.npy", code=1)[1]
    np.savez(tmp_path / "far.npz", X=X * 1e6, y=y)
    assert "deviations away from those of training" in fvnce("evaluate", tmp_path / "run", tmp_path / "far.npz")[1]


def test_mistakes_of_evaluate_are_one_line(fvnce, folder, tmp_path):
    unknown, run = folder / "unknown.csv", folder / "run"
    for arguments, code, words in (
        ([folder / "blind", unknown], 1, "was trained without labels; say where those of"),
        ([run, unknown], 1, "has no column 'fraud'"),
        ([run, folder / "later.csv", "--label", "fraud=maybe"], 1, "never holds 'maybe'"),
        ([run, folder / "later.csv", "--k", "301"], 1, "--k must be from 1 to the number of rows"),
        ([run, folder / "later.csv", "--plot", "x.doc"], 2, "--plot must name a png, pdf or svg file"),
        ([tmp_path, folder / "later.csv"], 1, "is no whole run"),
    ):
        said = fvnce("evaluate", *arguments, code=code)[1]
        assert words in said
        assert len(said.splitlines()) == 1


def test_a_good_order_is_no_praise_where_the_threshold_misses_most():
    facts = {
        **{"rows": 785, "known": 15, "flagged": 9, "threshold": 3.6, "found": 5},
        **{"threshold_reason": "P = 1/2", "prior": 0.01, "reason": None, "held_out": True},
        "auroc": {"value": 0.93, "low": 0.86, "high": 0.97},
        "average_precision": {"value": 0.36, "low": 0.19, "high": 0.61},
    }
    few = verdict._headline(Evidence.from_dict(facts))
    assert few.startswith(
        "The detector separates known outliers from other rows well by their rank, but few are above the threshold: 5 "
    )
    most = verdict._headline(Evidence.from_dict(facts | {"found": 12}))
    assert " well: 12 of 15 known" in most
