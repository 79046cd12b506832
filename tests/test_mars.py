"""MARS against a slow, obvious decoder: no cache, one row at a time, plain loops over the stock model."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny import run, tiny, tokens

from decodebench.decoding import Generation, Progress, Request
from decodebench.decoding.engine import Engine
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS, find_mask
from decodebench.models import LoadedModel

MODELS = {kind: tiny(kind, logit_scale=4.0) for kind in ("qwen2", "llama")}


@dataclass
class Slow:
    """What a decoder is, in plain words. Sets ``doubtful`` where float noise could decide."""

    model: LoadedModel
    block_size: int
    tau: float
    metric: str = "probability"
    max_commit: int | None = None
    doubtful: bool = False

    @property
    def one_by_one(self) -> bool:
        return self.tau == (0.0 if self.metric == "entropy" else 1.0)

    @torch.inference_mode()
    def predictions(self, text: list[int]) -> list[int]:
        """The tokens that one pass takes after this text."""
        mask = self.model.tokenizer.mask_token_id
        window = text + [mask] * (self.block_size - 1)
        logits = self.model.model(torch.tensor([window])).logits[0, len(text) - 1 :]
        taken: list[int] = []
        for row in logits:
            first, second = row.topk(2).values.tolist()
            self.doubtful |= first - second < 1e-3
            if taken and (self.one_by_one or not self.sure(row.softmax(-1))):
                break
            taken.append(int(row.argmax()))
        return taken[: self.max_commit]

    def sure(self, probability: torch.Tensor) -> bool:
        first, second = probability.topk(2).values.tolist()
        entropy = -sum(p * torch.tensor(p).log().item() for p in probability.tolist() if p > 0)
        value = {"probability": first, "margin": first - second, "entropy": entropy}[self.metric]
        self.doubtful |= abs(value - self.tau) < 1e-4
        return value <= self.tau if self.metric == "entropy" else value >= self.tau

    def cut(self, request: Request, done: list[int], new: list[int]) -> list[int]:
        """What is left of new tokens, given the limit and the stop tokens."""
        kept = new[: request.max_new_tokens - len(done)]
        for i, token in enumerate(kept):
            if token in self.model.stop_tokens:
                return kept[: i + 1]
        return kept

    def ended(self, request: Request, done: list[int]) -> bool:
        return len(done) == request.max_new_tokens or (len(done) > 0 and done[-1] in self.model.stop_tokens)

    def decode(self, request: Request) -> tuple[list[int], list[int]]:
        """Tokens and how many of them each pass committed."""
        done: list[int] = []
        committed = []
        while not self.ended(request, done):
            new = self.cut(request, done, self.predictions([*request.prompt, *done]))
            done += new
            committed.append(len(new))
        return done, committed


@dataclass
class SlowRow:
    place: int
    request: Request
    done: list[int] = dataclasses.field(default_factory=list)
    committed: list[int] = dataclasses.field(default_factory=list)
    in_block: int = 0
    """Tokens of the unfinished block: committed, but not in the cache."""


def slow_blocks(
    slow: Slow, requests: Sequence[Request], batch_size: int, block: int, static: bool
) -> list[tuple[list[int], list[int]]]:
    """The paper's batch mode: a row with a full block waits until all blocks are full; then one pass caches them."""
    queue = [SlowRow(place, request) for place, request in enumerate(requests)]
    running: list[SlowRow] = []
    ended: list[SlowRow] = []

    def commit(row: SlowRow, new: list[int]) -> None:
        new = slow.cut(row.request, row.done, new)
        row.done += new
        row.in_block += len(new)
        row.committed.append(len(new))
        if slow.ended(row.request, row.done):
            ended.append(row)

    while queue or running:
        if not (static and running):
            batch = len(queue) if not static else batch_size  # how many rows may still begin in this batch
            while queue and batch and len(running) < batch_size:
                row, batch = queue.pop(0), batch - 1
                commit(row, slow.predictions([*row.request.prompt])[:1])  # the prompt is read, and gives one token
                running += [] if row in ended else [row]
        full = all(row.in_block == block for row in running)
        for row in running:
            new = slow.predictions([*row.request.prompt, *row.done])
            if full:
                row.in_block = 0
                commit(row, new[:1])
            else:
                commit(row, new[: block - row.in_block])
        running = [row for row in running if row not in ended]
    return [(row.done, row.committed) for row in sorted(ended, key=lambda row: row.place)]


def outcome(generations: list[Generation]) -> list[tuple[list[int], list[int]]]:
    return [(g.tokens, g.committed) for g in generations]


REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(3, 299), min_size=1, max_size=24),
        max_new_tokens=st.integers(1, 20),
    ),
    min_size=1,
    max_size=5,
)
METRIC_AND_TAU = st.one_of(
    st.tuples(st.sampled_from(["probability", "margin"]), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])),
    st.tuples(st.just("entropy"), st.sampled_from([0.0, 0.2, 0.7, 1.5, 3.0, 9.0])),
)
SETTINGS: dict[str, Any] = {
    "requests": REQUESTS,
    "kind": st.sampled_from(["qwen2", "llama"]),
    "metric_and_tau": METRIC_AND_TAU,
    "block_size": st.integers(2, 9),
    "max_commit": st.none() | st.integers(1, 5),
    "batch_size": st.integers(1, 4),
    "batching": st.sampled_from(["continuous", "static"]),
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(cache=st.sampled_from(["ragged", "none"]), **SETTINGS)
def test_fast_and_slow_mars_take_the_same_tokens_in_the_same_passes(
    cache: str,
    requests: list[Request],
    kind: str,
    metric_and_tau: tuple[str, float],
    block_size: int,
    max_commit: int | None,
    batch_size: int,
    batching: str,
) -> None:
    metric, tau = metric_and_tau
    slow = Slow(MODELS[kind], block_size, tau, metric, max_commit)
    expected = [slow.decode(request) for request in requests]
    assume(not slow.doubtful)
    mars = MARS(block_size=block_size, tau=tau, metric=metric, max_commit=max_commit, cache=cache)
    assert outcome(run(MODELS[kind], mars, requests, batch_size, batching=batching)) == expected


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(cache_block=st.integers(2, 12), **SETTINGS)
def test_the_papers_block_cache_waits_and_caches_as_it_says(
    cache_block: int,
    requests: list[Request],
    kind: str,
    metric_and_tau: tuple[str, float],
    block_size: int,
    max_commit: int | None,
    batch_size: int,
    batching: str,
) -> None:
    metric, tau = metric_and_tau
    slow = Slow(MODELS[kind], block_size, tau, metric, max_commit)
    expected = slow_blocks(slow, requests, batch_size, cache_block, batching == "static")
    assume(not slow.doubtful)
    mars = MARS(
        block_size=block_size, tau=tau, metric=metric, max_commit=max_commit, cache="block", cache_block=cache_block
    )
    assert outcome(run(MODELS[kind], mars, requests, batch_size, batching=batching)) == expected


def test_a_block_may_be_longer_than_any_answer() -> None:
    model = MODELS["llama"]
    requests = [Request([9 + n] * (7 * n + 1), 20 - n) for n in range(4)]
    slow = Slow(model, block_size=4, tau=0.4)
    expected = slow_blocks(slow, requests, batch_size=3, block=512, static=False)
    assert not slow.doubtful
    mars = MARS(block_size=4, tau=0.4, cache="block", cache_block=512)
    assert outcome(run(model, mars, requests, batch_size=3)) == expected


@pytest.mark.parametrize("cache", ["ragged", "block", "none"])
@pytest.mark.parametrize(("metric", "tau"), [("probability", 1.0), ("margin", 1.0), ("entropy", 0.0)])
def test_at_the_end_of_the_metrics_range_mars_is_autoregressive(cache: str, metric: str, tau: float) -> None:
    # so sharp that some confidences are exactly 1 in float32
    model = tiny("qwen2", logit_scale=60.0)
    requests = [Request([9 + n] * (1 + 5 * n), 24 - n) for n in range(6)]
    expected = run(model, AR(), requests, batch_size=3)
    generations = run(model, MARS(tau=tau, metric=metric, cache=cache), requests, batch_size=3)
    assert tokens(generations) == tokens(expected)
    assert {taken for g in generations for taken in g.committed} <= {0, 1}  # 0: a row that waits for its block


@pytest.mark.parametrize("cache", ["ragged", "block", "none"])
def test_real_prompts_at_tau_1_give_the_autoregressive_tokens(
    embedded: LoadedModel, questions: list[list[int]], cache: str
) -> None:
    requests = [Request(prompt, limit) for prompt, limit in zip(questions[:4], (9, 4, 6, 1), strict=True)]
    mars = MARS(tau=1.0, cache=cache, cache_block=4)
    assert tokens(run(embedded, mars, requests, 2)) == tokens(run(embedded, AR(), requests, 2))


def committed(model: LoadedModel, requests: list[Request], **knobs: Any) -> list[list[int]]:
    return [g.committed for g in run(model, MARS(**knobs), requests, batch_size=len(requests))]


def test_requests_of_one_batch_have_thresholds_of_their_own() -> None:
    model = tiny("llama", logit_scale=4.0, stop=False)
    requests = [Request([40, 41, 42], 16, tau=tau) for tau in (1.0, 0.0, None)]
    careful, careless, default = committed(model, requests, tau=0.3, block_size=4)
    assert careful == [1] * 16
    assert careless == [4] * 4
    assert default == committed(model, [Request([40, 41, 42], 16)], tau=0.3, block_size=4)[0]


def test_a_callable_threshold_is_asked_before_every_pass() -> None:
    model = tiny("llama", logit_scale=4.0, stop=False)

    def by_length(progress: Progress) -> float:
        return 1.0 if len(progress.tokens) < 5 else 0.0

    assert committed(model, [Request([40, 41], 13, tau=by_length)], block_size=4) == [[1, 1, 1, 1, 1, 4, 4]]


def test_an_assigned_threshold_holds_from_the_next_pass_on() -> None:
    model = tiny("llama", logit_scale=4.0, stop=False)
    requests = [Request([40, 41], 12, tau=1.0), Request([44] * 9, 12, tau=1.0)]

    def lower(progress: Progress, new: list[int]) -> None:
        if progress.index == 0 and len(progress.tokens) == 3:
            progress.request.tau = 0.0

    first, second = MARS(block_size=4).generator(model, batch_size=2).generate(requests, on_commit=lower)
    assert first.committed == [1, 1, 1, 4, 4, 1]
    assert second.committed == [1] * 12


def test_passes_at_tau_1_feed_no_masks() -> None:
    model, fed = tiny("llama", stop=False), []
    engine = MARS(tau=1.0, block_size=8).generator(model, batch_size=1)
    hook = model.model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].shape))
    engine.generate([Request([5] * 6, 4)])
    hook.remove()
    assert fed == [(1, 6), (1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"tau": 1.5}, "--tau 1.5: must be between 0 and 1 for the probability metric"),
        ({"tau": 1.01, "metric": "margin"}, "--tau 1.01: must be between 0 and 1 for the margin metric"),
        ({"tau": -0.1}, "--tau -0.1: must be at least 0"),
        ({"block_size": 1}, "--block-size 1: must be between 2 and 64"),
        ({"metric": "entropi"}, "unknown value of --metric 'entropi': did you mean 'entropy'?"),
    ],
)
def test_knobs_out_of_range_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message.replace('?', '[?]')}$"):
        MARS(**knobs)


