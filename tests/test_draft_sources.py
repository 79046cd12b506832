"""Draft sources: what they find and propose, each against a slow and obvious reference."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Recording, run, tiny, tokenizer

from decodebench.decoding import Request
from decodebench.errors import UserError
from decodebench.methods.drafts.lookup import find
from decodebench.methods.speculative import Speculative


def slow_find(text: list[int], ngram: int, k: int) -> list[int]:
    """The same for one row, in plain words; empty where nothing is found."""
    for size in range(ngram, 0, -1):
        last = text[-size:]
        for start in range(len(text) - size - 1, -1, -1):
            if len(last) == size and text[start : start + size] == last:
                copied = list(text)
                for step in range(k):
                    copied.append(copied[start + size + step])
                return copied[len(text) :]
    return []


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 4),
)
def test_lookup_copies_what_followed_the_most_recent_occurrence(
    texts: list[list[int]], ngram: int, k: int, padding: int
) -> None:
    longest = max(map(len, texts)) + padding
    rows = torch.tensor([text + [1] * (longest - len(text)) for text in texts])  # 1: what stands there must not count
    outlook = find(rows, torch.tensor([len(text) for text in texts]), ngram, k)
    for text, found, guesses in zip(texts, outlook.found.tolist(), outlook.state.tolist(), strict=True):
        assert guesses[:found] == slow_find(text, ngram, k)


class Recorded(Recording, Speculative):
    pass


@torch.inference_mode()
def continued(model: Any, text: list[int], k: int) -> list[int]:
    """k tokens after a text, greedily, from a model without a cache."""
    text = list(text)
    for _ in range(k):
        text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[-k:]


REQUESTS = [Request([5 + 7 * n] * (1 + 6 * n), 4 + 3 * n) for n in range(6)]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_draft_model_writes_what_it_would_write_alone(draft_folder: str, k: int) -> None:
    model = tiny("llama", stop=False)
    decoder = Recorded(draft_model=draft_folder, k=str(k))
    run(model, decoder, REQUESTS, batch_size=3)
    alone = tiny("llama", seed=3, num_hidden_layers=1).model
    assert len(decoder.seen) > 20
    for text, guesses in decoder.seen:
        assert guesses == continued(alone, text, k)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("k", [1, 4])
def test_an_early_exit_writes_what_the_first_layers_would_write_alone(kind: str, k: int) -> None:
    sizes = {"ffn_dim": 48, "word_embed_proj_dim": 32} if kind == "opt" else {"n_layer": 3} if kind == "gpt2" else {}
    model = tiny(kind, stop=False, num_hidden_layers=3, **sizes)
    decoder = Recorded(draft_source="early-exit:2", k=str(k))
    run(model, decoder, REQUESTS, batch_size=3)
    short = tiny(kind, stop=False, num_hidden_layers=2, **(sizes | ({"n_layer": 2} if kind == "gpt2" else {}))).model
    short.load_state_dict(model.model.state_dict(), strict=False)
    assert len(decoder.seen) > 20
    for text, guesses in decoder.seen:
        assert guesses == continued(short, text, k)


def test_an_early_exit_leaves_the_model_whole() -> None:
    model = tiny("llama", num_hidden_layers=3)
    layers = model.model.model.layers
    run(model, Speculative(draft_source="early-exit:1"), REQUESTS[:2])
    assert model.model.model.layers is layers
    assert len(layers) == 3


def test_draft_passes_are_counted_and_timed_apart(draft_folder: str) -> None:
    for knobs, per_pass in (
        ({"draft_model": draft_folder}, 3),
        ({"draft_source": "early-exit:1"}, 3),
        ({"draft_source": "lookup"}, 0),
    ):
        engine = Speculative(k="3", **knobs).generator(tiny("llama", stop=False), 1)
        (generation,) = engine.generate([Request([5, 6, 7], 20)])
        statistics = engine.statistics
        drafted = statistics.passes - ("draft_model" not in knobs)  # the others leave the prompt alone
        assert statistics.passes == generation.passes
        assert statistics.draft_passes == per_pass * drafted
        assert 0 < statistics.draft_seconds < statistics.prefill_seconds + statistics.decode_seconds


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"draft_source": "lookup", "draft_model": "x"}, "--draft lookup and --draft-model x: give one of them"),
        ({"draft_source": "lokup"}, "unknown value of --draft 'lokup': did you mean 'lookup'?"),
        ({"draft_source": "lookup:0"}, "--draft lookup:0: give a number of tokens of the longest n-gram from 1 on"),
        ({"draft_source": "early-exit"}, "--draft early-exit: give a number of layers from 1 on, as in early-exit:"),
        ({"draft_source": "early-exit:x"}, "--draft early-exit:x: give a number of layers from 1 on"),
        ({"draft_source": "early-exit:0"}, "--draft early-exit:0: give a number of layers from 1 on"),
        ({"k": "0"}, "--k 0: must be auto or a whole number from 1 to 64"),
        ({"k": "-1"}, "--k -1: must be auto or a whole number from 1 to 64"),
        ({"k": "many"}, "--k many: must be auto or a whole number from 1 to 64"),
    ],
)
def test_knobs_that_do_not_fit_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Speculative(**knobs)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("layers", [2, 30])
def test_an_exit_behind_the_last_layer_is_refused(layers: int) -> None:
    with pytest.raises(UserError, match=rf"^--draft early-exit:{layers}: tiny-llama has 2 layers, choose from 1 to 1"):
        Speculative(draft_source=f"early-exit:{layers}").generator(tiny("llama"), 1)


def test_a_draft_model_with_another_vocabulary_is_refused(draft_folder: str) -> None:
    other = tokenizer().__class__(tokenizer_object=tokenizer().backend_tokenizer, eos_token="<eos>")
    other.add_tokens(["<more>"])
    larger = dataclasses.replace(tiny("llama"), tokenizer=other)
    Speculative(draft_model=draft_folder).generator(larger, 1)  # more tokens, but none with another meaning
    words = dict(tokenizer().get_vocab())
    words["a"], words["b"] = words["b"], words["a"]
    swapped = dataclasses.replace(tiny("llama"), tokenizer=type("Words", (), {"get_vocab": lambda self: words})())
    with pytest.raises(
        UserError, match=r"^--draft-model .*: its vocabulary is not that of tiny-llama \(they differ in"
    ):
        Speculative(draft_model=draft_folder).generator(swapped, 1)


def test_a_draft_model_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"^--draft-model: model folder './nowhere' does not exist$"):
        Speculative(draft_model="./nowhere").generator(tiny("llama"), 1)
