r"""Mutual information of two vectors: ratios of pairs to shuffled pairs, judged on rows that did not fit them.

    I(x; y) = max over r of   E[log r(x, y)] − log E_shuffled[r(x, y)]          (Eq. information)

Two ratios are those of copulas, Gaussian and Student, fitted to four fifths of the rows and evaluated on the others
and on all pairs of these. Nearest neighbors (Kraskov et al. 2004), among which no row sees itself, check the better
one: on rows drawn from it they must see as much as on the pairs. If they see more on the pairs, the estimate is theirs.
All is repeated with half and with a quarter of the rows: by how much an estimate still grows says what it misses, if
the growth slows down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy import special, stats
from torch import Tensor

from .. import _validation
from .direct import folds_of

#: Degrees of freedom that the Student copula chooses from.
DEGREES = (1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
#: Into how many parts the rows are divided: the curve's three sizes.
PARTS = (4, 2, 1)
#: Rows whose pairs are in memory at once.
BLOCK = 1000


@dataclass(frozen=True)
class MutualInformation:
    """An estimate of I(x; y) in nats.

    Attributes:
        value: the estimate. It is not clamped, so that averages over data sets are fair; I itself is at least 0.
        error: two standard errors, and what more rows or a check by neighbors may add. NaN with a reason. A dependence
            of which copulas and neighbors see little or nothing yet is not in it.
        reason: why there is no error, or an empty string.
        model: the ratio that earned most: ``gaussian``, ``student`` or ``neighbors``.
        curves: by model, the estimate of a quarter, of half and of all of the rows, before anything is added.

    >>> MutualInformation(0.1, 0.2, "", "gaussian", {}).interval
    (0.0, 0.30000000000000004)
    """

    value: float
    error: float
    reason: str
    model: str
    curves: dict[str, tuple[float, ...]]

    @property
    def interval(self) -> tuple[float, float]:
        """``value`` ± ``error``, not below 0."""
        return max(0.0, self.value - self.error), max(0.0, self.value + self.error)


def mutual_information(x: Any, y: Any, *, neighbors: int = 5, folds: int = 5, seed: int = 0) -> MutualInformation:
    """Estimate the mutual information of two vectors; increasing maps of any column leave it as it is.

    Args:
        x: shape (n, D) or (n,).
        y: shape (n, E) or (n,), row by row with x.
        neighbors: k of the neighbors' ratio.
        folds: parts of the rows, each held out once.
        seed: for the parts.

    >>> x, noise = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    >>> estimate = mutual_information(x, x + noise)
    >>> abs(estimate.value - math.log(2) / 2) < estimate.error < 0.15
    True
    """
    blocks = [_validation.array(name, each) for name, each in (("x", x), ("y", y))]
    blocks = [each.unsqueeze(1) if each.ndim == 1 else each for each in blocks]
    blocks = [_validation.table(name, each, rows=100) for name, each in zip("xy", blocks, strict=True)]
    if len(blocks[0]) != len(blocks[1]):
        raise ValueError(f"y must have a row for each of the {len(blocks[0])} rows of x, found {len(blocks[1])}")
    for name, each in zip("xy", blocks, strict=True):
        if (each == each[0]).all(0).any():
            raise ValueError(f"{name} must have columns that vary, found a constant one; leave it out")
    table = torch.cat([each.detach().cpu().double() for each in blocks], 1).numpy()
    shares, columns = (stats.rankdata(table, axis=0) - 0.5) / len(table), blocks[0].shape[1]
    scores = torch.from_numpy(special.ndtri(shares))
    generator = torch.Generator().manual_seed(_validation.count("seed", seed, low=0))
    # A held-out part of one row would have no pairs.
    part = folds_of("x", scores, _validation.count("folds", folds, low=2, high=len(scores) // 2), generator)
    order = torch.randperm(len(scores), generator=generator)
    neighbors = _validation.count("neighbors", neighbors, high=len(scores) // (2 * PARTS[0]))
    curves, value = {}, {}
    student = {nu: torch.from_numpy(special.stdtrit(nu, shares)) for nu in DEGREES}
    for name, quantiles in (("gaussian", {math.inf: scores}), ("student", student)):
        curves[name] = _copula_curve(quantiles, columns, part, order)
        # A copula of the right form misses c/n.
        value[name] = float(curves[name][2].mean()) + _remainder(curves[name], 1.0)
    gain = curves["student"][2] - curves["gaussian"][2]
    model = "student" if float(gain.mean()) > 2 * _standard_error(gain) else "gaussian"
    drawn, log_ratio, own = _drawn({math.inf: scores} if model == "gaussian" else student, columns, generator)
    seen, expected = (_neighbors_curve(rows, columns, order, neighbors) for rows in (scores, drawn))
    # What neighbors miss of the copula, of which the ratio is known, they miss of the pairs too.
    missed = (expected - log_ratio).mean(1, keepdim=True)
    curves["neighbors"] = seen - missed
    mean, noise_of_missed = float(curves["neighbors"][2].mean()), _standard_error(expected[2] - log_ratio)
    # Row by row, what neighbors and the copula see of the same pairs varies less than either.
    excess, doubt = mean - value[model], math.hypot(_standard_error(seen[2] - own), noise_of_missed)
    # Neighbors in d dimensions miss c·n^(-1/d) at worst (Gao et al. 2018), and often less.
    rest = _remainder(curves["neighbors"], 1 / scores.shape[1])
    value["neighbors"] = mean + rest / 2
    # A fit of k = D·E dependences has k/(2n) ± √(2k)/(2n) nats too few, even where rows hardly vary.
    k = columns * (scores.shape[1] - columns)
    error = (k + 2 * math.sqrt(2 * k)) / (2 * len(scores))
    noise = math.hypot(_standard_error(seen[2]), noise_of_missed)
    if excess > 3 * doubt:
        model, more = "neighbors", rest  # the copula does not explain all that they see
        systematic = abs(rest) + max(abs(float(missed[2])), abs(float(missed[2] - missed[0])))
        # Terms of neighbors depend on one another: data sets differ 1.5 times as much as the scatter of rows suggests.
        error += math.hypot(systematic, 3 * noise)
    else:
        more = _remainder(curves[model], 1.0)
        # Neighbors may see what the copula does not, too little of it for a choice.
        above = excess + 2 * doubt + max(0.0, _remainder(curves["neighbors"], 1 / min(scores.shape[1], 5)))
        error += math.hypot(more, max(0.0, above), 2 * _standard_error(curves[model][2]))
    # Of an exact function every doubling shows log 2 more. No law bounds the rest where it adds about that, or where it
    # adds as much as the one before and both together much of all.
    before, last = (float((curves["neighbors"][k + 1] - curves["neighbors"][k]).mean()) for k in (0, 1))
    rises = last > 0.8 * math.log(2) or (last >= before and before + last > max(mean / 4, 4 * noise))
    reason = ""
    shown, beyond = float(curves[model][2].mean()), value[model] > math.log(len(scores)) - 1
    if more > max(mean, 2 * noise, k / len(scores), shown if beyond else 0.0):
        value[model] = shown  # nothing is added that the rows do not show
        reason = f"with more rows the estimate may grow by {more:.2g} from {shown:.2g}"
    elif beyond:
        reason = f"{value[model]:.1f} nats rest on the model alone: {len(scores)} rows show about log n"
    elif model == "neighbors" and rises:
        reason = f"the last doubling of the rows added {last:.2g} nats, and nothing shows that another would add less"
    means = {name: tuple(each.mean(1).tolist()) for name, each in curves.items()}
    return MutualInformation(value[model], math.nan if reason else error, reason, model, means)


def _standard_error(rows: Tensor) -> float:
    return float(rows.std()) / math.sqrt(len(rows))


def _remainder(curve: Tensor, rate: float) -> float:
    """Return what endless doublings would add to an estimate that misses c·n^(-rate), from the last two of them."""
    return float((curve[2] - curve[0]).mean()) / (4**rate - 1)


def _neighbors_curve(scores: Tensor, columns: int, order: Tensor, k: int) -> Tensor:
    curve = torch.empty(3, len(scores), dtype=torch.float64)
    for size, parts in enumerate(PARTS):
        for rows in order.chunk(parts):
            curve[size, rows] = _neighbors(scores[rows, :columns], scores[rows, columns:], k)
    return curve


def _drawn(quantiles: dict[float, Tensor], columns: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return normal scores of as many rows, of the copula fitted to all rows; their log-ratios and the rows'."""
    nu, z, scatter = _fit(quantiles, torch.arange(len(next(iter(quantiles.values())))))
    rows = torch.randn(z.shape, generator=generator, dtype=z.dtype) @ torch.linalg.cholesky(scatter).T
    if math.isfinite(nu):
        chi2 = torch.randn(len(z), int(nu), generator=generator, dtype=z.dtype).square().sum(1, keepdim=True)
        rows = rows / (chi2 / nu).sqrt()
    drawn, own = (
        torch.cat([_log_ratios(block, columns, scatter, nu).diag() for block in each.split(BLOCK)])
        for each in (rows, z)
    )
    return torch.from_numpy(special.ndtri((stats.rankdata(rows.numpy(), axis=0) - 0.5) / len(rows))), drawn, own


