"""MARS that checks itself gives the autoregressive text in the passes that plain loops over the stock model take."""

import copy
import dataclasses
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny import reference, run, tiny, tokens

from decodebench.decoding import Request, Sampling
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.mars_verified import LAYOUTS, MARSVerified, tree
from decodebench.models import LoadedModel


@dataclass
class Slow:
    """One row, no cache, no tree. Sets ``doubtful`` where float noise could decide."""

    model: LoadedModel
    block_size: int
    layout: str
    doubtful: bool = False

    @torch.inference_mode()
    def predict(self, text: list[int], n: int) -> list[int]:
        """The predictions after the last n tokens of a text."""
        logits = self.model.model(torch.tensor([text])).logits[0, -n:]
        first, second = logits.topk(2).values.T
        self.doubtful |= bool((first - second < 1e-3).any())
        return logits.argmax(-1).tolist()

    def step(self, text: list[int], draft: list[int]) -> tuple[list[int], list[int]]:
        """What one pass commits, and the draft it leaves."""
        masks = [self.model.tokenizer.mask_token_id] * len(draft)
        checked = self.predict(text + draft, 1 + len(draft))
        right = 0
        while right < len(draft) and draft[right] == checked[right]:
            right += 1
        if self.layout == "full":
            return checked[: right + 1], self.predict(text + draft[:right] + masks, len(draft))
        ahead = checked + self.predict(text + draft + masks, len(draft))
        return checked[: right + 1], ahead[right + 1 :][: len(draft)]

    def decode(self, request: Request) -> tuple[list[int], list[int]]:
        """Tokens and how many of them each pass commits."""
        done: list[int] = []
        committed = []
        draft = [self.model.tokenizer.mask_token_id] * (self.block_size - 1)
        while True:
            new, draft = self.step([*request.prompt, *done], draft)
            new = new[: request.max_new_tokens - len(done)]
            stops = [i for i, token in enumerate(new) if token in self.model.stop_tokens]
            new = new[: stops[0] + 1] if stops else new
            done += new
            committed.append(len(new))
            if stops or len(done) == request.max_new_tokens:
                return done, committed


REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(3, 299), min_size=1, max_size=24),
        max_new_tokens=st.integers(1, 16),
    ),
    min_size=1,
    max_size=5,
)


def looping() -> LoadedModel:
    """A random model whose texts repeat themselves, so that drafts are often right."""
    return tiny("llama", seed=9)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    requests=REQUESTS,
    model=st.sampled_from([tiny("qwen2"), looping()]),
    block_size=st.integers(2, 6),
    batch_size=st.integers(1, 4),
    batching=st.sampled_from(["continuous", "static"]),
)
def test_fast_and_slow_take_the_same_tokens_in_the_same_passes(
    layout: str, requests: list[Request], model: LoadedModel, block_size: int, batch_size: int, batching: str
) -> None:
    slow = Slow(model, block_size, layout)
    expected = [slow.decode(request) for request in requests]
    assume(not slow.doubtful)
    method = MARSVerified(block_size=block_size, layout=layout)
    generations = run(model, method, requests, batch_size, batching=batching)
    assert [(g.tokens, g.committed) for g in generations] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25)
