"""A table means what its owner means: it is read right, or refused with the option that would settle it."""

from __future__ import annotations

import bz2
import io
import lzma
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from commands import fvnce
from fvnce.app.runs import load_run
from fvnce.app.runs.settings import DataSettings
from fvnce.app.runs.training_data import read_training_data
from fvnce.detection import BatchScorer, NoiseContrastiveDetector
from fvnce.tables import FileError, Frame, ReadOptions, open_source
from fvnce.tables.delimited import DelimitedSource

QUICK: dict[str, Any] = {"n_trees": 20, "calibration_folds": 0, "members": ("isolation_forest",)}
OPTIONS = ["--set", "n_trees=20", "--set", "members=isolation_forest", "--set", "calibration_folds=0"]


def table(columns: dict[str, list[Any]], delimiter: str = ",") -> bytes:
    lines = [delimiter.join(columns), *(delimiter.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    return ("\n".join(lines) + "\n").encode()


def source_of(content: bytes, **options: Any) -> DelimitedSource:
    return DelimitedSource("t", io.BytesIO(content), ReadOptions(**options))


# --- The style of numbers is decided once for a file ------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", ["\t", " ", ";", "|"])
def test_a_decimal_point_that_another_column_shows(delimiter: str) -> None:
    whole = [str(i) for i in range(5000)]
    late = {"a": [*whole, "50.125"], "b": ["20.10"] * 5001}
    assert source_of(table(late, delimiter)).read()["a"][-1] == 50.125


@pytest.mark.parametrize("delimiter", ["\t", " ", ";", "|"])
def test_a_decimal_point_that_the_same_column_shows_late(delimiter: str) -> None:
    content = table({"a": [*map(str, range(9000)), "50.125", "3.5"], "b": ["7"] * 9002}, delimiter)
    assert source_of(content).read()["a"][-2:].tolist() == [50.125, 3.5]


def test_what_stays_open_is_asked_and_the_answer_is_taken() -> None:
    content = table({"a": ["1", "2", "1.234"], "b": ["5", "6", "7"]}, ";")
    with pytest.raises(FileError, match=r"column 'a' .*1\.234.*--decimal \. or --decimal ,"):
        source_of(content).read()
    for decimal, value in ((".", 1.234), (",", 1234.0)):
        assert source_of(content, decimal=decimal).read()["a"][-1] == value


def test_nothing_is_stored_that_no_value_showed() -> None:
    whole = source_of(table({"a": ["1", "2"], "b": ["3", "4"]}, ";"))
    whole.read()
    assert [column.decimal for column in whole.types.values()] == [None, None]
    later = table({"a": ["1", "50.125"], "b": ["3.5", "4"]}, ";")
    assert source_of(later, types=whole.types).read()["a"][-1] == 50.125
    with pytest.raises(FileError, match="--decimal"):
        source_of(table({"a": ["1", "50.125"], "b": ["3", "4"]}, ";"), types=whole.types).read()


def test_where_commas_separate_fields_a_point_is_decimal_and_a_comma_is_asked_about() -> None:
    source = source_of(table({"a": ["1", "1.234"], "b": ["5", "6"]}))
    assert source.read()["a"][-1] == 1.234
    assert any("'1.234'" in notice and "--decimal ," in notice for notice in source.notices)
    assert source.types["b"].decimal is None
    quoted = table({"a": ["1", '"1,234"'], "b": ["5", "6"]})
    with pytest.raises(FileError, match="--decimal"):
        source_of(quoted).read()
    assert source_of(quoted, decimal=",").read()["a"][-1] == 1.234
    dollars = source_of(table({"a": ["$950", '"$78,110"'], "b": ["5", "6"]}))
    assert dollars.read()["a"][-1] == 78110


def test_columns_of_two_styles_are_read_each_in_its_own_and_a_third_is_asked_about() -> None:
    columns = {"a": ["1.5", "2.5"], "b": ["1,5", "2,5"], "c": ["7", "8"]}
    frame = source_of(table(columns, ";")).read()
    assert [frame[name].tolist() for name in "abc"] == [[1.5, 2.5], [1.5, 2.5], [7, 8]]
    with pytest.raises(FileError, match=r"column 'c'.*--decimal"):
        source_of(table({**columns, "c": ["7", "1.234"]}, ";")).read()
    with pytest.raises(FileError, match=r"column 'a'.*'2,5'"):
        source_of(table({**columns, "a": ["1.5", "2,5"]}, ";")).read()


def test_a_run_keeps_the_style_of_its_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 90, 200)
    train = tmp_path / "train.tsv"
    train.write_bytes(table({"a": values.tolist(), "b": [f"{v:.2f}" for v in rng.random(200)]}, "\t"))
    said = fvnce("fit", train, "--out", tmp_path / "run", *OPTIONS)[1]
    assert "numbers (decimal .): a, b" in said
    (tmp_path / "new.tsv").write_bytes(table({"a": [50, "50.125"], "b": [1, 1]}, "\t"))
    out, said = fvnce("score", tmp_path / "run", tmp_path / "new.tsv")
    assert "numbers (decimal .): a, b" in said
    assert "deviations" not in said
    scores = [float(line.split(",")[1]) for line in out.splitlines()[1:]]
    assert scores[1] < scores[0] + 1.0


# --- Gaps -------------------------------------------------------------------------------------------------------------

GAPS = ["-", "--", ".", "n.a.", "missing", "unknown", "ERR"]


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("gap", GAPS)
def test_one_repeated_text_among_numbers_is_a_gap_at_any_share(gap: str, share: float) -> None:
    values = [gap if i < 100 * share else f"{i}.5" for i in range(100)]
    source = source_of(table({"a": values, "b": range(100)}))
    found = source.read()["a"]
    assert np.isnan(found).sum() == round(100 * share)
    assert found[-1] == 99.5
    assert any("'a'" in notice and repr(gap) in notice for notice in source.notices)


def test_several_texts_are_listed_once_for_all_columns_with_options_to_paste(tmp_path: Path) -> None:
    numbers: list[Any] = list(range(60))
    columns = {"a": [*numbers, "ERR", "off-line"], "b": [*numbers, "broken", "n.d."], "c": [*numbers, 1, "12x"]}
    path = tmp_path / "t.csv"
    path.write_bytes(table(columns))
    for command in (("data", path), ("fit", path, "--out", tmp_path / "run")):
        said = fvnce(*command, code=1)[1]
        for words in (r"a +line 62 +ERR", "a +line 63 +off-line", "b +line 62 +broken", "c +line 63 +12x"):
            assert re.search(words, said), said
        paste = said.splitlines()[-1].partition(": ")[2].split()
    said = fvnce("fit", path, "--out", tmp_path / "run", *paste, *OPTIONS)[1]
    assert "texts: c" in said
    assert np.isnan(open_source(path, ReadOptions(missing=("ERR", "off-line"), categorical=("b", "c"))).read()["a"][-1])


def test_a_file_of_known_outliers_is_read_as_the_rows_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"a": [f"{v:.2f}".replace(".", ",") for v in rng.normal(size=60)], "b": ["1.234"] * 30 + ["2.345"] * 30}
    (tmp_path / "rows.csv").write_bytes(table(columns, ";"))
    (tmp_path / "bad.csv").write_bytes(table({"a": ["9,50", "8,25"], "b": ["1.234", "9.999"]}, ";"))
    for decimal, value in ((".", 9.999), (",", 9999.0)):
        settings = DataSettings(str(tmp_path / "rows.csv"), outliers=str(tmp_path / "bad.csv"), decimal=decimal)
        rows = read_training_data(settings, lambda text: None).rows
        assert isinstance(rows, Frame)
        assert (rows["a"][-1], rows["b"][-1]) == (8.25, value)