def test_a_request_with_a_threshold_out_of_range_is_refused_before_anything_runs() -> None:
    engine = MARS().generator(tiny(), batch_size=1)
    with pytest.raises(UserError, match="--tau 7: must be between 0 and 1"):
        engine.generate([Request([5], 4), Request([5], 4, tau=7)])
    assert isinstance(engine, Engine)
    assert engine.statistics.passes == 0
    assert MARS(metric="entropy", tau=7.0).tau == 7.0


def test_the_mask_is_the_one_asked_for_else_the_checkpoints_else_the_tokenizers() -> None:
    model = tiny()
    words = model.tokenizer
    assert find_mask(model, None) == words.mask_token_id
    carded = dataclasses.replace(model, card={"mask_token": "<turn>", "block_size": 6})
    assert find_mask(carded, None) == words.convert_tokens_to_ids("<turn>")
    assert find_mask(carded, "<mask>") == words.mask_token_id
    assert find_mask(carded, "17") == 17 or "17" in words.get_vocab()
    assert find_mask(carded, "299") == 299
    with pytest.raises(UserError, match="--mask-token '300' is not in the vocabulary of tiny-qwen2"):
        find_mask(model, "300")
    with pytest.raises(UserError, match="the checkpoint's mask token '<gone>' is not in the vocabulary"):
        find_mask(dataclasses.replace(model, card={"mask_token": "<gone>"}), None)


def test_the_block_size_is_the_checkpoints_unless_one_is_asked_for() -> None:
    carded = dataclasses.replace(tiny("llama", logit_scale=4.0, stop=False), card={"block_size": 6})
    assert committed(carded, [Request([5, 6], 12)], tau=0.0) == [[6, 6]]
    assert committed(carded, [Request([5, 6], 12)], tau=0.0, block_size=3) == [[3, 3, 3, 3]]


def test_a_model_without_a_mask_says_how_to_name_one() -> None:
    words = tiny().tokenizer.__class__(tokenizer_object=tiny().tokenizer.backend_tokenizer, eos_token="<eos>")
    with pytest.raises(
        UserError, match=r"has no mask token, which mars needs: name an unused special token .* --mask-token"
    ):
        find_mask(dataclasses.replace(tiny(), tokenizer=words), None)


def test_an_untrained_model_is_remarked_upon_once(caplog: pytest.LogCaptureFixture) -> None:
    model = dataclasses.replace(tiny(), name="fresh")
    MARS().generator(model, 1)
    MARS().generator(model, 1)
    MARS().generator(dataclasses.replace(model, name="trained", card={"block_size": 4}), 1)
    assert [record.message.split(" (")[0] for record in caplog.records] == ["fresh was not trained for MARS"]
