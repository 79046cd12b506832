"""Runs the requests of a repeat that are not recorded yet, and records each as it ends."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from lm_eval.api.instance import Instance

from decodebench.decoding import Generation, Generator, Request
from decodebench.evaluation.environment import PeakMemory
from decodebench.evaluation.lm import Key, TaskLM
from decodebench.records import RunStore


class Recorder:
    """Answers for one repeat of one cell.

    Args:
        store: of the cell.
        repeat: which one.
        generator: of the cell's method, fresh: its statistics become the repeat's.
        device: whose memory is watched.
        category: the column of a document that samples keep, if any.
        on_sample: told of every request that ends.
    """

    def __init__(
        self,
        store: RunStore,
        repeat: int,
        generator: Generator,
        device: torch.device,
        category: str | None,
        on_sample: Callable[[Generation], None],
    ) -> None:
        self.store, self.repeat, self.generator = store, repeat, generator
        self.device, self.category, self.on_sample = device, category, on_sample
        self.session = store.next_session(repeat)

    def answer(self, instances: list[Instance], lm: TaskLM) -> list[str]:
        """The texts of these instances, in order."""
        known = {(s["task"], s["doc_id"], s["idx"]): s["text"] for s in self.store.samples(self.repeat)}
        wanted = list(zip(lm.keys(instances), instances, lm.requests(instances), strict=True))
        missing = [each for each in wanted if each[0] not in known]
        before = self.store.seconds_before(self.repeat)
        peak = PeakMemory(self.device)
        begun, recording = time.perf_counter(), 0.0

        def record(index: int, generation: Generation) -> None:
            nonlocal recording
            now = time.perf_counter()
            elapsed = now - begun - recording  # what recording takes is not the engine's time
            self.store.append(self._sample(*missing[index], generation, elapsed))
            known[missing[index][0]] = generation.text
            self.on_sample(generation)
            recording += time.perf_counter() - now

        if missing:
            self.generator.generate([request for _, _, request in missing], on_finish=record)
        seconds = time.perf_counter() - begun - recording
        if self.store.timing(self.repeat) is None:
            self.store.record_timing(self.repeat, self._timing(before + seconds, peak.bytes()))
        return [known[key] for key, _, _ in wanted]

    def _timing(self, seconds: float, peak_memory: int | None) -> dict[str, Any]:
        """How long the repeat took. What a killed session spent on prefill and decoding is not known afterwards."""
        timing = {"seconds": seconds, "peak_memory_bytes": peak_memory, "interrupted": self.session > 0}
        return timing if self.session else timing | asdict(self.generator.statistics)

    def _sample(
        self, key: Key, instance: Instance, request: Request, generation: Generation, elapsed: float
    ) -> dict[str, Any]:
        task, doc_id, idx = key
        return {
            "repeat": self.repeat,
            "task": task,
            "doc_id": doc_id,
            "idx": idx,
            **({"category": str(instance.doc[self.category])} if self.category else {}),
            "prompt_sha256": sha256(instance.args[0]),
            "prompt_tokens": len(request.prompt),
            "text": generation.text,
            "tokens": generation.tokens,
            "finish": generation.finish,
            "passes": generation.passes,
            "committed": generation.committed,
            **({} if generation.confidence is None else {"confidence": _rounded(generation.confidence)}),
            "pass_seconds": [round(seconds, 6) for seconds in generation.pass_seconds],
            "ttft": generation.ttft,
            "latency": generation.latency,
            "session": self.session,
            "elapsed": elapsed,
            "scores": None,
        }


def _rounded(confidence: list[float]) -> list[float]:
    return [round(value, 4) for value in confidence]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