def test_lines_of_another_width_are_among_the_problems(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(table({"a": [*range(30), "x1"], "b": range(31)}) + b"1,2,3\n7\n8,9\n")
    said = fvnce("data", path, code=1)[1]
    for words in ("line 33 ", "line 34 ", "line 32 +x1"):
        assert re.search(words, said), said


def test_bounds_are_read_as_their_limits() -> None:
    source = source_of(table({"a": ["<0.5", "0.7", "> 90", "≥100.5"], "b": [1, 2, 3, 4]}))
    assert source.read()["a"].tolist() == [0.5, 0.7, 90, 100.5]
    assert any("'<0.5'" in notice for notice in source.notices)


def test_mostly_numbers_are_text_only_if_the_owner_says_so() -> None:
    values = ["12", "12a", "14", "15", "7b", "8"]
    with pytest.raises(FileError, match="--categorical number"):
        source_of(table({"number": values, "x": range(6)})).read()
    assert source_of(table({"number": values, "x": range(6)}), categorical=("number",)).read()["number"][1] == "12a"


@pytest.mark.parametrize(
    "values", [["A", "1", "B", "C"], ["10.0.0.1", "10.0.0.2", "192.168.100.200"], ["Bern", "Basel", "7"]]
)
def test_texts_stay_texts(values: list[str]) -> None:
    assert source_of(table({"a": values, "x": range(len(values))})).read()["a"].tolist() == values


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["5.13 kg", "4.5kg", "3 kg"], [5.13, 4.5, 3]),
        (["37.2 °C", "36.9 °C", "<36 °C"], [37.2, 36.9, 36]),
        (["−5.5", "3.25", "−1"], [-5.5, 3.25, -1]),
        (["5.50-", "3.25", "1-"], [-5.5, 3.25, -1]),
        (['"12,34,567.50"', '"1,00,000.00"', "5"], [1234567.5, 100000, 5]),
    ],
    ids=["unit", "degrees", "minus", "minus behind", "lakh"],
)
def test_numbers_of_other_kinds(texts: list[str], values: list[float]) -> None:
    assert source_of(table({"a": texts, "b": [7, 8, 9]})).read()["a"].tolist() == values


