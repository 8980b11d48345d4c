"""Values that look like others: each is read as its owner means it, or refused, but never misread without a word."""

from __future__ import annotations

import datetime
import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from commands import fvnce
from fvnce.detection import NoiseContrastiveDetector
from fvnce.tables import FileError, Frame, ReadOptions, open_source
from fvnce.tables.delimited import DelimitedSource
from fvnce.tables.parsing import ColumnType
from fvnce.tables.schema import frame_to_matrix, learn_types

N = 60
QUICK: dict[str, Any] = {"n_trees": 5, "calibration_folds": 0, "members": ("isolation_forest",)}


def source_of(content: str, **options: Any) -> DelimitedSource:
    return DelimitedSource("t", io.BytesIO(content.encode()), ReadOptions(**options))


def column(values: list[str], **options: Any) -> tuple[np.ndarray, ColumnType, str]:
    """Read one column beside another, from a file that semicolons separate."""
    source = source_of("a;other\n" + "".join(f"{value};x{i % 3}\n" for i, value in enumerate(values)), **options)
    numbers = source.read()["a"]
    return numbers, source.types["a"], " ".join(source.notices)


def trained_on(values: list[str]) -> dict[str, ColumnType]:
    return {"a": column(values)[1]}


def score_rows(values: list[str], trained: dict[str, ColumnType]) -> DelimitedSource:
    return source_of("a\n" + "".join(f"{value}\n" for value in values), types=trained, delimiter=";")


# --- Units, percentages, currencies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["%", " %", "k", " kg"])
@pytest.mark.parametrize("every", [2, 4])
def test_numbers_with_and_without_a_unit_are_refused(unit: str, every: int) -> None:
    with pytest.raises(FileError, match="'a'"):
        column([f"{i + 1}{unit}" if i % every else str(i + 1) for i in range(N)])
    assert column([f"{i}{unit}" if i else "0" for i in range(N)])[0][0] == 0


@pytest.mark.parametrize("unit", ["%", "k", " mmol/L"])
def test_a_unit_is_that_of_training(unit: str) -> None:
    plain, with_unit = [f"{i}.5" for i in range(N)], [f"{i}.5{unit}" for i in range(N)]
    for trained, later in ((plain, with_unit), (with_unit, plain)):
        with pytest.raises(FileError, match="training") as refused:
            score_rows(later, trained_on(trained)).read()
        assert "--decimal" not in str(refused.value)
    frame = Frame.of(pd.DataFrame({"a": plain}))
    with pytest.raises(ValueError, match="'a'"):
        frame_to_matrix(frame, list(trained_on(with_unit).values()))


def test_a_currency_is_that_of_training() -> None:
    dollars = [f"${i}.50" for i in range(N)]
    with pytest.raises(FileError, match="'a'"):
        score_rows([f"€{i}.50" for i in range(N)], trained_on(dollars)).read()
    plain = score_rows([f"{i}.50" for i in range(N)], trained_on(dollars)).read()["a"]
    assert plain.tolist() == column(dollars)[0].tolist()


@pytest.mark.parametrize(
    ("text", "number"),
    [("R$ {},50", 0.5), ("US${}.5", 0.5), ("{}.5 mmol/L", 0.5), ("{}.5‰", 0.5), ("–{}.5", -0.5), ("$({}.5)", -0.5)],
)
def test_numbers_in_other_dress(text: str, number: float) -> None:
    values, kind, _ = column([text.format(i) for i in range(N)])
    assert kind.kind == "number"
    assert values[0] == number


def test_two_units_without_a_blank_are_refused() -> None:
    with pytest.raises(FileError, match="one unit"):
        column([f"{i}MB" if i % 3 else f"{i}GB" for i in range(N)])


def test_a_sign_inside_brackets_is_no_number() -> None:
    assert ColumnType(decimal=".").parse_one("(-5)") is None
    assert ColumnType(decimal=".").parse_one("(5)") == -5


# --- Codes, truths, dates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[10**18 + i % 5 for i in range(N)], [f"{i % 9}E{i % 4}" for i in range(N)]])
def test_numbers_that_may_be_codes_are_named(values: list[Any]) -> None:
    assert "--categorical a" in column([str(value) for value in values])[2]


def test_long_whole_numbers_of_a_parquet_file_are_named(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"a": [10**18 + i % 5 for i in range(N)]}), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet")
    source.read()
    assert "--categorical a" in " ".join(source.notices)


