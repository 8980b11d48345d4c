"""One dialect of checks: of arguments and of what a file holds, with and without torch."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fvnce._validation import (
    FileError,
    array,
    choice,
    count,
    fields,
    flag,
    listed,
    number,
    optional,
    require,
    short,
    text,
)


def test_checks_are_imported_without_torch():
    code = "import sys, fvnce._validation; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (number, True, "a of it .*found True of type bool"),
        (number, float("nan"), "a of it .*found nan"),
        (count, 1.0, "a of it .*found 1.0 of type float"),
        (flag, 1, "a of it .*found 1 of type int"),
        (text, None, "a of it .*found None"),
        (listed(count), [1, 0], r"a of it\[1\] .*found 0"),
        (listed(count, 3), [1, 2], "a of it .*3.*found 2"),
        (listed(count), 1, "a of it .*found 1"),
        (lambda name, value: choice(name, value, ("x", "y")), ["x"], r"a of it .*found \['x'\]"),
    ],
)
def test_a_stored_value_fails_the_check_of_an_argument(check, value, words):
    with pytest.raises(FileError, match=words):
        fields({"a": value}, "it", a=check)


def test_fields_come_in_the_order_that_is_asked_for():
    assert fields({"b": 2, "a": 1, "c": None}, "it", "a", b=count, c=optional(count)) == [1, 2, None]


@pytest.mark.parametrize(("content", "words"), [([], "list"), ({}, "'a'"), ({"a": 1, "b": 2}, "'b'")])
def test_fields_must_be_all_there_and_no_other(content, words):
    with pytest.raises(FileError, match=f"it must hold a, found .*{words}"):
        fields(content, "it", "a")


def test_a_long_value_is_cut_short():
    assert len(short("x" * 1000)) == 100
    with pytest.raises(FileError, match=r"found a list of 1000$"):
        require(False, "be short", [0] * 1000)


SAME = np.arange(6.0).reshape(3, 2) + 2.0**30


@pytest.mark.parametrize(
    "given",
    [
        SAME[::-1].copy()[::-1],
        np.asfortranarray(SAME),
        SAME.astype(">f8"),
        pd.DataFrame(SAME),
        pd.DataFrame(SAME, columns=["a", "b"]),
        SAME.astype(np.int64),
        np.ma.masked_less(SAME, 0),
    ],
    ids=["reversed", "fortran", "big-endian", "frame", "named frame", "integers", "masked"],
)
def test_the_same_numbers_are_the_same_array(given):
    assert array("x", given).tolist() == SAME.tolist()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pd.DataFrame({"a": ["b"]}), "dtype object"),
        ([["a"]], "list"),
        ([[1.0], [2.0, 3.0]], "list"),
        (None, "NoneType"),
        (np.ma.masked_greater(SAME, 0), "masked entries, found 6"),
    ],
    ids=["words", "lists of words", "ragged", "nothing", "masked"],
)
def test_what_is_no_array_of_numbers_is_refused_by_name(given, words):
    with pytest.raises((TypeError, ValueError), match=f"^x must .*{words}"):
        array("x", given)