def test_other_units_and_currencies_are_refused() -> None:
    source = source_of(table({"a": ["5.13 kg", "4.5 kg", "3 kg"], "b": [7, 8, 9]}))
    source.read()
    with pytest.raises(FileError, match="'300 g'"):
        source_of(table({"a": ["300 g"], "b": [7]}), types=source.types).read()
    with pytest.raises(FileError, match="'300 g'"):
        source_of(table({"a": ["5.13 kg", "300 g", "3 kg"], "b": [7, 8, 9]})).read()
    assert source_of(table({"a": ["1a", "2b", "3b"], "b": [7, 8, 9]})).read()["a"].tolist() == ["1a", "2b", "3b"]
    with pytest.raises(FileError, match="'€6'"):
        source_of(table({"a": ["$5", "€6", "$7"], "b": [7, 8, 9]})).read()


@pytest.mark.parametrize(
    ("first", "header"),
    [("a,b,", True), (",b,c", True), ("age,2019,size", True), ("1,2,3", False), ("ERR,1.5,2", False)],
)
def test_a_first_line_that_names_columns_is_told_from_one_of_values(first: str, header: bool) -> None:
    blank = first.endswith(",")
    content = first + "\n" + "".join(f"{i},{i * i}.5,{'' if blank else i % 7}\n" for i in range(30))
    assert source_of(content.encode()).header == header


# --- Dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "days"),
    [
        (["01-Mar-2024", "31-DEC-2024"], ["2024-03-01", "2024-12-31"]),
        (["March 1, 2024", "Dec 31 2024"], ["2024-03-01", "2024-12-31"]),
        (["01.03.24", "31.12.24"], ["2024-03-01", "2024-12-31"]),
        (["3/1/24", "12/31/24 14:30"], ["2024-03-01", "2024-12-31T14:30"]),
        (["01/Mar/2024:14:30:05 +0100", "31/Dec/2024:00:00:00 +0100"], ["2024-03-01T14:30:05", "2024-12-31"]),
        (["2024-03", "2024-12"], ["2024-03-01", "2024-12-01"]),
        (["Fri, 01 Mar 2024 14:30:05 GMT", "unknown", "unknown"], ["2024-03-01T14:30:05", "NaT", "NaT"]),
    ],
)
def test_dates_of_many_kinds(texts: list[str], days: list[str]) -> None:
    frame = source_of(table({"x": texts, "y": range(len(texts))}, ";")).read()
    np.testing.assert_array_equal(frame["x"], np.array(days, dtype="datetime64[us]"))


def test_the_order_of_dates_may_show_late_or_in_another_column() -> None:
    late = {"d": ["1/2/2024"] * 5000 + ["13/4/2024"], "e": ["1/2/2024"] * 5001, "x": range(5001)}
    frame = source_of(table(late)).read()
    assert {str(frame[name][0])[:10] for name in "de"} == {"2024-02-01"}


