"""The reproduction, end to end on tiny settings, asserting what theory demands of the outputs."""

import contextlib
import io
import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

from fvnce.app.cli import main
from fvnce.noise import KernelDensity
from fvnce.objectives import Autoencoder
from fvnce.paper import ITEMS, penalised, reproduce
from fvnce.paper.cells import Cells, do_all
from fvnce.paper.setting import DIGITS, MNIST, CachedKernelDensity, Options, load, make_pair, setting_for
from fvnce.paper.table import cell_name, cells_of, missing, rows
from fvnce.training import load_module, save


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of ``fvnce reproduce --quick``, the files that it names, and what it says."""
    out = tmp_path_factory.mktemp("paper")
    files, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(files), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as stop:
        main(["reproduce", "--quick", "--out", str(out)])
    assert not stop.value.code, said.getvalue()
    return out, [Path(line) for line in files.getvalue().splitlines()], said.getvalue()


@pytest.mark.slow
def test_every_item_writes_its_files(made):
    out, files, _ = made
    names = {path.name for path in files}
    for figure in ("pairs", "losses", "noise-reconstructions", "penalised"):
        for suffix in ("png", "pdf"):
            assert f"{figure}.{suffix}" in names
        assert imread(out / f"{figure}.png")[..., :3].std() > 0.02  # not blank
    assert {"table-digits.md", "table-digits.json", "report.html"} <= names
    nats = json.loads((out / "noise-reconstructions-digits.json").read_text())["nats"]
    assert set(nats) == {"AE", "VAE", "α = 1/16"}


@pytest.mark.slow
def test_the_table_has_every_cell_and_they_are_what_they_say(made):
    out, _, _ = made
    cells = [json.loads(path.read_text()) for path in sorted((out / "cells" / "table-digits").glob("*.json"))]
    assert len(cells) == 12
    bound = 64 * math.log(8 / math.sqrt(2 * math.pi))  # the log-likelihood of a perfect reconstruction
    for cell in cells:
        assert cell["train"] <= bound
        assert cell["noise"] <= bound
        assert cell["settings"]["epochs"] == 2
        if "live_noise" in cell:
            assert 0 <= cell["zero_noise"] <= 1 - cell["live_noise"] + 1e-9


@pytest.mark.slow
def test_the_picture_of_noise_trains_no_network_that_it_does_not_show(tmp_path):
    list(reproduce(["noise-reconstructions"], tmp_path, Options(quick=True)))
    made = {path.stem.rpartition("-")[0] for path in (tmp_path / "cells" / "table-digits").glob("*.json")}
    assert made == {f"64-32-64_{row}_seed0" for row in ("ae", "vae", "1-16")}


@pytest.mark.slow
def test_finished_cells_are_not_made_again(made, tmp_path):
    cells = Cells(tmp_path, {"a": 1})
    made_times = []

    def make():
        made_times.append(1)
        return {"value": 3}

    assert cells.get("x", make)["value"] == 3
    assert cells.get("x", make)["value"] == 3
    assert len(made_times) == 1
    assert Cells(tmp_path, {"a": 2}).get("x", make)["value"] == 3  # other settings, another cell
    assert len(made_times) == 2
    assert not list(tmp_path.glob("*.partial"))


def test_rows_start_from_the_same_weights():
    one, two = (make_pair(DIGITS, DIGITS.networks[1], seed=3) for _ in range(2))
    other = make_pair(DIGITS, DIGITS.networks[1], seed=4)
    for a, b, c in zip(one.model.parameters(), two.model.parameters(), other.model.parameters(), strict=True):
        assert (a == b).all()
        assert not (a == c).all()


def test_the_papers_numbers_add_up():
    """data − noise = difference in every row of the paper's table, as copied."""
    for row in rows(MNIST):
        for data, noise, difference in row.paper:
            assert data - noise == difference, row.label


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.images, self.links, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "img":
            self.images.append(attributes)
        for name in ("src", "href"):
            if name in attributes:
                self.links.append(attributes[name])

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.slow
def test_the_page_is_self_contained(made):
    out, _, _ = made
    reader = _Reader()
    reader.feed((out / "report.html").read_text())
    assert len(reader.images) == 4
    assert all(image["alt"] for image in reader.images)
    assert all(link.startswith(("data:", "#")) for link in reader.links)
    text = " ".join(reader.text)
    for words in ("Tiny settings", "Pairs (f1, f0)", "forgets '1's", "Settings,"):
        assert words in text


