"""Jacobi decoding gives the autoregressive text in the passes that plain loops over the stock model take."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny import reference, run, tiny, tokens

from decodebench.decoding import Request, Sampling
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.jacobi import INITS, Jacobi, follow
from decodebench.models import LoadedModel


@dataclass
class Slow:
    """One row, no cache. Sets ``doubtful`` where float noise could decide."""

    model: LoadedModel
    window: int
    init: str
    doubtful: bool = False

    def new_guesses(self, text: list[int], last_two: list[int]) -> list[int]:
        if self.init == "last":
            return [last_two[-1]] * self.window
        for size in (2, 1):
            for end in reversed(range(size - 1, len(text) - 1)):
                if text[end + 1 - size : end + 1] == last_two[-size:]:
                    after = text[end + 1 :]
                    return (after + after[-1:] * self.window)[: self.window]
        return [last_two[-1]] * self.window

    @torch.inference_mode()
    def decode(self, request: Request) -> tuple[list[int], list[int]]:
        text, committed = list(request.prompt), []
        guesses = self.new_guesses(text, (text[:1] + text)[-2:])
        done: list[int] = []
        while True:
            logits = self.model.model(torch.tensor([text + guesses])).logits[0, len(text) - 1 :]
            first, second = logits.topk(2).values.T
            self.doubtful |= bool((first - second < 1e-3).any())
            predicted = logits.argmax(-1).tolist()
            right = 0
            while right < self.window and guesses[right] == predicted[right]:
                right += 1
            guesses = (predicted[right + 1 :] + self.new_guesses(text, predicted[-2:]))[: self.window]
            new = predicted[: right + 1][: request.max_new_tokens - len(done)]
            stops = [i for i, token in enumerate(new) if token in self.model.stop_tokens]
            new = new[: stops[0] + 1] if stops else new
            done, text = done + new, text + new
            committed.append(len(new))
            if stops or len(done) == request.max_new_tokens:
                return done, committed


REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(3, 40), min_size=1, max_size=24),
        max_new_tokens=st.integers(1, 20),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    requests=REQUESTS,
    kind=st.sampled_from(["qwen2", "llama"]),
    window=st.integers(1, 9),
    init=st.sampled_from(["prompt", "last"]),
    batch_size=st.integers(1, 4),
    batching=st.sampled_from(["continuous", "static"]),
)
def test_fast_and_slow_jacobi_take_the_same_tokens_in_the_same_passes(
    requests: list[Request], kind: str, window: int, init: str, batch_size: int, batching: str
) -> None:
    model = tiny(kind)
    slow = Slow(model, window, init)
    expected = [slow.decode(request) for request in requests]
    assume(not slow.doubtful)
    generations = run(model, Jacobi(window=window, init=init), requests, batch_size, batching=batching)
    assert [(g.tokens, g.committed) for g in generations] == expected


@settings(max_examples=25)
@given(
    requests=REQUESTS,
    window=st.integers(1, 9),
    init=st.sampled_from(INITS),
    batch_size=st.integers(1, 4),
    stop=st.frozensets(st.integers(0, 299), max_size=12),
)
def test_random_models_give_the_tokens_of_generate(
    requests: list[Request], window: int, init: str, batch_size: int, stop: frozenset[int]
) -> None:
    model = dataclasses.replace(tiny("llama"), stop_tokens=stop)
    expected = [reference(model, request) for request in requests]
    assert tokens(run(model, Jacobi(window=window, init=init), requests, batch_size)) == expected


@pytest.mark.parametrize("init", INITS)
def test_sampled_text_is_the_autoregressive_one(init: str) -> None:
    model = tiny("qwen2", stop=False)
    requests = [
        Request([9 + n] * (1 + 3 * n), 20 - n, sampling=Sampling(temperature=0.7, top_p=0.9, seed=n)) for n in range(6)
    ]
    expected = tokens(run(model, AR(), requests, batch_size=2))
    assert tokens(run(model, Jacobi(init=init), requests, batch_size=3)) == expected
    assert expected != tokens(run(model, AR(), [Request(r.prompt, r.max_new_tokens) for r in requests], batch_size=2))


def test_real_prompts_give_the_autoregressive_tokens(embedded: LoadedModel, questions: list[list[int]]) -> None:
    requests = [Request(prompt, limit) for prompt, limit in zip(questions[:3], (6, 4, 1), strict=True)]
    expected = tokens(run(embedded, AR(), requests, 2))
    for init in INITS:
        assert tokens(run(embedded, Jacobi(init=init), requests, 2)) == expected


def test_a_text_that_repeats_itself_takes_whole_windows() -> None:
    model = tiny("llama", seed=9, stop=False)
    answer = reference(model, Request([5, 6, 7], 120))
    assert len({*answer[-20:]}) == 1
    generation = run(model, Jacobi(window=4), [Request([5, 6, 7, *answer], 25)])[0]
    assert generation.committed == [5, 5, 5, 5, 5]


def test_rows_fill_the_context_to_its_last_position() -> None:
    model = tiny("gpt2", max_position_embeddings=48, stop=False)
    requests = [Request([5 + n] * n, 500) for n in (1, 20, 47)]
    expected = [reference(model, dataclasses.replace(r, max_new_tokens=48 - len(r.prompt))) for r in requests]
    assert tokens(run(model, Jacobi(window=8), requests, batch_size=3)) == expected


def test_what_followed_is_looked_up_in_the_text_alone() -> None:
    text = torch.tensor([[1, 2, 3, 9, 2, 4, 2, 8, 8, 1, 2]] * 5)
    total = torch.tensor([7, 7, 7, 2, 7])
    last_two = torch.tensor([[1, 2], [9, 2], [7, 2], [9, 9], [1, 8]])
    assert follow(text, total, last_two, 3).tolist() == [[3, 9, 2], [4, 2, 2], [4, 2, 2], [9] * 3, [8] * 3]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"window": 0}, "--window 0: must be between 1 and 256"),
        ({"init": "promt"}, "unknown value of --init 'promt': did you mean 'prompt'[?]"),
    ],
)
def test_knobs_out_of_range_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        Jacobi(**knobs)
