"""Block diffusion against a slow, obvious decoder: no cache, one row at a time, the attention rule written out."""

import dataclasses
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny import run, tiny, tokens

from decodebench.decoding import Progress, Request, Sampling
from decodebench.errors import UserError
from decodebench.methods.block_diffusion import CONTEXTS, BlockDiffusion
from decodebench.models import LoadedModel, load_model

MODELS = {kind: tiny(kind, logit_scale=4.0) for kind in ("qwen2", "llama")}


@dataclass
class Slow:
    """What a decoder is, in plain words. Sets ``doubtful`` where float noise could decide."""

    model: LoadedModel
    block_size: int
    context: str
    tau: float = 0.5
    steps: int | None = None
    doubtful: bool = False

    def visible(self, query: int, key: int, text: int) -> bool:
        """Whether a position sees another, with so many positions of finished text before the current block."""
        if query >= text:
            return True
        if self.context == "causal":
            return key <= query
        return key < text and key // self.block_size <= query // self.block_size

    @torch.inference_mode()
    def predict(self, text: list[int], block: list[int | None]) -> torch.Tensor:
        """The distribution over tokens at each position of a block: what the state before it says."""
        mask_id = self.model.tokenizer.mask_token_id
        fed = text + [mask_id if token is None else token for token in block]
        rule = torch.tensor([[self.visible(q, k, len(text)) for k in range(len(fed))] for q in range(len(fed))])
        mask = torch.zeros(rule.shape).masked_fill(~rule, -math.inf)[None, None]
        logits = self.model.model(torch.tensor([fed]), attention_mask=mask).logits[0]
        return logits[len(text) - 1 : -1].softmax(-1)

    def fill(self, text: list[int], block: list[int | None]) -> None:
        """One pass over a block."""
        prediction = self.predict(text, block)
        masked = [i for i, token in enumerate(block) if token is None]
        sure = {i: float(prediction[i].max()) for i in masked}
        order = sorted(masked, key=lambda i: -sure[i])
        two = prediction.topk(2).values
        self.doubtful |= bool((two[:, 0] - two[:, 1] < 1e-4).any())
        values = sorted([*sure.values(), self.tau])
        self.doubtful |= any(b - a < 1e-4 for a, b in itertools.pairwise(values))
        if self.steps:
            chosen = order[: math.ceil(len(block) / self.steps)]
        else:
            chosen = order[:1] + [i for i in order[1:] if sure[i] >= self.tau and self.tau < 1]
        for i in chosen:
            block[i] = int(prediction[i].argmax())

    def decode(self, request: Request) -> tuple[list[int], list[int]]:
        """Tokens and how many of them each pass commits."""
        text, committed = [*request.prompt], []
        limit = len(text) + request.max_new_tokens
        while True:
            begun = len(text) % self.block_size if self.context == "block" else 0
            block: list[int | None] = [None] * (self.block_size - begun)
            while None in block:
                self.fill(text, block)
                committed.append(0)
            new = [token for token in block if token is not None][: limit - len(text)]
            stops = [i for i, token in enumerate(new) if token in self.model.stop_tokens]
            new = new[: stops[0] + 1] if stops else new
            text += new
            committed[-1] = len(new)
            if stops or len(text) == limit:
                return text[len(request.prompt) :], committed


REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(3, 299), min_size=1, max_size=24),
        max_new_tokens=st.integers(1, 20),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("context", CONTEXTS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    requests=REQUESTS,
    kind=st.sampled_from(["qwen2", "llama"]),
    block_size=st.integers(2, 7),
    tau_or_steps=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]) | st.integers(1, 5).map(lambda n: -n),
    batch_size=st.integers(1, 4),
    batching=st.sampled_from(["continuous", "static"]),
)
def test_fast_and_slow_fill_the_same_blocks_in_the_same_passes(
    context: str,
    requests: list[Request],
    kind: str,
    block_size: int,
    tau_or_steps: float,
    batch_size: int,
    batching: str,
) -> None:
    how: dict[str, Any] = {"steps": int(-tau_or_steps)} if tau_or_steps < 0 else {"tau": tau_or_steps}
    slow = Slow(MODELS[kind], block_size, context, **how)
    expected = [slow.decode(request) for request in requests]
    assume(not slow.doubtful)
    method = BlockDiffusion(block_size=block_size, context=context, **how)
    generations = run(MODELS[kind], method, requests, batch_size, batching=batching)
    assert [(g.tokens, g.committed) for g in generations] == expected


