"""Every file that a run holds is refused when a byte of it is changed, and when a stranger has crafted it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fvnce
from damaged_files import BOMBS, KINDS, bomb, make_files, mutate, objective
from exact_models import LinearGaussianModel
from fvnce.io import FileError, decode, describe, read_record, rebuild, write_record
from fvnce.objectives import VAE

BYTES = 150  # flips of each kind of file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_is_refused_or_changes_nothing(files: Any, kind: str, tmp_path: Path) -> None:
    path, read, _ = files[kind]
    data, expected = path.read_bytes(), read(path)
    generator = random.Random(0)
    harmless = 0
    for _ in range(BYTES):
        place, value = generator.randrange(len(data)), generator.randrange(1, 256)
        broken = tmp_path / "broken"
        broken.write_bytes(data[:place] + bytes([data[place] ^ value]) + data[place + 1 :])
        try:
            actual = read(broken)
        except FileError:
            continue
        harmless += 1
        assert actual == expected, f"byte {place} changed by {value} was not noticed"
    assert harmless < BYTES / 10  # blanks and the last digits of a float


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_file_is_refused(files: Any, kind: str, tmp_path: Path) -> None:
    path, read, _ = files[kind]
    data = path.read_bytes()
    for length in {0, 1, 7, 8, 9, len(data) // 2, len(data) - 9, len(data) - 2}:
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(FileError):
            read(tmp_path / "cut")


def test_older_formats_are_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fvnce.io.files.FORMAT_VERSION", 1)
        write_record(tmp_path / "a.safetensors", "run", {"rows": 3}, {})
    with pytest.raises(FileError, match=r"a.safetensors.*version 2.*found 1"):
        read_record(tmp_path / "a.safetensors", "run")
    with pytest.raises(FileNotFoundError, match=r"b.safetensors.*run"):
        read_record(tmp_path / "b.safetensors", "run")


def test_records_keep_their_order_and_tell_their_kind(tmp_path: Path) -> None:
    content = {"b": {"z": 1, "a": 2, "m": [0.1, None, True]}, "a": "ä\ud800"}
    write_record(tmp_path / "a.safetensors", "study", content, {})
    back, _ = read_record(tmp_path / "a.safetensors", "study")
    assert back == content
    assert list(back) == ["b", "a"]
    assert list(back["b"]) == ["z", "a", "m"]
    with pytest.raises(FileError, match=r"a.safetensors.*study.*run"):
        read_record(tmp_path / "a.safetensors", "run")


def test_numbers_as_keys_come_back_as_json_has_them(tmp_path: Path) -> None:
    write_record(tmp_path / "a.safetensors", "study", {"by row": {10: (1, 2), 9: None}}, {})
    assert read_record(tmp_path / "a.safetensors", "study")[0] == {"by row": {"10": [1, 2], "9": None}}


# --- what a stranger may write -----------------------------------------------------------------------------------


LOAD = """
import sys
import fvnce
def peak():
    return [int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
fvnce.load(sys.argv[1])
before = peak()
for path in sys.argv[2:]:
    try:
        fvnce.load(path)
    except fvnce.io.FileError as error:
        print(error)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_a_small_file_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    """Each of these files has a few kilobytes and names layers of gigabytes or of any number."""
    paths = [fvnce.save(tmp_path / "good.safetensors", objective())]
    for number, name in enumerate(BOMBS):
        content, tensors = bomb(name)
        paths.append(tmp_path / f"bomb{number}.safetensors")
        write_record(paths[-1], "objective", {"module": content}, tensors)
        assert paths[-1].stat().st_size < 10_000
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, paths)], capture_output=True, text=True, check=True, env=os.environ
    )
    *errors, grown = done.stdout.splitlines()
    assert len(errors) == len(BOMBS), done.stdout
    assert all(f"bomb{number}.safetensors" in error for number, error in enumerate(errors))
    assert int(grown) < 40  # megabytes


def test_a_file_larger_than_it_may_be_is_refused(tmp_path: Path) -> None:
    path = fvnce.save(tmp_path / "a.safetensors", nn.Linear(50, 50))
    with pytest.raises(FileError, match=r"a.safetensors.*1,000 .*found 10,200.*max_bytes"):
        fvnce.load(path, max_bytes=1000)
    assert isinstance(fvnce.load(path, max_bytes=30_000), nn.Linear)


