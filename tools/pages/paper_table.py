"""What the paper's table shows, in words, for results/paper-mnist/README.md.

No more is claimed than the seeds bear: an order is that of paired differences beyond their 95 % interval, and of a row
that is lower because its data term fell, the page says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fvnce.paper.cells import beyond_error, ordered
from fvnce.paper.table import column, networks

Record = dict[str, Any]


def reading(record: Record) -> list[str]:
    """Return what came out, in words."""
    labels = {name: row["label"] for name, row in record["rows"].items()}
    with_paper = record["settings"]["data"] == "mnist"
    sentences = []
    for index, network in enumerate(networks(record)):
        sentences.append(
            _order(record, network, labels) + (_against_the_paper(record, index, network, labels) if with_paper else "")
        )
    if with_paper:
        sentences.append(
            "Where training starts for every row, the data column depends little on what the paper leaves open; the "
            "noise column depends on it, above all on the initial weights. Pixels that are 0 in every image never "
            "change the weights that lead away from them, so noise on these pixels passes through weights as they were "
            "drawn, and their size is a matter of convention."
        )
    return sentences + _felt(record)


def _order(record: Record, network: str, labels: dict[str, str]) -> str:
    """Say how the rows are ordered as far as that is beyond its error, and where a distance from the VAE comes from."""
    data, noise = ({name: column(record, network, name, which) for name in labels} for which in ("train", "noise"))
    if record["seeds"] < 2:
        falls = {name: fall_of_data(data[name], noise[name], data["vae"], noise["vae"]) for name in labels}
        fell = [f"{labels[name]} (data {-fall:+.0f})" for name, fall in falls.items() if fall is not None]
        return (
            f"On {network} the rows are not put in an order: one seed has no error, and the order of numbers as close "
            "as these may be chance; --seeds 3 gives one."
            + (f" Below the VAE because the data term fell, not because of noise: {', '.join(fell)}." if fell else "")
        )
    gaps = {label: column(record, network, name, "difference") for name, label in labels.items()}
    sentences = {
        label: against_vae(label, data[name], noise[name], data["vae"], noise["vae"])
        for name, label in labels.items()
        if name != "vae"
    }
    text = "; ".join(filter(None, sentences.values())) or "no row differs from the VAE beyond its error"
    close = [label for label, sentence in sentences.items() if not sentence]
    within = f" Within their error of the VAE: {', '.join(close)}." if close and len(close) < len(sentences) else ""
    return (
        f"On {network} the difference between data and noise grows in the order {ordered(gaps)}, where ≈ is a "
        f"step within its error (95 %, paired over {record['seeds']} seeds). {text[0].upper()}{text[1:]}.{within}"
    )


def against_vae(
    label: str,
    data: Sequence[float],
    noise: Sequence[float],
    vae_data: Sequence[float],
    vae_noise: Sequence[float],
) -> str | None:
    """Say how far data − noise of a row is from that of the VAE, and which of the two made it so.

    None within its error.

    >>> vae = [700.0, 701.0], [-1600.0, -1601.0]
    >>> print(against_vae("(1/64, 0)", [690.0, 691.0], [-1800.0, -1801.0], *vae))
    (1/64, 0) lies 190 nats above the VAE, its noise 200 lower, though its data fell by 10 too
    >>> print(against_vae("(0, 1)", [600.0, 601.0], [-1610.0, -1611.0], *vae))
    (0, 1) lies 90 nats below the VAE because its data term fell by 100, which says nothing about noise (10 lower)
    """
    differences = [[a - b for a, b in zip(*terms, strict=True)] for terms in ((data, noise), (vae_data, vae_noise))]
    if not beyond_error(*differences):
        return None
    by_data, by_noise = (statistics.fmean(a) - statistics.fmean(b) for a, b in ((data, vae_data), (noise, vae_noise)))
    step = by_data - by_noise
    start = f"{label} lies {abs(step):.0f} nats {'above' if step > 0 else 'below'} the VAE"
    other = f"{abs(by_noise):.0f} {'higher' if by_noise > 0 else 'lower'}"
    fall = fall_of_data(data, noise, vae_data, vae_noise)
    if fall is not None:
        return f"{start} because its data term fell by {fall:.0f}, which says nothing about noise ({other})"
    if by_data < 0 and beyond_error(data, vae_data):
        return f"{start}, its noise {other}, though its data fell by {-by_data:.0f} too"
    return f"{start}, its noise {other} and its data {abs(by_data):.0f} {'higher' if by_data > 0 else 'lower'}"


def fall_of_data(
    data: Sequence[float], noise: Sequence[float], vae_data: Sequence[float], vae_noise: Sequence[float]
) -> float | None:
    """Return by how much the data term fell, if that is most of why data − noise is below that of the VAE; else None.

    >>> fall_of_data([600.0], [-1610.0], [700.0], [-1600.0])
    100.0
    >>> fall_of_data([690.0], [-1800.0], [700.0], [-1600.0]) is None
    True
    """
    by_data = statistics.fmean(data) - statistics.fmean(vae_data)
    step = by_data - (statistics.fmean(noise) - statistics.fmean(vae_noise))
    return -by_data if step < 0 and by_data < step / 2 else None


def _against_the_paper(record: Record, index: int, network: str, labels: dict[str, str]) -> str:
    """Say how far the columns are from the paper's, as root mean squares over all rows, and in which row most."""
    parts = []
    for which, place, title in (("noise", 1, "noise"), ("train", 0, "data"), ("difference", 2, "their difference")):
        errors = {
            label: statistics.fmean(column(record, network, name, which)) - record["rows"][name]["paper"][index][place]
            for name, label in labels.items()
        }
        rms = statistics.fmean(error**2 for error in errors.values()) ** 0.5
        worst = max(errors, key=lambda label: abs(errors[label]))
        parts.append(f"{title} {rms:.0f} (most in {worst}: {errors[worst]:+.0f})")
    return f" Distance from the paper's numbers, root mean square over the six rows, in nats: {', '.join(parts)}."


def _felt(record: Record) -> list[str]:
    """Say which samples the gradient of the contrastive rows comes from."""
    contrastive = [cell for cell in record["cells"] if "live_noise" in cell]
    if not contrastive:
        return []
    live, zero = (span([cell[name] for cell in contrastive]) for name in ("live_noise", "zero_noise"))
    far = ": with σ_kde = 2σ_dec the log-ratio Δ of a noise sample is hundreds of nats below 0"
    sentences = [
        f"Of the noise samples {live} contribute to the gradient and {zero} have a gradient of exactly zero in "
        f"float32{far * (record['settings']['data'] == 'mnist')}. Where none contributes, the rows differ only because "
        "α weighs the data by r^α, not because noise is penalized."
    ]
    clipped = [cell["clipped_data"] for cell in contrastive if cell["row"] == "1-16"]
    if clipped and min(clipped) > 0.5:
        sentences.append(
            f"With α = 1/16, {span(clipped)} of the data end above the clip T, where r^α is replaced by a line and all "
            "data weigh the same, as in the VAE. Where this row ends elsewhere than the VAE, the way there decides: "
            "while Δ of the first images rises through 0, these carry nearly all of the weight (`ess_data` in the "
            "history of such a run falls from 1 to a few per cent within its first epoch and then recovers)."
        )
    return sentences


def span(shares: Sequence[float]) -> str:
    """Return the range of shares as text.

    >>> span([0.0, 0.001]), span([0.2, 0.5])
    ('0%', '20% to 50%')
    """
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"
