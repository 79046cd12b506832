"""Made-up runs that look like real ones: for tests of what reads records."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from decodebench.records import SCHEMA, aggregate, run_name
from decodebench.records.files import plain, to_line

ENVIRONMENT = {
    "decodebench": "0.1.0", "git_commit": None, "python": "3.11.7", "platform": "Linux", "cpu": "A CPU", "cores": 2,
    "memory_bytes": 8 << 30, "gpu": None, "packages": {"torch": "2.13.0", "transformers": "5.23.0"}, "threads": 2,
}  # fmt: skip
ABILITY = {"gsm8k": 0.42, "humaneval_chat": 0.28, "stepmath": 0.7}


def write_run(
    results: Path,
    method: str,
    *,
    task: str = "gsm8k",
    batch_size: int = 1,
    documents: int = 64,
    repeats: int = 3,
    environment: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    traced: bool = False,
    **knobs: Any,
) -> Path:
    """Write a run and return its folder. The outputs depend on the document and on how bold the method is.

    A traced run has confidences, and AR scores of which the confidence tells too much good.
    """
    settings = {
        "model": "smollm2-135m", "task": task, "method": method, "knobs": knobs, "batch_size": batch_size,
        "batching": "continuous", "dtype": "bfloat16", "device": "cpu", "limit": documents, "max_new_tokens": 256,
        "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0,
    } | (config or {}) | ({"trace": True} if traced else {})  # fmt: skip
    boldness = (1 - knobs.get("tau", 1.0)) * (1 + knobs.get("block_size", 0) / 12)
    noise = np.random.default_rng(int(hashlib.sha256(run_name(settings).encode()).hexdigest()[:8], 16))
    per_pass = 1 + min(5.2 * boldness**0.7, knobs.get("block_size", 1) - 1)
    pass_seconds = (0.023 + 0.0022 * batch_size) * (1 + 0.012 * knobs.get("block_size", 0))
    samples, timings = [], []
    for repeat in range(repeats):
        seconds = 0.0
        for doc in range(documents):
            question = np.random.default_rng([doc, len(task)])
            length, hardness, frailty = int(question.integers(60, 250)), question.random(), question.random()
            committed = _split(length, per_pass, np.random.default_rng([doc, int(100 * per_pass)]))
            latency = len(committed) * pass_seconds * noise.normal(1, 0.02)
            seconds += latency / batch_size
            changed = frailty < 2.2 * boldness
            right = hardness < ABILITY[task] * (1 - (0.55 * boldness if changed else 0))
            samples.append({
                "repeat": repeat, "task": task, "doc_id": doc, "doc_hash": f"h{doc}", "prompt_sha256": f"p{doc}",
                "prompt_tokens": 90, "text": "…", "tokens": [doc] * length + [int(changed)],
                "finish": "stop_token",
                "passes": len(committed), "committed": committed, "pass_seconds": [], "ttft": pass_seconds * 2,
                "latency": latency, "session": 0, "elapsed": seconds, "scores": {"exact_match": float(right)},
            })  # fmt: skip
            if traced:
                samples[-1] |= _trace(length + 1, knobs.get("tau", 1.0), np.random.default_rng([doc, repeat]), repeat)
        timings.append(
            {"seconds": seconds, "prefill_seconds": 0.1 * seconds,
             "decode_seconds": 0.9 * seconds, "draft_seconds": (method != "ar") * 0.02 * seconds,
             "passes": 9, "peak_memory_bytes": 700_000_000, "interrupted": False}
        )  # fmt: skip
    run: dict[str, Any] = {
        "schema": SCHEMA, "run": run_name(settings), "status": "done", "error": None, "created": "2026-01-01T00:00:00",
        "finished": "2026-01-01T01:00:00", "config": settings, "environment": environment or ENVIRONMENT,
        "task": {"headline": "exact_match", "version": 1, "shots": 0, "prompts_sha256": f"{task}{documents}"},
        "repeats": repeats, "timings": timings, "aggregates": aggregate(samples, timings, "exact_match"),
    }  # fmt: skip
    folder = results / run["run"]
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(plain(run)))
    (folder / "samples.jsonl").write_text("".join(map(to_line, samples)))
    return folder


def _trace(length: int, tau: float, rng: np.random.Generator, repeat: int) -> dict[str, Any]:
    confidence = rng.uniform(tau, 1, length)
    equal = rng.random(length) < confidence**2
    scores = {"ar_logprobs": np.where(equal, -0.1, -3.0).tolist(), "ar_equal": equal.astype(int).tolist()}
    return {"confidence": confidence.tolist()} | ({} if repeat else scores)


def _split(length: int, mean: float, rng: np.random.Generator) -> list[int]:
    committed: list[int] = []
    while sum(committed) < length:
        committed.append(min(1 + int(rng.poisson(mean - 1)), length - sum(committed)))
    return committed