def test_loading_neither_reads_nor_changes_the_global_generator(tmp_path: Path) -> None:
    path = fvnce.save(tmp_path / "a.safetensors", objective())
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    fvnce.load(path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_layer_in_two_places_comes_back_in_both(tmp_path: Path) -> None:
    act, layer = nn.Tanh(), nn.Linear(2, 2)
    network = nn.Sequential(layer, act, layer, act, nn.Linear(2, 1), act)
    again = fvnce.load(fvnce.save(tmp_path / "a.safetensors", network))
    assert len(again) == 6
    assert again[0] is again[2]
    x = torch.randn(5, 2)
    assert torch.equal(again(x), network(x))


def test_networks_within_networks_that_never_end_are_refused() -> None:
    content, tensors = describe(nn.Sequential(nn.ReLU()))
    inner = content["structure"]
    number = 2
    for _ in range(25):
        first = {"$kind": "torch.Sequential", "$id": number, "$arguments": {"0": inner, "1": {"$id": inner["$id"]}}}
        inner, number = first, number + 1
    content["structure"] = inner
    with pytest.raises(FileError, match=r"100,000 nested objects"):
        rebuild(content, tensors)


def test_deep_nests_and_long_texts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network: nn.Module = nn.ReLU()
    for _ in range(200):
        network = nn.Sequential(network)
    with pytest.raises(ValueError, match=r"content.*100 levels"):
        fvnce.save(tmp_path / "a.safetensors", network)
    assert not list(tmp_path.iterdir())
    for depth in (200, 100_000):
        with pytest.raises(FileError, match=r"deep.json.*100 levels"):
            decode("[" * depth + "]" * depth, "deep.json")
    monkeypatch.setattr("fvnce.io.files.MAX_TEXT", 10)
    with pytest.raises(FileError, match=r"long.json.*10 bytes.*found 11"):
        decode("[0,1,2,3,4]", "long.json")


def test_only_methods_that_are_lent_can_be_named() -> None:
    factor = LinearGaussianModel(torch.ones(3, 2), torch.zeros(3), 0.5)
    content, tensors = describe(VAE(factor, factor.posterior))
    method = content["structure"]["$arguments"]["encoder"]
    assert method["name"] == "posterior"
    method["name"] = "share_memory"
    with pytest.raises(FileError, match=r"'share_memory'.*LinearGaussianModel"):
        rebuild(content, tensors)


CRAFTED: dict[str, Callable[[Any], None]] = {
    "torch.Linear.*'device'": lambda c: c["structure"]["$arguments"].update(device="cuda"),
    "found no 'state'": lambda c: c.pop("state"),
    "found 'more' as well": lambda c: c.update(more=1),
    "object 99": lambda c: c.update(structure={"$id": 99}),
    "class 'os.system'": lambda c: c["structure"].update({"$kind": "os.system"}),
    "Module.*found a str": lambda c: c.update(structure="ls"),
    "tensor 'nowhere'": lambda c: c["state"].update(weight={"$tensor": "nowhere"}),
    "KeyError: 'structure'": lambda c: c.pop("structure"),
    "TypeError": lambda c: c["structure"]["$arguments"].update(in_features="two"),
    "weight": lambda c: c["structure"]["$arguments"].update(in_features=7),
}


@pytest.mark.parametrize("words", CRAFTED)
def test_a_crafted_record_is_refused_in_words(words: str, tmp_path: Path) -> None:
    content, tensors = describe(nn.Linear(2, 3))
    CRAFTED[words](content)
    path = tmp_path / "crafted.safetensors"
    write_record(path, "objective", {"module": content}, tensors)
    with pytest.raises(FileError, match=words) as failure:
        fvnce.load(path)
    assert "\n" not in str(failure.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_mutated_records_end_in_an_object_or_a_clear_error(files: Any, kind: str, tmp_path: Path) -> None:
    path, _, load = files[kind]
    name = KINDS[kind]
    content, tensors = read_record(path, name)
    generator = random.Random(1)
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that another version wrote it
        for _ in range(100):
            write_record(tmp_path / "noise.safetensors", name, mutate(content, generator), tensors)
            try:
                load(tmp_path / "noise.safetensors")
            except ValueError as error:
                said.append(str(error))
    assert len(said) > 10
    assert all(text and "\n" not in text for text in said)
