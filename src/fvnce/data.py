"""Files as rows, as the command line reads them, and the data sets of the gallery and of the paper.

>>> load_digits().shape
(8, 8)
"""

from .app.readers import DataError, Frame, ReadOptions, open_source, read_idx
from .paper.datasets import Images, fetch_mnist, load_digits, load_mnist

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