def test_a_code_without_its_zeros_is_the_same_code_in_a_file_and_in_a_frame() -> None:
    codes = ColumnType("text").with_codes(["00700", "00020", "abc"])
    texts = frame_to_matrix(Frame.of(pd.DataFrame({"a": ["700", "00020", "9"]})), [codes])
    numbers = frame_to_matrix(Frame.of(pd.DataFrame({"a": [700, 20, 9]})), [codes])
    assert texts.tolist() == numbers.tolist() == [[1.0], [0.0], [-2.0]]


@pytest.mark.parametrize("words", [("F", "N"), ("t", "n"), ("no", "off", "f")])
def test_words_that_are_not_a_pair_are_no_truths(words: tuple[str, ...]) -> None:
    assert column([words[i % len(words)] for i in range(N)])[1].kind == "text"


@pytest.mark.parametrize("separator", ["/", "-"])
def test_a_year_of_two_digits_that_may_come_first_is_refused(separator: str) -> None:
    days = [datetime.date(2023, 1, 1) + datetime.timedelta(days=7 * i) for i in range(N)]
    with pytest.raises(FileError, match="year"):
        column([day.strftime(f"%y{separator}%m{separator}%d") for day in days])
    assert column([day.strftime(f"%d{separator}%m{separator}%y") for day in days])[1].day_first


def test_an_order_of_dates_that_training_did_not_show_is_not_guessed() -> None:
    trained = trained_on([f"2024-01-{i % 28 + 1:02d}" for i in range(N)])
    with pytest.raises(FileError, match="dates"):
        score_rows([f"{i % 12 + 1}/1/2024" for i in range(N)], trained).read()
    with pytest.raises(FileError, match="dates"):
        score_rows([f"24-01-{i % 28 + 1:02d}" for i in range(N)], trained).read()
    days = Frame.of(pd.DataFrame({"a": pd.date_range("2024-01-01", periods=N)}))
    with pytest.raises(ValueError, match="dates"):
        frame_to_matrix(Frame.of(pd.DataFrame({"a": ["2/1/2024"]})), learn_types(days))
    clear = score_rows(["13/1/2024", "1/14/2024", "2/2/2024"], trained).read()["a"].astype("datetime64[D]")
    assert clear.astype(str).tolist() == ["2024-01-13", "2024-01-14", "2024-02-02"]


def test_years_of_two_digits_that_may_be_of_the_last_century_are_named() -> None:
    assert "2041" in column([f"{i % 28 + 1:02d}.01.{41 + i % 40}" for i in range(N)])[2]


def test_a_time_of_day_keeps_its_fraction_of_a_second() -> None:
    assert column([f"0:00:{i:02d}.250" for i in range(N)])[0][1] == pytest.approx(1.25 / 3600)


# --- Lines that may name columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["name,2019,2020", "k,0,1"])
def test_whole_numbers_that_may_be_names_are_asked_about(first: str) -> None:
    content = first + "\n" + "".join(f"n{i},{i}.5,{i}.7\n" for i in range(N))
    with pytest.raises(FileError, match="--header"):
        source_of(content)
    assert source_of(content, header=True).columns == first.split(",")


def test_the_names_that_pandas_gives_are_asked_about() -> None:
    with pytest.raises(FileError, match="--header"):
        source_of(pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3))).to_csv(index=False))
    assert not source_of("1,2,3\n" + "".join(f"{i},{i},{i}\n" for i in range(N))).header


def test_a_first_row_with_a_gap_is_no_header() -> None:
    assert not source_of("NA,b\n" + "".join(f"{i}.5,{'bc'[i % 2]}\n" for i in range(N))).header


def test_a_header_with_a_gap_is_asked_about() -> None:
    with pytest.raises(FileError, match="--header"):
        source_of("a,,b\n1,2,3\n4,5,6\n")


def test_columns_taken_in_their_order_are_said() -> None:
    trained = {"a": ColumnType(decimal="."), "b": ColumnType(decimal=".")}
    assert "position" in " ".join(source_of("1.5,2.5\n3.5,4.5\n", types=trained).notices)
    assert source_of("a,b\n1.5,2.5\n3.5,4.5\n", types=trained).notices == []


@pytest.mark.parametrize("content", ['{"a":1,"b":2}\n' * 9, '[{"a": 1}, {"a": 2}]', "<html><td>1</td></html>"])
def test_text_that_is_no_table_is_refused(content: str) -> None:
    with pytest.raises(FileError, match="JSON"):
        source_of(content)


