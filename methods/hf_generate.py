"""transformers' own ``generate``: in the tool so that anyone can see that the baseline is honest."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from decodebench.decoding import Batching, Finish, Generation, Generator, Method, Progress, Request, Statistics
from decodebench.decoding.stopping import cut
from decodebench.errors import UserError
from decodebench.models import LoadedModel


@dataclass
class HFGenerate(Method):
    """transformers' generate: static batches, left padding, its own cache and stop rules."""

    lossless = True

    def generator(self, model: LoadedModel, batch_size: int, batching: Batching = "continuous") -> Generator:
        return _Generate(model, batch_size)


class _Clock(StoppingCriteria):
    """Stops nothing; notes when each step ended."""

    def __init__(self) -> None:
        self.ticks = [time.perf_counter()]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if input_ids.is_cuda:
            torch.cuda.synchronize(input_ids.device)
        self.ticks.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class _Generate(Generator):
    """Gives consecutive requests with equal settings to ``generate``, ``batch_size`` at a time.

    A row's latency is that of its batch, because ``generate`` returns nothing before all rows are done. Sampling draws
    from one stream per batch (that of its first request's seed), so sampled text depends on the batch size.
    """

    def __init__(self, model: LoadedModel, batch_size: int) -> None:
        self.model, self.batch_size = model, batch_size
        self.context = getattr(model.model.config.get_text_config(), "max_position_embeddings", None) or math.inf
        self.statistics = Statistics()

    def generate(
        self,
        requests: Sequence[Request],
        on_commit: Callable[[Progress, list[int]], None] | None = None,
        on_finish: Callable[[int, Generation], None] | None = None,
    ) -> list[Generation]:
        if on_commit is not None:
            raise UserError("hf-generate cannot stream: transformers returns a batch when all of it is done")
        done: dict[int, Generation] = {}
        for chunk in self._chunks(requests):
            for index, generation in zip(chunk, self._batch([requests[i] for i in chunk]), strict=True):
                done[index] = generation
                if on_finish:
                    on_finish(index, generation)
        return [done[i] for i in range(len(requests))]

    def _chunks(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        chunk: list[int] = []
        for i, request in enumerate(requests):
            if chunk and (len(chunk) == self.batch_size or not _alike(requests[chunk[0]], request)):
                yield chunk
                chunk = []
            chunk.append(i)
        if chunk:
            yield chunk

    def _batch(self, requests: list[Request]) -> list[Generation]:
        fits = [request for request in requests if len(request.prompt) < self.context]
        generated = iter(self._call(fits)) if fits else iter(())
        rejected = Generation("", [], "prompt_too_long", [], [], ttft=math.nan, latency=0.0)
        return [next(generated) if len(request.prompt) < self.context else rejected for request in requests]

    def _call(self, requests: list[Request]) -> list[Generation]:
        first, tokenizer, stop_tokens = requests[0], self.model.tokenizer, self.model.stop_tokens
        pad = min(stop_tokens) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        longest = max(len(request.prompt) for request in requests)
        ids = torch.tensor([[pad] * (longest - len(r.prompt)) + list(r.prompt) for r in requests])
        mask = torch.tensor([[0] * (longest - len(r.prompt)) + [1] * len(r.prompt) for r in requests])
        if not first.sampling.greedy:
            torch.manual_seed(first.sampling.seed)
        limit = int(min(first.max_new_tokens, self.context - longest))
        clock = _Clock()
        with torch.inference_mode():
            out = self.model.model.generate(
                ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                generation_config=_config(first, limit, sorted(stop_tokens), pad),
                stopping_criteria=StoppingCriteriaList([clock]),
                tokenizer=tokenizer if first.stop else None,
            )[:, longest:].tolist()
        self._count(clock.ticks)
        return [self._generation(r, tokens, limit, clock.ticks) for r, tokens in zip(requests, out, strict=True)]

    def _count(self, ticks: list[float]) -> None:
        self.statistics.passes += len(ticks) - 1
        self.statistics.prefill_seconds += ticks[1] - ticks[0]
        self.statistics.decode_seconds += ticks[-1] - ticks[1]

    def _generation(self, request: Request, padded: list[int], limit: int, ticks: list[float]) -> Generation:
        tokens, finish = self._end(padded, request, limit)
        seconds = [after - before for before, after in zip(ticks, ticks[1 : len(tokens) + 1], strict=False)]
        text = cut(self.model.tokenizer, tokens, request.stop, self.model.stop_tokens)
        return Generation(
            text, tokens, finish, [1] * len(tokens), seconds, ttft=ticks[1] - ticks[0], latency=ticks[-1] - ticks[0]
        )

    def _end(self, padded: list[int], request: Request, limit: int) -> tuple[list[int], Finish]:
        """A row's own tokens: ``generate`` pads rows that ended before the last one."""
        for i, token in enumerate(padded):
            if token in self.model.stop_tokens:
                return padded[: i + 1], "stop_token"
        for i in range(1, len(padded) + 1) if request.stop else ():
            text = self.model.tokenizer.decode(padded[:i], skip_special_tokens=False)
            if any(string in text for string in request.stop):
                return padded[:i], "stop_string"
        return padded[:limit], "length"


def _alike(a: Request, b: Request) -> bool:
    """Whether one ``generate`` call can serve both (seeds aside)."""

    def settings(r: Request) -> tuple[object, ...]:
        return r.max_new_tokens, tuple(r.stop), r.sampling.temperature, r.sampling.top_p, r.sampling.top_k

    return settings(a) == settings(b)


def _config(request: Request, limit: int, stop_tokens: list[int], pad: int) -> GenerationConfig:
    sampling = request.sampling
    sampled: dict[str, Any] = {}
    if not sampling.greedy:
        sampled = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return GenerationConfig(
        max_new_tokens=limit,
        do_sample=not sampling.greedy,
        eos_token_id=stop_tokens,
        pad_token_id=pad,
        stop_strings=list(request.stop) or None,
        **sampled,
    )
