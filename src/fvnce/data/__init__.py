"""Data sets: scikit-learn's digits, which are always there, and MNIST, which is fetched and checked.

======================  ===============================================================
``digits``              8×8 digits that ship with scikit-learn
``mnist``               MNIST from a folder, the cache, public mirrors or a package index
``idx``                 the idx file format
======================  ===============================================================
"""

from .digits import load_digits
from .idx import read_idx
from .images import Images
from .mnist import fetch_mnist, load_mnist

__all__ = ["Images", "fetch_mnist", "load_digits", "load_mnist", "read_idx"]
