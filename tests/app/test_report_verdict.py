"""The page of a run says how good it is, in words that follow the numbers."""

import re

import numpy as np
import pytest

from fvnce import NoiseContrastiveDetector
from fvnce.app.report import anomalies, verdict
from fvnce.app.report import columns as columns_part
from fvnce.app.report.analysis import analyze
from fvnce.app.runs import load_run
from fvnce.app.runs.training_data import read_training_data
from fvnce.detection import Evidence
from fvnce.detection.trust.evidence import RowScores, make_evidence


def analysis_of(run):
    """What the page is drawn from."""
    data = read_training_data(run.config.data, lambda sentence: None, run.config.seed)
    return analyze(run, data, [])


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_the_page_opens_with_the_verdict_of_held_out_rows(payments):
    page = (payments / "run" / "report.html").read_text()
    evidence = load_run(payments / "run").detector.evidence_
    assert "<h1>payments.csv</h1>" in page
    assert "<title>payments.csv</title>" in page
    text = text_of(page[page.index("<h1>") :])
    start = text[: text.index("Higher scores are more anomalous")]
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
    assert "Label a few more outliers: with 18 known ones" in start


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
    for low, value, high, words in (
        (0.96, 0.97, 0.98, "very well"),
        (0.9, 0.97, 0.98, "rows well:"),
        (0.6, 0.97, 0.98, "somewhat"),
        (0.45, 0.6, 0.69, "no better than by chance"),
        (0.45, 0.97, 1.0, "30 known outliers are too few to say how well"),
    ):
        evidence = Evidence.from_dict(base | {"auroc": {"value": value, "low": low, "high": high}})
        assert words in verdict.headline(evidence)
        steps = " ".join(verdict.next_steps(evidence, images=False))
        assert ("whether the label marks what you mean" in steps) == (value <= 0.7)
        assert "too many to look at" in steps


@pytest.mark.parametrize("known", [2, 3, 5, 20, 80])
def test_words_seldom_praise_more_than_the_truth_deserves(known):
    """Of 60 data sets each, at most 5 % of verdicts name a grade that the true AUROC does not reach.

    A share 2(1 − AUROC) of outliers scores like the other rows; the rest scores above all of them.
    """
    rng = np.random.default_rng(0)
    praised = 0
    for limit, _ in verdict.GRADES[:3]:
        for _ in range(60):
            scores = rng.normal(size=known) + 9 * (rng.random(known) > 2 * (1 - limit))
            rows = rng.normal(size=300)
            held = RowScores(rows, np.ones(300), scores, np.ones(known))
            settings = {"threshold": 2.0, "threshold_reason": "", "prior": None, "reason": "", "seed": 0}
            headline = verdict.headline(make_evidence(held, held, held_out=True, **settings))
            named = next((low for low, grade in verdict.GRADES if f"rows {grade}" in headline), 0.0)
            praised += named >= limit
    assert praised <= 0.05 * 180, praised


def test_without_known_outliers_the_page_says_that_it_cannot_know(payments):
    text = text_of((payments / "blind" / "report.html").read_text())
    assert "How good this is cannot be said: no outlier is known." in text
    assert "AUROC" not in text[: text.index("Higher scores")]
    assert "the verdict counts held-out rows" not in text  # there are none
    assert "train again with --label COLUMN" in text


@pytest.mark.parametrize("name", ["run", "blind"])
def test_parts_of_top_anomalies_are_all_there_and_sum_to_the_score(payments, name):
    run = load_run(payments / name)
    analysis = analysis_of(run)
    two = run.detector.novelty_threshold_ is not None
    top = anomalies.top_rows(analysis, analysis.scores.like_known if two else analysis.anomaly)
    columns = set(run.layout.columns)
    negative = 0
    for entry in top:
        assert {part[0] for part in entry["parts"]} == columns
        values = [part[1] for part in entry["parts"] + entry["whole"]]
        negative += sum(value < 0 for value in values)
        assert sum(values) == pytest.approx(entry["score"], abs=1e-9)
    assert negative > 0
    page = (payments / name / "report.html").read_text()
    shown = page[page.index('<ol class="anomalies">') : page.index("</ol>", page.index('<ol class="anomalies">'))]
    assert shown.count('class="down"') >= negative
    assert shown.count('<span class="part">') == sum(len(columns) + len(entry["whole"]) for entry in top)


def test_parts_of_a_detector_with_networks_sum_to_the_score():
    """Integrated gradients are a quadrature, and what it leaves is part of the rest."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [150, 10])
    X = rng.normal(size=(160, 4)) + 5 * y[:, None]
    detector = NoiseContrastiveDetector(n_trees=5, n_networks=1, steps=40, calibration_folds=0).fit(X, y)
    np.testing.assert_allclose(detector.explain(X).anomaly, detector.anomaly_score(X), atol=1e-9)


def test_importance_and_health_are_those_of_the_columns(payments):
    run = load_run(payments / "run")
    page = (payments / "run" / "report.html").read_text()
    section = page[page.index(">Columns by importance</h2>") :]
    shown = re.findall(r'<span class="part">(\w+)</span>.*?<span class="number">(-?[\d.]+%)</span>', section)
    shares = dict(zip(run.layout.columns, run.detector.feature_importances_, strict=True))
    assert dict(shown) == {column: f"{share:.1%}" for column, share in shares.items()}
    assert shown[0][0] == "amount"
    [section] = columns_part.sections(analysis_of(run))
    health = {line[0]: line[1:] for line in section.tables[0].rows}
    assert (health["age"][1], health["day"][1]) == ("10 (3.3%)", "–")
    assert (health["day"][0], health["amount"][0]) == ("date", "number")
    assert health["bank"][3] == "constant, not used"
    text = text_of(page)
    assert "fraud (the label)" in text
    assert "column 'number'" in text.replace("&#39;", "'").replace("&#x27;", "'")  # what the reader said of it
    assert re.search(r"age number 10 \(3\.3%\)", text)


def test_a_good_order_is_no_praise_where_the_threshold_misses_most():
    facts = {
        **{"rows": 785, "known": 15, "flagged": 9, "threshold": 3.6, "found": 5},
        **{"threshold_reason": "P = 1/2", "prior": 0.01, "reason": None, "held_out": True},
        "auroc": {"value": 0.93, "low": 0.86, "high": 0.97},
        "average_precision": {"value": 0.36, "low": 0.19, "high": 0.61},
    }
    few = verdict.headline(Evidence.from_dict(facts))
    assert few.startswith(
        "The detector separates known outliers from other rows well by their rank, but few are above the threshold: 5 "
    )
    most = verdict.headline(Evidence.from_dict(facts | {"found": 12}))
    assert " well: 12 of 15 known" in most
