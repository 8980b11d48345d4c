"""The paper's figure of the noise-penalized autoencoder, which forgets '1's because they are the noise.

    fvnce reproduce penalised --data mnist --out out

A deterministic encoder makes p_θ(x, g(x)) an unnormalized density of x, so J^{0,0} can penalize good reconstructions of
noise. The same network is trained from the same weights in five ways: the VAE; the paper's normalized form, with Δ
unchanged; a fixed log-scale s, Δ + s, the number of nats that the noise should lose; a log-scale found automatically
from a budget on the error of the data; and profiled log Z, with noise that also covers the data.

The paper shows its figure without numbers: '1's are reconstructed poorly, the other digits well. We count this as
reproduced if the error of '1's is at least 5 times the VAE's, that of the rest at most 2.5 times, and the error detects
'1's with AUROC ≥ 0.95.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ..noise import KernelDensity, NoiseMixture, smoothed
from ..objectives import VAE, FullyVariationalNCE, Objective, Profiled
from ..scoring import PowerRule
from ..training import fit, load_module
from ..training import save as save_objective
from ..training.budget import BUDGET
from .cells import Cells, Work, do_all, made_by, mean_and_error, measured, write_json
from .datasets import Images
from .figures import panels
from .setting import DataName, Options, Pair, Result, ResultFigure, ResultTable, Setting, load, make_pair

DIGIT = 1
DEVIATIONS = (
    "The paper gives the network and that p_n is a kernel density of '1's of the validation split. The rest is open: "
    "σ_kde, the number of centers, T, s and the epochs are those of an earlier prototype. With them and a linear code "
    "the error of the other digits of MNIST rose too much, on test images too. The ReLU on the code was then chosen "
    "among eight runs (code, T, s) on training images 20,000 to 30,000, which neither training nor noise uses. The "
    "numbers reported are those of test images."
)


@dataclass(frozen=True)
class Penalty:
    """Settings of the figure of the noise-penalized autoencoder.

    Attributes:
        network: encoder and decoder.
        noise_scale: σ_kde; with wider kernels the network separates noise from digits instead of '1' from the rest.
        centres: number of '1's of the validation split used as kernel centers.
        validation: rows at the end of the training data that form the validation split.
        rows: number of training images.
        clip: T of the fixed log-scale form: the noise term has slope e^T.
        log_scale: s of the fixed log-scale form.
        cover_scale: bandwidth of the smoothed data in the noise of the profiled form.
        epochs: passes over the training data.
        decoder_scale: σ_dec.
        code_activation: activation after the code layer; without a ReLU, 784-256-784 is a linear map.
        batch_size: rows of a step.
        lr: learning rate of Adam.
    """

    network: tuple[int, ...] = (784, 256, 784)
    noise_scale: float = 1 / 16
    centres: int = 1000
    validation: int = 10_000
    rows: int = 20_000
    clip: float = 2.0
    log_scale: float = 1500.0
    cover_scale: float = 1 / 4
    epochs: int = 12
    decoder_scale: float = 1 / 8
    code_activation: Literal["none", "relu"] = "none"
    batch_size: int = 128
    lr: float = 1e-3


MNIST_PENALTY = Penalty(code_activation="relu")
DIGITS_PENALTY = Penalty(
    network=(64, 32, 64), centres=100, validation=300, rows=1137, clip=1.0, log_scale=120.0, epochs=30, batch_size=32
)

METHODS = {
    "vae": "VAE",
    "normalised": "normalized, as in the paper",
    "fixed": "fixed log-scale",
    "auto": "log-scale found by a budget",
    "profiled": "profiled, mixture noise",
}


def run(out: Path, options: Options) -> Result:
    """Train the five autoencoders and draw their reconstructions of test digits."""
    penalty = DIGITS_PENALTY if options.data == "digits" else MNIST_PENALTY
    if options.quick:
        penalty = replace(penalty, epochs=2, rows=256)
    if options.epochs is not None:
        penalty = replace(penalty, epochs=options.epochs)
    cells = _cells(out, penalty, options.data)
    names = {(method, seed): f"{method}_seed{seed}" for seed in range(options.seeds) for method in METHODS}
    missing = [
        Work(f"penalised_{name}", make_cell, (out, penalty, options.data, *key))
        for key, name in names.items()
        if not cells.path(name).exists()
    ]
    do_all(missing, options.processes, options.say)
    files = _figure(out, penalty, options.data)
    record = made_by(f"fvnce reproduce penalised --data {options.data} --seeds {options.seeds}") | {
        "settings": asdict(penalty),
        "seeds": options.seeds,
        "methods": METHODS,
        "cells": [
            {"method": method, "seed": seed} | measured(cells.read(name)) for (method, seed), name in names.items()
        ],
    }
    caption = (
        "Test inputs; samples of the noise; reconstructions by the VAE, by J^{0,0} with a fixed log-scale, and with a "
        "log-scale found by a budget."
    )
    alt = "Five sheets of digits. In the last two, ones are reconstructed as something else, other digits as they are."
    return Result(
        "An autoencoder that forgets '1's",
        reading(record),
        figures=[ResultFigure(files[0], caption, alt)],
        tables=tables(record),
        settings=asdict(penalty) | {"data": options.data, "seeds": options.seeds},
        files=[*files, write_json(out / f"penalised-{options.data}.json", record)],
    )


def _objective(name: str, pair: Pair, noise: KernelDensity, train: Tensor, penalty: Penalty, seed: int) -> Objective:
    if name == "vae":
        return VAE(pair.model, pair.encoder)
    if name == "normalised":
        return FullyVariationalNCE(pair.model, pair.encoder, noise, PowerRule(0))
    if name == "fixed":
        rule = PowerRule(0, clip=penalty.clip)
        return FullyVariationalNCE(pair.model, pair.encoder, noise, rule, log_scale=penalty.log_scale)
    if name == "auto":
        return FullyVariationalNCE(pair.model, pair.encoder, noise, PowerRule(0, clip=0.0), log_scale="auto")
    generator = torch.Generator().manual_seed(seed)
    cover = smoothed(train, penalty.cover_scale, max_centres=1000, generator=generator)
    mixture = NoiseMixture([noise, cover])
    return FullyVariationalNCE(pair.model, pair.encoder, mixture, PowerRule(0), partition=Profiled(momentum=0))


@lru_cache(maxsize=1)
def _data_and_noise(penalty: Penalty, data: DataName) -> tuple[Images, Tensor, KernelDensity]:
    """Return all images, training images without the validation split, and a density of the split's '1's as noise."""
    images = load(Setting(data=data))
    train = images.train[: -penalty.validation][: penalty.rows]
    ones = images.train[-penalty.validation :][images.train_labels[-penalty.validation :] == DIGIT][: penalty.centres]
    return images, train, KernelDensity(ones, penalty.noise_scale)