def test_a_column_of_eight_digits_that_are_all_dates_is_dates_in_files_and_frames() -> None:
    days = [f"2024{1 + i % 12:02d}{1 + i % 28:02d}" for i in range(40)]
    frame = source_of(table({"d": days, "x": [f"{i}.5" for i in range(40)]})).read()
    assert frame["d"].dtype.kind == "M"
    columns = pd.DataFrame({"d": [int(day) for day in days], "x": np.arange(40) % 7 + 0.5})
    detector = NoiseContrastiveDetector(**QUICK).fit(columns)
    assert detector.preprocessor_.readings[0].kind == "time"
    assert np.isfinite(detector.score_samples(columns)).all()


# --- Declared types ---------------------------------------------------------------------------------------------------

CODES = ["00700", "00800", "00900", "01000"] * 25


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(pd.Categorical(CODES)),
        pd.Series(pd.Categorical([int(code) for code in CODES])),
        pl.Series(CODES, dtype=pl.Categorical),
        pl.Series(CODES, dtype=pl.Enum(sorted(set(CODES)))),
        pa.array(CODES).dictionary_encode(),
    ],
    ids=["pandas", "pandas of ints", "polars", "polars enum", "arrow"],
)
def test_a_declared_category_is_one_in_frames_and_files(column: Any, tmp_path: Path) -> None:
    kind = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}[type(column).__module__.split(".")[0]]
    frame = kind({"zone": column, "x": np.random.default_rng(0).normal(size=100)})
    readings = NoiseContrastiveDetector(**QUICK).fit(frame).preprocessor_.readings
    assert readings[0].kind == "text"
    assert len(readings[0].codes) == 4
    pa.parquet.write_table(nw.from_native(frame, eager_only=True).to_arrow(), tmp_path / "t.parquet")
    assert set(open_source(tmp_path / "t.parquet").read()["zone"]) == set(readings[0].codes)


def test_a_number_is_the_category_that_it_was_in_training() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"zone": pd.Categorical(CODES), "x": rng.normal(size=100)})
    detector = NoiseContrastiveDetector(**QUICK).fit(frame)
    lost = frame.assign(zone=[int(code) for code in CODES])  # as pandas.read_csv gives them
    np.testing.assert_array_equal(detector.score_samples(lost), detector.score_samples(frame))


# --- Names and order --------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(80, 3)) * [1, 10, 100]


def arrow_batch(columns: dict[str, Any]) -> Any:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    "make",
    [
        pd.DataFrame,
        pl.DataFrame,
        pa.table,
        arrow_batch,
        lambda columns: nw.from_native(pl.DataFrame(columns)),
        lambda columns: pl.DataFrame(columns).lazy(),
        Frame,
    ],
    ids=["pandas", "polars", "arrow", "batch", "narwhals", "lazy", "Frame"],
)
def test_columns_are_put_in_order_missing_ones_refused_and_extra_ones_named(make: Any) -> None:
    columns = {name: X[:, i].copy() for i, name in enumerate("abc")}
    detector = NoiseContrastiveDetector(**QUICK).fit(make(columns))
    assert detector.feature_names_in_.tolist() == ["a", "b", "c"]
    expected = detector.score_samples(make(columns))
    turned = {name: columns[name] for name in "cab"}
    np.testing.assert_array_equal(detector.score_samples(make(turned)), expected)
    with pytest.raises(ValueError, match=r"missing \(b\)"):
        detector.score_samples(make({name: columns[name] for name in "ac"}))
    with pytest.warns(UserWarning, match="ignored: extra"):
        found = detector.score_samples(make({"extra": columns["a"], **turned}))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("names", [[0, 1, 2], [10, 20, 30], pd.MultiIndex.from_tuples([("u", 1), ("u", 2), ("v", 1)])])
def test_names_of_pandas_that_are_no_texts_are_put_in_order(names: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=names)
    detector = NoiseContrastiveDetector(**QUICK).fit(frame)
    expected = detector.score_samples(frame)
    turned = frame[[frame.columns[i] for i in (2, 0, 1)]]
    np.testing.assert_array_equal(detector.score_samples(turned), expected)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "d.safetensors"))
    np.testing.assert_array_equal(loaded.score_samples(turned), expected)
    with pytest.raises(ValueError, match="feature names"):
        detector.score_samples(frame[[frame.columns[i] for i in (1, 2)]])


# --- Files ------------------------------------------------------------------------------------------------------------