def test_columns_aligned_by_blanks() -> None:
    frame = source_of("    a     b\n" + "".join(f"{i:5.1f} {i * 1.5:5.1f}\n" for i in range(N))).read()
    assert (frame.columns.tolist(), frame["b"][2]) == (["a", "b"], 3.0)


# --- One table in several forms ---------------------------------------------------------------------------------------


def test_a_number_that_stands_for_missing_does_so_in_every_form(tmp_path: Path) -> None:
    values = [-999.0 if i % 3 == 0 else i + 0.5 for i in range(N)]
    pyarrow.parquet.write_table(pa.table({"a": values, "b": [int(v) for v in values]}), tmp_path / "t.parquet")
    frame = open_source(tmp_path / "t.parquet", ReadOptions(missing=("-999",))).read()
    expected = np.arange(N) % 3 == 0
    for name in "ab":
        np.testing.assert_array_equal(np.isnan(frame[name]), expected)
    trained = column([str(value) for value in values], missing=("-999", "-999.0"))[1]
    read = frame_to_matrix(Frame.of(pd.DataFrame({"a": values})), [trained])
    np.testing.assert_array_equal(np.isnan(read[:, 0]), expected)


def test_times_of_day_and_texts_of_other_arrow_types(tmp_path: Path) -> None:
    columns = {
        "at": pa.array([datetime.time(10, i) for i in range(N)]),
        "size": pa.array([f"{i},5" for i in range(N)], pa.string_view()),
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    frame = open_source(tmp_path / "t.parquet").read()
    assert (frame["at"][30], frame["size"][1]) == (10.5, 1.5)
    own = Frame.of(pa.table(columns))
    np.testing.assert_array_equal(frame_to_matrix(own, learn_types(own))[:, 0], frame["at"])


def test_columns_by_name_are_a_frame() -> None:
    generator = np.random.default_rng(0)
    columns = {"a": generator.normal(size=N), "b": generator.choice(["x", "y"], N)}
    frame = pd.DataFrame(columns)
    detector = NoiseContrastiveDetector(**QUICK).fit(columns)
    scores = NoiseContrastiveDetector(**QUICK).fit(frame).anomaly_score(frame)
    np.testing.assert_array_equal(detector.anomaly_score(dict(reversed(columns.items()))), scores)


# --- What the command line says ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("misreadings")
    rows = np.random.default_rng(0).normal(size=(N, 2))
    (place / "t.csv").write_text("a,b\n" + "".join(f"{a:.4f},{b:.4f}\n" for a, b in rows))
    options = ["--set", "n_trees=5", "--set", "members=isolation_forest", "--set", "calibration_folds=0"]
    fvnce("fit", place / "t.csv", "--out", place / "run", *options)
    return place


def test_a_table_on_standard_input_is_not_replaced(folder: Path) -> None:
    table = Path(shutil.copy(folder / "t.csv", folder / "own.csv"))
    command = [sys.executable, "-m", "fvnce", "score", str(folder / "run"), "-", "--out", str(table)]
    with table.open("rb") as file:
        outcome = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert outcome.returncode == 2
    assert "--out" in outcome.stderr
    assert table.read_bytes() == (folder / "t.csv").read_bytes()


def test_score_advises_only_what_it_accepts(folder: Path) -> None:
    for value in ("unknown", "3.5kg"):
        (folder / "odd.csv").write_text(f"a,b\n1.5,{value}\n2.5,1.5\n")
        said = fvnce("score", folder / "run", folder / "odd.csv", code=1)[1]
        assert "--categorical" not in said
        assert ("--missing" in said) == (value == "unknown")


def test_an_option_is_advised_for_texts_that_can_be_pasted_only(tmp_path: Path) -> None:
    numbers = [f"{i}.5,x" for i in range(30)]
    for text, advised in (("unknown", True), ("a\nb", False), ("x" * 50, False)):
        (tmp_path / "t.csv").write_text("\n".join(["a,b", *numbers, f'"{text}",x', "other,x", ""]))
        _, said = fvnce("fit", tmp_path / "t.csv", "--out", tmp_path / "run", code=1)
        assert (f"--missing {text[:1]}" in said.replace("'", "")) == advised


def test_score_says_that_bounds_are_read_without_their_sign(folder: Path) -> None:
    (folder / "bounds.csv").write_text("a,b\n1.5,<0.5\n2.5,1.5\n")
    assert "column 'b' holds bounds" in fvnce("score", folder / "run", folder / "bounds.csv")[1]