def _cells(out: Path, penalty: Penalty, data: DataName) -> Cells:
    return Cells(out / "cells" / f"penalised-{data}", asdict(penalty) | {"data": data})


def make_cell(out: Path, penalty: Penalty, data: DataName, method: str, seed: int) -> None:
    """Train one method with one seed, measure it on test digits, and store numbers and networks."""
    start = time.perf_counter()
    cells, name = _cells(out, penalty, data), f"{method}_seed{seed}"
    images, train, noise = _data_and_noise(penalty, data)
    setting = Setting(decoder_scale=penalty.decoder_scale, code_activation=penalty.code_activation)
    pair = make_pair(setting, penalty.network, seed)
    objective = _objective(method, pair, noise, train, penalty, seed)
    fit(objective, train, epochs=penalty.epochs, batch_size=penalty.batch_size, lr=penalty.lr, seed=seed)
    cells.folder.mkdir(parents=True, exist_ok=True)
    save_objective(cells.path(name, ".safetensors"), VAE(pair.model, pair.encoder))
    error = (pair.reconstruct(images.test) - images.test).square().sum(1)
    is_one = images.test_labels == DIGIT
    numbers = {
        "ones": error[is_one].mean().item(),
        "others": error[~is_one].mean().item(),
        "per_digit": [error[images.test_labels == digit].mean().item() for digit in range(10)],
        "auroc": float(roc_auc_score(is_one.numpy(), error.numpy())),
        "seconds": time.perf_counter() - start,
    }
    cells.write(name, numbers)