@pytest.mark.parametrize("context", CONTEXTS)
def test_steps_and_thresholds_say_how_many_passes_a_block_takes(context: str) -> None:
    model = tiny("llama", stop=False)
    requests = [Request([9 + n] * 8 * (n + 1), 16) for n in range(3)]

    def committed(**knobs: Any) -> list[list[int]]:
        return [g.committed for g in run(model, BlockDiffusion(block_size=8, context=context, **knobs), requests, 2)]

    assert committed(steps=1) == [[8, 8]] * 3
    assert committed(steps=3) == [[0, 0, 8, 0, 0, 8]] * 3
    assert committed(steps=8) == committed(steps=99) == committed(tau=1.0) == [[*[0] * 7, 8] * 2] * 3
    assert committed(tau=0.0) == [[8, 8]] * 3


def test_requests_of_one_batch_have_thresholds_of_their_own() -> None:
    model = tiny("llama", stop=False)
    prompt = [40, 41, 42, 43]
    requests = [Request(prompt, 8, tau=tau) for tau in (1.0, 0.0, lambda p: float(len(p.tokens) < 4))]
    one, all_at_once, both = run(model, BlockDiffusion(block_size=4, tau=0.3), requests, batch_size=3)
    assert one.committed == [0, 0, 0, 4, 0, 0, 0, 4]
    assert all_at_once.committed == [4, 4]
    assert both.committed == [0, 0, 0, 4, 4]


def test_a_prompt_that_ends_within_a_block_begins_it() -> None:
    model = tiny("llama", stop=False)
    generation = run(model, BlockDiffusion(block_size=4, steps=1, context="block"), [Request([7] * 6, 9)])[0]
    assert generation.committed == [2, 4, 3]


def test_sampled_text_depends_on_its_seed_and_not_on_its_neighbours() -> None:
    model = tiny("qwen2", stop=False)
    requests = [Request([9 + n] * (1 + 3 * n), 12, sampling=Sampling(temperature=1.0, seed=n % 2)) for n in range(4)]
    alone = tokens(run(model, BlockDiffusion(tau=0.2), requests, batch_size=1))
    assert tokens(run(model, BlockDiffusion(tau=0.2), requests, batch_size=3)) == alone
    assert alone != tokens(run(model, BlockDiffusion(tau=0.2), [Request(r.prompt, 12) for r in requests]))


def test_a_predicted_mask_fills_its_position() -> None:
    model = dataclasses.replace(tiny("llama", stop=False), card={"mask_token": "17"})
    said = run(model, BlockDiffusion(block_size=4, steps=1), [Request([5] * 4, 4)])[0].tokens[0]
    method = BlockDiffusion(block_size=4, tau=1.0, mask_token=str(said))
    assert len(run(model, method, [Request([5] * 4, 40)])[0].tokens) == 40


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rows_fill_the_context_to_its_last_position(kind: str, context: str) -> None:
    model = tiny(kind, max_position_embeddings=48, stop=False)
    requests = [Request([5 + n] * n, 500) for n in (1, 20, 47)]
    generations = run(model, BlockDiffusion(block_size=5, context=context), requests, batch_size=3)
    assert [len(g.tokens) for g in generations] == [47, 28, 1]


