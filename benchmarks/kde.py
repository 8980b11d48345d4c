"""Kernel densities: fvnce compared with the bare matrix product and with other libraries.

Run with

    python benchmarks/kde.py --out results/bench/kde.json

Times are the best of several interleaved runs on the same threads and given as ratios. Errors are the
largest difference in nats from a direct float64 evaluation. Images are MNIST if FVNCE_DATA names a folder
that holds it, else random strokes of like spread. A peer that cannot take a whole input gets fewer queries
and its time is scaled; the table says so.

Takes about 4 minutes on two cores.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fvnce.noise import KernelDensity, select_bandwidth
from fvnce.paper.cells import made_by, write_json
from fvnce.paper.datasets import idx_array, read_bytes

SEED = 0
BANDWIDTHS = [1 / 4, 1 / 64, 1 / 16, 1 / 2, 1.0]


def best(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best time of each call; calls are interleaved, so that load affects all of them."""
    times = dict.fromkeys(calls, math.inf)
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def images(n: int) -> tuple[torch.Tensor, str]:
    """Return n images as rows of 784 numbers in [0, 1], and their source."""
    archives = sorted(Path(os.environ.get("FVNCE_DATA", "missing"), "mnist").glob("train-images*gz"))
    if archives:
        return torch.tensor(idx_array(read_bytes(archives[0])).reshape(-1, 784)[:n], dtype=torch.float32).div_(
            255
        ), "MNIST"
    generator = torch.Generator().manual_seed(SEED)
    strokes = torch.randn(40, 784, generator=generator)
    mixed = torch.randn(n, 40, generator=generator) @ strokes / 12
    return mixed.sub_(0.25).clamp_(0, 1), "random strokes"


def direct(x: torch.Tensor, centres: torch.Tensor, h: float) -> torch.Tensor:
    """Return the log density from differences in float64."""
    at = centres.double()
    sums = [torch.logsumexp(-0.5 * ((row - at) / h).square().sum(1), 0) for row in x.double()]
    width = centres.shape[1]
    return torch.stack(sums) - math.log(len(at)) - width * math.log(h * math.sqrt(2 * math.pi))


def error(values: Any, exact: torch.Tensor) -> float:
    """Return the largest difference in nats."""
    return float((torch.as_tensor(values).double() - exact).abs().max())


