"""Deprecated names of the module :mod:`fvnce.app.runs`."""

from ._moved import moved

__getattr__ = moved(
    __name__,
    {
        "RunError": "fvnce.io.FileError",
        "load": "fvnce.load",
        **{name: f"fvnce.app.runs.{name}" for name in ("FittedRun", "Run")},
    },
)
