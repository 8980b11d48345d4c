r"""Variational NCE, problem 2: a restricted Boltzmann machine small enough to enumerate.

    python -m experiments.vnce.boltzmann --out out

8 visible and 2 hidden units: 256 visible states, so data are counts over states, log Z is a sum, and the divergence
from the truth, KL(p*‖p_θ), is exact. Contrastive divergence is computed without sampling noise, from the transition
matrix of k Gibbs sweeps. The posterior of the hidden units is a product of logistic functions, which a linear encoder
contains: at the optimum over such encoders VNCE is NCE and fvNCE is S-NCE. A learned encoder is trained on one data set
to confirm it, and an encoder that sees half of v shows what a poor q costs. The noise is half independent units with
the data's frequencies and half coin flips: it must reach every state, or a model hides mass where no noise falls.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fvnce.paper.figures import new_figure, save
from fvnce.paper.setting import Options, Result, ResultFigure, ResultTable

from . import main, name_curves, write_results
from .boltzmann_estimates import RULES, Settings, compare, crude_encoder, learned_encoder


def run(out: Path, options: Options) -> Result:
    """Estimate, compare, and draw the figure."""
    start = time.perf_counter()
    settings = Settings()
    if options.quick:
        settings = replace(settings, sizes=(3000,), runs=12, divergence_steps=20, scratch_steps=20)
    measured = {str(size): compare(settings, size) for size in settings.sizes}
    learned = learned_encoder(settings)
    crude = crude_encoder(settings)
    figures = _figure(out, settings, measured)
    seconds = time.perf_counter() - start
    results = {"measured": measured, "learned_encoder": learned, "crude_encoder": crude}
    return Result(
        "A restricted Boltzmann machine, enumerated",
        _reading(settings, measured, learned, crude),
        figures=[
            ResultFigure(
                figures[0],
                "KL(p*‖p_θ) against the sample size (median and deciles), and log Z from noise samples less the truth.",
                "Two panels: divergence falling with sample size for each method; points around zero.",
            )
        ],
        tables=[_table(settings, measured), _table_encoders(learned, crude)],
        settings=asdict(settings),
        seconds=seconds,
        files=[*figures, write_results(out, "vnce-boltzmann", options, asdict(settings), seconds, results)],
    )


def _figure(out: Path, settings: Settings, measured: dict[str, Any]) -> list[Path]:
    figure, (left, right) = new_figure(2, width=8.0, height=3.0)
    styles: dict[str, tuple[str, Any]] = {
        "MLE": ("#000000", ":"),
        "NCE = VNCE": ("#555555", "--"),
        "fvNCE (0, 0)": ("#0b2e59", "-"),
        "fvNCE (1/4, 0)": ("#2f7f9e", "-."),
        "fvNCE (1/2, 0)": ("#c23b22", (0, (6, 1.5))),
        "fvNCE (1, 0)": ("#e8a33d", (0, (1, 1))),
        "CD-1": ("#3c8d40", (0, (4, 1, 1, 1, 1, 1))),
        "CD-10": ("#8bc34a", (0, (2, 2))),
    }
    for name, (colour, dash) in styles.items():
        rows = [measured[str(size)][name]["kl_deciles"] for size in settings.sizes]
        left.plot(settings.sizes, [row[1] for row in rows], linestyle=dash, color=colour, label=name, marker=".")
        if name == "fvNCE (0, 0)":
            low, high = [row[0] for row in rows], [row[2] for row in rows]
            left.fill_between(settings.sizes, low, high, color=colour, alpha=0.12, linewidth=0)
            left.text(0.03, 0.04, "band: 80% of the runs of fvNCE (0, 0)", fontsize=7.5, transform=left.transAxes)
    left.set(xscale="log", yscale="log", xlabel="data samples", ylabel="KL(p*‖p), nats", title="error of the model")
    left.minorticks_off()
    ticks = [5e-4, 1e-3, 2e-3, 5e-3]
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.set_xticks(settings.sizes, [f"{size:,}" for size in settings.sizes])
    name_curves(left)
    last = measured[str(settings.sizes[-1])]
    for position, name in enumerate(RULES):
        gaps = last[name]["log_partition_gap"]
        right.plot([position] * len(gaps), gaps, ".", color=styles[name][0], alpha=0.5)
    right.axhline(0, color="0.5", linewidth=0.8)
    right.set(title=f"log Z from noise, n = {settings.sizes[-1]:,}", ylabel="estimate − exact, nats")
    right.set_xticks(
        range(len(RULES)), [name.replace("fvNCE ", "").replace(" = ", "\n= ") for name in RULES], fontsize=7.5
    )
    return save(figure, out, "vnce-boltzmann")


def _table(settings: Settings, measured: dict[str, Any]) -> ResultTable:
    last = measured[str(settings.sizes[-1])]
    rows = []
    for name in last:
        cells = [1000 * measured[str(s)][name]["kl_mean"] for s in settings.sizes]
        errors = [1000 * measured[str(s)][name]["kl_error"] for s in settings.sizes]
        row = [name, *(f"{a:.2f} ± {b:.2f}" for a, b in zip(cells, errors, strict=True))]
        row.append(f"{1000 * last[name]['from_scratch']:.2f}")
        for key, form in (
            ("coverage", "{:.1%}"),
            ("log_partition_mean_error", "{:.4f}"),
            ("log_partition_within_3_errors", "{:.0%}"),
        ):
            row.append(form.format(last[name][key]) if key in last[name] else "–")
        rows.append(row)
    header = ["method", *(f"n = {s}" for s in settings.sizes), "median from scratch"]
    header += ["coverage of 95% intervals", "|log Z error|", "within 3 s.e."]
    return ResultTable(
        f"KL(p*‖p_θ) in thousandths of a nat, mean over {settings.runs} data sets; the rest at the largest n",
        header,
        rows,
    )


def _table_encoders(learned: dict[str, dict[str, float]], crude: dict[str, float]) -> ResultTable:
    rows = [
        [
            f"{name}, learned linear encoder",
            f"{1000 * row['learned_encoder']:.2f}",
            f"{1000 * row['exact_posterior']:.2f}",
        ]
        for name, row in learned.items()
    ]
    rows += [
        [f"{name}, encoder that sees half of v, infinite data", f"{1000 * value:.2f}", "0"]
        for name, value in crude.items()
    ]
    return ResultTable(
        "Encoders: KL(p*‖p_θ) in thousandths of a nat", ["method", "this encoder", "exact posterior"], rows
    )


def _reading(
    settings: Settings, measured: dict[str, Any], learned: dict[str, dict[str, float]], crude: dict[str, float]
) -> list[str]:
    last = measured[str(settings.sizes[-1])]
    gaps = [abs(row["learned_encoder"] - row["exact_posterior"]) for row in learned.values()]
    fv = {name: value for name, value in crude.items() if name.startswith("fv")}
    best = min(fv, key=lambda name: fv[name])
    relative = {n: last[n]["kl_mean"] / last["NCE = VNCE"]["kl_mean"] for n in RULES}
    thousandths = {name: 1000 * row["kl_mean"] for name, row in last.items()}
    fitted = last["fvNCE (0, 0)"]
    return [
        f"At n = {settings.sizes[-1]}, equal samples and equal cost (all sum over the hidden states), the divergence "
        f"in units of VNCE's is {', '.join(f'{v:.2f} for {n[6:]}' for n, v in relative.items() if n[:2] == 'fv')}. "
        "Theory has the weight 1/(1+r) of the logarithmic rule as the most efficient; with ν = "
        f"{settings.noise_ratio:g} noise samples per data sample r is small, and rules with small α are hardly worse.",
        f"Contrastive divergence ends at {thousandths['CD-1']:.2f} (CD-1) and {thousandths['CD-10']:.2f} (CD-10) "
        f"thousandths of a nat where maximum likelihood has {thousandths['MLE']:.2f} and fvNCE (0, 0) "
        f"{thousandths['fvNCE (0, 0)']:.2f}; it needs Gibbs sweeps at every step and gives no log Z.",
        f"log Z from the noise samples is {fitted['log_partition_mean_error']:.4f} nats off on average, and within "
        f"three standard errors in {fitted['log_partition_within_3_errors']:.0%} of the data sets.",
        f"With a learned linear encoder the divergence is within {1000 * max(gaps):.3f} thousandths of a nat of that "
        f"of the exact posterior. With an encoder that sees half of v, and infinite data, the best of fvNCE is {best}, "
        f"{1000 * fv[best]:.1f}, against {1000 * crude['NCE = VNCE']:.1f} of VNCE.",
    ]


if __name__ == "__main__":
    main(run, __doc__)
