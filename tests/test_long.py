"""Long prompts are read in chunks, in turn with decoding; the text is the same. What does not fit is said at once."""

from collections.abc import Callable

import pytest
import torch
from harness import save_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import reference, run, tiny, tokens

from decodebench.decoding import Decoder, Request, Sampling, footprint
from decodebench.decoding import engine as engines
from decodebench.decoding.cache import position_bytes
from decodebench.decoding.feed import Pass
from decodebench.decoding.forward import WindowModel
from decodebench.decoding.live import Live
from decodebench.errors import UserError
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
@settings(max_examples=12)
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


def needed(decoder: Decoder, rows: int, capacity: int = 512) -> int:
    decoder.bind(MODEL)
    return footprint.run_bytes(WindowModel(MODEL.model), decoder, rows, capacity, engines.PREFILL_TOKENS)


@settings(max_examples=12)
@given(rows=st.integers(2, 64), fits=st.integers(1, 63))
def test_what_does_not_fit_is_said_before_anything_is_allocated(rows: int, fits: int) -> None:
    fits = min(fits, rows - 1)
    requests = [Request([7] * 200, 300)] * rows  # whose cache has 512 positions
    free = (needed(AR(), fits) + needed(AR(), fits + 1)) // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footprint, "available_memory", lambda _: free)
        patch.setattr(engines, "Rows", None)
        with pytest.raises(UserError, match=f"^{rows} × 512 tokens .* a batch size of {fits} would fit"):
            AR().generator(MODEL, rows).generate(requests)
        with pytest.raises(TypeError):  # it fits, so it goes on to what is not there
            AR().generator(MODEL, fits).generate(requests[:fits])


def test_what_does_not_fit_alone_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "available_memory", lambda _: 1000)
    with pytest.raises(UserError, match=r"^1 × 64 tokens .*: not even one does: ask for shorter"):
        AR().generator(MODEL, 4).generate([Request([7], 9)])


def test_the_estimate_knows_what_grows() -> None:
    for decoder in (AR(), MARS(), MARS(cache="none")):
        assert needed(decoder, 1) < needed(decoder, 2) < needed(decoder, 2, 1024)
    assert needed(AR(), 4) < needed(MARS(), 4) < needed(MARS(cache="none"), 4)
    keys_and_values = 2 * 2 * 2 * 8 * 4  # layers, heads, head size, bytes
    assert position_bytes(MODEL.model.config, MODEL.model.dtype) == keys_and_values


def test_long_prompts_and_answers_run() -> None:
    model = tiny("llama", stop=False, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=12_500)
    prompt = [5 + n % 290 for n in range(8_192)]
    long, short = run(model, MARS(tau=0.0, block_size=32), [Request(prompt, 4_096), Request([9] * 20, 40)], 2)
    assert (len(long.tokens), len(short.tokens)) == (4_096, 40)
    short_answer = Request(prompt, 4)
    assert tokens(run(model, AR(), [short_answer])) == [reference(model, short_answer)]
