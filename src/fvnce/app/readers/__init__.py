"""File readers: whatever a person has, as rows.

======================  ===============================================================
``sources``             any file, in parts: csv, tsv, parquet, npy, npz, idx, folders of PNG images, pipes
``delimited``           text tables
``text``                their bytes
``columns``             what their columns hold
``parquet``             parquet files
``arrays``              npy and npz
``idx``                 the idx format
``png``                 folders of PNG images
``frame``               a table in memory
``budget``              how much of it the rows of one file may take
======================  ===============================================================
"""

from .frame import DataError, Frame
from .idx import read_idx
from .sources import ReadOptions, open_source

__all__ = ["DataError", "Frame", "ReadOptions", "open_source", "read_idx"]
