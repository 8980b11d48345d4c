"""Data sets: MNIST, downloaded if needed, and scikit-learn's digits, which need no download.

MNIST comes from the folder named by FVNCE_DATA, the cache, or public mirrors. A download is opened only after its
SHA-256 has been verified, and every file is then verified by the SHA-256 of its uncompressed content.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io import atomic_write

#: The files of MNIST and the SHA-256 of their uncompressed content.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
#: The SHA-256 of the gzip archives on mirrors.
ARCHIVES = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
#: Maximum number of bytes to read from an archive and from a file in it; those of MNIST are smaller.
LARGEST_ARCHIVE, LARGEST_UNPACKED = 32 * 2**20, 64 * 2**20

Report = Callable[[str], None]


@dataclass(frozen=True)
class Images:
    """Labeled gray images as rows, split into training and test set.

    Attributes:
        name: ``"digits"`` or ``"mnist"``.
        train: training images, shape (n, height·width), float32 in [0, 1].
        train_labels: their labels, int64.
        test: test images.
        test_labels: their labels.
        shape: (height, width).

    >>> digits = load_digits()
    >>> digits.name, digits.shape, float(digits.train.max())
    ('digits', (8, 8), 1.0)
    """

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    shape: tuple[int, int]


def load_digits(*, seed: int = 0) -> Images:
    """Load the 1,797 handwritten digits of 8×8 pixels in scikit-learn.

    Args:
        seed: seed of the stratified split, with a fifth of the images as test set.

    >>> digits = load_digits()
    >>> digits.train.shape, digits.test.shape
    (torch.Size([1437, 64]), torch.Size([360, 64]))
    """
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    bunch = load()
    x = (bunch.data / 16).astype(np.float32)
    y = bunch.target.astype(np.int64)
    parts = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    train, test, train_labels, test_labels = (torch.from_numpy(part) for part in parts)
    return Images("digits", train, train_labels, test, test_labels, (8, 8))


def load_mnist() -> Images:
    """Load MNIST's 60,000 training and 10,000 test images, downloading them if necessary."""
    content = {name: idx_array(data) for name, data in _mnist_files()[1].items()}

    def images(name: str) -> Tensor:
        values = content[f"{name}-images-idx3-ubyte"]
        return torch.from_numpy(values.reshape(len(values), -1).astype(np.float32) / 255)

    def labels(name: str) -> Tensor:
        return torch.from_numpy(content[f"{name}-labels-idx1-ubyte"].astype(np.int64))

    return Images("mnist", images("train"), labels("train"), images("t10k"), labels("t10k"), (28, 28))


def fetch_mnist(report: Report | None = None) -> Path:
    """Download MNIST if it is neither in FVNCE_DATA nor in the cache.

    Args:
        report: called with a sentence about each download.

    Returns:
        The folder with the four files.

    Raises:
        OSError: if the files are not in the folder FVNCE_DATA, or cannot be downloaded.
        ValueError: if a file has the wrong checksum.
    """
    return _mnist_files(report)[0]


def cache_folder() -> Path:
    """Return the folder of downloaded data: FVNCE_CACHE, or the user's cache folder."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("FVNCE_CACHE") or users / "fvnce")


def _mnist_files(report: Report | None = None) -> tuple[Path, dict[str, bytes]]:
    """Return the folder of the four files and their content, uncompressed and verified."""
    given = os.environ.get("FVNCE_DATA")
    folders = [cache_folder() / "mnist"] if given is None else [Path(given) / "mnist", Path(given)]
    folder = next((folder for folder in folders if all(_find(folder, name) for name in FILES)), None)
    if folder is None and given is not None:
        missing = next(name for name in FILES if not _find(folders[0], name))
        raise OSError(
            f"FVNCE_DATA must name a folder that holds MNIST, found {given!r} without mnist/{missing} (or .gz); put "
            "the four files there, or unset FVNCE_DATA to have them fetched"
        )
    if folder is None:
        folder = folders[0]
        _fetch(folder, report or (lambda sentence: None))
    paths = {name: path for name in FILES if (path := _find(folder, name)) is not None}
    return folder, {name: _checked(name, read_bytes(path), str(path)) for name, path in paths.items()}


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_bytes(path: Path) -> bytes:
    """Read a file, decompressed if it is gzip, up to the size of a file of MNIST."""
    content = path.read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return file.read(LARGEST_UNPACKED)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}); delete it and fetch it again") from None


def _checked(name: str, content: bytes, where: str) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    if digest != FILES[name]:
        raise ValueError(
            f"{where} is not MNIST's {name}: its SHA-256 must be {FILES[name][:12]}…, found {digest[:12]}…; delete it "
            "and fetch it again"
        )
    return content


def idx_array(content: bytes) -> NDArray[Any]:
    """Parse the content of an idx file, a header that ends in the sizes and the values, as an array of bytes."""
    sizes = np.frombuffer(content, ">u4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(sizes.tolist())


def _fetch(folder: Path, report: Report) -> None:
    """Download the four files to the folder from the first mirror that has them."""
    problems = []
    for mirror in MIRRORS:
        report(f"fetching MNIST from {mirror}")
        try:
            return _from_mirror(mirror, folder)
        except (OSError, ValueError) as error:
            problems.append(f"{mirror}: {next(iter(str(error).splitlines()), type(error).__name__)}")
    raise OSError(
        f"MNIST could not be fetched ({'; '.join(problems)}). Put the four idx files into a folder named mnist and set "
        "FVNCE_DATA to the folder that holds it"
    )


def _from_mirror(mirror: str, folder: Path) -> None:
    """Download missing archives; each is verified and then written atomically."""
    for name in FILES:
        if _find(folder, name) is None:
            with urlopen(f"{mirror}{name}.gz", timeout=20) as response:
                content = response.read(LARGEST_ARCHIVE)
            digest = hashlib.sha256(content).hexdigest()
            if digest != ARCHIVES[name]:
                raise ValueError(f"{name}.gz must have the SHA-256 {ARCHIVES[name][:12]}…, found {digest[:12]}…")
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(folder / f"{name}.gz") as file:
                file.write(content)
