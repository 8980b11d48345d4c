"""The page of a run says how good it is, in words that follow the numbers."""

import re
from itertools import product

import numpy as np
import pytest
from scipy.special import ndtr

from commands import QUICK, fvnce
from fvnce import NoiseContrastiveDetector
from fvnce.app.report import columns as columns_part
from fvnce.app.report import lists, steps, verdict
from fvnce.app.report.analysis import analyze
from fvnce.app.report.page import percent
from fvnce.app.runs import load_run
from fvnce.app.runs.training_data import read_training_data
from fvnce.detection import Evidence
from fvnce.detection.trust.calibration import calibrate_with_outliers, calibrate_without, labels_tell
from fvnce.detection.trust.evidence import REASONS, RowScores, make_evidence


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
    start = text_of(page[page.index("<h1>") : page.index("<svg")])
    known = 18
    assert f"300 rows, {known} of them known outliers" in start
    assert f"{evidence.found} of {known}" in start
    assert f"{evidence.flagged} of {300 - known}" in start
    for interval in (evidence.auroc, evidence.average_precision):
        for number in (interval.value, interval.low, interval.high):
            assert f"{number:.3f}" in start
    assert f"{evidence.threshold:.4g}: {evidence.threshold_reason}." in start.replace("&#34;", '"')
    text = text_of(page)
    assert "fvnce evaluate RUN LABELED" in text
    assert "18 known outliers" in text[text.index("What to do next") :]


def test_lists_and_the_verdict_count_the_same_rows(payments):
    for name in ("run", "blind"):
        analysis = analysis_of(load_run(payments / name))
        flagged = (analysis.scores.flagged & ~analysis.known).sum()
        assert sum(finds.flagged for finds in analysis.finds.values()) == flagged
        assert verdict.words(analysis)[0].startswith(f"{flagged} of {(~analysis.known).sum()}")
        for kind, finds in analysis.finds.items():
            assert not analysis.known[finds.rows].any()
            sentence = " ".join(lists.about(analysis, kind, finds))
            doubt = lists.doubt(analysis, kind)
            assert (kind == "known") == (doubt == "")
            assert ("cannot be estimated" in sentence) == (bool(doubt) and finds.flagged > 0)
            if finds.flagged:
                at = finds.flagged - 1
                assert f"about {finds.finds[at]:.0f} outlier" in sentence
                assert f"interval {finds.low[at]:.0f} to {finds.high[at]:.0f}" in sentence


