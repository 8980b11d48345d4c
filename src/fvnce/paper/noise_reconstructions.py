"""The paper's figure of noise samples and their reconstructions by AE, VAE and α = 1/16, with nats.

    fvnce reproduce noise-reconstructions --data mnist --out out

The networks are those of the table's first column of cells, which are trained if they are not there.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from .. import __version__
from ..report.page import Picture, Section
from .cells import write_json
from .pictures import panels
from .study import Options, kernel_noise, load, rows, setting_for
from .table import measure, trained


def run(out: Path, options: Options) -> Section:
    """Draw the figure."""
    start = time.perf_counter()
    setting = setting_for(options)
    measure(out, setting, seeds=1, jobs=options.processes, say=options.say)
    images = load(setting)
    noise = kernel_noise(setting, images.train)
    samples = noise.draw(setting.noise_samples, torch.Generator().manual_seed(1000))
    network = setting.networks[0]
    parts = [("noise samples", setting.to_unit(samples[:64]))]
    nats = {}
    for row in rows(setting):
        if row.name in ("ae", "vae", "1-16"):
            pair = trained(out, setting, network, row)
            label = row.label if row.rule is None else "α = 1/16"
            nats[label] = pair.log_likelihood(samples).mean().item()
            parts.append((f"{label}: {nats[label]:.0f} nats", setting.to_unit(pair.reconstruct(samples[:64]))))
    files = panels(out, "noise-reconstructions", parts, images.shape)
    record = {
        "command": f"fvnce reproduce noise-reconstructions --data {options.data}",
        "version": __version__,
        "torch": torch.__version__,
        "seed": 0,
        "network": "-".join(map(str, network)),
        "settings": setting.named(),
        "nats": nats,
        "seconds": time.perf_counter() - start,
    }
    files.append(write_json(out / f"noise-reconstructions-{options.data}.json", record))
    order = " > ".join(sorted(nats, key=lambda label: -nats[label]))
    return Section(
        "Reconstructions of noise samples",
        [
            "Noise samples are training images with Gaussian noise. The worse a method reconstructs them, the more it "
            f"has concentrated on the data. Average log-likelihood of the reconstruction, best to worst: {order}. "
            "The paper finds AE > VAE > α = 1/16."
        ],
        pictures=[
            Picture(
                files[0],
                f"Noise samples, and what {'-'.join(map(str, network))} networks make of them.",
                "Four sheets of digits: noisy samples and their reconstructions by AE, VAE and alpha one sixteenth.",
            )
        ],
        settings=setting.named(),
        seconds=time.perf_counter() - start,
        files=files,
    )
