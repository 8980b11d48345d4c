"""Files as people have them: what is in them is what is read, and what is broken is named with its place."""

import csv
import gzip
import io
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imsave

from fvnce.app.runs.settings import DataSettings
from fvnce.app.runs.training_data import read_training_data
from fvnce.tables import ColumnType, FileError, Frame, ReadOptions, open_source
from fvnce.tables.delimited import DelimitedSource


def read(path, **table):
    return open_source(path, ReadOptions(**table)).read()


@given(
    st.lists(
        st.tuples(
            st.floats(-1e9, 1e9), st.sampled_from(["Bern", "a b", "semi;colon", 'quo"te', "ta\tb", "two\nlines"])
        ),
        min_size=2,
        max_size=30,
    ),
    st.sampled_from(",;\t|"),
)
def test_a_table_written_by_csv_is_read_back(rows, delimiter):
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerow(["number", "text"])
    writer.writerows((repr(a), b) for a, b in rows)
    content = io.BytesIO(buffer.getvalue().encode())
    frame = DelimitedSource("t", content, ReadOptions(delimiter=delimiter, decimal=".")).read()
    assert frame["number"].tolist() == [a for a, _ in rows]
    assert frame["text"].tolist() == [b.strip() for _, b in rows]


@pytest.mark.parametrize(
    ("text", "delimiter", "header", "columns"),
    [
        ("a,b\n1,2\n3,4\n", ",", True, ["a", "b"]),
        ("1,2\n3,4\n", ",", False, ["column_1", "column_2"]),
        ("a;b\n1,5;2\n2,5;3\n", ";", True, ["a", "b"]),
        ("x\ty\n1\t2\n", "\t", True, ["x", "y"]),
        ("x|y\n1|2\n", "|", True, ["x", "y"]),
        ("1 2 3\n4 5 6\n", " ", False, ["column_1", "column_2", "column_3"]),
        ("value\n1\n2\n", ",", True, ["value"]),
        ("name,town\nAnn,Bern\nBob,Basel\n", ",", True, ["name", "town"]),
        ("\ufeffa,b\n1,2\n", ",", True, ["a", "b"]),
        (",x\n0,1.5\n1,2.5\n", ",", True, ["column_1", "x"]),
    ],
)
def test_delimiter_and_header_are_found(text, delimiter, header, columns, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    source = open_source(path)
    assert (source.delimiter, source.header) == (delimiter, header)
    assert source.read().columns.tolist() == columns


def test_missing_values_text_and_decimal_commas(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("amount;town;code\n1,5;Genève;7\nNA;;8\n-3;Bern;none\n", encoding="utf-8")
    frame = read(path, categorical=("code",))
    np.testing.assert_array_equal(frame["amount"], [1.5, np.nan, -3.0])
    assert frame["town"].tolist() == ["Genève", None, "Bern"]
    assert frame["code"].tolist() == ["7", "8", None]


def test_parts_join_to_the_whole(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "".join(f"{i}\n" for i in range(10_000)))
    parts = list(open_source(path).parts())
    assert len(parts) == 3
    assert [part.start for part in parts] == [0, 4096, 8192]
    assert parts[-1].done == 1.0
    np.testing.assert_array_equal(np.concatenate([p.rows["a"] for p in parts]), np.arange(10_000.0))


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(order, tmp_path):
    values = np.asarray(np.random.default_rng(0).normal(size=(3000, 300)), order=order)
    np.save(tmp_path / "a.npy", values)
    np.savez_compressed(tmp_path / "a.npz", y=np.arange(3000), X=values)
    np.savez(tmp_path / "b.npz", X=values)
    for name in ("a.npy", "a.npz", "b.npz"):
        source = open_source(tmp_path / name)
        np.testing.assert_array_equal(np.concatenate([p.rows for p in source.parts()]), values)
        np.testing.assert_array_equal(open_source(tmp_path / name).read(), values)


def test_a_folder_of_images(tmp_path):
    rng = np.random.default_rng(0)
    grey, colour = rng.random((3, 5, 6)), rng.random((2, 5, 6, 3))
    for kind, images in (("grey", grey), ("colour", colour)):
        (tmp_path / kind / "below").mkdir(parents=True)
        for i, image in enumerate(images):
            place = tmp_path / kind / ("below" if i == 0 else "") / f"{i}.png"
            imsave(place, image, cmap="gray", vmin=0, vmax=1)
    [part] = open_source(tmp_path / "grey").parts()
    assert part.names == ["1.png", "2.png", "below/0.png"]
    np.testing.assert_allclose(part.rows, grey[[1, 2, 0]], atol=0.005)
    np.testing.assert_allclose(open_source(tmp_path / "colour").read()[1], np.moveaxis(colour[0], -1, 0), atol=0.005)


def test_standard_input_is_text_or_npy(monkeypatch):
    values = np.arange(6.0).reshape(3, 2)
    buffer = io.BytesIO()
    np.save(buffer, values)
    for content in (buffer.getvalue(), b"0,1\n2,3\n4,5\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        rows = open_source("-").read()
        matrix = np.column_stack([rows[c] for c in rows.columns]) if isinstance(rows, Frame) else rows
        np.testing.assert_array_equal(matrix, values)


def broken(name, content):
    def make(folder):
        path = folder / name
        path.write_bytes(content)
        return path

    return make


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def a_folder(files):
    def make(folder):
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return make


def png(shape):
    buffer = io.BytesIO()
    imsave(buffer, np.random.default_rng(0).random(shape), cmap="gray", format="png")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (broken("a.csv", b""), "found an empty file"),
        (broken("a.csv", b"a,b\n1,2\n3\n"), "line 3: .*2 fields.* 1 fields"),
        (broken("a.csv", b"a,b\n1,2\n"[:4]), "no rows"),
        (broken("a.csv", b"a,a\n1,2\n"), "found 'a' twice"),
        (broken("a.csv", b"a,b\n1,\xff\n"), "UTF-8"),
        (broken("a.csv", b"a,b\n1,\x00\n"), "zero byte"),
        (broken("a.csv", b"a\n" + b"1\n" * 40 + b"1x\n"), "line 42: column 'a' .*numbers.*'1x'"),
        (broken("a.csv", npy(np.zeros((2, 2)))), "must be a text table"),
        (broken("a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 999)[:-20]), "is damaged"),
        (broken("a.npy", b"nonsense"), "npy file"),
        (broken("a.npy", npy(np.zeros((9, 3)))[:-8]), "9 rows.* row 9"),
        (broken("a.npy", npy(np.array([[{}]]))), "Python objects"),
        (broken("a.npy", npy(np.zeros(4))), r"found shape \(4,\)"),
        (broken("a.npz", b"PK nonsense"), "npz file"),
        (a_folder({}), "PNG images, found none"),
        (a_folder({"a.png": b"nonsense"}), "PNG image"),
        (a_folder({"a.png": png((4, 4))[:-30]}), "PNG image"),
        (a_folder({"a.png": png((4, 4)), "b.png": png((4, 5))}), "b.png has shape .*a.png"),
        (lambda folder: folder / "none.csv", "does not exist"),
    ],
)
def test_a_broken_file_is_named(make, words, tmp_path):
    with pytest.raises(FileError) as error:
        for _ in open_source(make(tmp_path)).parts():
            pass
    assert re.search(words, str(error.value)), str(error.value)
    assert str(tmp_path) in str(error.value)


def test_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"a": [1.5, None], "b": ["x", None], "c": [True, False], "d": [3, 4]})
    parquet.write_table(table, tmp_path / "t.parquet")
    frame = open_source(tmp_path / "t.parquet").read()
    np.testing.assert_array_equal(frame["a"], [1.5, np.nan])
    assert frame["b"].tolist() == ["x", None]
    assert frame["c"].tolist() == [1.0, 0.0]
    assert frame["d"].tolist() == [3.0, 4.0]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(FileError, match="parquet file"):
        open_source(tmp_path / "bad.parquet")


def test_columns_of_training_are_found_by_name_or_by_place(tmp_path):
    types = {"b": ColumnType("number"), "a": ColumnType("text")}
    named, unnamed, other = tmp_path / "n.csv", tmp_path / "u.csv", tmp_path / "o.csv"
    named.write_text("x,a,b\n9,7,1\n")
    unnamed.write_text("1,7\n")
    other.write_text("c,d\n1,7\n")
    for path in (named, unnamed):
        frame = read(path, types=types)
        assert frame.columns.tolist() == ["b", "a"]
        assert (frame["b"].tolist(), frame["a"].tolist()) == ([1.0], ["7"])
    with pytest.raises(FileError, match=r"column 'b' of training.* c, d"):
        read(other, types=types)


def test_a_table_without_a_single_value_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "NA,\n" * 5)
    with pytest.raises(FileError, match="must hold values"):
        read_training_data(DataSettings(str(path)), print)
    array = tmp_path / "t.npy"
    np.save(array, np.full((5, 2), np.nan))
    with pytest.raises(FileError, match="must hold values"):
        read_training_data(DataSettings(str(array)), print)


