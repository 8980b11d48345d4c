"""The service of docs/detector/deploy.md, started as the page says, answers 1,000 requests with the detector's bits."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fvnce import NoiseContrastiveDetector

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "detector" / "deploy.md"
REQUESTS, THREADS = 1000, 4


def test_the_service_answers_with_the_bits_of_the_detector(tmp_path: Path, record_property: Any) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    (code,) = re.findall(r"```py\n# app\.py\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "app.py").write_text(code)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"amount": rng.exponential(size=300), "town": rng.choice(["Rome", "Oslo", "Lima"], 300)})
    detector = NoiseContrastiveDetector(n_trees=20, n_jobs=1).fit(rows)
    new = rows.sample(REQUESTS, replace=True, random_state=0).reset_index(drop=True)
    new["amount"] *= 1.5
    expected = detector.anomaly_score(new)
    environment = {**os.environ, "MODEL": str(detector.save(tmp_path / "model.safetensors")), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--no-access-log"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        port = _port(server, tmp_path / "log")

        def ask(part: range) -> list[tuple[int, float, float]]:
            connection, answers = http.client.HTTPConnection("127.0.0.1", port, timeout=300), []
            for i in part:
                row = {"amount": float(new.at[i, "amount"]), "town": str(new.at[i, "town"])}
                started = time.perf_counter()
                status, found = _post(connection, {"rows": [row]})
                assert status == 200, found
                answers.append((i, found[0]["score"], time.perf_counter() - started))
            connection.close()
            return answers

        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(ask, [range(first, REQUESTS, THREADS) for first in range(THREADS)]))
        answers = sorted(answer for part in parts for answer in part)
        assert [score for _, score, _ in answers] == expected.tolist()
        whole = {"amount": 1.0, "town": "Rome"}
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
            assert _post(connection, {"rows": []}) == (200, [])
            assert len(_post(connection, {"rows": [whole, {"amount": None, "town": None}]})[1]) == 2
            for rows in ([{"town": "Rome"}], [{}], [{}, whole], [whole, {"town": "Rome"}]):
                status, found = _post(connection, {"rows": rows})
                assert status == 422
                assert "amount" in found["detail"]
        p50, p99 = 1000 * np.quantile([seconds for _, _, seconds in answers], [0.5, 0.99])
        record_property("milliseconds", f"{REQUESTS} requests from {THREADS} threads: p50 {p50:.1f}, p99 {p99:.1f}")
        assert "read a detector" in (tmp_path / "log").read_text()  # the library logs, and the service shows it
    finally:
        server.terminate()
        server.wait()


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    while server.poll() is None:
        if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.05)
    pytest.fail(log.read_text()[-3000:])


def _post(connection: http.client.HTTPConnection, content: Any) -> tuple[int, Any]:
    connection.request("POST", "/score", json.dumps(content), {"content-type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())
