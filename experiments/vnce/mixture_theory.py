r"""The mixture by quadrature: how well each rule can do, what outliers do to it, and what a poor encoder costs.

With infinite data every expectation is an integral over x. The asymptotic covariance of an estimate follows from three
of them (`covariance` of `estimation`), its bias from maximizing J on a contaminated density.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fvnce.paper.figures import new_figure, save
from fvnce.paper.setting import ResultTable
from fvnce.scoring import Logarithmic, PowerRule, ScoringRule

from . import lbfgs, name_curves
from .estimation import Side, best_estimate, covariance

#: Name, rule, color, dash.
METHODS: list[tuple[str, ScoringRule, str, Any]] = [
    ("NCE = VNCE", Logarithmic(), "#555555", "--"),
    ("fvNCE (0, 0)", PowerRule(0, clip=None), "#0b2e59", "-"),
    ("fvNCE (1/4, 0)", PowerRule(0.25, clip=None), "#2f7f9e", "-."),
    ("fvNCE (1/2, 0)", PowerRule(0.5, clip=None), "#c23b22", (0, (6, 1.5))),
    ("fvNCE (1, 0)", PowerRule(1.0, clip=None), "#e8a33d", (0, (1, 1))),
    ("fvNCE (0, 1)", PowerRule(0, 1, clip=None), "#7a5fb0", (0, (4, 1, 1, 1, 1, 1))),
]


@dataclass(frozen=True)
class Settings:
    """The problem and how often it is solved."""

    known_scale: float = 4.0
    """σ_1."""
    lowest: float = 2.0
    """The smallest true σ_0; truths are drawn uniformly."""
    highest: float = 6.0
    """The largest."""
    noise_scale: float = 8.0
    """σ_n: wide enough for every α to have a finite variance."""
    sizes: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)
    """Data samples, and as many noise samples."""
    runs: int = 200
    """Data sets for each size."""
    noise_scales: tuple[float, ...] = (6.0, 7.0, 8.0, 12.0, 20.0)
    """σ_n of the study of efficiency."""
    contamination: float = 0.05
    """Share of outliers in the study of robustness."""
    outlier_scale: float = 16.0
    """Their standard deviation."""
    seed: int = 0
    """For everything."""


def log_partition(tau: Tensor, known_scale: float) -> Tensor:
    """Return log Z = log √(2π)(σ_0 + σ_1)."""
    return (math.sqrt(2 * math.pi) * (tau.exp() + known_scale)).log()


def side(x: Tensor, weight: Tensor, theta: Tensor, settings: Settings, noise_scale: float) -> Side:
    """Δ and its gradient in (τ, c) at points x of shape (R, n)."""
    tau, c = theta[:, :1], theta[:, 1:]
    first, second = -x.square() / 2 * (-2 * tau).exp(), -x.square() / (2 * settings.known_scale**2)
    log_noise = -x.square() / (2 * noise_scale**2) - math.log(noise_scale) - math.log(2 * math.pi) / 2
    delta = torch.logaddexp(first, second) - c - log_noise
    # dΔ/dτ = p(z=0|x) x²/σ_0², and dΔ/dc = −1.
    slope = torch.sigmoid(first - second) * -2 * first
    return Side(delta, torch.stack([slope, torch.full_like(slope, -1.0)], -1), weight)


def starts(count: int, settings: Settings) -> list[Tensor]:
    """(τ, c) on either side of σ_1, with the c that goes with τ; J can have a maximum on both."""
    curve = []
    for scale in (2.5, 5.5):
        tau = torch.full((count,), math.log(scale), dtype=torch.float64)
        curve.append(torch.stack([tau, log_partition(tau, settings.known_scale)], 1))
    return curve


def _grid() -> tuple[Tensor, Tensor]:
    """Points and cell widths over which densities are integrated."""
    x = torch.linspace(-160, 160, 4001, dtype=torch.float64)
    return x, torch.full_like(x, float(x[1] - x[0]))


def _true_density(x: Tensor, scale: float, settings: Settings) -> Tensor:
    tau = torch.tensor(math.log(scale), dtype=torch.float64)
    unnormalised = (-(x / scale).square() / 2).exp() + (-(x / settings.known_scale).square() / 2).exp()
    return unnormalised * (-log_partition(tau, settings.known_scale)).exp()


def _normal_density(x: Tensor, scale: float) -> Tensor:
    return (-(x / scale).square() / 2).exp() / (scale * math.sqrt(2 * math.pi))


def relative_variance(rule: ScoringRule, noise_scale: float, settings: Settings, truths: int = 9) -> float:
    """n·Var(log σ_0) of the rule over that of maximum likelihood, averaged over true σ_0, by quadrature."""
    x, cell = _grid()
    if not _has_variance(rule, noise_scale, max(settings.highest, settings.known_scale)):
        return math.inf
    ratios = []
    for scale in torch.linspace(settings.lowest, settings.highest, truths).tolist():
        density = _true_density(x, scale, settings)
        tau = torch.tensor([math.log(scale)], dtype=torch.float64)
        theta = torch.stack([tau, log_partition(tau, settings.known_scale)], 1)
        data = side(x[None], (density * cell)[None], theta, settings, noise_scale)
        noise = side(x[None], (_normal_density(x, noise_scale) * cell)[None], theta, settings, noise_scale)
        slope = data.gradient[0, :, 0]
        mean = (density * cell * slope).sum()
        fisher = (density * cell * (slope - mean).square()).sum()
        ratios.append(float(covariance(rule, data, noise, 1.0, 1.0)[0, 0, 0] * fisher))
    return sum(ratios) / len(ratios)


def _has_variance(rule: ScoringRule, noise_scale: float, widest: float) -> bool:
    """Whether ∫ p_θ² φ²/p_n converges, where φ ~ r^α at large r, or falls like 1/r for the logarithmic rule."""
    if not isinstance(rule, PowerRule):
        return True
    alpha = rule.alpha
    return noise_scale**2 > widest**2 * (1 + 2 * alpha) / (2 + 2 * alpha)


ALPHAS = tuple(k / 16 for k in range(17))


def efficiency(settings: Settings) -> dict[str, Any]:
    """Relative asymptotic variances: against α for some noises, and against the noise for some rules."""
    scales = [3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0, 12.0, 20.0, 30.0]
    if len(settings.noise_scales) < 3:
        scales = list(settings.noise_scales)
    return {
        "alphas": ALPHAS,
        "by_alpha": {
            str(s): [relative_variance(PowerRule(a, clip=None), s, settings) for a in ALPHAS]
            for s in settings.noise_scales
        },
        "logarithmic": {str(s): relative_variance(Logarithmic(), s, settings) for s in settings.noise_scales},
        "noise_scales": scales,
        "by_noise": {name: [relative_variance(rule, s, settings) for s in scales] for name, rule, *_ in METHODS},
    }


def contaminated_bias(settings: Settings) -> dict[str, Any]:
    """Bias of σ_0 = 3 in an infinite sample of which a share are outliers, against α, and of NCE and MLE."""
    x, cell = _grid()
    clean = _true_density(x, 3.0, settings)
    density = (1 - settings.contamination) * clean + settings.contamination * _normal_density(x, settings.outlier_scale)
    numbers: dict[str, Any] = {"alphas": ALPHAS, "noise_scale": {}}
    for scale in settings.noise_scales:

        def sides(theta: Tensor, scale: float = scale) -> tuple[Side, Side]:
            weights = (density * cell)[None], (_normal_density(x, scale) * cell)[None]
            return side(x[None], weights[0], theta, settings, scale), side(x[None], weights[1], theta, settings, scale)

        rules: list[ScoringRule] = [Logarithmic(), *(PowerRule(a, clip=None) for a in ALPHAS)]
        biases = [float(best_estimate(rule, sides, starts(1, settings), steps=100)[0, 0].exp()) - 3.0 for rule in rules]
        numbers["noise_scale"][str(scale)] = {"logarithmic": biases[0], "by_alpha": biases[1:]}
    return numbers


def crude_encoder_bias(settings: Settings) -> dict[str, float]:
    """σ_0 found in an infinite sample, truth 3, by an encoder q(z) that does not see x."""
    x, cell = _grid()
    weights = [d * cell for d in (_true_density(x, 3.0, settings), _normal_density(x, settings.noise_scale))]
    log_noise = _normal_density(x, settings.noise_scale).log().clamp(min=-1e4)
    numbers = {}
    for name, rule, *_ in METHODS:
        parameters = torch.tensor([math.log(3.0), math.log(17.5), 0.0], dtype=torch.float64, requires_grad=True)

        def loss(parameters: Tensor = parameters, rule: ScoringRule = rule) -> Tensor:
            tau, c, logit = parameters
            joint = torch.stack([-x.square() / 2 * (-2 * tau).exp(), -x.square() / (2 * settings.known_scale**2)])
            log_q = torch.stack([-softplus(-logit), -softplus(logit)])[:, None]
            delta = joint - log_q - log_noise - c
            data = (log_q.exp() * rule.f1(delta)).sum(0)
            # VNCE has the marginal in its noise term, fvNCE the bound.
            noise = (log_q.exp() * rule.f0(delta)).sum(0)
            if not rule.variational:
                noise = rule.f0(joint.logsumexp(0) - log_noise - c)
            return -(weights[0] * data).sum() - (weights[1] * noise).sum()

        lbfgs(loss, [parameters])
        numbers[name] = float(parameters.detach()[0].exp())
    return numbers


def figure_of_theory(out: Path, settings: Settings, theory: dict[str, Any], robust: dict[str, Any]) -> list[Path]:
    """Efficiency against α and against the noise, and the bias under contamination."""
    figure, (left, middle, right) = new_figure(3, height=2.9, width=9.5)
    colours = ["#0b2e59", "#2f7f9e", "#c23b22", "#e8a33d", "#7a5fb0"]
    dashes: list[Any] = ["-", "-.", (0, (6, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1))]
    styles = list(zip(colours, dashes, strict=True))
    for (colour, dash), (scale, curve) in zip(styles, theory["by_alpha"].items(), strict=False):
        left.plot(theory["alphas"], curve, linestyle=dash, color=colour, label=f"$\\sigma_n$ = {float(scale):g}")
        left.plot([0], [theory["logarithmic"][scale]], "<", color=colour, markersize=4, clip_on=False)
    left.set(xlabel="α (β = 0); triangles: NCE", ylabel="variance / that of MLE", yscale="log", title="against α")
    for name, _, colour, dash in METHODS:
        middle.plot(theory["noise_scales"], theory["by_noise"][name], linestyle=dash, color=colour, label=name)
    middle.set(xlabel="$\\sigma_n$", xscale="log", yscale="log", title="against the noise", ylim=(1, 15))
    middle.set_ylabel("variance / that of MLE")
    ticks = [3.5, 5, 8, 12, 20, 30]
    middle.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    for axis in (left, middle):
        axis.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axis.minorticks_off()
    for (colour, dash), (scale, curves) in zip(styles, robust["noise_scale"].items(), strict=False):
        label = f"$\\sigma_n$ = {float(scale):g}"
        right.plot(robust["alphas"], curves["by_alpha"], linestyle=dash, color=colour, label=label)
        right.plot([0], [curves["logarithmic"]], "<", color=colour, markersize=4, clip_on=False)
    right.set(
        xlabel="α (β = 0); triangles: NCE",
        ylabel="bias of $\\sigma_0$",
        title=f"with {settings.contamination:.0%} outliers",
    )
    right.legend(fontsize=7, handlelength=3.5)
    name_curves(left)
    name_curves(middle)
    return save(figure, out, "vnce-mixture-theory")


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"


def table_of_efficiency(theory: dict[str, Any]) -> ResultTable:
    """Relative variances; infinite where the noise is too narrow for the rule."""
    rows = [
        [name, *(_number(v) for v in theory["by_noise"][name]), _number(min(theory["by_noise"][name]))]
        for name, *_ in METHODS
    ]
    header = ["rule", *(f"σ_n = {s:g}" for s in theory["noise_scales"]), "best noise"]
    return ResultTable("Asymptotic variance of log σ_0 over that of maximum likelihood, by quadrature", header, rows)


def table_of_crude(crude: dict[str, float]) -> ResultTable:
    """What an encoder that does not see x makes of σ_0."""
    rows = [[name, f"{value:.3f}", f"{value - 3:+.3f}"] for name, value in crude.items()]
    return ResultTable(
        "Infinite data, an encoder that does not see x: σ_0 found, truth 3", ["method", "σ_0", "bias"], rows
    )
