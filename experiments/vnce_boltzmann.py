r"""The predecessor's second problem: a restricted Boltzmann machine small enough to enumerate.

    fvnce reproduce vnce-boltzmann --out out

8 visible and 2 hidden units: 256 visible states, so data are counts over states, log Z is a sum, and the divergence
from the truth, KL(p*‖p_θ), is exact. Contrastive divergence is computed without sampling noise, from the transition
matrix of k Gibbs sweeps. The posterior of the hidden units is a product of logistic functions, which a linear encoder
contains: at the optimum over such encoders VNCE is NCE and fvNCE is S-NCE. A learned encoder is trained on one data set
to confirm it, and an encoder that sees half of v shows what a poor q costs. The noise is half independent units with
the data's frequencies and half coin flips: it must reach every state, or a model hides mass where no noise falls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from ..models import BinaryEncoder, BinaryVector, RestrictedBoltzmannMachine
from ..models.boltzmann import binary_states
from ..noise import BernoulliNoise, NoiseMixture
from ..objectives import FullyVariationalNCE, VariationalNCE
from ..report.figures import new_figure, save
from ..report.page import Picture, Section, Table
from ..scoring import Logarithmic, PowerRule, ScoringRule
from .predecessor import lbfgs, write_results
from .scoring_method import Side, best_estimate, covariance, coverage, maximise
from .study import Options

RULES: dict[str, ScoringRule] = {
    "NCE = VNCE": Logarithmic(),
    "fvNCE (0, 0)": PowerRule(0, clip=None),
    "fvNCE (1/4, 0)": PowerRule(0.25, clip=None),
    "fvNCE (1/2, 0)": PowerRule(0.5, clip=None),
    "fvNCE (1, 0)": PowerRule(1, clip=None),
}


@dataclass(frozen=True)
class Settings:
    """The machine and how often it is estimated."""

    visible: int = 8
    """Visible units."""
    hidden: int = 2
    """Hidden units."""
    weight_scale: float = 1.5
    """Standard deviation of the true weights; biases have half of it."""
    sizes: tuple[int, ...] = (3000, 10_000, 30_000)
    """Data samples."""
    noise_ratio: float = 4.0
    """ν, noise samples per data sample."""
    runs: int = 60
    """Data sets for each size."""
    divergence_steps: int = 100
    """Updates of contrastive divergence."""
    scratch_steps: int = 60
    """Steps of the runs that start from small random weights."""
    seed: int = 2
    """For everything."""


@dataclass(frozen=True)
class Problem:
    """The truth, and data sets as shares of the visible states, shape (R, 2^D)."""

    truth: Tensor
    states: Tensor
    probabilities: Tensor
    data: Tensor
    noise: Tensor
    log_noise: Tensor
    size: int


def machine(settings: Settings) -> RestrictedBoltzmannMachine:
    """The true machine, in float64."""
    generator = torch.Generator().manual_seed(settings.seed)
    d, m, scale = settings.visible, settings.hidden, settings.weight_scale
    weight, visible, hidden = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((d, m), (d,), (m,))
    )
    return RestrictedBoltzmannMachine(scale * weight, scale / 2 * visible, scale / 2 * hidden)


def packed(model: RestrictedBoltzmannMachine) -> Tensor:
    """(W, a, b, log Z) as one vector."""
    parts = (model.weight.flatten(), model.visible, model.hidden, model.log_partition().reshape(1))
    return torch.cat(parts).detach()


def side(states: Tensor, theta: Tensor, weight: Tensor, log_noise: Tensor, hidden: int) -> Side:
    """Δ⁰ − c of every state and its gradient in (W, a, b, c); θ has shape (R, k)."""
    d, m = states.shape[1], hidden
    w, a, b, c = theta.split([d * m, d, m, 1], 1)
    field = b[:, None] + states @ w.reshape(-1, d, m)
    delta = (states @ a.T).T + softplus(field).sum(-1) - c - log_noise
    mean = field.sigmoid()
    rows = states.expand(len(theta), -1, -1)
    products = (rows[..., :, None] * mean[..., None, :]).flatten(2)
    return Side(delta, torch.cat([products, rows, mean, torch.full_like(rows[..., :1], -1.0)], -1), weight)


def run(out: Path, options: Options) -> Section:
    """Estimate, compare, draw."""
    start = time.perf_counter()
    settings = Settings()
    if options.quick:
        settings = replace(settings, sizes=(3000,), runs=12, divergence_steps=20, scratch_steps=20)
    measured = {str(size): _compare(settings, size) for size in settings.sizes}
    learned = _learned_encoder(settings)
    crude = _crude_encoder(settings)
    figures = _figure(out, settings, measured)
    seconds = time.perf_counter() - start
    results = {"measured": measured, "learned_encoder": learned, "crude_encoder": crude}
    return Section(
        "A restricted Boltzmann machine, enumerated",
        _reading(settings, measured, learned, crude),
        pictures=[
            Picture(
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


def problem(settings: Settings, size: int) -> Problem:
    """Data sets of one size; the noise of each has the frequencies of its own data."""
    truth = machine(settings)
    generator = torch.Generator().manual_seed(1000 * settings.seed + size)
    states = binary_states(settings.visible).double()
    with torch.no_grad():
        probabilities = truth.log_prob(states).softmax(0)
    data = _counts(probabilities.expand(settings.runs, -1), size, generator)
    frequencies = (data @ states * size + 1) / (size + 2)
    log_noise = _log_noise(frequencies, states)
    noise = _counts(log_noise.exp(), round(settings.noise_ratio * size), generator)
    return Problem(packed(truth), states, probabilities, data, noise, log_noise, size)


def _log_noise(frequencies: Tensor, states: Tensor) -> Tensor:
    """log p_n of all states: half independent units, half coin flips."""
    independent = frequencies.log() @ states.T + (1 - frequencies).log() @ (1 - states.T)
    return torch.logaddexp(independent, independent.new_tensor(-states.shape[1] * math.log(2.0))) - math.log(2.0)


def _counts(probabilities: Tensor, size: int, generator: torch.Generator) -> Tensor:
    drawn = torch.multinomial(probabilities, size, replacement=True, generator=generator)
    return torch.zeros_like(probabilities).scatter_add_(1, drawn, probabilities.new_full(drawn.shape, 1 / size))


def _compare(settings: Settings, size: int) -> dict[str, Any]:
    known = problem(settings, size)
    found: dict[str, Any] = {}
    count = settings.runs
    near = known.truth.expand(count, -1)
    nu = settings.noise_ratio
    shifted = known.log_noise + math.log(nu)  # the rule compares p_θ with ν p_n
    generator = torch.Generator().manual_seed(settings.seed)
    scratch = 0.3 * torch.randn(count, near.shape[1], generator=generator, dtype=torch.float64)
    scratch[:, -1] = math.log(2.0) * (settings.visible + settings.hidden)

    def sides(theta: Tensor) -> tuple[Side, Side]:
        return (
            side(known.states, theta, known.data, shifted, settings.hidden),
            side(known.states, theta, known.noise, shifted, settings.hidden),
        )

    likelihood = _likelihood(known, settings)
    found["MLE"] = _divergences(known, settings, maximise(likelihood, near[:, :-1], steps=60))
    found["MLE"]["from_scratch"] = _median(
        known, settings, maximise(likelihood, scratch[:, :-1], steps=settings.scratch_steps)
    )
    for name, rule in RULES.items():
        theta = best_estimate(rule, sides, [near], nu, steps=60)
        row = _divergences(known, settings, theta[:, :-1])
        both = sides(theta)
        errors = covariance(rule, *both, nu, size).diagonal(dim1=1, dim2=2).sqrt()
        row["coverage"] = coverage(theta, near, errors)
        row |= _log_partition(known, settings, theta, both[1])
        row["from_scratch"] = _median(
            known, settings, best_estimate(rule, sides, [scratch], nu, steps=settings.scratch_steps)[:, :-1]
        )
        found[name] = row
    for sweeps in (1, 10):
        theta = _contrastive_divergence(known, settings, sweeps, near[:, :-1])
        found[f"CD-{sweeps}"] = _divergences(known, settings, theta)
        again = _contrastive_divergence(known, settings, sweeps, scratch[:, :-1])
        found[f"CD-{sweeps}"]["from_scratch"] = _median(known, settings, again)
    return found


def _log_model(known: Problem, settings: Settings, theta: Tensor) -> tuple[Tensor, Tensor]:
    """log p_θ of every state, shape (R, 2^D), and the gradient of log p⁰."""
    zeros = theta.new_zeros(len(theta), 1)
    at = side(known.states, torch.cat([theta, zeros], 1), known.data, zeros, settings.hidden)
    return at.delta.log_softmax(1), at.gradient[..., :-1]


def _likelihood(known: Problem, settings: Settings) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """The exact log-likelihood, its score, and the Fisher information."""

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p, gradient = _log_model(known, settings, theta)
        p = log_p.exp()
        mean = torch.einsum("rs,rsk->rk", p, gradient)
        score = torch.einsum("rs,rsk->rk", known.data, gradient) - mean
        fisher = (gradient * p[..., None]).transpose(1, 2) @ gradient - mean[:, :, None] * mean[:, None]
        return (known.data * log_p).sum(1), score, fisher

    return evaluate


def _contrastive_divergence(known: Problem, settings: Settings, sweeps: int, start: Tensor) -> Tensor:
    """The expected CD update, E_data[g] − E_{data after k Gibbs sweeps}[g], in units of the Fisher information."""
    d, m = settings.visible, settings.hidden
    hidden = binary_states(m).double()
    theta, parts = start.clone(), [d * m, d, m]
    for step in range(settings.divergence_steps):
        w, a, b = theta.split(parts, 1)
        weight = w.reshape(-1, d, m)
        log_p, gradient = _log_model(known, settings, theta)
        up = _product_of_bits(b[:, None] + known.states @ weight, hidden)
        down = _product_of_bits(a[:, None] + hidden @ weight.transpose(1, 2), known.states)
        after = known.data[:, None]
        for _ in range(sweeps):
            after = after @ up @ down
        score = torch.einsum("rs,rsk->rk", known.data - after[:, 0], gradient)
        p = log_p.exp()
        mean = torch.einsum("rs,rsk->rk", p, gradient)
        fisher = (gradient * p[..., None]).transpose(1, 2) @ gradient - mean[:, :, None] * mean[:, None]
        fisher.diagonal(dim1=1, dim2=2).add_(0.01)
        update = torch.linalg.solve(fisher, score)
        theta = theta + update.clamp(-0.3, 0.3) / (1 + step / 50)
    return theta


def _product_of_bits(logits: Tensor, states: Tensor) -> Tensor:
    """Probabilities of all states, shape (R, n, 2^bits), for bits with these logits."""
    return (logits @ states.T + logsigmoid(-logits).sum(-1, keepdim=True)).exp()


def _divergences(known: Problem, settings: Settings, theta: Tensor) -> dict[str, Any]:
    kl = _divergence(known, settings, theta)
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    return {
        "kl_mean": float(kl.mean()),
        "kl_error": float(kl.std() / math.sqrt(len(kl))),
        "kl_deciles": [float(v) for v in kl.quantile(levels)],
    }


def _divergence(known: Problem, settings: Settings, theta: Tensor) -> Tensor:
    """KL(p*‖p_θ), exactly."""
    log_p, _ = _log_model(known, settings, theta)
    return (known.probabilities * (known.probabilities.log() - log_p)).sum(1)


def _median(known: Problem, settings: Settings, theta: Tensor) -> float:
    return float(_divergence(known, settings, theta).median())


def _log_partition(known: Problem, settings: Settings, theta: Tensor, noise: Side) -> dict[str, Any]:
    """log Z of the fitted model from noise samples, with its standard error, against enumeration."""
    log_w = noise.delta + theta[:, -1:] + math.log(settings.noise_ratio)
    mean = (log_w + noise.weight.log()).logsumexp(1)
    ratio = (log_w - mean[:, None]).exp()
    error = ((noise.weight * ratio.square()).sum(1) - 1).clamp(min=0).div(settings.noise_ratio * known.size - 1).sqrt()
    exact = (log_w + known.log_noise).logsumexp(1)
    gap = mean - exact
    return {
        "log_partition_gap": [float(v) for v in gap],
        "log_partition_mean_error": float(gap.abs().mean()),
        "log_partition_largest_in_errors": float((gap.abs() / error).max()),
        "log_partition_within_3_errors": float((gap.abs() <= 3 * error).double().mean()),
        "fitted_log_scale_mean_error": float((theta[:, -1] - exact).abs().mean()),
    }


class _HalfBlind(nn.Module):
    """Linear logits from the first half of v."""

    def __init__(self, model: RestrictedBoltzmannMachine) -> None:
        super().__init__()
        self.seen = len(model.visible) // 2
        self.weight = nn.Parameter(model.weight.detach()[: self.seen].clone())
        self.bias = nn.Parameter(model.hidden.detach() + model.weight.detach()[self.seen :].sum(0) / 2)

    def forward(self, v: Tensor) -> Tensor:
        """Logits of the hidden units."""
        return self.bias + v[..., : self.seen] @ self.weight


def _learned_encoder(settings: Settings) -> dict[str, dict[str, float]]:
    """θ, log Z and a linear encoder together by the library's objectives; KL(p*‖p_θ) beside the exact posterior's."""
    one = problem(replace(settings, runs=1), settings.sizes[0])
    rows = [
        one.states.repeat_interleave((share[0] * count).round().long(), 0)
        for share, count in ((one.data, one.size), (one.noise, settings.noise_ratio * one.size))
    ]
    coins = torch.full((settings.visible,), 0.5, dtype=torch.float64)
    noise = NoiseMixture([BernoulliNoise((rows[0].sum(0) + 1) / (one.size + 2)), BernoulliNoise(coins)])
    shifted = one.log_noise + math.log(settings.noise_ratio)

    def sides(theta: Tensor) -> tuple[Side, Side]:
        return (
            side(one.states, theta, one.data, shifted, settings.hidden),
            side(one.states, theta, one.noise, shifted, settings.hidden),
        )

    found = {}
    for name, rule in (("VNCE", Logarithmic()), ("fvNCE (0, 0)", PowerRule(0, clip=None))):
        model, network = machine(settings), nn.Linear(settings.visible, settings.hidden, dtype=torch.float64)
        with torch.no_grad():
            network.weight.copy_(model.weight.T)
            network.bias.copy_(model.hidden)
        encoder = BinaryEncoder(network)
        objective = (
            FullyVariationalNCE(model, encoder, noise, rule, partition="learned", noise_ratio=settings.noise_ratio)
            if rule.variational
            else VariationalNCE(model, encoder, noise, partition="learned", noise_ratio=settings.noise_ratio)
        ).double()
        lbfgs(lambda o=objective: o(rows[0], rows[1]), list(objective.parameters()), 100)  # type: ignore[misc]
        exact = best_estimate(rule, sides, [one.truth[None]], settings.noise_ratio, steps=200)
        found[name] = {
            "learned_encoder": float(_divergence(one, settings, packed(model)[None, :-1])[0]),
            "exact_posterior": float(_divergence(one, settings, exact[:, :-1])[0]),
        }
    return found


def _crude_encoder(settings: Settings) -> dict[str, float]:
    """KL(p*‖p_θ) with infinite data and an encoder that sees half of v: the price of a bad bound."""
    truth = machine(settings)
    states, hidden = binary_states(settings.visible).double(), binary_states(settings.hidden).double()
    with torch.no_grad():
        p = truth.log_prob(states).softmax(0)
    frequencies = p @ states
    log_noise = _log_noise(frequencies[None], states)[0]
    nu = settings.noise_ratio
    found = {}
    for name, rule in RULES.items():
        model = machine(settings)
        blind = _HalfBlind(model)
        log_z = truth.log_partition().detach().clone().requires_grad_()

        def loss(
            model: RestrictedBoltzmannMachine = model,
            blind: _HalfBlind = blind,
            log_z: Tensor = log_z,
            rule: ScoringRule = rule,
        ) -> Tensor:
            joint = model.log_joint(states, hidden[:, None].expand(-1, len(states), -1))
            log_q = BinaryVector(blind(states)).log_prob(hidden[:, None])
            delta = joint - log_q - log_noise - log_z - math.log(nu)
            weights = log_q.exp()
            data, noise = (weights * rule.f1(delta)).sum(0), (weights * rule.f0(delta)).sum(0)
            if not rule.variational:
                noise = rule.f0(joint.logsumexp(0) - log_noise - log_z - math.log(nu))
            return -(p * data).sum() - nu * (log_noise.exp() * noise).sum()

        lbfgs(loss, [*model.parameters(), *blind.parameters(), log_z], 500)
        with torch.no_grad():
            found[name] = float((p * (p.log() - model.log_prob(states).log_softmax(0))).sum())
    independent = states @ frequencies.log() + (1 - states) @ (1 - frequencies).log()
    found["independent units"] = float((p * (p.log() - independent)).sum())
    return found


def _figure(out: Path, settings: Settings, measured: dict[str, Any]) -> list[Path]:
    figure, (left, right) = new_figure(2, width=8.5, height=3.3)
    styles = {
        "MLE": ("#000000", ":"),
        "NCE = VNCE": ("#555555", "--"),
        "fvNCE (0, 0)": ("#0b2e59", "-"),
        "fvNCE (1/4, 0)": ("#2f7f9e", "-"),
        "fvNCE (1/2, 0)": ("#c23b22", "-"),
        "fvNCE (1, 0)": ("#e8a33d", "-"),
        "CD-1": ("#3c8d40", "-."),
        "CD-10": ("#8bc34a", "-."),
    }
    for name, (colour, dash) in styles.items():
        rows = [measured[str(size)][name]["kl_deciles"] for size in settings.sizes]
        left.plot(settings.sizes, [row[1] for row in rows], dash, color=colour, label=name, marker=".")
        if name in ("NCE = VNCE", "fvNCE (0, 0)"):
            low, high = [row[0] for row in rows], [row[2] for row in rows]
            left.fill_between(settings.sizes, low, high, color=colour, alpha=0.12, linewidth=0)
    left.set(xscale="log", yscale="log", xlabel="data samples", ylabel="KL(p*‖p), nats", title="error of the model")
    left.set_xticks(settings.sizes, [str(size) for size in settings.sizes])
    left.minorticks_off()
    left.legend(fontsize=7)
    last = measured[str(settings.sizes[-1])]
    for position, name in enumerate(RULES):
        gaps = last[name]["log_partition_gap"]
        right.plot([position] * len(gaps), gaps, ".", color=styles[name][0], alpha=0.5)
    right.axhline(0, color="0.5", linewidth=0.8)
    right.set(title=f"log Z from noise − exact, n = {settings.sizes[-1]}", ylabel="nats")
    right.set_xticks(range(len(RULES)), [name.replace("fvNCE ", "") for name in RULES], rotation=25, fontsize=7)
    return save(figure, out, "vnce-boltzmann")


def _table(settings: Settings, measured: dict[str, Any]) -> Table:
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
    return Table(
        f"KL(p*‖p_θ) in thousandths of a nat, mean over {settings.runs} data sets; the rest at the largest n",
        header,
        rows,
    )


def _table_encoders(learned: dict[str, dict[str, float]], crude: dict[str, float]) -> Table:
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
    return Table("Encoders: KL(p*‖p_θ) in thousandths of a nat", ["method", "this encoder", "exact posterior"], rows)


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
