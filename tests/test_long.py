"""Long prompts are read in chunks, in turn with decoding; the text is the same. What does not fit is said at once."""

from collections.abc import Callable

import pytest
import torch
from harness import save_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import reference, run, tiny, tokens

from decodebench.decoding import Decoder, Request, Sampling
from decodebench.decoding import engine as engines
from decodebench.decoding.feed import Pass
from decodebench.decoding.live import Live
from decodebench.methods.ar import AR
from decodebench.methods.block_diffusion import BlockDiffusion
from decodebench.methods.jacobi import Jacobi
from decodebench.methods.mars import MARS
from decodebench.methods.mars_verified import MARSVerified
from decodebench.methods.medusa import Medusa
from decodebench.methods.speculative import Speculative
from decodebench.models.medusa_heads import MedusaHeads, save_heads

MODEL = tiny("llama", stop=False, logit_scale=3.0)
REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(3, 299), min_size=1, max_size=40),
        max_new_tokens=st.integers(1, 10),
        sampling=st.sampled_from([Sampling(), Sampling(), Sampling(0.9, seed=3)]),
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Decoder]]:
    folder = tmp_path_factory.mktemp("heads")
    draw = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(3, 1, 32, 32, generator=draw) * 0.3, torch.randn(3, 1, 32, generator=draw)
    save_heads(MedusaHeads(weight, bias, None), folder, "tiny")
    draft = save_tiny(tmp_path_factory.mktemp("draft"), logit_scale=3.0)  # the target itself
    return {
        "ar": AR,
        "jacobi": Jacobi,
        "mars": lambda: MARS(tau=0.3),
        "mars, block cache": lambda: MARS(tau=0.3, cache="block", cache_block=6),
        "mars, no cache": lambda: MARS(tau=0.3, cache="none"),
        "mars-verified": MARSVerified,
        "block diffusion": lambda: BlockDiffusion(tau=0.3, block_size=3),
        "lookup": Speculative,
        "early exit": lambda: Speculative(draft_source="early-exit:1", k="3"),
        "draft model": lambda: Speculative(draft_model=str(draft), k="3"),
        "medusa": lambda: Medusa(heads=str(folder)),
    }


NAMES = ["ar", "jacobi", "mars", "mars, block cache", "mars, no cache", "mars-verified", "block diffusion", "lookup",
         "early exit", "draft model", "medusa"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(
    requests=REQUESTS,
    chunk=st.integers(3, 16),
    batch_size=st.integers(1, 4),
    batching=st.sampled_from(["continuous", "static"]),
)
def test_chunks_change_no_token(
    decoders: dict[str, Callable[[], Decoder]],
    name: str, requests: list[Request], chunk: int, batch_size: int, batching: str,
) -> None:  # fmt: skip
    expected = run(MODEL, decoders[name](), requests, batch_size, batching=batching)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "PREFILL_TOKENS", chunk)
        chunked = run(MODEL, decoders[name](), requests, batch_size, batching=batching)
    assert tokens(chunked) == tokens(expected)
    if batch_size == 1:  # what is drafted is the same, too
        assert [generation.committed for generation in chunked] == [generation.committed for generation in expected]


@pytest.mark.parametrize(("length", "expected"), [(16, 1), (17, 2), (32, 2), (33, 3)])
def test_a_prompt_counts_as_one_pass_of_its_request(
    monkeypatch: pytest.MonkeyPatch, length: int, expected: int
) -> None:
    monkeypatch.setattr(engines, "PREFILL_TOKENS", 16)
    engine = AR().generator(MODEL, 1)
    (generation,) = engine.generate([Request([7] * length, 3)])
    assert generation.committed == [1, 1, 1]
    assert len(generation.pass_seconds) == 3
    assert engine.statistics.passes == expected + 2
    assert sum(generation.pass_seconds) <= generation.latency


def test_decoding_rows_wait_for_one_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PREFILL_TOKENS", 8)
    requests = [Request([5], 40), Request([6], 6), Request([7] * 90, 4), Request([8] * 30, 2)]
    passes: list[Pass] = []
    with Live(AR().generator(MODEL, 2), 256, on_pass=passes.append) as live:
        handles = [live.submit(request) for request in requests]
        answers = [handle.result(60).tokens for handle in handles]
    assert answers == [reference(MODEL, request) for request in requests]
    begun = [done.prefill for done in passes]
    first = begun.index(False)
    pairs = list(zip(begun[first:], begun[first + 1 :], strict=False))
    assert (True, True) not in pairs
    assert sum(done.tokens for done in passes) == 40 + 6 + 4 + 2
    assert passes[-1].rows == 1
