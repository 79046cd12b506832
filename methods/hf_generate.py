"""transformers' own ``generate``: in the tool so that anyone can see that the baseline is honest."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from decodebench.decoding import (
    Batching,
    Finish,
    Generation,
    Generator,
    Method,
    OnCommit,
    OnFinish,
    Request,
    Statistics,
    knob,
)
from decodebench.decoding.forward import context_length
from decodebench.decoding.stopping import StopStrings, cut
from decodebench.errors import UserError
from decodebench.methods.drafts import load_draft
from decodebench.models import LoadedModel


@dataclass
class HFGenerate(Method):
    """transformers' generate: static batches, left padding, its own cache and loop.

    With a draft it is transformers' prompt lookup or assisted generation, which serve one request at a time.
    """

    lossless = True

    prompt_lookup: int | None = knob(None, "tokens per draft of transformers' prompt lookup; default: no drafts", low=1)
    assistant: str | None = knob(
        None, "the model of transformers' assisted generation: a built-in name, a folder, or a hub id"
    )
    assistant_tokens: int | None = knob(
        None, "so many tokens in each of the assistant's drafts; default: transformers' own rule", low=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_lookup and self.assistant:
            raise UserError(f"--prompt-lookup {self.prompt_lookup} and --assistant {self.assistant}: give one of them")
        if self.assistant_tokens and not self.assistant:
            raise UserError(f"--assistant-tokens {self.assistant_tokens}: name the model with --assistant")

    def generator(self, model: LoadedModel, batch_size: int, batching: Batching = "continuous") -> Generator:
        if batch_size > 1 and (self.prompt_lookup or self.assistant):
            raise UserError(
                f"hf-generate with drafts, --batch-size {batch_size}: transformers drafts for one request at a time"
            )
        return _Generate(model, batch_size, self._drafts(model))

    def _drafts(self, model: LoadedModel) -> "_Drafts":
        if self.prompt_lookup:
            return _Drafts({"prompt_lookup_num_tokens": self.prompt_lookup})
        if not self.assistant:
            return _Drafts({})
        fixed = {
            "num_assistant_tokens": self.assistant_tokens,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        config = GenerationConfig(**(fixed if self.assistant_tokens else {}))
        return _Drafts({"assistant_model": load_draft(self.assistant, model, "--assistant").model}, config)


@dataclass
class _Drafts:
    """What makes ``generate`` draft.

    Attributes:
        arguments: of ``generate``.
        config: of the assistant, where there is one: ``generate`` looks there how much it is to draft.
    """

    arguments: dict[str, Any]
    config: GenerationConfig | None = None

    def ready(self) -> AbstractContextManager[None]:
        """While inside, the assistant drafts as told."""
        return _configured(self.arguments["assistant_model"], self.config) if self.config else nullcontext()


class _Clock(StoppingCriteria):
    """Stops nothing; notes when each pass ended, and how long the answers were then."""

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.ticks = [(time.perf_counter(), 0)]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if input_ids.is_cuda:
            torch.cuda.synchronize(input_ids.device)
        self.ticks.append((time.perf_counter(), input_ids.shape[1] - self.prompt))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def passes(self, tokens: int) -> tuple[list[int], list[float]]:
        """Tokens and seconds of each pass until so many tokens were there."""
        pairs = [(a, b) for a, b in itertools.pairwise(self.ticks) if a[1] < tokens]
        return [min(b[1], tokens) - a[1] for a, b in pairs], [b[0] - a[0] for a, b in pairs]


class _StopStrings(StoppingCriteria):
    """The engine's rule for stop strings; transformers' own would also count the end of the prompt as answer.

    Args:
        finder: for the strings of these requests.
        strings: what ends a row.
        prompt: tokens of the padded prompts.
    """

    def __init__(self, finder: StopStrings, strings: Sequence[str], prompt: int) -> None:
        self.finder, self.strings, self.prompt = finder, strings, prompt
        self.seen = prompt
        self.ends: dict[int, int] = {}  # rows that met a stop string, and how many tokens they had then

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        suspects = self.finder.flag(input_ids[:, self.seen :])
        for row, new in [] if suspects is None else suspects.nonzero().tolist():
            *before, last = input_ids[row, self.prompt : self.seen + new + 1].tolist()
            if row not in self.ends and self.finder.find(before, [last], self.strings):
                self.ends[row] = len(before) + 1
        self.seen = input_ids.shape[1]
        return torch.tensor([row in self.ends for row in range(input_ids.shape[0])], device=input_ids.device)


class _Generate(Generator):
    """Gives consecutive requests with equal settings to ``generate``, ``batch_size`` at a time.

    A row's latency is that of its batch, because ``generate`` returns nothing before all rows are done. Sampling draws
    from one stream per batch (that of its first request's seed), so sampled text depends on the batch size.
    """

    def __init__(self, model: LoadedModel, batch_size: int, drafts: _Drafts) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: must be at least 1")
        self.model, self.batch_size, self.drafts = model, batch_size, drafts
        self.context = context_length(model.model.config.get_text_config())
        self.statistics = Statistics()

    def generate(
        self,
        requests: Sequence[Request],
        on_commit: OnCommit | None = None,
        on_finish: OnFinish | None = None,
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
        pad = min(stop_tokens, default=0) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        longest = max(len(request.prompt) for request in requests)
        ids = torch.tensor([[pad] * (longest - len(r.prompt)) + list(r.prompt) for r in requests])
        mask = torch.tensor([[0] * (longest - len(r.prompt)) + [1] * len(r.prompt) for r in requests])
        if not first.sampling.greedy:
            torch.manual_seed(first.sampling.seed)
        limit = min(first.max_new_tokens, self.context - longest)
        config = _config(first, limit, sorted(stop_tokens), pad)
        vocabulary = self.model.model.get_output_embeddings().weight.shape[0]
        finder = StopStrings(tokenizer, first.stop, vocabulary, self.model.device)
        stop = _StopStrings(finder, first.stop, longest)
        clock = _Clock(longest)
        # nothing of the checkpoint's own, such as a repetition penalty
        with torch.inference_mode(), _configured(self.model.model, config), self.drafts.ready():
            out = self.model.model.generate(
                ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([stop, clock] if first.stop else [clock]),
                **self.drafts.arguments,
            )[:, longest:].tolist()
        self._count(clock)
        return [
            self._generation(request, *self._end(tokens, stop.ends.get(row), limit), clock)
            for row, (request, tokens) in enumerate(zip(requests, out, strict=True))
        ]

    def _count(self, clock: _Clock) -> None:
        (begun, _), (prefilled, _), *_, (ended, _) = [*clock.ticks, clock.ticks[-1]]
        self.statistics.passes += len(clock.ticks) - 1
        self.statistics.prefill_seconds += prefilled - begun
        self.statistics.decode_seconds += ended - prefilled

    def _generation(self, request: Request, tokens: list[int], finish: Finish, clock: _Clock) -> Generation:
        text = cut(self.model.tokenizer, tokens, request.stop, self.model.stop_tokens)
        (begun, _), (prefilled, _) = clock.ticks[:2]
        return Generation(
            text, tokens, finish, *clock.passes(len(tokens)), ttft=prefilled - begun, latency=clock.ticks[-1][0] - begun
        )

    def _end(self, padded: list[int], string_end: int | None, limit: int) -> tuple[list[int], Finish]:
        """A row's own tokens, and why they end: ``generate`` pads rows that ended before the last one."""
        token_end = next((n for n, token in enumerate(padded, 1) if token in self.model.stop_tokens), None)
        if string_end is not None and (token_end is None or string_end < token_end):
            return padded[:string_end], "stop_string"
        if token_end is not None:
            return padded[:token_end], "stop_token"
        return padded[:limit], "length"


def _alike(a: Request, b: Request) -> bool:
    """Whether one ``generate`` call can serve both (seeds aside)."""

    def settings(r: Request) -> tuple[object, ...]:
        return r.max_new_tokens, tuple(r.stop), r.sampling.temperature, r.sampling.top_p, r.sampling.top_k

    return settings(a) == settings(b)


@contextmanager
def _configured(model: Any, config: GenerationConfig) -> Iterator[None]:
    """While inside, the model's own configuration of ``generate`` is this one."""
    before, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = before


def _config(request: Request, limit: int, stop_tokens: list[int], pad: int) -> GenerationConfig:
    sampling = request.sampling
    sampled: dict[str, Any] = {}
    if not sampling.greedy:
        sampled = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return GenerationConfig(
        max_new_tokens=limit,
        do_sample=not sampling.greedy,
        eos_token_id=stop_tokens or None,
        pad_token_id=pad,
        **sampled,
    )
