"""Exact covariances of estimates on finite spaces and by quadrature, in the notation of Eq. variance."""

import math

import numpy as np
import torch


def slope(rule, r):
    """φ = df1/dΔ."""
    return rule.log_slope(torch.as_tensor(r).log())[0].exp().numpy()


def pieces(p_d, p_n, g, rule, nu):
    r = p_d / (nu * p_n)
    phi = slope(rule, r)
    mean = (p_d * phi) @ g
    curvature = (g.T * (p_d * phi)) @ g
    second = (g.T * (p_d * (1 + r) * phi**2)) @ g
    return curvature, second, mean


def covariance(p_d, p_n, g, rule, nu=1.0):
    curvature, second, mean = pieces(p_d, p_n, g, rule, nu)
    inverse = np.linalg.inv(curvature)
    return inverse @ (second - (1 + 1 / nu) * np.outer(mean, mean)) @ inverse


def random_problem(seed, parameters, states=7):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(states)), rng.dirichlet(np.ones(states)), rng.normal(size=(states, parameters))


def with_log_z(g):
    return np.concatenate([g, -np.ones((len(g), 1))], 1)


def precision_problem(noise_scale):
    """N(0, 1) with unknown precision and log Z against N(0, σ_n²): points of quadrature, densities, ∇Δ."""
    nodes, weights = np.polynomial.legendre.leggauss(2000)
    x, cell = 12 * nodes, 12 * weights
    normal = lambda s: np.exp(-((x / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))  # noqa: E731
    return normal(1.0) * cell, normal(noise_scale) * cell, with_log_z(-(x[:, None] ** 2) / 2)
