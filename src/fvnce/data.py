"""Deprecated names of :mod:`fvnce.tables` and :mod:`fvnce.paper.datasets`."""

from ._moved import moved

__getattr__ = moved(
    __name__,
    {
        "DataError": "fvnce.tables.FileError",
        **{name: f"fvnce.tables.{name}" for name in ("Frame", "ReadOptions", "open_source")},
        **{name: f"fvnce.paper.datasets.{name}" for name in ("Images", "fetch_mnist", "load_digits", "load_mnist")},
    },
)
