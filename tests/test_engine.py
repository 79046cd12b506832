"""The engine's autoregressive decoding is `model.generate`, token for token, whatever the batch."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import reference, run, tiny, tokens

from decodebench.decoding import Batching, Request
from decodebench.decoding.engine import Engine
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.hf_generate import HFGenerate
from decodebench.methods.mars import MARS
from decodebench.models import LoadedModel

PROMPT = st.lists(st.integers(3, 299), min_size=1, max_size=50)
REQUESTS = st.lists(st.builds(Request, prompt=PROMPT, max_new_tokens=st.integers(1, 16)), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def asked(embedded: LoadedModel, questions: list[list[int]]) -> tuple[LoadedModel, list[Request], list[list[int]]]:
    """A model that also stops at full stops, 32 real prompts of mixed limits, and what `generate` makes of each."""
    full_stop = embedded.token_id(".")
    assert full_stop is not None
    model = dataclasses.replace(embedded, stop_tokens=embedded.stop_tokens | {full_stop})
    limits = itertools.cycle([48, 5, 24, 1, 32, 9, 16, 40])
    requests = [Request(prompt, limit) for prompt, limit in zip(questions[:32], limits, strict=False)]
    return model, requests, [reference(model, request) for request in requests]


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_real_prompts_give_the_tokens_of_generate(
    asked: tuple[LoadedModel, list[Request], list[list[int]]], batch_size: int
) -> None:
    model, requests, expected = asked
    generations = run(model, AR(), requests, batch_size)
    assert tokens(generations) == expected
    assert {g.finish for g in generations} == {"length", "stop_token"}


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@settings(max_examples=100)
@given(
    requests=REQUESTS,
    batch_size=st.integers(1, 5),
    batching=st.sampled_from(["continuous", "static"]),
    stop=st.frozensets(st.integers(0, 299), max_size=12),
)
def test_random_models_give_the_tokens_of_generate(
    kind: str, requests: list[Request], batch_size: int, batching: str, stop: frozenset[int]
) -> None:
    model = dataclasses.replace(tiny(kind), stop_tokens=stop)
    expected = [reference(model, request) for request in requests]
    assert tokens(run(model, AR(), requests, batch_size, batching=batching)) == expected


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("qwen3", {"head_dim": 8}),
        ("mistral", {"sliding_window": None}),
        ("phi3", {}),
        ("olmo2", {}),
        ("gemma", {"head_dim": 8}),
        ("granite", {"logits_scaling": 4.0}),
        ("cohere", {}),
        ("gpt_neox", {}),
        ("gpt2", {}),
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
        ("mixtral", {"sliding_window": None, "num_local_experts": 4}),
    ],
)
def test_other_architectures_give_the_tokens_of_generate(kind: str, config: dict[str, Any]) -> None:
    model = tiny(kind, **config)
    requests = [Request(list(range(5, 5 + n)), 9) for n in (1, 30, 7, 2, 19)]
    assert tokens(run(model, AR(), requests, batch_size=3)) == [reference(model, r) for r in requests]


def test_no_requests_give_no_generations() -> None:
    assert run(tiny(), AR(), []) == []


def test_a_batch_may_be_larger_than_the_number_of_requests() -> None:
    request = Request([7], 5)
    assert tokens(run(tiny(), AR(), [request], batch_size=64)) == [reference(tiny(), request)]


def test_a_batch_needs_a_row() -> None:
    for method in (AR(), HFGenerate()):
        with pytest.raises(ValueError, match="batch_size 0"):
            method.generator(tiny(), batch_size=0)


@pytest.mark.parametrize(("batching", "order"), [("continuous", [1, 2, 0, 3, 4, 5]), ("static", [1, 0, 2, 3, 4, 5])])
def test_static_batches_wait_for_their_last_row_and_continuous_ones_do_not(
    batching: Batching, order: list[int]
) -> None:
    requests = [Request([9] * 5, limit) for limit in (8, 1, 4, 9, 9, 9)]
    ended: list[int] = []
    engine = AR().generator(tiny(stop=False), 2, batching)
    engine.generate(requests, on_finish=lambda index, _: ended.append(index))
    assert ended == order
    assert engine.statistics.passes == {"continuous": 24, "static": 26}[batching]


def test_a_prompt_that_is_too_long_is_reported_and_the_others_go_on() -> None:
    model = tiny(max_position_embeddings=64)
    requests = [Request([9] * 10, 4), Request([9] * 64, 4), Request([9] * 500, 4), Request([8] * 63, 4)]
    generations = run(model, AR(), requests, batch_size=2)
    assert [g.finish for g in generations] == ["length", "prompt_too_long", "prompt_too_long", "length"]
    assert [len(g.tokens) for g in generations] == [4, 0, 0, 1]  # the last has room for one token
    assert generations[1].committed == []


@pytest.mark.parametrize("kind", ["llama", "gpt2"])  # gpt2 has a table of positions, with nothing beyond its end
@pytest.mark.parametrize("decoder", [AR(), MARS(tau=0.2, block_size=8), MARS(tau=0.2, cache="block")], ids=str)
def test_rows_fill_the_context_to_its_last_position(kind: str, decoder: AR | MARS) -> None:
    model = tiny(kind, max_position_embeddings=48, stop=False, logit_scale=4.0)
    requests = [Request([5 + n] * n, 500) for n in (1, 20, 47)]
    generations = run(model, decoder, requests, batch_size=3)
    assert [len(g.tokens) for g in generations] == [47, 28, 1]
    if isinstance(decoder, AR):
        expected = [reference(model, dataclasses.replace(r, max_new_tokens=48 - len(r.prompt))) for r in requests]
        assert tokens(generations) == expected


def test_a_long_row_does_not_change_the_rotation_of_its_neighbours() -> None:
    scaling = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    model = tiny("phi3", rope_parameters=scaling, original_max_position_embeddings=64)
    requests = [Request([9] * 40, 30), Request([7] * 20, 30), Request([7] * 90, 4)]
    long, short, longer = run(model, AR(), requests, batch_size=2)
    assert short.tokens == reference(model, requests[1])
    assert long.tokens == reference(model, dataclasses.replace(requests[0], max_new_tokens=24))
    assert longer.finish == "prompt_too_long"


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError, RuntimeError])
def test_an_interrupted_run_leaves_model_and_engine_as_they_were(error: type[BaseException]) -> None:
    model, requests = tiny(), [Request([5] * n, 8) for n in (3, 9, 4)]
    expected = [reference(model, r) for r in requests]
    attention = model.model.config._attn_implementation
    engine = AR().generator(model, batch_size=2)

    def break_off(*_: object) -> None:
        raise error

    with pytest.raises(error):
        engine.generate(requests, on_commit=break_off)
    assert model.model.config._attn_implementation == attention
    assert not torch.is_inference_mode_enabled()
    assert [reference(model, r) for r in requests] == expected
    assert tokens(engine.generate(requests)) == expected


def test_a_run_may_start_another_on_the_same_model() -> None:
    model, requests = tiny(), [Request([5] * n, 6) for n in (3, 9, 4)]
    expected = [reference(model, r) for r in requests]
    inner = AR().generator(model, batch_size=1)
    seen = []

    def ask_again(*_: object) -> None:
        seen.append(tokens(inner.generate([requests[1]])))

    assert tokens(AR().generator(model, 2).generate(requests, on_commit=ask_again)) == expected
    assert seen == [[expected[1]]] * len(seen)
    assert seen


def test_a_pass_waits_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever moves data to the host goes through one of these calls, though on a CPU nobody waits in them."""
    waits: list[str] = []
    for name in ("item", "tolist", "cpu", "__bool__", "__int__", "__index__", "nonzero"):
        original: Callable[..., object] = getattr(torch.Tensor, name)

        def spy(
            self: torch.Tensor, *args: object, name: str = name, original: Callable[..., object] = original
        ) -> object:
            waits.append(name)
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, spy)
    model = tiny(stop=False, logit_scale=4.0)
    for decoder in (AR(), MARS(tau=0.3), MARS(tau=0.3, cache="block"), MARS(tau=0.3, cache="none")):
        engine = decoder.generator(model, batch_size=3)
        assert isinstance(engine, Engine)
        waits.clear()
        engine.generate([Request([5 + n] * 6, 12) for n in range(3)])
        assert waits == ["cpu"] * engine.statistics.passes
