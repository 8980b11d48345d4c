"""Every file that a run holds is refused when a byte of it is changed, and when a stranger has crafted it."""

from __future__ import annotations

import copy
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

import fvnce
from fvnce.models import CouplingEncoder, GaussianDecoder, LinearGaussianModel
from fvnce.noise import load_noise, save_noise
from fvnce.objectives import VAE
from fvnce.runs.scorer import RunError, load_run
from fvnce.serialization import (
    RecordError,
    describe,
    read_document,
    read_record,
    rebuild,
    write_document,
    write_record,
)
from fvnce.training.checkpoint import read_checkpoint

BYTES = 150  # flips of each kind of file


def objective() -> nn.Module:
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    model = fvnce.LatentVariableModel(prior, fvnce.GaussianDecoder(fvnce.mlp([2, 4, 3])))
    noise = fvnce.NoiseMixture(
        [fvnce.KernelDensity(torch.randn(5, 3), 0.5), Independent(Normal(torch.zeros(3), 1.0), 1)]
    )
    return fvnce.FullyVariationalNCE(model, fvnce.GaussianEncoder(fvnce.mlp([3, 4, 4])), noise, fvnce.PowerRule(0.2))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Callable[[Path], Any]]]:
    """One file of every kind with what reads it; each reader gives what can be compared."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    fvnce.save(folder / "objective.safetensors", objective())
    save_noise(fvnce.KernelDensity(torch.randn(6, 2), 0.5), folder)
    fvnce.fit(objective(), torch.randn(20, 3), epochs=1, seed=0, checkpoint_dir=folder / "run")
    x = np.random.default_rng(0).normal(size=(40, 2))
    detector = fvnce.NoiseContrastiveDetector(n_trees=5, n_networks=1, steps=5, calibration_folds=0, random_state=0)
    detector.fit(x).save(folder / "d.safetensors")
    content = {"name": "fläche", "shares": [0.1 + 0.2, 1e-7, None, -3], "layout": {"a": "number", "b": "category"}}
    write_document(folder / "study.json", "study", content)

    def state(path: Path) -> Any:
        return list(map(str, fvnce.load(path).state_dict().items()))

    def noise(path: Path) -> Any:
        place = path.parent / "noise"
        place.mkdir(exist_ok=True)
        shutil.copy(path, place / "noise.safetensors")
        return load_noise(place).log_prob(torch.zeros(3, 2)).tolist()

    return {
        "an objective": (folder / "objective.safetensors", state),
        "noise": (folder / "noise.safetensors", noise),
        "a checkpoint": (next((folder / "run").glob("step-*.safetensors")), lambda path: str(read_checkpoint(path))),
        "a detector": (
            folder / "d.safetensors",
            lambda path: fvnce.NoiseContrastiveDetector.load(path).score_samples(x).tolist(),
        ),
        "a document": (folder / "study.json", lambda path: read_document(path, "study")),
    }


@pytest.mark.parametrize("kind", ["an objective", "noise", "a checkpoint", "a detector", "a document"])
def test_a_flipped_byte_is_refused_or_changes_nothing(files: Any, kind: str, tmp_path: Path) -> None:
    path, read = files[kind]
    data, wanted = path.read_bytes(), read(path)
    generator = random.Random(0)
    harmless = 0
    for _ in range(BYTES):
        place, value = generator.randrange(len(data)), generator.randrange(1, 256)
        broken = tmp_path / "broken"
        broken.write_bytes(data[:place] + bytes([data[place] ^ value]) + data[place + 1 :])
        try:
            found = read(broken)
        except RecordError:
            continue
        harmless += 1
        assert found == wanted, f"byte {place} changed by {value} was not noticed"
    assert harmless < BYTES / 10  # blanks and the last digits of a float


@pytest.mark.parametrize("kind", ["an objective", "noise", "a checkpoint", "a detector", "a document"])
def test_a_cut_file_is_refused(files: Any, kind: str, tmp_path: Path) -> None:
    path, read = files[kind]
    data = path.read_bytes()
    for length in {0, 1, 7, 8, 9, len(data) // 2, len(data) - 9, len(data) - 2}:
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(RecordError):
            read(tmp_path / "cut")


def test_older_formats_are_refused_in_one_sentence(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", "run", {"rows": 3})
    old = (tmp_path / "a.json").read_text().replace('"version":2', '"version":1')
    (tmp_path / "a.json").write_text(old)
    with pytest.raises(
        RecordError, match=r"has version 1 of the format; this fvnce reads version 2: make the file again"
    ):
        read_document(tmp_path / "a.json", "run")
    (tmp_path / "a.json").write_text('{"rows": 3}')
    with pytest.raises(RecordError, match=r"a.json is damaged or not a run of fvnce: it has no checksum"):
        read_document(tmp_path / "a.json", "run")
    with pytest.raises(FileNotFoundError, match=r"must be a run of fvnce, found no such file"):
        read_document(tmp_path / "b.json", "run")


def test_documents_keep_their_order_and_tell_their_kind(tmp_path: Path) -> None:
    content = {"b": {"z": 1, "a": 2, "m": [0.1, None, True]}, "a": "ä\ud800"}
    write_document(tmp_path / "a.json", "study", content)
    found = read_document(tmp_path / "a.json", "study")
    assert found == content
    assert list(found) == ["b", "a"]
    assert list(found["b"]) == ["z", "a", "m"]
    with pytest.raises(RecordError, match=r"a.json is a 'study' of fvnce, not a run"):
        read_document(tmp_path / "a.json", "run")
    with pytest.raises(RecordError, match=r"at most 10 bytes of JSON.*raise max_bytes"):
        read_document(tmp_path / "a.json", "study", max_bytes=10)
    with pytest.raises(ValueError, match="must leave the key 'fvnce'"):
        write_document(tmp_path / "a.json", "study", {"fvnce": 1})


def test_numbers_as_keys_come_back_as_json_has_them(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", "study", {"by row": {10: (1, 2), 9: None}})
    assert read_document(tmp_path / "a.json", "study") == {"by row": {"10": [1, 2], "9": None}}


# --- what a stranger may write -----------------------------------------------------------------------------------


def huge(name: str) -> Any:
    """The structure of a small object, with sizes that no file of its length can fill."""
    made: dict[str, nn.Module] = {
        "Linear": nn.Linear(2, 3),
        "Conv2d": nn.Conv2d(2, 3, 3),
        "BatchNorm1d": nn.BatchNorm1d(2),
        "LayerNorm": nn.LayerNorm(2),
        "coupling": CouplingEncoder(3, 2, layers=2, hidden=2),
        "coupling, layers": CouplingEncoder(3, 2, layers=2, hidden=2),
        "decoder": GaussianDecoder(nn.Linear(2, 3), learned="per_dimension", event_shape=(3,)),
    }
    content, tensors = describe(made[name])
    given = content["structure"]["$arguments"]
    if name == "coupling":
        given["latent"] = 10**10
    elif name == "coupling, layers":
        given["layers"] = 10**10
    elif name == "decoder":
        given["event_shape"] = {"$tuple": [200_000, 200_000]}
    else:
        given.update({key: 30_000 for key in given if key in ("in_features", "out_features", "in_channels")})
        given.update({key: 10**10 for key in given if key == "num_features"})
        if "normalized_shape" in given:
            given["normalized_shape"] = {"$tuple": [10**10]}
        if "kernel_size" in given:
            given["out_channels"] = 30_000
    return content, tensors


SIZES = ["Linear", "Conv2d", "BatchNorm1d", "LayerNorm", "coupling", "coupling, layers", "decoder"]


@pytest.mark.parametrize("name", SIZES)
def test_a_small_file_cannot_ask_for_much_memory(name: str, tmp_path: Path) -> None:
    content, tensors = huge(name)
    path = tmp_path / "bomb.safetensors"
    write_record(path, "objective", {"module": content}, tensors)
    with pytest.raises(RecordError, match=r"bomb.safetensors asks for [\d,]+ bytes .* raise max_bytes"):
        fvnce.load(path)


def test_the_budget_can_be_raised(tmp_path: Path) -> None:
    path = fvnce.save(tmp_path / "a.safetensors", nn.Linear(50, 50))
    with pytest.raises(RecordError, match=r"of 1,000 allowed"):
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
    with pytest.raises(RecordError, match=r"at most 100,000 objects within one another"):
        rebuild(content, tensors)


def test_deep_nests_are_refused_when_read_and_when_written(tmp_path: Path) -> None:
    network: nn.Module = nn.ReLU()
    for _ in range(200):
        network = nn.Sequential(network)
    with pytest.raises(ValueError, match="must not be nested deeper than 100 levels"):
        fvnce.save(tmp_path / "a.safetensors", network)
    assert not list(tmp_path.iterdir())
    for depth in (200, 100_000):
        (tmp_path / "deep.json").write_text("[" * depth + "]" * depth)
        with pytest.raises(RecordError, match=r"deep.json must not be nested deeper than 100 levels"):
            read_document(tmp_path / "deep.json", "run")


def test_only_methods_that_are_lent_can_be_named() -> None:
    factor = LinearGaussianModel(torch.ones(3, 2), torch.zeros(3), 0.5)
    content, tensors = describe(VAE(factor, factor.posterior))
    method = content["structure"]["$arguments"]["encoder"]
    assert method["name"] == "posterior"
    method["name"] = "share_memory"
    with pytest.raises(RecordError, match=r"names a method 'share_memory' that LinearGaussianModel does not lend"):
        rebuild(content, tensors)


CRAFTED: dict[str, Callable[[Any], None]] = {
    "an argument 'device' that it does not take": lambda c: c["structure"]["$arguments"].update(device="cuda"),
    "found no 'state'": lambda c: c.pop("state"),
    "found 'more' as well": lambda c: c.update(more=1),
    "refers to an object 99 that it does not hold": lambda c: c.update(structure={"$id": 99}),
    "names a class 'os.system'": lambda c: c["structure"].update({"$kind": "os.system"}),
    "must describe a Module, found a str": lambda c: c.update(structure="ls"),
    "refers to a tensor 'nowhere'": lambda c: c["state"].update(weight={"$tensor": "nowhere"}),
    "does not hold what it must .KeyError: 'structure'": lambda c: c.pop("structure"),
    "does not hold what it must .TypeError": lambda c: c["structure"]["$arguments"].update(in_features="two"),
    "does not hold what it must .RuntimeError": lambda c: c["structure"]["$arguments"].update(in_features=7),
}


@pytest.mark.parametrize("words", CRAFTED)
def test_a_crafted_record_is_refused_in_words(words: str, tmp_path: Path) -> None:
    content, tensors = describe(nn.Linear(2, 3))
    CRAFTED[words](content)
    path = tmp_path / "crafted.safetensors"
    write_record(path, "objective", {"module": content}, tensors)
    with pytest.raises(RecordError, match=words) as failure:
        fvnce.load(path)
    assert "\n" not in str(failure.value)


def nodes(content: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything within a nest."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        yield content, key
        yield from nodes(value)


def mutate(content: Any, generator: random.Random) -> Any:
    """A copy of a nest with one to three places removed, exchanged or replaced."""
    content = copy.deepcopy(content)
    strange = [None, True, -1, 0, 10**10, 1e308, float("nan"), "", "x" * 300, "posterior", [], {}, [[]], {"$id": 0}]
    strange += [{"$tensor": "x"}, {"$tuple": 3}, {"$pairs": [1]}, {"$kind": "method", "of": 0, "name": "__class__"}]
    for _ in range(generator.randint(1, 3)):
        places = list(nodes(content))
        if not places:
            break
        container, key = generator.choice(places)
        choice = generator.random()
        if choice < 0.3:
            del container[key]
        elif choice < 0.5:
            other, name = generator.choice(places)
            container[key] = copy.deepcopy(other[name])
        elif choice < 0.6 and isinstance(container, dict):
            container[f"{key}?"] = container.pop(key)
        else:
            container[key] = copy.deepcopy(generator.choice(strange))
    return content


@pytest.mark.parametrize("kind", ["an objective", "noise", "a checkpoint", "a detector"])
def test_mutated_records_end_in_an_object_or_a_clear_error(files: Any, kind: str, tmp_path: Path) -> None:
    path, read = files[kind]
    if kind == "a detector":
        read = fvnce.NoiseContrastiveDetector.load
    elif kind == "noise":
        read = lambda path: load_noise(path.parent)  # noqa: E731
    names = {"an objective": "objective", "noise": "noise", "a checkpoint": "checkpoint", "a detector": "detector"}
    content, tensors = read_record(path, names[kind])
    generator = random.Random(1)
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that another version wrote it
        for _ in range(100):
            write_record(tmp_path / "noise.safetensors", names[kind], mutate(content, generator), tensors)
            try:
                read(tmp_path / "noise.safetensors")
            except ValueError as error:
                said.append(str(error))
    assert len(said) > 10
    assert all(text and "\n" not in text for text in said)


def test_a_config_that_was_edited_after_the_run_is_named(tmp_path: Path) -> None:
    from fvnce.cli import main

    x = np.random.default_rng(0).normal(size=(40, 2))
    np.savetxt(tmp_path / "t.csv", x, delimiter=",", header="a,b", comments="")
    run = tmp_path / "run"
    options = ["--trees", "5", "--networks", "1", "--steps", "5", "--set", "calibration_folds=0"]
    with pytest.raises(SystemExit, match="0"):
        main(["fit", str(tmp_path / "t.csv"), "--out", str(run), "-q", *options])
    load_run(run)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1"))
    with pytest.raises(RunError, match=r"config.toml is not the config that the run was made with; put that back"):
        load_run(run)
