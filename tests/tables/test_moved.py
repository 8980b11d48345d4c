"""Old paths of readers, data sets and runs work for one version, with a warning that names the new path."""

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "name", "place"),
    [
        ("fvnce.data", "open_source", "fvnce.tables.open_source"),
        ("fvnce.data", "DataError", "fvnce.tables.FileError"),
        ("fvnce.data", "load_digits", "fvnce.paper.datasets.load_digits"),
        ("fvnce.runs", "load", "fvnce.load"),
        ("fvnce.training", "load", "fvnce.load"),
        ("fvnce.runs", "RunError", "fvnce.io.FileError"),
        ("fvnce.runs", "FittedRun", "fvnce.app.runs.FittedRun"),
    ],
)
def test_an_old_path_warns_and_works(module, name, place):
    with pytest.warns(DeprecationWarning, match=place):
        served = getattr(importlib.import_module(module), name)
    home, _, attribute = place.rpartition(".")
    assert served is getattr(importlib.import_module(home), attribute)


def test_reading_a_file_does_not_load_torch():
    code = "import sys; from fvnce.tables import open_source; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