def _fit(quantiles: dict[float, Tensor], rows: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the degrees of freedom of the likeliest copula, their quantiles of all rows, and its correlations."""
    fits = [(nu, z, _scatter(z[rows], nu)) for nu, z in quantiles.items()]
    return max(fits, key=lambda fit: _log_copula(fit[1][rows], fit[2], fit[0]))


def _neighbors(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Return the local log-ratio of each row, by its k nearest neighbors; where distances are tied, by all of these."""
    found = []
    for rows in torch.arange(len(x)).split(BLOCK):
        # The product form would give equal rows a distance.
        near = [torch.cdist(v[rows], v, compute_mode="donot_use_mm_for_euclid_dist") for v in (x, y)]
        both = torch.maximum(*near)
        radius = both.kthvalue(k + 1, 1, keepdim=True).values  # a row is its own nearest
        inside = (both <= radius).sum(1)
        tied = (inside > k + 1) | (radius[:, 0] == 0)
        counts = [torch.where(tied, (d <= radius).sum(1), (d < radius).sum(1)) for d in near]
        terms = [torch.digamma(c.double()) for c in (torch.where(tied, inside, k), *counts)]
        found.append(terms[0] - terms[1] - terms[2] + float(special.digamma(len(x))))
    return torch.cat(found)


def _copula_curve(quantiles: dict[float, Tensor], columns: int, part: Tensor, order: Tensor) -> Tensor:
    """Return the terms of Eq. information of every row, for the three sizes."""
    curve = torch.zeros(3, len(part), dtype=torch.float64)
    for fold in range(1 + int(part.max())):
        train = order[part[order] != fold]
        for size, parts in enumerate(PARTS):
            for rows in train.chunk(parts):
                nu, z, scatter = _fit(quantiles, rows)
                for held_out in torch.where(part == fold)[0].split(BLOCK):
                    curve[size, held_out] += _terms(_log_ratios(z[held_out], columns, scatter, nu)) / parts
    return curve


def _terms(log_ratio: Tensor) -> Tensor:
    """Return rows whose mean is mean log r − log mean shuffled r, and whose scatter is that of both means."""
    others = log_ratio.clone().fill_diagonal_(-math.inf)
    total = float(others.logsumexp((0, 1))) - math.log(len(others) * (len(others) - 1))
    ratio = (others - total).exp()
    return log_ratio.diag() - total - (ratio.mean(0) + ratio.mean(1)) + 2 * ratio.mean()


def _scatter(z: Tensor, nu: float) -> Tensor:
    """Return the correlations of a Student of nu degrees of freedom, by reweighting."""
    tiny = 1e-6 * torch.eye(z.shape[1], dtype=z.dtype)
    weight = z.new_ones(len(z)) if math.isinf(nu) else 1 / (1 + z.square().mean(1) / nu)
    for _ in range(1 if math.isinf(nu) else 10):
        scatter = (weight.unsqueeze(1) * z).T @ z / weight.sum() + tiny
        scale = scatter.diag().sqrt()
        scatter = scatter / scale / scale.unsqueeze(1)
        weight = (nu + z.shape[1]) / (nu + _squares(z, scatter)) if math.isfinite(nu) else weight
    return scatter


def _squares(z: Tensor, scatter: Tensor) -> Tensor:
    squares: Tensor = (torch.linalg.solve(scatter, z.T).T * z).sum(1)
    return squares


def _log_density(squares: Tensor, scatter: Tensor, nu: float) -> Tensor:
    """Return the log-density of a Student, or of a Gaussian for infinite nu, by squared distances."""
    d, half_log_det = len(scatter), torch.slogdet(scatter)[1] / 2
    if math.isinf(nu):
        return -squares / 2 - half_log_det - d / 2 * math.log(2 * math.pi)
    constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)
    return constant - half_log_det - (nu + d) / 2 * torch.log1p(squares / nu)


def _log_copula(z: Tensor, scatter: Tensor, nu: float) -> float:
    columns = _log_density(z.square(), z.new_ones(1, 1), nu).sum(1)
    return float((_log_density(_squares(z, scatter), scatter, nu) - columns).mean())


def _log_ratios(z: Tensor, columns: int, scatter: Tensor, nu: float) -> Tensor:
    """Return log r(x_i, y_j) for all pairs of rows, shape (n, n)."""
    x, y, precision = z[:, :columns], z[:, columns:], torch.linalg.inv(scatter)
    of_x, of_y = ((x @ precision[:columns, :columns]) * x).sum(1), ((y @ precision[columns:, columns:]) * y).sum(1)
    squares = of_x.unsqueeze(1) + of_y + 2 * x @ precision[:columns, columns:] @ y.T
    blocks = [(x, scatter[:columns, :columns]), (y, scatter[columns:, columns:])]
    one, other = (_log_density(_squares(v, block), block, nu) for v, block in blocks)
    return _log_density(squares, scatter, nu) - one.unsqueeze(1) - other