def test_a_wrong_data_set_is_one_line(capsys):
    for arguments, words in (
        (["reproduce", "--data", "cifar"], "cifar"),
        (["reproduce", "--seeds", "0"], "greater than or equal to 1"),
        (["data", "imagenet"], "'imagenet' is neither a data set (mnist) nor a file that exists"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        # typer before 0.29 says the same of a number in other words.
        assert words in error.replace("not in the range x>=1", "greater than or equal to 1")


def test_every_item_has_its_file():
    folder = Path(__file__).resolve().parents[2] / "src" / "fvnce" / "paper"
    together = {"pairs": "figures", "losses": "figures", "noise-reconstructions": "table"}
    for item in ITEMS:
        assert (folder / f"{together.get(item, item.replace('-', '_'))}.py").exists()


@pytest.mark.slow
def test_cells_are_the_same_whichever_process_made_them(made, tmp_path):
    out, _, _ = made
    setting = setting_for(Options(quick=True))
    row = (setting.networks[0], "1-64", 0)
    do_all(missing(tmp_path, setting, [row, (setting.networks[0], "ae", 0)]), 2)
    name = cell_name(*row)
    one, two = (cells_of(folder, setting) for folder in (out, tmp_path))
    assert one.read(name) | {"seconds": 0} == two.read(name) | {"seconds": 0}
    weights = [load_module(cells.path(name, ".safetensors")).state_dict() for cells in (one, two)]
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": "gaussian"},
        {"encoder": "gaussian", "code_activation": "decoder-relu"},
        {"code_activation": "relu"},
        {"pixels": "symmetric", "output": "sigmoid"},
        {"pixels": "standardised"},
        {"init": "he"},
        {"init": "glorot"},
    ],
    ids=str,
)
def test_every_choice_measures_the_mean_code(changes, tmp_path):
    """log p(x|g(x)) = −32‖x − mean reconstruction‖² + 64 log(8/√(2π)), whatever the setting."""
    setting = replace(DIGITS, **changes)
    x = load(setting).test[:50]
    pair = make_pair(setting, setting.networks[1], 0)
    expected = 64 * math.log(8 / math.sqrt(2 * math.pi)) - 32 * (pair.reconstruct(x) - x).square().sum(1)
    torch.testing.assert_close(pair.log_likelihood(x), expected)
    save(tmp_path / "a.safetensors", Autoencoder(pair.model, pair.encoder))  # such as cells keep
    torch.testing.assert_close(load_module(tmp_path / "a.safetensors").encoder(x).mean, pair.encoder(x).mean)
    grey = setting.to_unit(x)
    assert grey.min() >= -1e-6
    assert grey.max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "changes",
    [{"encoder": "gaussian", "code_activation": "relu"}, {"pixels": "standardised", "output": "sigmoid"}],
    ids=str,
)
def test_choices_that_contradict_each_other_are_refused(changes):
    with pytest.raises(ValueError, match="|".join(changes)):
        make_pair(replace(DIGITS, **changes), DIGITS.networks[0], 0)


def test_cached_densities_are_those_of_the_kernel_density(tmp_path):
    x = load(DIGITS).train
    for bandwidth in (0.25, 0.5):  # each finds its own values
        plain, cached = KernelDensity(x, bandwidth), CachedKernelDensity(x, bandwidth, tmp_path)
        for _ in range(2):  # evaluated, then from the cache
            assert (cached.log_prob(x) == plain.log_prob(x)).all()
    assert len(list(tmp_path.iterdir())) == 2


def test_errors_are_divided_by_those_of_the_vae_of_the_same_seeds():
    cells = [{"method": "vae", "seed": seed, "ones": float(seed + 1)} for seed in range(3)]
    cells += [{"method": "fixed", "seed": seed, "ones": 10.0 * (seed + 1)} for seed in range(2)]
    record = {"methods": {"vae": "VAE", "fixed": "fixed"}, "cells": cells}
    assert penalised.over_vae(record, "fixed", "ones") == pytest.approx(10)
    assert penalised.mean_of_seeds(record) == "mean of 2 or 3 seeds"
    assert penalised.mean_of_seeds(record | {"cells": cells[:1] + cells[3:4]}) == "mean of 1 seed"
