"""The paper's figure of noise samples and their reconstructions by AE, VAE and α = 1/16, with nats.

    fvnce reproduce noise-reconstructions --data mnist --out out

The paper gives −1138, −1609 and −1818 nats, its table's noise column; ours are under the figure. The networks are
those of the table's first network with seed 0, trained if they are not there. It deviates where the table does.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ..pages.figures import panels
from ..pages.page import Picture, Section
from .cells import made_by, write_json
from .setting import Options, kernel_noise, load, setting_for
from .table import measure, named, rows, trained

TITLE = "Reconstructions of noise samples"
#: The three rows of the table that are shown, and how the figure calls them.
SHOWN = {"ae": "AE", "vae": "VAE", "1-16": "α = 1/16"}


def run(out: Path, options: Options) -> Section:
    """Draw the figure."""
    start = time.perf_counter()
    setting = setting_for(options)
    network = setting.networks[0]
    measure(out, replace(setting, networks=(network,)), 1, jobs=options.processes, say=options.say, only=tuple(SHOWN))
    images = load(setting)
    noise = kernel_noise(setting, images.train)
    samples = noise.draw(setting.noise_samples, torch.Generator().manual_seed(1000))
    nats, pictures = {}, {}
    for row in rows(setting):
        if row.name in SHOWN:
            pair, label = trained(out, setting, network, row), SHOWN[row.name]
            nats[label] = pair.log_likelihood(samples).mean().item()
            pictures[label] = setting.to_unit(pair.reconstruct(samples[:64])).clamp(0, 1)
    first, *others = SHOWN.values()
    parts = [("noise samples", setting.to_unit(samples[:64])), (f"{first} ({nats[first]:.0f} nats)", pictures[first])]
    less = [(f"{label} ({nats[label]:.0f} nats)\nless {first}", pictures[label] - pictures[first]) for label in others]
    files = panels(out, "noise-reconstructions", parts, images.shape, differences=less)
    record = made_by(f"fvnce reproduce noise-reconstructions --data {options.data}") | {
        "seed": 0,
        "network": named(network),
        "settings": asdict(setting),
        "nats": nats,
        "seconds": time.perf_counter() - start,
    }
    files.append(write_json(out / f"noise-reconstructions-{options.data}.json", record))
    return Section(
        TITLE,
        reading(record),
        pictures=[
            Picture(
                files[0],
                f"Noise samples, what the autoencoder ({record['network']}) makes of them, and how the others differ.",
                "Four sheets of digits: noisy samples, what the AE makes of them, and what VAE and alpha 1/16 change.",
            )
        ],
        settings=asdict(setting),
        seconds=time.perf_counter() - start,
        files=files,
    )


def reading(record: dict[str, Any]) -> list[str]:
    """What came out, in words, from the file of results."""
    nats = record["nats"]
    listed = ", ".join(f"{label} ({nats[label]:.0f})" for label in sorted(nats, key=lambda label: -nats[label]))
    return [
        "Noise samples are training images with Gaussian noise. The worse a method reconstructs them, the more it has "
        f"concentrated on the data. Average log p(x|g(x)) of noise in nats, network {record['network']}, seed "
        f"{record['seed']}: {listed}; of one seed, so that the order of close ones may be chance. The paper, on MNIST: "
        "AE (-1138) > VAE (-1609) > α = 1/16 (-1818)."
    ]