def test_a_column_without_a_single_value_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{i},NA\n" for i in range(5)))
    said = []
    read_training_data(DataSettings(str(path)), said.append)
    assert len(said) == 1
    assert "column 'b' has only missing values" in said[0]


@pytest.mark.parametrize(
    ("outliers", "words"),
    [
        ("a,b,c\n1,2,3\n4,5,6\n", r"shape \(2,\) .*found a table of 3 columns"),
        ("a,b\n1,x\n4,y\n", r"shape \(2,\) .*found a table of 2 columns"),
        ("a,b\n1,2\n4,inf\n", r"outliers\.csv, line 3: column 'b' .*infinity"),
    ],
    ids=["another width", "texts", "infinity"],
)
def test_a_file_of_known_outliers_that_are_no_such_rows_is_refused(outliers, words, tmp_path):
    (tmp_path / "outliers.csv").write_text(outliers)
    np.save(tmp_path / "rows.npy", np.zeros((5, 2)))
    settings = DataSettings(str(tmp_path / "rows.npy"), outliers=str(tmp_path / "outliers.csv"))
    with pytest.raises(FileError, match=words):
        read_training_data(settings, lambda text: None)


def test_a_single_known_outlier_in_a_file_of_its_own_is_enough(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((5, 2)))
    (tmp_path / "outliers.csv").write_text("a,b\n1,2\n")
    found = read_training_data(
        DataSettings(str(tmp_path / "rows.npy"), outliers=str(tmp_path / "outliers.csv")), lambda text: None
    )
    assert found.known.tolist() == [False] * 5 + [True]
    np.testing.assert_array_equal(found.rows[-1], [1, 2])


