"""Reasons of scores: the column that was planted comes first, and sentences are true and well formed."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fvnce import NoiseContrastiveDetector
from fvnce.detection import Explanation
from fvnce.detection.preprocessing import TablePreprocessor
from fvnce.detection.reasons import SENTENCES, Usual
from fvnce.tables.parsing import ColumnType

CAUSES = {"number": "age", "category": "country", "gap": "income", "date": "when"}


def table(rng: np.random.Generator, n: int) -> pd.DataFrame:
    amount = np.exp(rng.normal(4.6, 0.5, n)).round(2)
    seconds = (rng.integers(0, 100, n) * 7 + rng.integers(0, 5, n)) * 86400 + rng.integers(8 * 3600, 18 * 3600, n)
    columns = {
        "amount": amount,
        "fee": (0.02 * amount + rng.normal(0, 0.3, n)).round(3),
        "age": rng.integers(18, 80, n).astype(float),
        "branch": rng.choice(list("ABCD"), n, p=[0.4, 0.3, 0.2, 0.1]),
        "country": rng.choice(["DE", "FR", "NL"], n, p=[0.6, 0.25, 0.15]),
        "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds, unit="s"),
        "income": rng.normal(3000, 500, n).round(),
        "site": 1.0,
    }
    return pd.DataFrame(columns)


def planted(rng: np.random.Generator, n: int, kind: str) -> pd.DataFrame:
    rows = table(rng, n)
    if kind == "number":
        rows["age"] = rng.uniform(200, 400, n).round()
    elif kind == "category":
        rows["country"] = "KP"
    elif kind == "gap":
        rows["income"] = np.nan
    else:
        rows["when"] = rows["when"].dt.normalize() + pd.to_timedelta(rng.integers(0, 4, n), unit="h")
    return rows


def fit(kind: str, known: int, n: int = 1500) -> tuple[NoiseContrastiveDetector, pd.DataFrame, pd.DataFrame]:
    """Fit on rows with 5 unlabelled planted ones among them, and ``known`` labelled ones."""
    rng = np.random.default_rng([0, known])
    X = pd.concat([table(rng, n), planted(rng, 5 + known, kind)], ignore_index=True)
    y = np.repeat([0, 1], [n + 5, known])
    return NoiseContrastiveDetector().fit(X, y), X, planted(rng, 60, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "known"), list(product(CAUSES, (0, 10))))
def test_a_planted_cause_is_the_first_reason(kind: str, known: int) -> None:
    detector, X, new = fit(kind, known)
    found, column = detector.explain(new), X.columns.get_loc(CAUSES[kind])
    first = [found.reasons(i)[:1] == [column] for i in range(60)]
    assert np.mean(first) >= 0.9
    np.testing.assert_allclose(found.anomaly, detector.anomaly_score(new), atol=1e-9)
    of_training = detector.anomaly_score(X)
    assert abs(found.base - of_training.mean()) < 0.25 * of_training.std()
    assert (found.total[:, X.columns.get_loc("site")] == 0).all()  # a constant column is no reason
    words = detector.reasons(new)
    assert np.mean([bool(of_row) and of_row[0].startswith(CAUSES[kind]) for of_row in words]) >= 0.9


def shaped(rng: np.random.Generator, kind: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, str]:
    """Return a table of a random shape, new rows, the same rows with a planted cause, and the column of the cause."""
    styles = [lambda n: rng.normal(5, 2, n), lambda n: np.exp(rng.normal(3, 0.8, n)), lambda n: rng.integers(0, 50, n)]
    makers: dict[str, Any] = {f"n{j}": styles[rng.integers(3)] for j in range(rng.integers(1, 7))}
    for j in range(rng.integers(1, 4)):
        shares = rng.dirichlet(np.full(rng.integers(2, 9), 3.0))
        makers[f"c{j}"] = lambda n, shares=shares: np.array(list("abcdefghi"))[rng.choice(len(shares), n, p=shares)]
    makers["when"] = lambda n: (
        np.datetime64("2022-01-03T08:00:00")
        + rng.integers(0, 900, n) * np.timedelta64(1, "D")
        + rng.integers(0, 36000, n) * np.timedelta64(1, "s")
    )
    cause = {"number": "n0", "gap": "n0", "category": "c0", "date": "when"}[kind]
    made = [pd.DataFrame({name: make(n) for name, make in makers.items()}) for n in (int(rng.choice([400, 900])), 60)]
    training, plain = (rows.astype({"n0": float, "c0": object}) for rows in made)
    new, low, high = plain.copy(), training["n0"].min(), training["n0"].max()
    if kind == "number":
        new["n0"] = high + (high - low) * rng.uniform(0.5, 1.5, 60)
    elif kind == "date":
        new["when"] = new["when"].dt.normalize() + pd.to_timedelta(rng.integers(0, 4, 60), unit="h")
    else:
        new[cause] = np.nan if kind == "gap" else "unseen"
    return training, plain, new, cause


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAUSES)
def test_on_tables_of_any_shape_the_cause_of_a_high_score_is_its_first_reason(kind: str) -> None:
    """Rows count whose planted cause makes more than half of a score above 95 % of training.

    A gap or an unseen text in one of many columns raises a score so much only if known outliers have it.
    """
    first: list[bool] = []
    known = 10 if kind in ("gap", "category") else 0
    for seed in range(5):
        training, plain, new, cause = shaped(np.random.default_rng([seed, len(kind)]), kind)
        training = pd.concat([training, new[:known]], ignore_index=True)
        plain, new, y = plain[known:], new[known:], np.arange(len(training)) >= len(training) - known
        detector = NoiseContrastiveDetector().fit(training, y if known else None)
        explanation, before = detector.explain(new), detector.anomaly_score(plain)
        np.testing.assert_allclose(explanation.anomaly, detector.anomaly_score(new), atol=1e-9)
        of_training = detector.anomaly_score(training)
        assert abs(explanation.base - of_training.mean()) < 0.25 * of_training.std()
        assert detector.feature_importances_.sum() == pytest.approx(1, abs=1e-9)
        assert detector.feature_importances_.min() >= 0
        high = explanation.anomaly > np.quantile(of_training, 0.95)
        made = explanation.anomaly - before > np.maximum(before - explanation.base, 0)
        column = training.columns.get_loc(cause)
        first += [explanation.reasons(i)[:1] == [column] for i in np.flatnonzero(high & made).tolist()]
    assert len(first) >= 20
    assert np.mean(first) >= 0.9


@pytest.mark.parametrize("column", [1, 2])
def test_the_reason_for_a_novel_row_is_what_makes_it_novel(column: int) -> None:
    rng = np.random.default_rng(column)
    X, kind = np.c_[rng.normal(size=(300, 2)), rng.integers(0, 3, (300, 2))], np.repeat([1, 2, 0], [30, 12, 258])
    X[kind == 1, 0] += 8  # the only column that matters to the known outliers
    X[kind == 2, column] = 9
    y = np.arange(300) < 10
    detector = NoiseContrastiveDetector(n_trees=30, n_networks=3, steps=50).fit(X, y)
    found, novel = detector.explain(X), np.flatnonzero((detector.scores(X).kind == "novel") & (kind == 2))
    assert len(novel) >= 10
    assert np.mean([found.reasons(i)[:1] == [column] for i in novel]) >= 0.9
    assert np.mean([words[0].startswith(f"column {column}") for words in detector.reasons(X[novel])]) >= 0.9
    np.testing.assert_allclose(found.anomaly, detector.anomaly_score(X), atol=1e-9)  # parts are those of the score
    np.testing.assert_array_equal(found[novel].causes, found.causes[novel])
    others = detector.scores(X).kind != "novel"
    np.testing.assert_array_equal(found.causes[others], found.total[others])


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_values_of_a_far_group_are_not_called_common(spread: float) -> None:
    rng = np.random.default_rng(3)
    X = np.concatenate([rng.normal(size=(184, 2)), 8 + spread * rng.normal(size=(16, 2))])
    for words in NoiseContrastiveDetector(n_trees=20).fit(X).reasons(X[184:]):
        assert len(words) == 2
        assert all(": higher than 9" in sentence for sentence in words)


def test_zero_negative_and_equal_parts_are_no_reasons() -> None:
    parts = np.array([[0.0, 0.0, -1.0], [2.0, 2.0, 1.0], [1e-12, 1.0, 3.0]])
    found = Explanation(parts, np.zeros_like(parts), np.zeros(3), 0.0)
    assert [found.reasons(i) for i in range(3)] == [[], [2], [2, 1]]
    assert found.reasons(2, top=1) == [2]
    # Nor are parts that are slight beside the largest.
    slight = Explanation(np.array([[5.0, 0.4, 0.6]]), np.zeros((1, 3)), np.zeros(1), 0.0)
    assert slight.reasons() == [0, 2]


#: Training values, a value as it is read and as it is shown, how it is read, and the sentence.
_NUMBERS, _DAY = np.arange(1.0, 2001.0), 86400.0
_GAPS = np.where(_NUMBERS > 800, np.nan, _NUMBERS)
_CODES = np.repeat([0.0, 1.0], [1999, 1])
_FILES = ColumnType("text", codes={"DE": 0, "FR": 1})
_DATES = (np.arange(2000) // 5 * 7 + np.arange(2000) % 5 + 4) * _DAY  # from a Monday, without weekends
GRAMMAR: list[tuple[Any, float, str, ColumnType, str]] = [
    (_NUMBERS, 9999.0, "$9,999", ColumnType(unit="$"), "x $9,999: higher than all 2,000 rows; usual $200 to $1,800"),
    (_NUMBERS / 8, 999.0, "€999", ColumnType(unit="€"), "x €999: higher than all 2,000 rows; usual €25 to €225"),
    (_NUMBERS / 4, 999.0, "€999", ColumnType(unit="€"), "x €999: higher than all 2,000 rows; usual €50 to €450"),
    (
        _NUMBERS / 16,
        999.0,
        "CHF 999",
        ColumnType(unit="CHF"),
        "x CHF 999: higher than all 2,000 rows; usual CHF 12.50 to CHF 112.50",
    ),
    (
        _NUMBERS,
        9999.0,
        "9999 seconds",
        ColumnType("duration"),
        "x 9999 seconds: higher than all 2,000 rows; usual 200 seconds to 1800 seconds",
    ),
    (
        _NUMBERS / 100,
        23.5,
        "23:30",
        ColumnType("clock"),
        "x 23:30: higher than all 2,000 rows; usual 2:00 to 18:00",
    ),
    (_NUMBERS, 1999.0, "1999", ColumnType(), "x 1999: higher than 99.9 % of rows; usual 200 to 1800"),
    (_NUMBERS, -5.0, "-5 kg", ColumnType(unit="kg"), "x -5 kg: lower than all 2,000 rows; usual 200 kg to 1800 kg"),
    (_NUMBERS, 3.0, "3", ColumnType(), "x 3: lower than 99.8 % of rows; usual 200 to 1800"),
    (_NUMBERS, 1900.0, "1900", ColumnType(), "x 1900: higher than 94 % of rows; usual 200 to 1800"),
    (_NUMBERS, 700.0, "700", ColumnType(), "x 700: common by itself, but raises this score"),
    (_NUMBERS, np.nan, "", ColumnType(), "x missing: 0 of 2,000 rows"),
    (
        np.where(_NUMBERS < 1000, np.nan, 1.0),
        np.nan,
        "",
        ColumnType(),
        "x missing: common by itself, but raises this score",
    ),
    (np.where(_NUMBERS > 1, np.nan, 1.0), 2.0, "2", ColumnType(), "x 2: a value in 1 of 2,000 rows"),
    (np.where(_NUMBERS > 1990, _NUMBERS, 0.0), 1995.0, "1995", ColumnType(), "x 1995: 0 in 99.5 % of rows"),
    (_GAPS, 9999.0, "9999", ColumnType(), "x 9999: higher than all 800 rows with a value; usual 80 to 720"),
    (_GAPS, 799.0, "799", ColumnType(), "x 799: higher than 99.7 % of the 800 rows with a value; usual 80 to 720"),
    (_GAPS, 2.0, "2", ColumnType(), "x 2: lower than 99.7 % of the 800 rows with a value; usual 80 to 720"),
    (
        np.where(_GAPS > 796, _GAPS, 0 * _GAPS),
        798.0,
        "798",
        ColumnType(),
        "x 798: 0 in 99.5 % of the 800 rows with a value",
    ),
    (_CODES, -2.0, "KP", _FILES, "x KP: never seen"),
    (_CODES, -2.0, "<b>日本</b> & \n" + 90 * "Ü", _FILES, f"x <b>日本</b> & \n{90 * 'Ü'}: never seen"),
    (_CODES, 1.0, "FR", _FILES, "x FR: 1 of 2,000 rows"),
    (_CODES, 0.0, "DE", _FILES, "x DE: common by itself, but raises this score"),
    (_CODES, -1.0, "", _FILES, "x missing: 0 of 2,000 rows"),
    (_DATES, 3 * _DAY, "1970-01-04", ColumnType("time"), "x 1970-01-04: weekday Sun in 0 of 2,000 rows"),
    (_DATES, 4 * _DAY, "1970-01-05", ColumnType("time"), "x 1970-01-05: common by itself, but raises this score"),
]


@pytest.mark.parametrize(("values", "value", "text", "reading", "wanted"), GRAMMAR, ids=[case[-1] for case in GRAMMAR])
def test_sentences_say_what_training_rows_have(
    values: Any, value: float, text: str, reading: ColumnType, wanted: str
) -> None:
    X, weights = np.asarray(values)[:, None], np.ones(2000)
    usual = Usual.learn(TablePreprocessor.learn(X, weights, [reading]), X, weights)
    assert usual.sentence(0, "x", value, text, reading, (1,)) == wanted


@pytest.mark.parametrize("missing", [0.0, 0.6])
def test_percentages_are_true_of_the_rows_they_name(missing: float) -> None:
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(500, 1)))
    X[rng.random(500) < missing] = np.nan
    usual = Usual.learn(TablePreprocessor.learn(X, np.ones(500), None), X, np.ones(500))
    present = X[~np.isnan(X)]
    said = 0
    for value in np.concatenate([np.sort(present)[:20], np.sort(present)[-20:]]):
        sentence = usual.sentence(0, "x", float(value), "", ColumnType(), ())
        match = re.search(r"(higher|lower) than ([\d.]+) % of (?:rows|the (\d+) rows with a value);", sentence)
        if match:
            said += 1
            beyond = np.sum(value > X) if match[1] == "higher" else np.sum(value < X)
            rows = len(X) if match[3] is None else int(match[3])
            assert rows in (len(X), len(present))
            assert beyond / rows >= float(match[2]) / 100 - 1e-9
    assert said >= 3


def test_every_sentence_is_one_phrase_and_is_tested() -> None:
    for which, sentence in SENTENCES.items():
        assert re.fullmatch(r"\{shown\}(: [^.:]*[^.: ])?", sentence), which
        if which != "name":
            pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(sentence))
            assert any(re.fullmatch(pattern, case[-1]) for case in GRAMMAR), which


def test_a_saved_detector_gives_the_same_reasons(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    detector = NoiseContrastiveDetector(n_trees=20, calibration_folds=2).fit(table(rng, 200))
    new = planted(rng, 5, "number")
    path = detector.save(tmp_path / "detector.safetensors")
    assert NoiseContrastiveDetector.load(path).reasons(new) == detector.reasons(new)
    assert all(
        row[0].endswith("usual 19 to 78") or "higher than all 200 rows" in row[0] for row in detector.reasons(new)
    )
