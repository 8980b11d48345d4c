"""Tables as people have them, from the file to the scores: nobody is led astray."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import fvnce as library
from commands import fvnce
from fvnce.app.cli import main
from fvnce.app.runs import load_run
from fvnce.detection import LatentDetector, NoiseContrastiveDetector

QUICK: dict[str, Any] = {"n_trees": 20, "n_networks": 1, "steps": 30, "calibration_folds": 0}
OPTIONS = ["--set", "n_trees=20", "--set", "n_networks=1", "--set", "steps=30", "--set", "calibration_folds=0"]
Run = Callable[..., tuple[str, str]]


def write(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


N = 300
#: Of 300 payments, the last 20 are strange: large, at night, and on weekends.
STRANGE = np.arange(N) >= N - 20


def payments(seed: int = 0) -> dict[str, Any]:
    """Amounts, shares, dates and truths as people write them, with identifiers beside."""
    rng = np.random.default_rng(seed)
    amount = np.where(STRANGE, rng.normal(9000, 500, N), rng.normal(1500, 200, N))
    # Monday to Friday at office hours; the strange ones on Saturdays at three in the morning.
    days = np.datetime64("2024-01-01") + 7 * rng.integers(0, 20, N) + np.where(STRANGE, 5, rng.integers(0, 5, N))
    hours = np.where(STRANGE, 3, rng.integers(9, 17, N))
    return {
        "payment_id": [f"P{i:05d}" for i in rng.permutation(N)],
        "counter": np.arange(1, N + 1).tolist(),
        "account": rng.integers(10**9, 10**10, N).tolist(),
        "amount": [f"${v:,.2f}" for v in amount],
        "share": [f"{v:.1f}%" for v in rng.uniform(0, 100, N)],
        "when": [f"{d} {h:02d}:30:00" for d, h in zip(days, hours, strict=True)],
        "member": rng.choice(["Y", "N"], N).tolist(),
        "currency": ["CHF"] * N,
        "fraud": ["fraud" if i % 2 and s else "ok" for i, s in enumerate(STRANGE)],
    }


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ledger") / "payments.csv", payments())


@pytest.fixture(scope="module")
def run_folder(ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(ledger), "--label", "fraud", "--id", "payment_id", "--out", str(out), "-q", *OPTIONS])
    assert stop.value.code == 0
    return out


# --- Labels -----------------------------------------------------------------------------------------------------------


def test_the_rarest_value_is_suggested(tmp_path: Path) -> None:
    labels = np.where(np.arange(100) < 10, "zebra", "antelope")
    path = write(tmp_path / "t.csv", {"x": np.arange(100) % 7, "kind": labels})
    said = fvnce("fit", path, "--label", "kind", "--out", tmp_path / "run", code=1)[1]
    assert "--label kind=zebra" in said
    assert "kind=antelope" not in said


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("Y", "N"),
        ("yes", "no"),
        ("TRUE", "FALSE"),
        ("fraud", "ok"),
        ("anomaly", "normal"),
        ("1", "0"),
        ("1.0", "0.0"),
        ("outlier", "inlier"),
        ("malignant", "benign"),
    ],
)
def test_the_usual_pairs_are_understood(bad: str, good: str, tmp_path: Path) -> None:
    labels = np.where(np.arange(60) < 6, bad, good)
    path = write(tmp_path / "t.csv", {"x": np.arange(60) % 7, "label": labels})
    said = fvnce("fit", path, "--label", "label", "--out", tmp_path / "run", *OPTIONS)[1]
    assert "60 rows of 1 columns, 6 known outliers" in said
    y = labels.tolist()
    known = NoiseContrastiveDetector(**QUICK).fit(np.random.default_rng(0).normal(size=(60, 2)), y).n_known_
    assert known == 6


@pytest.mark.slow
def test_many_known_outliers_are_warned_of_and_most_are_refused(tmp_path: Path) -> None:
    columns = {"x": np.arange(100) % 7, "kind": np.where(np.arange(100) < 30, "m", "b")}
    path = write(tmp_path / "t.csv", columns)
    said = fvnce("fit", path, "--label", "kind=m", "--out", tmp_path / "a", *OPTIONS)[1]
    assert "30 of 100 rows" in said
    said = fvnce("fit", path, "--label", "kind=b", "--out", tmp_path / "b", *OPTIONS, code=1)[1]
    assert "70 of 100 rows" in said
    assert "--label kind=m" in said
    fvnce("fit", path, "--label", "kind=b", "--mostly-outliers", "--out", tmp_path / "b", *OPTIONS)
    fvnce("fit", "--config", tmp_path / "b" / "config.toml", "--out", tmp_path / "c", "-q")


def test_words_that_say_nothing_are_refused_in_python() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(ValueError, match="found 'zebra'"):
        NoiseContrastiveDetector(**QUICK).fit(X, ["zebra"] * 4 + ["antelope"] * 36)


# --- What columns say -------------------------------------------------------------------------------------------------


def test_money_shares_dates_and_truths_are_read_and_identifiers_left_out(ledger: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = fvnce("fit", ledger, "--label", "fraud", "--out", out, *OPTIONS)[1]
    for name in ("payment_id", "counter", "account"):
        assert f"column '{name}'" in said
        assert f"--keep '{name}'" in said
    detector = load_run(out).detector
    assert detector.feature_names_in_.tolist() == ["amount", "share", "when", "member", "currency"]
    kinds = [reading.kind for reading in detector.preprocessor_.readings]
    assert kinds == ["number", "number", "time", "truth", "text"]
    scores = [float(row["score"]) for row in rows_of(fvnce("score", out, ledger)[0])]
    assert roc_auc_score(STRANGE, scores) > 0.99


@pytest.mark.slow
def test_kept_columns_are_kept(ledger: Path, tmp_path: Path) -> None:
    fvnce("fit", ledger, "--label", "fraud", "--keep", "counter", "--out", tmp_path / "run", "-q", *OPTIONS)
    assert "counter" in load_run(tmp_path / "run").detector.feature_names_in_
    assert "has no column 'z'" in fvnce("fit", ledger, "--keep", "z", "--out", tmp_path / "b", code=1)[1]


def test_an_identifier_is_carried_into_the_scores(ledger: Path, run_folder: Path, tmp_path: Path) -> None:
    wanted = payments()["payment_id"]
    found = rows_of(fvnce("score", run_folder, ledger)[0])
    assert [row["id"] for row in found] == wanted
    top = json.loads(fvnce("score", run_folder, ledger, "--top", 1, "--json")[0].splitlines()[0])
    assert top["id"] == wanted[top["row"] - 1]
    columns = payments()
    other = write(tmp_path / "t.csv", {k: v for k, v in columns.items() if k != "payment_id"})
    out, said = fvnce("score", run_folder, other)
    assert "has no column 'payment_id'" in said
    assert "id" not in rows_of(out)[0]
    assert rows_of(fvnce("score", run_folder, other, "--id", "counter")[0])[4]["id"] == "5"


@pytest.mark.parametrize("library_of", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_frames_of_every_library_score_as_the_file(library_of: Any, ledger: Path, run_folder: Path) -> None:
    """A model of ``fvnce fit`` reads in Python what it read in the file: the same texts, the same scores."""
    names = ["amount", "share", "when", "member", "currency"]
    detector = library.load(run_folder).detector
    assert detector.feature_names_in_.tolist() == names
    frame = library_of({name: payments()[name] for name in names})
    expected = [float(row["score"]) for row in rows_of(fvnce("score", run_folder, ledger)[0])]
    np.testing.assert_array_equal(detector.anomaly_score(frame), expected)
    swapped = library_of({name: payments()[name] for name in [names[1], names[0], *names[2:]]})
    np.testing.assert_array_equal(detector.anomaly_score(swapped), expected)
    with pytest.raises(ValueError, match=r"'?amount.*[Ff]eature names"):
        detector.anomaly_score(library_of({name: payments()[name] for name in names[1:]}))


@pytest.mark.slow
@pytest.mark.parametrize("library_of", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_the_detector_learns_from_texts_and_nulls_of_every_library(library_of: Any, tmp_path: Path) -> None:
    columns = {name: payments()[name] for name in ("amount", "when", "member")}
    columns["amount"] = [None if i % 11 == 0 else v for i, v in enumerate(columns["amount"])]
    columns["town"] = ["Bern" if i % 2 else None for i in range(N)]
    columns["count"] = [None if i % 13 == 0 else i % 5 for i in range(N)]
    y = ["yes" if i % 2 and s else "no" for i, s in enumerate(STRANGE)]
    detector = NoiseContrastiveDetector(**QUICK).fit(library_of(columns), y)
    plain = NoiseContrastiveDetector(**QUICK).fit(pd.DataFrame(columns), [int(label == "yes") for label in y])
    np.testing.assert_array_equal(
        detector.anomaly_score(library_of(columns)), plain.anomaly_score(pd.DataFrame(columns))
    )
    assert roc_auc_score(STRANGE, detector.anomaly_score(library_of(columns))) > 0.95
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "d.safetensors"))
    np.testing.assert_array_equal(
        loaded.anomaly_score(library_of(columns)), detector.anomaly_score(library_of(columns))
    )
    with pytest.raises(ValueError, match="column 'amount' must hold numbers as in training, found 'much' in row 3"):
        detector.anomaly_score(library_of({**columns, "amount": [*columns["amount"][:3], "much", *["$1"] * (N - 4)]}))


def test_nullable_types_of_pandas_score_as_plain_ones() -> None:
    rng = np.random.default_rng(0)
    plain = pd.DataFrame({"a": rng.normal(size=80), "b": rng.integers(0, 9, 80).astype(float)})
    plain.loc[::7, "b"] = np.nan
    nullable = plain.convert_dtypes()
    arrow = plain.convert_dtypes(dtype_backend="pyarrow")
    found = [NoiseContrastiveDetector(**QUICK).fit(frame).score_samples(frame) for frame in (plain, nullable, arrow)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_identifiers_of_a_frame_are_left_out_with_a_warning() -> None:
    columns = {"id": np.arange(100), "x": np.random.default_rng(0).normal(size=100)}
    with pytest.warns(UserWarning, match="column 'id' looks like an identifier.* left out"):
        detector = NoiseContrastiveDetector(**QUICK).fit(pd.DataFrame(columns))
    assert not detector.explain(pd.DataFrame(columns)).total[:, 0].any()
    shifted = pd.DataFrame({**columns, "id": columns["id"] + 10**6})
    np.testing.assert_array_equal(detector.score_samples(shifted), detector.score_samples(pd.DataFrame(columns)))


def test_a_date_after_the_last_of_training_is_not_strange_for_being_later() -> None:
    frame = pd.DataFrame({"when": pd.to_datetime(payments()["when"]), "x": np.random.default_rng(0).normal(size=N)})
    detector = NoiseContrastiveDetector(**QUICK).fit(frame[~STRANGE])
    late = frame[~STRANGE].assign(when=frame["when"] + pd.Timedelta(weeks=30))  # the same weekdays and hours
    assert (detector.predict(late) == -1).mean() < 0.1
    known = NoiseContrastiveDetector(**QUICK).fit(frame, STRANGE & (np.arange(N) % 2 == 1))
    night = frame[~STRANGE].assign(when=frame["when"].dt.normalize() + pd.Timedelta(hours=3))
    assert (known.anomaly_score(night) > known.anomaly_score(frame[~STRANGE])).mean() > 0.9


def test_the_time_that_has_passed_does_not_change_a_score() -> None:
    # A state that drifts slowly, and known outliers of the last days: the time alone would tell them from the rest, and
    # make every later row strange.
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"when": pd.date_range("2024-01-01", periods=600, freq="3h"), "x": np.sin(np.arange(600) / 50)}
    )
    frame["y"] = rng.normal(size=600)
    late = frame.assign(when=frame["when"] + pd.Timedelta(weeks=15))
    for y in (None, (np.arange(600) >= 570) & (np.arange(600) % 3 == 0)):
        detector = NoiseContrastiveDetector(**QUICK).fit(frame, y)
        np.testing.assert_array_equal(detector.score_samples(late), detector.score_samples(frame))


def test_dates_in_which_no_cycle_was_seen_twice_say_nothing() -> None:
    x = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=60, freq="20min"), "x": x})
    detector = NoiseContrastiveDetector(**QUICK).fit(frame)
    assert not detector.explain(frame).total[:, 0].any()
    both = NoiseContrastiveDetector(**QUICK).fit(frame[["when"]])  # nothing else to look at
    assert np.isfinite(both.score_samples(frame[["when"]])).all()
    known = NoiseContrastiveDetector(**QUICK).fit(frame, np.arange(60) >= 55)
    assert np.isfinite(known.score_samples(frame)).all()


def test_a_constant_column_contributes_nothing_unless_known_outliers_differ_in_it() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=100), np.full(100, 7.0)])
    detector = NoiseContrastiveDetector(**QUICK).fit(X)
    assert not detector.explain(X).total[:, 1].any()
    moved = X + np.array([0.0, 5.0])
    np.testing.assert_array_equal(detector.score_samples(moved), detector.score_samples(X))
    y = np.arange(100) < 10
    X[y, 1] = 9.0
    known = NoiseContrastiveDetector(**QUICK).fit(X, y)
    assert roc_auc_score(y, known.anomaly_score(X)) == 1.0


@pytest.mark.parametrize("detector", [NoiseContrastiveDetector(**QUICK), LatentDetector(epochs=2, latent=1)])
def test_nan_in_an_array_is_a_missing_value(detector: Any) -> None:
    X = np.random.default_rng(0).normal(size=(80, 3))
    X[::9, 1] = np.nan
    frame = pd.DataFrame(X)
    found = detector.fit(X).score_samples(X)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, type(detector)(**detector.get_params()).fit(frame).score_samples(frame))


# --- Arrays and images ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_npz_file_stored_by_columns_is_read(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(120, 3))
    y = (np.arange(120) < 6).astype(int)
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.savez_compressed(tmp_path / "b.npz", X=np.asfortranarray(X), y=y)
    scores = []
    for name in "ab":
        fvnce("fit", tmp_path / f"{name}.npz", "--label", "y", "--out", tmp_path / name, "-q", *OPTIONS)
        scores.append(fvnce("score", tmp_path / name, tmp_path / "b.npz")[0])
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_images_with_their_channels_last_are_read_as_such() -> None:
    rng = np.random.default_rng(0)
    first: NDArray[np.float64] = rng.random((60, 3, 10, 9))
    last = np.moveaxis(first, 1, -1)
    one, other = (NoiseContrastiveDetector(**QUICK).fit(X) for X in (first, last))
    np.testing.assert_array_equal(one.score_samples(first), other.score_samples(last))
    np.testing.assert_array_equal(np.moveaxis(one.explain(first[:2]).total, 1, -1), other.explain(last[:2]).total)


@pytest.mark.slow
def test_a_run_on_images_with_their_channels_last(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((40, 8, 8, 3))
    np.save(tmp_path / "i.npy", images)
    fvnce("fit", tmp_path / "i.npy", "--out", tmp_path / "run", "-q", *OPTIONS)
    out = fvnce("score", tmp_path / "run", tmp_path / "i.npy", "--explain")[0]
    assert len(rows_of(out)) == 40
    for row in rows_of(out):
        line, column = (int(part) for part in row["reason_1"].split()[1].split(","))
        assert max(line, column) < 8
        assert int(row["reason_1"].split()[-1]) < 3


# --- Rows to come -----------------------------------------------------------------------------------------------------


def test_rows_unlike_those_of_training_are_said_and_refused_if_asked(
    ledger: Path, run_folder: Path, tmp_path: Path
) -> None:
    assert "warning" not in fvnce("score", run_folder, ledger)[1]
    columns = payments()
    columns["share"] = [""] * N
    columns["amount"] = ["1e9"] * N
    columns["currency"] = ["EUR"] * N
    odd = write(tmp_path / "odd.csv", columns)
    words = [
        r"column 'share' .* 300 rows",
        r"column 'amount' holds numbers .* 10 deviations .* 300 of 300 rows",
        r"column 'currency' holds texts .* 300 of 300 rows",
        r"300 of 300 rows .* above the threshold, .* of the training rows were",
        r"300 of 300 rows .* miss more values than usual, .* of the training rows did",
    ]
    said = fvnce("score", run_folder, odd, "--out", tmp_path / "scores.csv")[1]
    assert all(re.search(f"warning: {sentence}", said) for sentence in words)
    lines = fvnce("score", run_folder, odd, "--json")[0].splitlines()
    summary = json.loads(lines[-1])["summary"]
    assert len(summary["warnings"]) == len(words)
    assert all(any(re.fullmatch(sentence, warning) for warning in summary["warnings"]) for sentence in words)
    assert (summary["rows"], len(lines)) == (N, N + 1)
    said = fvnce("score", run_folder, odd, "--strict", "--out", tmp_path / "none.csv", code=1)[1]
    assert "odd.csv" in said
    assert "column 'share'" in said
    assert not (tmp_path / "none.csv").exists()


# --- Files as they are written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1.234,50 €", "2,5 €", "1.000 €"], [1234.5, 2.5, 1000.0]),
        (["1,234.50", "2.5", "1,000"], [1234.5, 2.5, 1000.0]),
        (["(12.00)", "$3.50", "-$1"], [-12.0, 3.5, -1.0]),
        (["12%", "50 %", "0.5%"], [0.12, 0.5, 0.005]),
        (["1'000", "CHF 2'500.50", "3"], [1000.0, 2500.5, 3.0]),
        (["Yes", "no", "YES"], [1.0, 0.0, 1.0]),
        (["TRUE", "false", "True"], [1.0, 0.0, 1.0]),
        (["14:30", "00:15", "23:45:36"], [14.5, 0.25, 23.76]),
    ],
)
def test_texts_that_are_numbers_are_read_as_such(texts: list[str], numbers: list[float], tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"x": [*texts, ""], "y": [1, 2, 3, 4]})
    frame = library.tables.open_source(path).read()
    np.testing.assert_allclose(frame["x"], [*numbers, np.nan])


@pytest.mark.parametrize(
    ("texts", "days"),
    [
        (["2024-03-01", "2024-12-31"], ["2024-03-01", "2024-12-31"]),
        (["1.3.2024", "31.12.2024"], ["2024-03-01", "2024-12-31"]),
        (["1/3/2024", "31/12/2024"], ["2024-03-01", "2024-12-31"]),
        (["3/1/2024", "12/31/2024"], ["2024-03-01", "2024-12-31"]),
        (["2024-03-01T14:30:00Z", "2024-12-31 02:00:00+01:00"], ["2024-03-01T14:30", "2024-12-31T02:00"]),
        (["3/1/2024 2:30 PM", "12/31/2024 12:00 AM"], ["2024-03-01T14:30", "2024-12-31T00:00"]),
    ],
)
def test_dates_are_read_in_the_order_that_the_column_shows(texts: list[str], days: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"x": texts, "y": [1, 2]})
    frame = library.tables.open_source(path).read()
    np.testing.assert_array_equal(frame["x"], np.array(days, dtype="datetime64[us]"))


def test_dates_whose_order_nothing_shows_are_told(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv", {"d": [f"{i % 12 + 1}/{i % 9 + 1}/2024" for i in range(60)], "x": np.arange(60) % 7}
    )
    said = fvnce("fit", path, "--out", tmp_path / "run", *OPTIONS)[1]
    assert "column 'd' holds dates" in said


def test_a_decimal_comma_may_come_late(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n" + "".join(f"{i};x\n" for i in range(5000)) + "2,5;y\n")
    assert library.tables.open_source(path).read()["a"][-1] == 2.5


def test_blanks_around_quotes_and_between_fields(tmp_path: Path) -> None:
    quoted, blanks = tmp_path / "q.csv", tmp_path / "b.txt"
    quoted.write_text('a, b\n1, "x, y"\n2, "z"\n')
    frame = library.tables.open_source(quoted).read()
    assert frame["b"].tolist() == ["x, y", "z"]
    blanks.write_text("1   2.5  3\n4 5 6\n")
    frame = library.tables.open_source(blanks).read()
    assert [frame[name].tolist() for name in frame.columns] == [[1, 4], [2.5, 5], [3, 6]]


def test_a_table_too_large_to_keep_is_thinned_and_known_outliers_stay(tmp_path: Path, monkeypatch: Any) -> None:
    from fvnce.app.runs import training_data
    from fvnce.app.runs.settings import DataSettings

    monkeypatch.setattr(training_data, "LARGE_BYTES", 200_000)
    monkeypatch.setattr(training_data, "LARGE_ROWS", 2_000)
    numbers = np.random.default_rng(0).permutation(40_000)
    path = write(tmp_path / "t.csv", {"x": numbers / 7, "y": np.arange(40_000) % 5, "bad": numbers < 50})
    said: list[str] = []
    data = training_data.read_training_data(DataSettings(str(path), label="bad"), said.append)
    assert len(said) == 1
    assert "of 40,000 rows, 2,050" in said[0]
    assert (len(data.known), int(data.known.sum())) == (2_050, 50)
    assert data.names is not None
    chosen = np.array([int(name) - 1 for name in data.names])
    np.testing.assert_allclose(data.rows["x"], numbers[chosen] / 7)  # type: ignore[call-overload]
    # Rows of the beginning are as likely as those of the end; 5 deviations of a binomial, about 1 in 10**6.
    early = (chosen[~data.known] < 20_000).sum()
    assert abs(early - 1_000) < 5 * np.sqrt(500)
    again = training_data.read_training_data(DataSettings(str(path), label="bad"), said.append)
    assert again.names == data.names


def test_the_page_of_a_run_tells_durations_in_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    taken = rng.integers(60_000, 7_200_000, 80).astype("timedelta64[ms]")
    taken[3] = np.timedelta64("NaT")
    pa.parquet.write_table(pa.table({"taken": taken, "size": rng.normal(size=80)}), tmp_path / "t.parquet")
    fvnce("fit", tmp_path / "t.parquet", "--out", tmp_path / "run", *OPTIONS)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "nanoseconds" not in page
    longest = np.nanmax(taken) / np.timedelta64(1, "s")
    assert f" to {longest:.4g} seconds" in page
