"""Tables: read files and data frames as typed columns, without torch.

======================  ===============================================================
``sources``             open a file, a folder or a pipe
``schema``              reader options, column types of a frame, detection of identifiers
``learning``            inference of column types from all rows and columns
``parsing``             column types: parsing of text as numbers, booleans, dates and times
``frame``               a table in memory, from any library's data frame
``delimited``           text tables
``arrow``               tables in files, parquet files
``arrays``              npy and npz, and folders of PNG images
``errors``              memory budget, errors of damaged files, problems of tables
======================  ===============================================================

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = Path(folder, "table.csv").write_text("a,b\\n1,2\\n3,\\n")
...     frame = open_source(f"{folder}/table.csv").read()
>>> frame["b"]
array([ 2., nan])
"""

from .._validation import FileError
from .arrays import ArraySource
from .arrow import TableSource
from .frame import Frame
from .parsing import ColumnType
from .schema import ReadOptions
from .sources import open_source

__all__ = [
    "ArraySource",
    "ColumnType",
    "FileError",
    "Frame",
    "ReadOptions",
    "TableSource",
    "open_source",
]
