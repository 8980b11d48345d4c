"""File readers: whatever a person has, as rows.

======================  ===============================================================
``sources``             any file, in parts: csv, tsv, parquet, npy, npz, idx, folders of PNG images, pipes
``tables``              text tables and parquet files
``text``                the bytes of a text table
``columns``             what the columns of a table hold
``arrays``              npy and npz
``idx``                 the idx format
``png``                 folders of PNG images
``errors``              what is said of a file that cannot be used, or takes too much memory
======================  ===============================================================
"""

from ...detection.frame import Frame
from .errors import DataError
from .idx import read_idx
from .sources import ReadOptions, open_source

__all__ = ["DataError", "Frame", "ReadOptions", "open_source", "read_idx"]