def peak_mib(call: Callable[[], object]) -> float | None:
    """Return the growth of resident memory during a call, or None if it cannot be measured."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def naive(x: torch.Tensor, centres: torch.Tensor, h: float) -> torch.Tensor:
    """Return the log density from all squared distances at once, the obvious implementation."""
    squares = x.square().sum(1)[:, None] - 2 * x @ centres.T + centres.square().sum(1)
    width = centres.shape[1]
    return (
        torch.logsumexp(-0.5 * squares / h**2, 1)
        - math.log(len(centres))
        - width * math.log(h * math.sqrt(2 * math.pi))
    )


def peers(x: torch.Tensor, centres: torch.Tensor, h: float) -> dict[str, Callable[[int], Any]]:
    """Return functions for the log densities of the first k points by each installed library."""
    from scipy.stats import gaussian_kde
    from sklearn.neighbors import KernelDensity as Tree

    tree = Tree(bandwidth=h).fit(centres.double().numpy())
    calls: dict[str, Callable[[int], Any]] = {"scikit-learn": lambda k: tree.score_samples(x[:k].double().numpy())}
    try:
        covariance = np.cov(centres.double().numpy().T)
        scipy_kde = gaussian_kde(centres.double().numpy().T, bw_method=h / math.sqrt(covariance.mean()))
        calls["scipy"] = lambda k: scipy_kde.logpdf(x[:k].double().numpy().T)
    except ValueError as failure:  # LinAlgError is one
        calls["scipy"] = _fail(str(failure))
    try:
        from torchkde import KernelDensity as TorchKDE
    except ImportError:
        calls["torch-kde"] = _fail("not installed")
    else:
        other = TorchKDE(bandwidth=h, kernel="gaussian").fit(centres)
        calls["torch-kde"] = lambda k: other.score_samples(x[:k])
    return calls


def _runs(call: Callable[[int], Any]) -> bool:
    """Return whether a peer is installed and accepts this input."""
    try:
        call(2)
    except (RuntimeError, MemoryError, ArithmeticError):
        return False
    return True


def _fail(reason: str) -> Callable[[int], Any]:
    def call(_: int) -> Any:
        raise RuntimeError(reason)

    return call


def high_dimensions(n: int, q: int, bandwidths: list[float], repeats: int) -> list[dict[str, Any]]:
    """Compare all methods on n centers and q points in 784 dimensions."""
    pictures, source = images(n + q)
    centres, data = pictures[:n].contiguous(), pictures[n:].contiguous()
    rows = []
    for h in bandwidths:
        noise = KernelDensity(centres, h)
        for kind in ("data", "draws"):
            x = data if kind == "data" else noise.draw(q, torch.Generator().manual_seed(SEED))
            # The first call of a new density: what it prepares and keeps counts too.
            peak = peak_mib(lambda x=x, h=h: KernelDensity(centres, h).log_prob(x))
            noise.log_prob(x)
            generator = torch.Generator().manual_seed(SEED)
            calls: dict[str, Callable[[], object]] = {
                "bare product": lambda x=x: x @ centres.T,
                "ours": lambda x=x, noise=noise: noise.log_prob(x),
                "naive torch": lambda x=x, h=h: naive(x, centres, h),
            }
            if kind == "draws":
                calls["ours, own draws"] = lambda noise=noise, g=generator: noise.draw_with_log_prob(q, g)
            times = best(calls, repeats)
            some = slice(0, 40)
            exact = direct(x[some], centres, h)
            row: dict[str, Any] = {
                "images": source, "centres": n, "queries": q, "bandwidth": h, "points": kind,
                "bare product seconds": times["bare product"],
                "ratio": {name: times[name] / times["bare product"] for name in calls},
                "error": {
                    "ours": error(noise.log_prob(x)[some], exact),
                    "naive torch": error(naive(x[some], centres, h), exact),
                },
                "float32 spacing": float(np.spacing(np.float32(exact.abs().max()))),
                "peak MiB": {"ours": peak},
            }  # fmt: skip
            if kind == "data" and h == bandwidths[0]:
                row["notes"] = _compare_peers(row, x, centres, h, times["bare product"], exact)
            rows.append(row)
            _show(row)
    return rows


def _compare_peers(
    row: dict[str, Any], x: torch.Tensor, centres: torch.Tensor, h: float, bare: float, exact: torch.Tensor
) -> dict[str, str]:
    notes = {}
    # torch-kde holds queries x centers x dimensions numbers: ten queries are what memory allows.
    for (name, call), k in zip(peers(x, centres, h).items(), (40, 40, 10), strict=True):
        try:
            start = time.perf_counter()
            values = call(k)
            seconds = (time.perf_counter() - start) * len(x) / k
            row["ratio"][name] = seconds / bare
            row["error"][name] = error(values, exact[:k])
            notes[name] = f"timed on {k} queries and scaled"
        except (RuntimeError, MemoryError, ArithmeticError) as failure:
            notes[name] = f"cannot run: {str(failure).splitlines()[0][:100]}"
    return notes


def _show(row: dict[str, Any]) -> None:
    ratios = "  ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratio"].items())
    errors = "  ".join(f"{name} {value:.1e}" for name, value in row["error"].items())
    head = f"{row['centres']} x {row['queries']} x 784, h = {row['bandwidth']:g}, {row['points']}"
    print(f"{head}\n    time / bare product: {ratios}\n    error in nats: {errors}")
    print(f"    peak extra memory: {row['peak MiB']['ours']} MiB   {row.get('notes', '')}", flush=True)


def large(n: int, h: float) -> dict[str, Any]:
    """Measure time and memory for n centers and n draws."""
    centres, source = images(n)
    noise = KernelDensity(centres, h)
    x = noise.draw(len(centres), torch.Generator().manual_seed(SEED))
    start = time.perf_counter()
    peak = peak_mib(lambda: noise.log_prob(x))
    seconds = time.perf_counter() - start
    print(f"{n} x {n} x 784, h = {h:g}: {seconds:.0f} s, peak extra memory {peak} MiB", flush=True)
    return {
        "images": source,
        "centres": n,
        "queries": n,
        "bandwidth": h,
        "seconds": seconds,
        "peak MiB": peak,
    }


def leave_one_out(n: int, repeats: int) -> dict[str, Any]:
    """Compare bandwidth selection with one pairwise product."""
    X, source = images(n)
    chosen: list[torch.Tensor] = []
    calls = {"product": lambda: X @ X.T, "loo": lambda: chosen.append(select_bandwidth(X, "loo"))}
    times = best(calls, repeats)
    peak = peak_mib(calls["loo"])
    ratio = times["loo"] / times["product"]
    print(f"loo on {n} x 784: {ratio:.2f} x one product, h = {float(chosen[0]):.4f}, {peak} MiB", flush=True)
    return {"images": source, "rows": n, "ratio": ratio, "bandwidth": float(chosen[0]), "peak MiB": peak}


def low_dimensions(widths: list[int], sizes: list[int]) -> list[dict[str, Any]]:
    """Compare with trees and other libraries, with as many points as centers, at most 2,000."""
    rows = []
    for d in widths:
        for n in sizes:
            generator = torch.Generator().manual_seed(SEED)
            centres = torch.randn(n, d, generator=generator)
            x = torch.randn(min(n, 2000), d, generator=generator)
            h = n ** (-1 / (d + 4))
            noise = KernelDensity(centres, h)
            calls: dict[str, Callable[[], Any]] = {"ours": lambda x=x, noise=noise: noise.log_prob(x)}
            for name, call in peers(x, centres, h).items():
                # SciPy's kernel follows the data's covariance; only its time can be compared.
                if (name != "torch-kde" or n * len(x) * d <= 3e8) and _runs(call):
                    calls[name] = lambda call=call, x=x: call(len(x))
            times = best(calls, 20 if n <= 1000 else 2)
            exact = direct(x[:50], centres, h)
            row = {
                "dimensions": d, "centres": n, "queries": len(x),
                "scikit-learn seconds": times["scikit-learn"],
                "time / scikit-learn": {name: times[name] / times["scikit-learn"] for name in calls},
                "error": {
                    name: error(call()[:50], exact) for name, call in calls.items() if name != "scipy"
                },
            }  # fmt: skip
            rows.append(row)
            ratios = "  ".join(f"{k} {v:.3f}" for k, v in row["time / scikit-learn"].items())
            errors = "  ".join(f"{k} {v:.1e}" for k, v in row["error"].items())
            print(f"d = {d:2d}, n = {n:6d}: time / scikit-learn: {ratios}   error: {errors}", flush=True)
    return rows


def main() -> None:
    """Run all comparisons, print tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--large", type=int, default=60_000, help="centres and draws of the large run; 0: skip")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    options = parser.parse_args()
    few = options.quick
    if few:
        options.large, options.repeats = min(options.large, 500), 1
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    results: dict[str, Any] = {
        "high dimensions": high_dimensions(
            400 if few else 20_000, 60 if few else 2_000, BANDWIDTHS[:1] if few else BANDWIDTHS, options.repeats
        ),
        "leave one out": leave_one_out(200 if few else 10_000, 2),
        "low dimensions": low_dimensions([2] if few else [2, 10, 30], [100] if few else [100, 1000, 10_000]),
        "large": large(options.large, 1 / 4) if options.large else None,
    }
    results |= {
        **made_by(" ".join(["python", *sys.argv])),
        "seed": SEED,
        "repeats": options.repeats,
        "threads": options.threads,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "seconds": time.perf_counter() - start,
    }
    if options.out:
        write_json(options.out, results)


if __name__ == "__main__":
    main()