def test_no_output_replaces_an_input(tmp_path: Path) -> None:
    path, run = tmp_path / "in.csv", tmp_path / "run"
    path.write_bytes(table({"a": X[:, 0].tolist(), "b": X[:, 1].tolist()}))
    fvnce("fit", path, "--out", run, *OPTIONS)
    before, link = path.read_bytes(), tmp_path / "link.csv"
    link.symlink_to(path)
    for command in (
        ("score", run, path, "--out", path),
        ("score", run, path, "--out", link),
        ("score", run, link, "--out", path),
        ("score", run, path, "--out", run / "config.toml"),
        ("data", path, "--schema", path),
        ("fit", "--config", run / "config.toml", "--out", run, "--overwrite"),
    ):
        said = fvnce(*command, code=2)[1]
        assert path.read_bytes() == before, command
        assert said.startswith("fvnce: ")
    assert load_run(run)


def test_a_parquet_column_without_a_type_is_empty_and_a_name_twice_is_refused(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"a": pa.nulls(5), "b": [1.0, 2, 3, 4, 5]}), tmp_path / "null.parquet")
    frame = open_source(tmp_path / "null.parquet").read()
    assert np.isnan(frame["a"]).all()
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pa.parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(FileError, match="'a' twice"):
        open_source(tmp_path / "twice.parquet")


def test_whole_numbers_of_a_parquet_file_may_have_gaps(tmp_path: Path) -> None:
    day = [20240101 + i % 28 if i % 5 else None for i in range(60)]
    count = [2**63 + i if i % 5 else None for i in range(60)]
    table_of = pa.table({"day": day, "count": pa.array(count, pa.uint64()), "none": pa.array([None] * 60, pa.int32())})
    pa.parquet.write_table(table_of, tmp_path / "t.parquet")
    frame = open_source(tmp_path / "t.parquet").read()
    assert [frame[name].dtype.kind for name in frame.columns] == ["M", "f", "f"]
    assert (np.isnat(frame["day"]).sum(), np.isnan(frame["count"]).sum()) == (12, 12)


