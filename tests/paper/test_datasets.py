"""Data sets: the idx format, and how MNIST is found, fetched, checked and refused. Nothing here needs a network."""

import gzip
import hashlib
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from fvnce.paper import datasets as mnist
from fvnce.paper.datasets import fetch_mnist, idx_array, load_digits, load_mnist, read_bytes


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@given(hnp.arrays("uint8", hnp.array_shapes(max_dims=4, max_side=5)))
def test_idx_reads_back(array):
    np.testing.assert_array_equal(idx_array(idx_bytes(array)), array)


def test_a_damaged_gzip_is_refused(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"x" * 1000)[:-20])
    with pytest.raises(ValueError, match="damaged"):
        read_bytes(path)


def test_digits_are_split_and_scaled():
    digits = load_digits(seed=1)
    assert digits.train.min() == 0
    assert digits.train.max() == 1
    assert len(digits.train) + len(digits.test) == 1797
    counts = [(digits.test_labels == k).float().mean().item() for k in range(10)]
    assert max(counts) - min(counts) < 0.02  # stratified
    assert (load_digits(seed=1).test == digits.test).all()
    assert not (load_digits(seed=2).test == digits.test).all()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def packed(content):
    return gzip.compress(content, mtime=0)


@pytest.fixture
def tiny_mnist(monkeypatch, tmp_path):
    """Four files of the right kind, with their own checksums, and nowhere to fetch from."""
    rng = np.random.default_rng(0)
    contents = {}
    for split, n in (("train", 6), ("t10k", 4)):
        contents[f"{split}-images-idx3-ubyte"] = idx_bytes(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        contents[f"{split}-labels-idx1-ubyte"] = idx_bytes(rng.integers(0, 10, n, dtype=np.uint8))
    monkeypatch.setattr(mnist, "FILES", {k: sha256(v) for k, v in contents.items()})
    monkeypatch.setattr(mnist, "ARCHIVES", {k: sha256(packed(v)) for k, v in contents.items()})
    # Nobody listens at this port of this machine.
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:1/",))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("FVNCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FVNCE_DATA", raising=False)

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
    raw = idx_array(tiny_mnist["t10k-images-idx3-ubyte"])
    np.testing.assert_allclose(images.test.numpy().reshape(4, 28, 28) * 255, raw, atol=1e-4)


def test_a_wrong_folder_is_one_sentence(tiny_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match=r"FVNCE_DATA.*nowhere.*train-images-idx3-ubyte"):
        fetch_mnist()


def test_no_network_is_one_sentence(tiny_mnist):
    with pytest.raises(OSError, match=r"Connection refused.*FVNCE_DATA") as e:
        fetch_mnist()
    assert "\n" not in str(e.value)


def test_a_corrupt_file_is_named(tiny_mnist, tmp_path):
    folder = tmp_path / "cache" / "mnist"
    write(folder, tiny_mnist | {"t10k-labels-idx1-ubyte": b"\x00" * 12}, compressed=False)
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.*SHA-256"):
        fetch_mnist()


@pytest.fixture
def mirror():
    """A mirror on this machine: what it holds by name, and the names it was asked for."""
    held, asked = {}, []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            asked.append(name)
            content = held.get(name)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", held, asked
        server.shutdown()
        thread.join()


def test_mirrors_are_tried_in_order_and_the_cache_is_used_afterwards(tiny_mnist, mirror, monkeypatch):
    url, held, asked = mirror
    held |= {f"{name}.gz": packed(content) for name, content in tiny_mnist.items()}
    monkeypatch.setattr(mnist, "MIRRORS", (*mnist.MIRRORS, url))
    said = []
    folder = fetch_mnist(said.append)
    assert asked == [f"{name}.gz" for name in tiny_mnist]
    assert [sentence.rpartition(" ")[2] for sentence in said] == list(mnist.MIRRORS)
    assert sorted(p.name for p in folder.iterdir()) == sorted(held)  # whole files and nothing beside them
    asked.clear()
    assert fetch_mnist() == folder
    assert load_mnist().train.shape == (6, 784)
    assert not asked


def test_what_one_mirror_lacks_comes_from_the_next(tiny_mnist, mirror, monkeypatch):
    url, held, asked = mirror
    first, *rest = tiny_mnist
    held[f"{first}.gz"] = packed(tiny_mnist[first])
    held |= {f"second/{name}.gz": packed(tiny_mnist[name]) for name in rest}
    monkeypatch.setattr(mnist, "MIRRORS", (url, f"{url}second/"))
    fetch_mnist()
    assert asked == [f"{first}.gz", f"{rest[0]}.gz", *(f"second/{name}.gz" for name in rest)]


def test_an_archive_that_is_not_the_expected_one_is_never_opened(tiny_mnist, mirror, monkeypatch, tmp_path):
    """The hash is compared before the first byte is decompressed: a mirror must not get at the decompressor."""
    url, held, _ = mirror
    held |= {f"{name}.gz": gzip.compress(bytes(10**6)) for name in tiny_mnist}
    monkeypatch.setattr(mnist, "MIRRORS", (url,))
    opened = []
    monkeypatch.setattr(mnist, "read_bytes", lambda path: opened.append(path))
    with pytest.raises(OSError, match=r"train-images-idx3-ubyte\.gz.*SHA-256"):
        fetch_mnist()
    assert not opened
    assert not (tmp_path / "cache" / "mnist").exists()


def test_a_mirror_that_sends_without_end_is_left(tiny_mnist, mirror, monkeypatch, tmp_path):
    url, held, _ = mirror
    held |= {f"{name}.gz": bytes(3 * 2**20) for name in tiny_mnist}
    monkeypatch.setattr(mnist, "MIRRORS", (url,))
    monkeypatch.setattr(mnist, "LARGEST_ARCHIVE", 2**20)
    with pytest.raises(OSError, match=r"train-images-idx3-ubyte\.gz.*SHA-256"):
        fetch_mnist()
    assert not (tmp_path / "cache" / "mnist").exists()
