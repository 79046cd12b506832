"""Traces: how sure a method was of every token, told without a transfer of its own."""

import math

import pytest
import tiny

from decodebench.decoding import Generation, Request
from decodebench.decoding.engine import Engine
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS

REQUESTS = [Request(tiny.tokenizer().encode(text), max_new_tokens=20) for text in ("Ann has 3", "apples and", "So")]


def traced(decoder: AR | MARS, batch_size: int = 2) -> list[Generation]:
    generator = decoder.generator(tiny.tiny(logit_scale=3), batch_size)
    assert isinstance(generator, Engine)
    generator.trace = True
    return generator.generate(REQUESTS)


@pytest.mark.parametrize("cache", ["ragged", "block", "none"])
def test_every_token_that_had_to_be_sure_was(cache: str) -> None:
    plain = tiny.run(tiny.tiny(logit_scale=3), MARS(tau=0.2, cache=cache), REQUESTS, 2)
    generations = traced(MARS(tau=0.2, cache=cache))
    assert tiny.tokens(generations) == tiny.tokens(plain)
    assert all(generation.confidence is None for generation in plain)
    several = 0
    for generation in generations:
        assert generation.confidence is not None
        assert len(generation.confidence) == len(generation.tokens)
        start = 0
        for count in generation.committed:
            later = generation.confidence[start + 1 : start + count]
            assert all(0.2 <= confidence <= 1 + 1e-6 for confidence in later)
            several += len(later)
            start += count
    assert several


def test_a_method_that_does_not_ask_gives_none() -> None:
    for generation in traced(AR()):
        assert generation.confidence is not None
        assert len(generation.confidence) == len(generation.tokens)
        assert all(map(math.isnan, generation.confidence))
