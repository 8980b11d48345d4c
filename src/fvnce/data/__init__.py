"""Data: files as rows, and two data sets, scikit-learn's digits, always there, and MNIST, fetched and checked.

======================  ===============================================================
``digits``              8×8 digits that ship with scikit-learn
``mnist``               MNIST from a folder, the cache, public mirrors or a package index
``idx``                 the idx file format
``sources``             any file a person has, in parts: csv, tsv, parquet, npy, npz, idx, folders of PNG images, pipes
``frame``               a table in memory
======================  ===============================================================
"""

from .digits import load_digits
from .frame import DataError, Frame
from .idx import read_idx
from .images import Images
from .mnist import fetch_mnist, load_mnist
from .sources import ReadOptions, open_source

__all__ = [
    "DataError",
    "Frame",
    "Images",
    "ReadOptions",
    "fetch_mnist",
    "load_digits",
    "load_mnist",
    "open_source",
    "read_idx",
]