@pytest.mark.parametrize(
    ("known", "settings", "numbers"),
    [(1, {}, 1), (3, {}, 1), (3, {"contamination": 0.05}, 0), (0, {"clean": True}, 0), (3, {"clean": True}, 0)],
)
def test_no_list_claims_more_than_is_known(tmp_path, known, settings, numbers):
    """With three known outliers no interval excludes chance, and of rows taken as normal none is an outlier."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [200, known])
    np.savez(tmp_path / "t.npz", X=rng.normal(size=(200 + known, 2)) + 5 * y[:, None], y=y)
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={str(value).lower()}")]
    label = ["--label", "y"] if known else []
    fvnce("fit", tmp_path / "t.npz", *label, *QUICK, *given, "--out", tmp_path / "run", "-q")
    analysis = analysis_of(load_run(tmp_path / "run"))
    assert sum(each.flagged for each in analysis.finds.values()) == (analysis.scores.flagged & ~analysis.known).sum()
    said = [section for section in lists.sections(analysis) if "outliers (" in " ".join(section.reading)]
    assert len(said) <= numbers
    if "contamination" in settings:
        assert len(analysis.finds) == 1
    for section in [*said, *lists.sections(analysis)]:
        assert not UNGRAMMATICAL.search(" ".join(section.reading))
    text = text_of((tmp_path / "run" / "report.html").read_text())
    assert not re.search(r"nan|None(?! of)", text)
    card = (tmp_path / "run" / "card.md").read_text()
    assert f"{known} known outlier" in card


def fitted(folder, X, y=None, *options):
    """What the page of a run on a table is drawn from, and its text."""
    np.savez(folder / "t.npz", X=X, **({} if y is None else {"y": y}))
    label = [] if y is None else ["--label", "y"]
    fvnce("fit", folder / "t.npz", *label, *QUICK, *options, "--out", folder / "run", "-q")
    return analysis_of(load_run(folder / "run")), text_of((folder / "run" / "report.html").read_text())


def test_no_number_of_outliers_is_given_where_nothing_is_flagged(tmp_path):
    analysis, text = fitted(tmp_path, np.tile([[1.5, 2.0]], (80, 1)))
    assert not analysis.scores.flagged.any()
    assert "No row is flagged" in text
    assert not re.search(r"about [\d,]+ outlier", text)


def test_one_flagged_row_is_spoken_of_as_one(tmp_path):
    X = np.concatenate([np.ones((60, 2)), [[5.0, 5.0]]])
    analysis, text = fitted(tmp_path, X)
    assert analysis.scores.flagged.sum() == 1
    assert "1 row is flagged. Whether it is an outlier cannot be estimated" in text


def test_rows_above_a_fraction_are_at_most_that_fraction(tmp_path):
    """The six highest rows are equal, and three of 106 are asked for: none is above."""
    X = np.concatenate([np.random.default_rng(3).normal(size=(100, 2)).round(), np.full((6, 2), 9.0)])
    analysis, text = fitted(tmp_path, X, None, "--contamination", "0.03")
    assert not analysis.scores.flagged.any()
    assert "at most this fraction of the training rows lies above" in text


def test_a_line_that_no_label_places_is_called_a_convention(tmp_path):
    X = np.random.default_rng(3).normal(size=(300, 3))
    y = np.arange(300) == 0
    X[0] += 6
    analysis, text = fitted(tmp_path, X, y.astype(int))
    assert analysis.finds["known"].flagged
    assert "No label places the threshold" in verdict.words(analysis)[0]
    about = " ".join(lists.about(analysis, "known", analysis.finds["known"]))
    assert "convention" in about
    assert "No label was used to set this threshold" in about
    assert "No label places" in text


def test_a_line_that_labels_place_is_called_no_convention(payments):
    analysis = analysis_of(load_run(payments / "run"))
    assert "No label" not in verdict.words(analysis)[0]
    assert "No label" not in " ".join(lists.about(analysis, "known", analysis.finds["known"]))


def evidence_of(known, found, auroc, flagged, rows=1000, prior=0.02, reason=None):
    """Evidence of a case; ``auroc`` is its value and its interval."""
    numbers = None if reason else dict(zip(("value", "low", "high"), auroc, strict=True))
    content = {
        **{"rows": rows, "known": known, "flagged": flagged, "held_out": reason is None, "threshold": 1.5},
        **{"threshold_reason": "because", "prior": prior, "reason": reason, "found": None if reason else found},
        **{"auroc": numbers, "average_precision": numbers},
    }
    return Evidence.from_dict(content)


KNOWN, FOUND = (2, 3, 10, 100, 7.5), (0.0, 0.3, 1.0)
AUROCS = ((0.5, 0.4, 0.6), (0.99, 0.3, 1.0), (0.9, 0.65, 0.98), (0.66, 0.6, 0.69), (0.9, 0.86, 0.93), (0.99, 0.96, 1.0))
#: No article before a plural, no plural after one, nothing that a format left over.
UNGRAMMATICAL = re.compile(
    r"\b(?<![\d.,])1 (\w+ )?(rows|outliers|labels|columns|are)\b|nan|None of 0|[{}]|  |\.\.|, \.|None(?! of)"
)


@pytest.mark.parametrize("known", KNOWN)
def test_the_verdict_holds_over_a_grid_of_cases(known):
    """Every number is there with its interval, and no case earns more praise than the lower end of AUROC."""
    for share, auroc, flagged, clean in product(FOUND, AUROCS, (0, 1, 400), (False, True)):
        found = int(share * known)
        evidence = evidence_of(known, found, auroc, flagged)
        headline, meaning = verdict.headline(evidence), " ".join(verdict.meaning(evidence, clean=clean))
        praise = next((i for i, (low, words) in enumerate(verdict.GRADES[:3]) if f"rows {words}" in headline), 3)
        assert praise == next((i for i, (low, _) in enumerate(verdict.GRADES[:3]) if auroc[1] > low), 3), headline
        assert ("too few" in headline) == (auroc[1] <= 0.5 and auroc[2] > 0.7)
        assert ("few are above" in headline) == (praise < 3 and 2 * found < known)
        assert f"{found} of {known:g}" in headline
        exact = verdict.found_share(found, known)
        assert exact.low <= found / known <= exact.high
        for number in (percent(exact.low), percent(exact.high), *(f"{value:.3f}" for value in auroc)):
            assert number in meaning
        assert f"{flagged} of 1,000" in meaning
        assert ("(clean)" in meaning) == clean
        assert "nobody has marked" in meaning
        for text in (headline, meaning, *steps.next_steps(evidence, clean=clean)):
            assert not UNGRAMMATICAL.search(text), text
            assert text[0].isupper() or text[0].isdigit()
            assert text.endswith((".", "`."))


@pytest.mark.parametrize("key", ["none known", "one row", "one known", "no folds", "few rows"])
def test_without_evidence_nothing_is_promised(key):
    known = 0 if key == "none known" else 4
    reason = REASONS[key].format(known=known, folds=0)
    evidence = evidence_of(known, None, None, 12, prior=None, reason=reason)
    text = " ".join([verdict.headline(evidence), *verdict.meaning(evidence), *steps.next_steps(evidence)])
    assert "is unknown" in text
    assert reason.removesuffix(" (y = 1)") in text
    assert not re.search(r"AUROC|interval|\d %| well\b", text)
    assert not UNGRAMMATICAL.search(text)


def test_what_is_found_is_counted_by_list():
    for (known, novel), scored in product(product((0, 1, 30), repeat=2), (31, 5000)):
        text = verdict.found({"known": known, "novel": novel}, scored, 5000)
        assert text.startswith(f"{known + novel or 'None'} of {scored:,} unlabeled rows")
        assert ("5,000 are in the data" in text) == (scored < 5000)
        assert (f"{known} like" in text and f"{novel} novel" in text) == (known + novel > 0)
        assert not UNGRAMMATICAL.search(text), text
    assert verdict.found({"novel": 1}, 1, 1).startswith("1 of 1 unlabeled row is flagged")


def test_steps_name_what_they_are_about():
    evidence = evidence_of(3, 1, AUROCS[0], 400)
    text = " ".join(steps.next_steps(evidence, ["id 7", "id `9`"], ["site (constant)"]))
    for part in (
        "2 known outliers",
        "id 7, id '9'",
        "site (constant)",
        "--alarms 50",
        "--review 20",
        "fit --config RUN --review",
        "monitor RUN",
    ):
        assert part in text
    assert "3 known outliers" in text
    assert text.count("`") % 2 == 0
    many = " ".join(steps.next_steps(evidence_of(100, 90, AUROCS[-1], 4), [f"id {i}" for i in range(14)]))
    assert "and 4 more" in many
    assert "--alarms" not in many
    assert "100 known outliers" not in many
    images = " ".join(steps.next_steps(evidence, images=True))
    assert "--outliers FOLDER" in images
    assert "--review" not in images
    clean = evidence_of(0, None, None, 4, prior=None, reason="no outlier is known (y = 1)")
    assert "remove it" in " ".join(steps.next_steps(clean, clean=True))


@pytest.mark.parametrize("known", [3, 5, 10, 30])
def test_the_interval_of_what_is_found_covers_the_truth(known):
    """The threshold is chosen by the same held-out scores; of 120 data sets the interval covers in 95 % or more."""
    covered = []
    for seed, (distance, share) in product(range(30), product((1.5, 3.0), (0.0, 0.05))):
        rng = np.random.default_rng([seed, known])
        hidden = rng.binomial(400, share)
        rows = np.concatenate([rng.normal(size=400 - hidden), rng.normal(distance, 1, hidden)])
        both = rows, np.ones(400), rng.normal(distance, 1, known), np.ones(known)
        tell = labels_tell(*both)
        made = calibrate_with_outliers(*both, None)[0] if tell else calibrate_without(rows, np.ones(400), None)
        exact = verdict.found_share(int((both[2] > made.threshold).sum()), known)
        covered.append(exact.low <= 1 - ndtr(made.threshold - distance) <= exact.high)
    assert np.mean(covered) >= 0.95


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
            settings = {"threshold": 2.0, "threshold_reason": "", "reason": None}
            headline = verdict.headline(make_evidence(held, held, 0, **settings))
            named = next((low for low, grade in verdict.GRADES if f"rows {grade}" in headline), 0.0)
            praised += named >= limit
    assert praised <= 0.05 * 180, praised


def test_without_known_outliers_the_page_says_that_it_cannot_know(payments):
    text = text_of((payments / "blind" / "report.html").read_text())
    assert "The quality of the detector is unknown: no outlier is known." in text
    assert "AUROC" not in text
    assert "P(outlier" not in text
    assert "the verdict counts held-out rows" not in text  # there are none
    assert "fvnce score RUN DATA --review 20 --out sheet.csv" in text


@pytest.mark.parametrize("name", ["run", "blind"])
def test_parts_of_top_anomalies_are_all_there_and_sum_to_the_score(payments, name):
    run = load_run(payments / name)
    analysis = analysis_of(run)
    kind, finds = next(iter(analysis.finds.items()))
    top = lists.top_rows(analysis, finds.rows, lists.ranking_of(analysis, kind)[1])
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
    _, section = columns_part.sections(analysis_of(run))
    health = {line[0]: line[1:] for line in section.tables[0].rows}
    assert (health["age"][1], health["day"][1]) == ("10 (3.3%)", "–")
    assert (health["day"][0], health["amount"][0]) == ("date", "number")
    assert health["bank"][3] == "constant, not used"
    text = text_of(page)
    assert "fraud (the label)" in text
    assert "column 'number'" in text.replace("&#39;", "'").replace("&#x27;", "'")  # what the reader said of it
    assert re.search(r"age number 10 \(3\.3%\)", text)


def test_the_card_says_what_the_page_says_and_no_more(payments):
    for name, known in (("run", 18), ("blind", 0)):
        card = (payments / name / "card.md").read_text()
        run = load_run(payments / name)
        headline, meaning = verdict.words(analysis_of(run))
        for part in (
            headline,
            *meaning,
            run.config.data.sha256,
            f"{known} known outliers",
            f"{300 - known} unlabeled",
        ):
            assert part in card
        assert "Dates of day: 2024-01-01 to 2024-10-26" in card
        assert "bank (constant)" in card
        assert "n_trees = 20" in card
        assert "calibration_folds" not in card  # the default
        assert ("AUROC" in card) == (known > 0)
        assert ("kinds of outliers" in card) == (known > 0)
        assert "fvnce monitor" in card
        assert "below" not in card  # nothing of the page that the card lacks


def test_clean_rows_hold_no_share_of_outliers(tmp_path):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(60, 2)), rng.normal(4, 1, size=(6, 2))])
    _, text = fitted(tmp_path, X, np.repeat([0, 1], [60, 6]), "--set", "clean=True")
    assert "All unlabeled rows are assumed to be normal" in text
    assert re.search(r"share π = [\d.]+ of outliers among new rows", text)


def test_the_card_is_the_same_for_the_same_data_and_obeys_nothing_in_it(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f}" for a, b in rng.normal(size=(60, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["<script>alert(1)</script>,b\x1b[31m", *rows]))
    for name in ("one", "two"):
        fvnce("fit", tmp_path / "t.csv", *QUICK, "--keep", "1", "--out", tmp_path / name, "-q")
    cards = [(tmp_path / name / "card.md").read_text() for name in ("one", "two")]
    assert cards[0] == cards[1]
    assert "\x1b" not in cards[0]
    assert "<script>" not in cards[0].replace("\\<script>", "")
