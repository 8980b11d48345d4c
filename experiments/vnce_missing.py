r"""The predecessor's fourth problem: a truncated normal graphical model, estimated from rows with missing entries.

    fvnce reproduce vnce-missing --out out

log p⁰(u) = −½ uᵀKu on u ≥ 0, K a precision matrix of a ring. Entries are missing completely at random; the missing ones
are the latents. A row is (values, mask) side by side, and the mask goes through everything:

    model     log p⁰(x, z) at the vector that has x where the mask is 1 and z where it is 0
    noise     independent half-normals of the observed entries, under masks drawn like those of the data
    encoder   log-normals of the missing entries, from a network that sees the observed values and the mask

Since p⁰ is an exponential family, ∇ log p⁰(x) = −E_posterior[uuᵀ], which importance samples of the encoder estimate;
with it the sandwich formula gives every entry of K a standard error. Compared are VNCE, fvNCE, and NCE after the
missing entries were filled in with column means.

Z does not depend on the mask, so log Z of the model that was found is estimated from fresh noise rows without missing
entries, and compared with the integral over the orthant. The noise samples of training, with latents drawn for their
missing entries, give a second estimate, which is the worse the more is missing.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints

from ..models import mlp
from ..objectives import ContrastiveObjective, FullyVariationalNCE, VariationalNCE
from ..report.figures import new_figure, save
from ..report.page import Picture, Section, Table
from ..scoring import PowerRule, ScoringRule
from .orthant import log_orthant_partition
from .predecessor import lbfgs, write_results
from .scoring_method import Side, covariance, coverage
from .study import Options

METHODS = ("VNCE", "fvNCE (0, 0)", "fvNCE (1/4, 0)", "mean imputation, NCE")


@dataclass(frozen=True)
class Settings:
    """The graph, the data, the training."""

    dimensions: int = 6
    """d, nodes of the ring."""
    diagonal: float = 1.0
    """Diagonal of K."""
    coupling: float = -0.3
    """K of neighbours: negative, so that neighbours are alike."""
    rows: int = 2000
    """Data rows."""
    noise_ratio: float = 2.0
    """ν; the noise samples are drawn once."""
    fractions: tuple[float, ...] = (0.0, 0.25, 0.5)
    """Shares of missing entries."""
    seeds: int = 2
    """Data sets for each."""
    steps: int = 150
    """Adam steps on all rows, with fresh latents at each."""
    lr: float = 0.02
    """Its learning rate."""
    polish: int = 80
    """L-BFGS steps that follow, with the random numbers of the latents held fixed."""
    draws: int = 4
    """K, latent draws for each row: of the multi-sample bound, and of VNCE's importance sampling."""
    hidden: int = 32
    """Hidden units of the encoder."""
    importance_samples: int = 200
    """Draws for the standard errors."""
    partition_samples: int = 50_000
    """Fresh noise rows for log Z."""


def precision(settings: Settings) -> Tensor:
    """K of the ring."""
    d = settings.dimensions
    k = settings.diagonal * torch.eye(d)
    for i in range(d):
        k[i, (i + 1) % d] = k[(i + 1) % d, i] = settings.coupling
    return k


def sample(settings: Settings, n: int, generator: torch.Generator) -> Tensor:
    """n exact draws, by rejection from the normal."""
    factor = torch.linalg.cholesky(torch.linalg.inv(precision(settings)))
    kept, count = [], 0
    while count < n:
        u = torch.randn(100_000, settings.dimensions, generator=generator) @ factor.T
        kept.append(u[(u >= 0).all(1)])
        count += len(kept[-1])
    return torch.cat(kept)[:n]


def split(row: Tensor) -> tuple[Tensor, Tensor]:
    """Values and mask of rows (values, mask)."""
    values, mask = row.chunk(2, -1)
    return values, mask


class TruncatedNormal(nn.Module):
    """log p⁰ = −½ uᵀKu on the positive orthant, with u put together from observed and missing entries."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        d = len(start)
        self.index = torch.tril_indices(d, d)
        self.entries = nn.Parameter(start[self.index[0], self.index[1]].clone())

    @property
    def matrix(self) -> Tensor:
        """K, symmetric."""
        d = int(self.index.max()) + 1
        lower = self.entries.new_zeros(d, d).index_put((self.index[0], self.index[1]), self.entries)
        return lower + lower.T - torch.diag(lower.diagonal())

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p⁰ of rows x = (values, mask) with z at the missing entries."""
        values, mask = split(x)
        u = torch.where(mask > 0, values, z)
        return -((u @ self.matrix) * u).sum(-1) / 2

    def gradient(self, u: Tensor) -> Tensor:
        """d log p⁰/d entries at full vectors u: −u_i u_j, and half of it on the diagonal."""
        i, j = self.index
        return -u[..., i] * u[..., j] * torch.where(i == j, 0.5, 1.0)