def test_encodings_and_compressions(tmp_path: Path) -> None:
    text = "Größe;Stadt\r\n1,5;Genève\r\n2,5;Zürich\r\n" + "3,25;Łódź\r\n" * 5000
    contents = {
        "utf8": text.encode("utf-8-sig"),
        "utf16": text.encode("utf-16"),
        "be": b"\xfe\xff" + text.encode("utf-16-be"),
        "bz2": bz2.compress(text.encode()),
        "xz": lzma.compress(text.encode("utf-16")),
        "excel": b"sep=;\r\n" + text.encode(),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.csv").write_bytes(content)
        frame = open_source(tmp_path / f"{name}.csv").read()
        assert frame.columns.tolist() == ["Größe", "Stadt"], name
        assert frame.shape == (5002, 2)
        assert (frame["Größe"][0], frame["Stadt"][-1]) == (1.5, "Łódź")
    (tmp_path / "cut.csv").write_bytes(text.encode("utf-16")[:-3])
    with pytest.raises(FileError, match="damaged"):
        open_source(tmp_path / "cut.csv").read()


@pytest.mark.slow
def test_a_plain_locale_and_a_reader_that_stops(tmp_path: Path) -> None:
    path = tmp_path / "größe.csv"
    path.write_bytes("Größe;Stadt\n".encode() + "1,5;Genève\n2,25;Zürich\n".encode() * 40)
    environment = {**os.environ, "LC_ALL": "C"}
    run = subprocess.run([sys.executable, "-m", "fvnce", "data", str(path)], capture_output=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert "Größe".encode() in run.stdout
    shell = f"{sys.executable} -m fvnce data {path} | head -1"
    run = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, env=environment)
    assert run.stderr == b""


def test_a_table_from_a_pipe_is_read_twice_too() -> None:
    class Pipe(io.RawIOBase):
        def __init__(self, content: bytes) -> None:
            self._content = io.BytesIO(content)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self._content.readinto(buffer)

    content = table({"a": [*map(str, range(9000)), "50.125", "3.5"], "b": ["-"] * 9002}, ";")
    source = DelimitedSource("pipe", io.BufferedReader(Pipe(content)), ReadOptions())  # type: ignore[arg-type]
    assert source.read()["a"][-2] == 50.125


# --- The owner's schema -----------------------------------------------------------------------------------------------


def test_a_schema_is_written_edited_and_given_back(tmp_path: Path) -> None:
    path, schema = tmp_path / "t.tsv", tmp_path / "s.toml"
    rng = np.random.default_rng(0)
    columns = {"a": ["1.234"] * 60, "zone": ["007", "012"] * 30, "b": [f"{v:.3f}" for v in 1 + 8 * rng.random(60)]}
    path.write_bytes(table(columns, "\t"))
    said = fvnce("data", path, "--schema", schema, code=1)[1]
    assert "--decimal ." in said
    content = tomllib.loads(schema.read_text())
    assert content == {name: {"kind": "number"} for name in columns}
    schema.write_text('[a]\nkind = "number"\ndecimal = ","\n[zone]\nkind = "text"\n[b]\ndecimal = "."\n')
    out = fvnce("data", path, "--schema", schema)[0]
    assert "1234 to 1234" in out
    said = fvnce("fit", path, "--schema", schema, "--out", tmp_path / "run", *OPTIONS)[1]
    for words in ("numbers (decimal ,): a", "numbers (decimal .): b", "texts: zone"):
        assert words in said
    fvnce("fit", "--config", tmp_path / "run" / "config.toml", "--out", tmp_path / "again", "-q")
    out = [fvnce("score", tmp_path / run, path, "-q")[0] for run in ("run", "again")]
    assert out[0] == out[1]
    schema.write_text('[a]\nkind = "colour"\n')
    assert "colour" in fvnce("data", path, "--schema", schema, code=1)[1]
    schema.write_text('[nowhere]\nkind = "text"\n')
    assert "'nowhere'" in fvnce("data", path, "--schema", schema, code=1)[1]


def test_an_unedited_schema_changes_nothing(tmp_path: Path) -> None:
    path, schema = tmp_path / "t.csv", tmp_path / "s.toml"
    path.write_bytes(table({"a": [f"{i}.5" if i % 5 else "-" for i in range(60)], "d": ["3/4/2024", "13/4/2024"] * 30}))
    fvnce("data", path, "--schema", schema)
    for name, options in (("plain", []), ("schema", ["--schema", schema])):
        fvnce("fit", path, *options, "--out", tmp_path / name, "-q", *OPTIONS)
    out = [fvnce("score", tmp_path / run, path, "-q")[0] for run in ("plain", "schema")]
    assert out[0] == out[1]


# --- Values as they are in the file -----------------------------------------------------------------------------------


def test_the_page_shows_values_as_the_file_has_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 120
    amounts = [f'"${v:,.0f}"' for v in [*rng.normal(1500, 100, n - 1), 78_110]]
    columns = {"amount": amounts, "member": ["Y"] * (n - 1) + ["N"], "when": ["3/14/2024"] * (n - 1) + ["12/31/2024"]}
    path = tmp_path / "t.csv"
    path.write_bytes(table({**columns, "name": [f"word{i % 9}" for i in range(n)]}))
    fvnce("fit", path, "--out", tmp_path / "run", *OPTIONS)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "$78,110" in page
    assert "7.811e+04" not in page
    top = page[page.index("Top anomalies") :]
    assert re.search(r">\s*N\s*<", top) or "N</" in top
    assert "12/31/2024" in page


def test_texts_that_are_not_all_counted_are_at_least_so_many() -> None:
    from fvnce.app.report.summary import ColumnSummary

    summary = ColumnSummary()
    summary.add(np.array([f"t{i}" for i in range(12_288)], dtype=object))
    assert summary.span() == "at least 12,288 different"


# --- One parser -------------------------------------------------------------------------------------------------------


def test_a_run_fitted_with_missing_texts_reads_frames_with_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = [f"{v:.2f}" if i % 9 else ("unknown" if i % 2 else "??") for i, v in enumerate(rng.normal(size=200))]
    path = tmp_path / "t.csv"
    path.write_bytes(table({"a": values, "b": rng.normal(size=200).round(2).tolist()}))
    fvnce("fit", path, "--missing", "unknown", "--missing", "??", "--out", tmp_path / "run", *OPTIONS)
    expected = [float(line.split(",")[1]) for line in fvnce("score", tmp_path / "run", path)[0].splitlines()[1:]]
    found = BatchScorer(tmp_path / "run")(pd.read_csv(path))["score"]
    np.testing.assert_array_equal(found, expected)