def test_an_answer_is_streamed_block_by_block() -> None:
    model, seen = tiny("llama", stop=False), []

    def listen(progress: Progress, new: list[int]) -> None:
        seen.append(len(new))

    BlockDiffusion(block_size=4, tau=1.0).generator(model, 1).generate([Request([5] * 4, 10)], on_commit=listen)
    assert seen == [4, 4, 2]


def test_the_published_format_is_loaded_with_its_block_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "MARS-Qwen2.5-0.5B-BD3LM-blk8"
    tiny("qwen2", seed=3).model.save_pretrained(folder)
    tiny("qwen2").tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "a2d-qwen2", "architectures": ["A2DQwen2LMHeadModel"], "is_causal": False}
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.A2DQwen2LMHeadModel"}
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model(str(folder), dtype="float32", device="cpu")
    assert model.card == {"diffusion_block_size": 8}
    method = BlockDiffusion(tau=0.3)
    request = Request([40, 41, 42], 20)
    generations = run(model, method, [request])
    assert (method.block_size, method.context) == (8, "block")
    assert not caplog.records
    slow = Slow(dataclasses.replace(tiny("qwen2", seed=3), stop_tokens=model.stop_tokens), 8, "block", 0.3)
    assert (generations[0].tokens, generations[0].committed) == slow.decode(request)


def test_the_card_says_block_size_and_context_unless_others_are_asked_for() -> None:
    carded = dataclasses.replace(tiny(), card={"diffusion_block_size": 6, "diffusion_context": "causal"})
    method = BlockDiffusion()
    method.bind(carded)
    assert (method.block_size, method.context, method.tau, method.mask_token) == (6, "causal", 0.95, "<mask>")
    method = BlockDiffusion(block_size=3, context="block", steps=2)
    method.bind(carded)
    assert (method.block_size, method.context, method.tau) == (3, "block", None)


def test_an_untrained_model_is_remarked_upon_once(caplog: pytest.LogCaptureFixture) -> None:
    model = dataclasses.replace(tiny(), name="never diffused")
    BlockDiffusion().generator(model, 1)
    BlockDiffusion().generator(model, 1)
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        "never diffused was not trained for block diffusion"
    ]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"block_size": 1}, "--block-size 1: must be between 2 and 64"),
        ({"tau": 1.5}, "--tau 1.5: must be between 0 and 1"),
        ({"steps": 0}, "--steps 0: must be at least 1"),
        ({"steps": 2, "tau": 0.5}, "--tau 0.5 and --steps 2: fill by confidence or in steps, not both"),
        ({"context": "casual"}, "unknown value of --context 'casual': did you mean 'causal'[?]"),
    ],
)
def test_knobs_out_of_range_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        BlockDiffusion(**knobs)


def test_a_request_with_a_threshold_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(UserError, match="--tau 7: must be between 0 and 1"):
        BlockDiffusion().generator(tiny(), 1).generate([Request([5], 4, tau=7)])
    with pytest.raises(UserError, match=r"tau 0.5: with --steps 2 there is no confidence threshold"):
        BlockDiffusion(steps=2).generator(tiny(), 1).generate([Request([5], 4, tau=0.5)])


def test_a_whole_run_is_recorded(tmp_path: Path) -> None:
    data = harness.write_questions(tmp_path / "data", 3)
    (outcome,) = harness.run(tmp_path / "results", data, tiny("llama"), methods="block-diffusion")
    assert outcome.error is None
    assert outcome.aggregates["documents"] == 3


def test_sampled_text_does_not_depend_on_how_long_the_neighbours_answers_are() -> None:
    # what is drawn for the positions after an answer's end decides, too, in which order a block is filled
    model = tiny("llama", stop=False, logit_scale=3.0)
    requests = [Request([3, 3, 3, 6, 3, 4], 2, sampling=Sampling(0.9, seed=3)), Request([3], 3)]
    decoder = BlockDiffusion(tau=0.3, block_size=3)
    assert tokens(run(model, decoder, requests, batch_size=2)) == tokens(run(model, decoder, requests, batch_size=1))