class MaskedHalfNormal(Distribution):
    """Noise over rows (values, mask): a mask of the data at random, half-normals where it is 1, zeros elsewhere.

    The probability of the mask is left out, as it is left out of the model: it is the same in both.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    support = constraints.real_vector

    def __init__(self, scale: Tensor, masks: Tensor) -> None:
        self.scale, self.masks = scale, masks
        super().__init__(Size(), Size((2 * len(scale),)), validate_args=False)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n rows."""
        mask = self.masks[torch.randint(len(self.masks), (n,), generator=generator)]
        values = (torch.randn(n, len(self.scale), generator=generator) * self.scale).abs()
        return torch.cat([values * mask, mask], -1)

    def sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Rows from the global generator."""
        return self.draw(Size(sample_shape).numel()).reshape(*sample_shape, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Σ over observed entries of log 2N(x_i; 0, s_i²)."""
        values, mask = split(value)
        each = -(values / self.scale).square() / 2 - self.scale.log() + 0.5 * math.log(2 / math.pi)
        return (mask * each).sum(-1)


class MaskedLogNormal(Distribution):
    """Log-normals of the missing entries; the observed entries of a draw are 1 and cost nothing."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, mean: Tensor, log_scale: Tensor, missing: Tensor) -> None:
        self.location, self.log_scale, self.missing = mean, log_scale, missing
        super().__init__(mean.shape[:-1], mean.shape[-1:], validate_args=False)

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """exp(mean + scale·ε) where missing."""
        noise = torch.randn(Size(sample_shape) + self.location.shape)
        return ((self.location + self.log_scale.exp() * noise) * self.missing).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """Σ over missing entries."""
        log_z = value.clamp(min=1e-30).log()
        score = (log_z - self.location) * (-self.log_scale).exp()
        each = -score.square() / 2 - self.log_scale - log_z - 0.5 * math.log(2 * math.pi)
        return (each * self.missing).sum(-1)


class MaskedEncoder(nn.Module):
    """From (values, mask) to the log-normals of the missing entries."""

    def __init__(self, dimensions: int, hidden: int) -> None:
        super().__init__()
        self.network = mlp([2 * dimensions, hidden, 2 * dimensions], nn.Tanh)

    def forward(self, x: Tensor) -> MaskedLogNormal:
        """q(z|x, mask)."""
        mean, log_scale = self.network(x).chunk(2, -1)
        return MaskedLogNormal(mean, log_scale.clamp(-4, 2), 1 - split(x)[1])


def run(out: Path, options: Options) -> Section:
    """Estimate at every fraction, compare, draw."""
    start = time.perf_counter()
    settings = Settings()
    if options.quick:
        settings = replace(
            settings, rows=600, fractions=(0.0, 0.3), seeds=1, steps=40, polish=40, importance_samples=50
        )
    measured = {
        str(fraction): {
            method: [_one(settings, fraction, method, seed) for seed in range(settings.seeds)] for method in METHODS
        }
        for fraction in settings.fractions
    }
    figures = _figure(out, settings, measured)
    seconds = time.perf_counter() - start
    return Section(
        "A truncated normal graphical model with missing values",
        _reading(settings, measured),
        pictures=[
            Picture(
                figures[0],
                "Error of the precision matrix against the share of missing entries, and matrices of one data set.",
                "A panel of error curves, and three small matrices: truth, fvNCE and mean imputation.",
            )
        ],
        tables=[_table(settings, measured)],
        settings=asdict(settings),
        seconds=seconds,
        files=[*figures, write_results(out, "vnce-missing", options, asdict(settings), seconds, measured)],
    )


def _one(settings: Settings, fraction: float, method: str, seed: int) -> dict[str, Any]:
    """One data set by one method."""
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    u = sample(settings, settings.rows, generator)
    mask = (torch.rand(u.shape, generator=generator) >= fraction).float()
    values = u * mask
    scale = (values.square().sum(0) / mask.sum(0)).sqrt() * 1.2
    if method.startswith("mean"):
        values = torch.where(mask > 0, values, values.sum(0) / mask.sum(0))
        mask = torch.ones_like(mask)
    x = torch.cat([values, mask], -1)
    noise = MaskedHalfNormal(scale, mask)
    y = noise.draw(round(settings.noise_ratio * len(x)), generator)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TruncatedNormal(torch.diag(1 / scale.square()))
        # Without latents all draws are the same.
        draws = settings.draws if bool((mask == 0).any()) else 1
        objective = _objective(settings, method, model, noise, draws)
        _train(settings, objective, x, y)
        errors = _standard_errors(settings, objective, x, y)
    truth = precision(settings)[model.index[0], model.index[1]]
    found = model.entries.detach()
    gap = model.matrix.detach() - precision(settings)
    return {
        "relative_error": float(gap.norm() / precision(settings).norm()),
        "expected_error": float(_frobenius(errors, model) / precision(settings).norm()),
        "coverage": coverage(found, truth, errors),
        "largest_in_errors": float(((found - truth).abs() / errors).max()),
        "matrix": model.matrix.detach().tolist(),
        **log_partitions(settings, objective, seed),
        "log_partition_training_noise": [float(v) for v in objective.log_partition(x_noise=y)],
        "fitted_log_scale": float(objective.fitted_log_partition()),
        "seconds": time.perf_counter() - start,
    }


def log_partitions(settings: Settings, objective: Any, seed: int) -> dict[str, Any]:
    """log Z of the model as it stands: from fresh complete noise rows, with its standard error, and exactly."""
    generator = torch.Generator().manual_seed(1000 + seed)
    complete = MaskedHalfNormal(objective.noise.scale, torch.ones(1, settings.dimensions))
    rows = complete.draw(settings.partition_samples, generator)
    return {
        "log_partition": [float(v) for v in objective.log_partition(x_noise=rows, generator=generator)],
        "exact_log_partition": log_orthant_partition(objective.model.matrix.detach()),
    }


def _frobenius(errors: Tensor, model: TruncatedNormal) -> Tensor:
    """The norm of the error of K to be expected from the standard errors."""
    i, j = model.index
    return (errors.square() * torch.where(i == j, 1.0, 2.0)).sum().sqrt()


def _objective(
    settings: Settings, method: str, model: TruncatedNormal, noise: Distribution, draws: int
) -> ContrastiveObjective:
    encoder = MaskedEncoder(settings.dimensions, settings.hidden)
    how: dict[str, Any] = {"noise_ratio": settings.noise_ratio, "partition": "learned"}
    if method in ("VNCE", "mean imputation, NCE"):
        return VariationalNCE(model, encoder, noise, importance_samples=draws, **how)
    rule = PowerRule(0.25 if "1/4" in method else 0, clip=None)
    return FullyVariationalNCE(model, encoder, noise, rule, latent_samples=draws, **how)


def _train(settings: Settings, objective: ContrastiveObjective, x: Tensor, y: Tensor) -> None:
    """Adam brings the encoder near; L-BFGS then finds the maximum of one fixed sample of everything."""
    log_x, log_y = objective.noise.log_prob(x), objective.noise.log_prob(y)
    optimiser = torch.optim.Adam(objective.parameters(), lr=settings.lr)
    for _ in range(settings.steps):
        loss = objective(x, y, log_noise_x=log_x, log_noise_noise=log_y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    state = torch.get_rng_state()

    def fixed() -> Tensor:
        torch.set_rng_state(state)
        loss: Tensor = objective(x, y, log_noise_x=log_x, log_noise_noise=log_y)
        return loss

    lbfgs(fixed, list(objective.parameters()), settings.polish)


@torch.no_grad()
def _standard_errors(settings: Settings, objective: Any, x: Tensor, y: Tensor) -> Tensor:
    """Of the entries of K, by the sandwich formula with posterior means from weighted draws of the encoder."""
    sides = [_side(settings, objective, rows) for rows in (x, y)]
    rule: ScoringRule = objective.rule
    variance = covariance(rule, sides[0], sides[1], settings.noise_ratio, len(x))
    return variance[0].diagonal()[:-1].clamp(min=0).sqrt().float()


def _side(settings: Settings, objective: Any, rows: Tensor) -> Side:
    model: TruncatedNormal = objective.model
    deltas, gradients = [], []
    shift = float(objective.fitted_log_partition()) + math.log(settings.noise_ratio)
    for part in rows.split(1000):
        values, mask = split(part)
        q = objective.encoder(part)
        z = q.rsample((settings.importance_samples,))
        log_w = model.log_joint(part, z) - q.log_prob(z)
        deltas.append(log_w.logsumexp(0) - math.log(len(z)) - objective.noise.log_prob(part) - shift)
        weights = log_w.softmax(0)
        u = torch.where(mask > 0, values, z)
        gradients.append(torch.einsum("sb,sbk->bk", weights, model.gradient(u)))
    delta, gradient = torch.cat(deltas).double(), torch.cat(gradients).double()
    gradient = torch.cat([gradient, -torch.ones_like(gradient[:, :1])], 1)
    return Side(delta[None], gradient[None], torch.full_like(delta, 1 / len(delta))[None])


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _figure(out: Path, settings: Settings, measured: dict[str, Any]) -> list[Path]:
    figure, axes = new_figure(4, width=10.0, height=2.9)
    colours = {"VNCE": "#555555", "fvNCE (0, 0)": "#0b2e59", "fvNCE (1/4, 0)": "#2f7f9e", METHODS[3]: "#e8a33d"}
    for method, colour in colours.items():
        means = [_mean(measured[str(f)][method], "relative_error") for f in settings.fractions]
        axes[0].plot(settings.fractions, means, "-o", color=colour, markersize=3, label=method)
        for fraction in settings.fractions:
            points = [row["relative_error"] for row in measured[str(fraction)][method]]
            axes[0].plot([fraction] * len(points), points, ".", color=colour, alpha=0.35, markersize=4)
    axes[0].set(xlabel="share missing", ylabel="relative error of K", ylim=(0, None))
    axes[0].legend(fontsize=7)
    last = measured[str(settings.fractions[-1])]
    shown = [
        ("truth", precision(settings)),
        *((m, torch.tensor(last[m][0]["matrix"])) for m in (METHODS[1], METHODS[3])),
    ]
    for axis, (title, matrix) in zip(axes[1:], shown, strict=True):
        axis.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-1.2, vmax=1.2)
        axis.set_title(title if title == "truth" else f"{title}\n{settings.fractions[-1]:.0%} missing", fontsize=8)
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
    return save(figure, out, "vnce-missing")


def _table(settings: Settings, measured: dict[str, Any]) -> Table:
    rows = []
    for fraction in settings.fractions:
        for method in METHODS:
            cells = measured[str(fraction)][method]
            rows.append(
                [
                    f"{fraction:.0%} missing: {method}",
                    f"{_mean(cells, 'relative_error'):.3f}",
                    f"{_mean(cells, 'expected_error'):.3f}",
                    f"{_mean(cells, 'coverage'):.0%}",
                    " ".join(f"{row['log_partition'][0] - row['exact_log_partition']:+.4f}" for row in cells),
                    f"{_mean(cells, 'seconds'):.0f}",
                ]
            )
    header = ["share and method", "relative error", "expected from s.e.", "coverage of 95% intervals"]
    header += ["log Z from noise − exact", "seconds"]
    return Table(f"Precision matrix, mean over {settings.seeds} data sets of {settings.rows} rows", header, rows)


def _reading(settings: Settings, measured: dict[str, Any]) -> list[str]:
    last = measured[str(settings.fractions[-1])]
    fv = [row["coverage"] for cells in measured.values() for row in cells["fvNCE (0, 0)"]]
    listed = ", ".join(f"{_mean(last[m], 'relative_error'):.3f} ({m})" for m in METHODS)
    rows = [row for methods in measured.values() for cells in methods.values() for row in cells]
    # An estimate that is not positive definite has no exact value.
    rows = [row for row in rows if math.isfinite(row["exact_log_partition"])]
    gaps = [abs(row["log_partition"][0] - row["exact_log_partition"]) for row in rows]
    scores = [gap / row["log_partition"][1] for gap, row in zip(gaps, rows, strict=True)]
    return [
        f"With {settings.fractions[-1]:.0%} of the entries missing the relative error of K is {listed}.",
        f"The 95% intervals of fvNCE (0, 0) contain {sum(fv) / len(fv):.0%} of the true entries over all fractions.",
        f"log Z from fresh complete noise rows is off by at most {max(gaps):.4f} nats and {max(scores):.1f} standard "
        f"errors over the {len(rows)} models whose matrix is positive definite.",
        "With nothing missing there is no latent and VNCE, fvNCE and NCE differ by their rule alone; the error then "
        "grows with the share missing as information is lost, while filling in means biases K at any sample size.",
    ]
