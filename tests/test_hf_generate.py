"""The outside baseline says what our own says, and its traces mean the same."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from harness import save_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import run, tiny, tokenizer, tokens

from decodebench.decoding import Generation, Request, Sampling
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.drafts import load_draft
from decodebench.methods.hf_generate import HFGenerate
from decodebench.models import LoadedModel


def generate(model: LoadedModel, requests: list[Request], batch_size: int = 4) -> list[Generation]:
    return HFGenerate().generator(model, batch_size).generate(requests)


def said(generations: list[Generation]) -> list[tuple[str, list[int], str]]:
    return [(g.text, g.tokens, g.finish) for g in generations]


STOPS = st.lists(st.sampled_from([tokenizer().decode([t]) for t in range(40, 200, 3)]), max_size=6, unique=True)


@settings(max_examples=60)
@given(
    prompts=st.lists(st.lists(st.integers(3, 299), min_size=1, max_size=30), min_size=1, max_size=6),
    limits=st.lists(st.sampled_from([1, 4, 12]), min_size=6, max_size=6),
    stop=STOPS,
    stop_tokens=st.frozensets(st.integers(0, 299), max_size=20),
    batch_size=st.integers(1, 4),
)
def test_greedy_answers_equal_our_own(
    prompts: list[list[int]], limits: list[int], stop: list[str], stop_tokens: frozenset[int], batch_size: int
) -> None:
    model = dataclasses.replace(tiny("llama"), stop_tokens=stop_tokens)
    requests = [Request(prompt, limit, stop=stop) for prompt, limit in zip(prompts, limits, strict=False)]
    assert said(generate(model, requests, batch_size)) == said(run(model, AR(), requests, batch_size))


def test_the_end_of_the_prompt_is_no_part_of_a_stop_string() -> None:
    model = tiny()
    first = run(model, AR(), [Request(tokenizer().encode("So the answer"), 1)])[0].text
    request = Request(tokenizer().encode("So the answer"), 6, stop=["er" + first])
    assert said(generate(model, [request])) == said(run(model, AR(), [request]))


def test_a_checkpoints_own_defaults_do_not_make_it_another_method() -> None:
    model = tiny("llama")
    model.model.generation_config.repetition_penalty = 50.0
    requests = [Request([9] * 7, 12)]
    try:
        assert tokens(generate(model, requests)) == tokens(run(model, AR(), requests))
        assert model.model.generation_config.repetition_penalty == 50.0
    finally:
        model.model.generation_config.repetition_penalty = None


def test_requests_of_different_settings_are_served_in_their_order() -> None:
    model = tiny("llama")
    requests = [
        Request([9] * 3, 5),
        Request([9] * 4, 5),
        Request([9] * 5, 8),
        Request([9] * 6, 8, stop=["Q:"]),
        Request([9] * 7, 8, sampling=Sampling(1.0, top_k=5, seed=1)),
        Request([9] * 600, 8),
        Request([9] * 8, 8),
    ]
    finished: list[int] = []
    engine = HFGenerate().generator(model, 4)
    generations = engine.generate(requests, on_finish=lambda index, _: finished.append(index))
    greedy = [0, 1, 2, 3, 6]
    expected = run(model, AR(), [requests[n] for n in greedy])
    assert [generations[n].tokens for n in greedy] == tokens(expected)
    assert finished == list(range(7))
    assert generations[5].finish == "prompt_too_long"
    assert generations[4].tokens == engine.generate([requests[4]])[0].tokens  # the seed decides


def test_traces_count_one_token_per_pass() -> None:
    model = tiny("llama", stop=False)
    engine = HFGenerate().generator(model, 2)
    generations = engine.generate([Request([9] * 3, 6), Request([8] * 30, 6), Request([9] * 3, 4)])
    assert engine.statistics.passes == 10
    for g, n in zip(generations, (6, 6, 4), strict=True):
        assert g.committed == [1] * n
        assert len(g.pass_seconds) == n
        assert g.ttft == g.pass_seconds[0] < g.latency
        assert math.isclose(sum(g.pass_seconds), g.latency, rel_tol=1e-6)
    statistics = engine.statistics
    assert math.isclose(
        statistics.prefill_seconds + statistics.decode_seconds,
        sum(generations[n].latency for n in (0, 2)),
        rel_tol=1e-6,
    )


@settings(max_examples=40)
@given(
    prompts=st.lists(st.lists(st.integers(3, 12), min_size=1, max_size=30), min_size=1, max_size=3),
    limit=st.sampled_from([1, 4, 12]),
    stop=STOPS,
    stop_tokens=st.frozensets(st.integers(0, 299), max_size=20),
    drafts=st.sampled_from([{"prompt_lookup": 3}, {"assistant_tokens": 2}, {"assistant_tokens": 7}, {}]),
)
def test_drafts_change_no_greedy_answer(
    draft_folder: str, prompts: list[list[int]], limit: int, stop: list[str], stop_tokens: frozenset[int], drafts: Any
) -> None:
    model = dataclasses.replace(tiny("llama"), stop_tokens=stop_tokens)
    requests = [Request(prompt, limit, stop=stop) for prompt in prompts]
    assistant = None if "prompt_lookup" in drafts else draft_folder
    generations = HFGenerate(assistant=assistant, **drafts).generator(model, 1).generate(requests)
    assert said(generations) == said(run(model, AR(), requests, 1))
    for g in generations:
        assert sum(g.committed) == len(g.tokens)
        assert min(g.committed) >= 1
        assert len(g.pass_seconds) == len(g.committed)


def test_drafts_that_are_right_save_passes(tmp_path: Path) -> None:
    itself = str(save_tiny(tmp_path))
    model = tiny("llama", stop=False)
    engine = HFGenerate(assistant=itself, assistant_tokens=3).generator(model, 1)
    generations = engine.generate([Request([9] * 7, 8), Request([8] * 30, 5)])
    assert [g.committed for g in generations] == [[4, 4], [4, 1]]
    assert engine.statistics.passes == 4


def test_the_assistants_own_settings_come_back(draft_folder: str) -> None:
    model = tiny("llama")
    method = HFGenerate(assistant=draft_folder, assistant_tokens=3)
    engine = method.generator(model, 1)
    assistant = load_draft(draft_folder, model, "--assistant").model
    before = assistant.generation_config
    engine.generate([Request([9] * 7, 6)])
    assert assistant.generation_config is before


@pytest.mark.parametrize(
    ("knobs", "batch_size", "message"),
    [
        ({"prompt_lookup": 4, "assistant": "x"}, 1, r"^--prompt-lookup 4 and --assistant x: give one of them$"),
        ({"assistant_tokens": 4}, 1, r"^--assistant-tokens 4: name the model with --assistant$"),
        ({"prompt_lookup": 0}, 1, r"^--prompt-lookup 0: must be at least 1$"),
        ({"prompt_lookup": 4}, 2, r"^hf-generate with drafts, --batch-size 2: transformers drafts for one request"),
        ({"assistant": "./nowhere"}, 1, r"^--assistant: model folder './nowhere' does not exist$"),
    ],
)
def test_wrong_settings_are_refused(knobs: Any, batch_size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HFGenerate(**knobs).generator(tiny("llama"), batch_size)


def test_it_says_that_it_cannot_stream() -> None:
    with pytest.raises(UserError, match="hf-generate cannot stream"):
        HFGenerate().generator(tiny(), 1).generate([Request([5], 2)], on_commit=lambda *_: None)