def _figure(out: Path, penalty: Penalty, data: DataName) -> list[Path]:
    images, _, noise = _data_and_noise(penalty, data)
    digits = (1, 0, 2, 3, 4, 5, 7, 9)
    order = torch.cat([(images.test_labels == digit).nonzero()[:8, 0] for digit in digits])
    inputs = images.test[order]
    samples = noise.draw(64, torch.Generator().manual_seed(0))
    parts = [("test inputs", inputs), ("samples from $p_n$", samples)]
    for method, title in (("vae", "VAE"), ("fixed", "log-scale by hand"), ("auto", "log-scale by a budget")):
        saved: Any = load_module(_cells(out, penalty, data).path(f"{method}_seed0", ".safetensors"))
        parts.append((title, Pair(saved.model, saved.encoder).reconstruct(inputs)))
    return panels(out, "penalised", parts, images.shape, rows=[f"'{digit}'" for digit in digits])


# Tables and sentences, made from the file of results.


def _values(record: dict[str, Any], method: str, key: str) -> list[Any]:
    return [cell[key] for cell in record["cells"] if cell["method"] == method]


def mean(record: dict[str, Any], method: str, key: str) -> float:
    """Return the mean of a number of a method over seeds."""
    return statistics.fmean(_values(record, method, key))


def over_vae(record: dict[str, Any], method: str, key: str) -> float:
    """Return the mean of a number of a method divided by that of the VAE with the same seeds."""
    seeds = _values(record, method, "seed")
    vae = [cell[key] for cell in record["cells"] if cell["method"] == "vae" and cell["seed"] in seeds]
    return mean(record, method, key) / statistics.fmean(vae)


def mean_of_seeds(record: dict[str, Any]) -> str:
    """Describe the number of seeds, which may differ between methods."""
    counts = sorted({len(_values(record, method, "seed")) for method in record["methods"]})
    return f"mean of {' or '.join(map(str, counts))} seed{'s' * (counts[-1] > 1)}"


def tables(record: dict[str, Any]) -> list[ResultTable]:
    """Return the tables of errors relative to the VAE and by digit."""
    lines, digits = [], []
    for method, label in record["methods"].items():
        line = [label]
        for key in ("ones", "others"):
            line += [mean_and_error(_values(record, method, key), 2), f"{over_vae(record, method, key):.1f} ×"]
        lines.append([*line, mean_and_error(_values(record, method, "auroc"), 3)])
        each = _values(record, method, "per_digit")
        digits.append([label, *(f"{statistics.fmean(errors[digit] for errors in each):.2f}" for digit in range(10))])
    header = ["method", "error of '1's", "over VAE", "error of others", "over VAE", "AUROC of '1'"]
    return [
        ResultTable(f"Squared reconstruction error on test digits, {mean_of_seeds(record)}", header, lines),
        ResultTable("Squared reconstruction error by digit", ["method", *map(str, range(10))], digits),
    ]


def reading(record: dict[str, Any]) -> list[str]:
    """Return sentences that summarize the results."""
    ones, others = ({method: over_vae(record, method, key) for method in METHODS} for key in ("ones", "others"))
    auroc = {method: mean(record, method, "auroc") for method in METHODS}
    forgets = ones["fixed"] >= 5 and others["fixed"] <= 2.5 and auroc["fixed"] >= 0.95
    verdict = "as the paper's figure shows" if forgets else "short of what the paper's figure shows"
    return [
        f"With a fixed log-scale the error of '1's is {ones['fixed']:.1f} times the VAE's and that of the other digits "
        f"{others['fixed']:.1f} times; the error distinguishes '1's with AUROC {auroc['fixed']:.3f}, {verdict}.",
        f"With a log-scale found from a budget of {BUDGET} times the VAE's error, the error of '1's is "
        f"{ones['auto']:.1f} times the VAE's, that of the other digits {others['auto']:.2f} times, and AUROC is "
        f"{auroc['auto']:.3f}.",
        f"Without a log-scale, the normalized form changes the error of '1's by a factor of {ones['normalised']:.2f}: "
        "its noise term is about one nat at most, and its data term hundreds. The profiled form needs no scale: the "
        f"error is {ones['profiled']:.1f} times the VAE's for '1's and {others['profiled']:.1f} times for the others.",
    ]