@pytest.mark.parametrize("name", ["0", "00", "-0", "column_00", "²", "3", "-3", "9" * 5000])
def test_a_number_that_no_column_has_names_none(name, tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((5, 2)))
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    for settings in (DataSettings("rows.npy", label=name), DataSettings("rows.csv", drop=(name,))):
        with pytest.raises(FileError, match="has no column"):
            read_training_data(replace(settings, path=str(tmp_path / settings.path)), lambda text: None)


def test_times_of_a_parquet_file_are_known_for_what_they_are(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"at": np.array(["2024-03-01", "NaT"], "datetime64[s]"), "taken": np.array([90, 60], "timedelta64[s]")}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    frame = open_source(tmp_path / "t.parquet").read()
    assert {name: column.kind for name, column in frame.types.items()} == {"at": "time", "taken": "duration"}


def test_a_parquet_file_without_rows_is_refused_as_a_text_table_is(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.float64())}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a,b\n")
    for path in (tmp_path / "t.parquet", tmp_path / "t.csv"):
        with pytest.raises(FileError, match="no rows"):
            open_source(path).read()
        with pytest.raises(FileError, match="no rows"):
            read_training_data(DataSettings(str(path)), lambda text: None)


def test_a_column_that_sounds_like_labels_is_told_of(tmp_path):
    path = tmp_path / "payments.csv"
    path.write_text("amount,isFraud\n1,0\n2,1\n3,0\n4,0\n")
    said: list[str] = []
    read_training_data(DataSettings(str(path)), said.append)
    assert len(said) == 1
    assert "column 'isFraud'" in said[0]
    assert "--label isFraud" in said[0]
    for settings in (DataSettings(str(path), label="isFraud"), DataSettings(str(path), drop=("isFraud",))):
        said.clear()
        read_training_data(settings, said.append)
        assert not any("--label" in text for text in said)