@given(
    requests=REQUESTS,
    block_size=st.integers(2, 9),
    batch_size=st.integers(1, 4),
    stop=st.frozensets(st.integers(0, 299), max_size=12),
)
def test_random_models_give_the_tokens_of_generate(
    layout: str, requests: list[Request], block_size: int, batch_size: int, stop: frozenset[int]
) -> None:
    model = dataclasses.replace(looping(), stop_tokens=stop)
    expected = [reference(model, request) for request in requests]
    method = MARSVerified(block_size=block_size, layout=layout)
    assert tokens(run(model, method, requests, batch_size)) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_right_drafts_save_passes(layout: str) -> None:
    model = looping()
    requests = [Request([40 + n] * (3 * n + 1), 30) for n in range(6)]
    passes = sum(g.passes for g in run(model, MARSVerified(block_size=4, layout=layout), requests, batch_size=3))
    assert passes < 0.8 * sum(len(t) for t in tokens(run(model, AR(), requests, batch_size=3)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sampled_text_is_the_autoregressive_one(layout: str) -> None:
    model = tiny("qwen2", stop=False)
    requests = [
        Request([9 + n] * (1 + 3 * n), 20 - n, sampling=Sampling(temperature=0.5, top_p=0.9, seed=n)) for n in range(6)
    ]
    expected = tokens(run(model, AR(), requests, batch_size=2))
    assert tokens(run(model, MARSVerified(layout=layout), requests, batch_size=3)) == expected


def test_a_sampled_draft_meets_the_draws_of_its_own_positions() -> None:
    """Where masks know the truth, a sampled draft is right: here neither text nor masks change what comes next."""
    model = dataclasses.replace(tiny("llama", stop=False), model=_deaf(tiny("llama", stop=False).model))
    request = Request([5, 6], 24, sampling=Sampling(temperature=1.0, seed=3))
    for layout in LAYOUTS:
        generation = run(model, MARSVerified(block_size=4, layout=layout), [request])[0]
        assert generation.committed == [1, 4, 4, 4, 4, 4, 3]
        assert generation.tokens == run(model, AR(), [request])[0].tokens


def _deaf(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model that hears the same token everywhere."""
    deaf = copy.deepcopy(model)
    embedding = deaf.get_input_embeddings()  # type: ignore[operator]
    embedding.weight.copy_(embedding.weight[:1].expand_as(embedding.weight).clone())
    return deaf


def test_real_prompts_give_the_autoregressive_tokens(embedded: LoadedModel, questions: list[list[int]]) -> None:
    requests = [Request(prompt, limit) for prompt, limit in zip(questions[:3], (5, 3, 1), strict=True)]
    expected = tokens(run(embedded, AR(), requests, 2))
    for layout in LAYOUTS:
        assert tokens(run(embedded, MARSVerified(layout=layout), requests, 2)) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_fill_the_context_to_its_last_position(layout: str) -> None:
    model = tiny("gpt2", max_position_embeddings=48, stop=False)
    requests = [Request([5 + n] * n, 500) for n in (1, 20, 47)]
    expected = [reference(model, dataclasses.replace(r, max_new_tokens=48 - len(r.prompt))) for r in requests]
    assert tokens(run(model, MARSVerified(layout=layout), requests, batch_size=3)) == expected


def test_the_tree_of_two_draft_tokens() -> None:
    sees, offset = tree(2)
    drawn = ["".join(".x"[seen] for seen in row) for row in sees[0].tolist()]
    assert drawn == [
        "x.......",  # first draft token
        "xx......",
        "..x.....",  # masks that follow the committed text
        "..xx....",
        "x...x...",  # … the first draft token
        "x...xx..",
        "xx....x.",  # … both
        "xx....xx",
    ]
    assert offset[0].tolist() == [0, 1, 0, 1, 1, 2, 2, 3]


def test_the_block_size_and_the_mask_are_the_checkpoints() -> None:
    carded = dataclasses.replace(tiny(), card={"mask_token": "<turn>", "block_size": 6})
    method = MARSVerified()
    method.bind(carded)
    assert (method.block_size, method.mask_token, method.max_draft) == (6, "<turn>", 5 + 6 * 5)
    method = MARSVerified(block_size=3, layout="linear")
    method.bind(carded)
    assert (method.block_size, method.max_draft) == (3, 4)


def test_knobs_out_of_range_are_named() -> None:
    with pytest.raises(UserError, match=r"^--block-size 1: must be between 2 and 64$"):
        MARSVerified(block_size=1)
    with pytest.raises(UserError, match=r"^unknown value of --layout 'liner': did you mean 'linear'[?]$"):
        MARSVerified(layout="liner")
