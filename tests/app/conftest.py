"""Runs that several files of tests look at."""

import pytest

from commands import QUICK, fvnce, write_payments


@pytest.fixture(scope="session")
def payments(tmp_path_factory):
    """A folder with tables of payments, a run with known outliers, and one without."""
    place = tmp_path_factory.mktemp("payments")
    write_payments(place / "payments.csv", 0)
    write_payments(place / "later.csv", 1)
    write_payments(place / "unknown.csv", 2, label=False)
    fvnce("fit", place / "payments.csv", "--label", "fraud", "--out", place / "run", *QUICK, "-q")
    fvnce("fit", place / "unknown.csv", "--out", place / "blind", *QUICK, "-q")
    return place
