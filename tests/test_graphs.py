"""Recorded passes change nothing: every method's tokens are those of passes that are run anew."""

import dataclasses
import gc
import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run, save_tiny, write_questions
from hypothesis import given, settings
from hypothesis import strategies as st
from tape import Tape
from tiny import tiny, tokens

from decodebench.decoding import Decoder, Request, Sampling
from decodebench.decoding import graphs as module
from decodebench.decoding.engine import Engine
from decodebench.decoding.graphs import read_lengths, row_counts
from decodebench.methods.ar import AR
from decodebench.methods.block_diffusion import BlockDiffusion
from decodebench.methods.jacobi import Jacobi
from decodebench.methods.mars import MARS
from decodebench.methods.mars_verified import MARSVerified
from decodebench.methods.speculative import Speculative
from decodebench.models import LoadedModel, load_model
from decodebench.records import read_run

METHODS = [
    AR(),
    MARS(tau=0.3),
    MARS(tau=0.3, cache="block", cache_block=8),
    MARS(tau=0.3, cache="none"),
    Jacobi(window=5),
    Speculative(draft_source="lookup"),
    Speculative(draft_source="early-exit:1"),
    MARSVerified(),
    MARSVerified(layout="full"),
    BlockDiffusion(),
]
REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(3, 299), min_size=1, max_size=50),
        max_new_tokens=st.integers(1, 16),
        sampling=st.sampled_from([Sampling(), Sampling(temperature=0.8, seed=3)]),
    ),
    min_size=1,
    max_size=7,
)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    module._kept.clear()
    yield
    module._kept.clear()


def engine(decoder: Decoder, model: LoadedModel, rows: int, record: Any = Tape) -> Engine:
    made = decoder.generator(model, rows)
    assert isinstance(made, Engine)
    made.recorder = (lambda: record) if record else None
    return made


@pytest.mark.parametrize("decoder", METHODS, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'cache', '')}")
@settings(max_examples=12, deadline=None)
@given(requests=REQUESTS, rows=st.integers(1, 5))
def test_recorded_passes_give_the_same_tokens(decoder: Decoder, requests: list[Request], rows: int) -> None:
    if isinstance(decoder, MARSVerified | BlockDiffusion | Jacobi):  # greedy only, or with draws of their own order
        requests = [dataclasses.replace(request, sampling=Sampling()) for request in requests]
    model = tiny("llama", logit_scale=2.0)
    plain = tokens(engine(decoder, model, rows, None).generate(requests))
    assert tokens(engine(decoder, model, rows).generate(requests)) == plain
    assert tokens(engine(decoder, model, rows).generate(requests)) == plain  # in the cache that the first left behind


def test_every_shape_is_recorded_once_and_before_it_is_needed() -> None:
    model, before = tiny("llama"), Tape.count
    requests = [Request([5] * length, 200) for length in (3, 90, 40)]
    first = engine(MARS(tau=0.3), model, 3)
    first.generate([dataclasses.replace(request, max_new_tokens=2) for request in requests] + [Request([7] * 250, 40)])
    capacity = next(iter(module._kept.values()))[1].capacity
    assert Tape.count - before == len(row_counts(3)) * len(read_lengths(capacity))
    before = Tape.count
    engine(MARS(tau=0.3), model, 3).generate(requests)
    assert Tape.count == before


def test_other_methods_find_the_cache_and_record_only_their_own_windows() -> None:
    model = tiny("llama")
    engine(AR(), model, 2).generate([Request([5], 60)])
    before = Tape.count
    engine(AR(), model, 2).generate([Request([6], 60)])
    assert Tape.count == before
    engine(MARS(tau=0.3), model, 1).generate([Request([5], 40)])
    assert Tape.count > before


def test_statistics_count_what_was_computed_padding_included() -> None:
    model = tiny("llama", stop=False)
    run = engine(AR(), model, 3)
    run.generate([Request([5], 9)] * 3)
    counted = run.statistics.decoding
    assert (counted.passes, counted.slots, counted.unembedded) == (8, 24, 24)
    assert counted.keys_read == 24 * 64  # all of a cache of 64


def test_weights_that_have_moved_are_not_read_where_they_were() -> None:
    model = tiny("llama", seed=5)
    requests = [Request([5, 6, 7], 20)]
    engine(AR(), model, 1).generate(requests)
    other = tiny("llama", seed=6)
    for weight, new in zip(model.model.parameters(), other.model.parameters(), strict=True):
        weight.data = new.data.clone()
    expected = tokens(engine(AR(), other, 1, None).generate(requests))
    assert tokens(engine(AR(), model, 1).generate(requests)) == expected


def test_a_model_that_cannot_be_recorded_is_run(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny("llama", seed=7)
    requests = [Request([5, 6, 7], 20), Request([9], 12)]
    expected = tokens(engine(AR(), model, 2, None).generate(requests))

    def look(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert inputs[0].abs().sum() > 0

    looks = model.model.model.layers[0].register_forward_pre_hook(look)
    try:
        assert tokens(engine(AR(), model, 2).generate(requests)) == expected
    finally:
        looks.remove()
    assert caplog.text.count("passes run without CUDA graphs, and slower: operation not permitted") == 1


def test_recordings_do_not_keep_a_model_alive() -> None:
    class Forgetful:
        def __init__(self, run: Any) -> None:
            run()

        def replay(self) -> None:
            pass

    model = tiny("llama", seed=8)
    copy = dataclasses.replace(model, model=type(model.model)(model.model.config).eval())
    engine(AR(), copy, 1, Forgetful).generate([Request([5], 4)])
    gone = weakref.ref(copy.model)
    assert gone() in module._kept
    del copy
    gc.collect()
    assert gone() is None
    assert len(module._kept) == 0


def test_a_row_that_is_gone_does_not_write_where_a_prompt_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodebench.decoding.engine.PREFILL_TOKENS", 32)
    model = tiny("llama")
    requests = [Request([5] * 3, 30), Request([6], 4), Request([7] * 5, 9), Request(list(range(5, 205)), 20)]
    expected = tokens(engine(AR(), model, 3, None).generate(requests))
    assert tokens(engine(AR(), model, 3).generate(requests)) == expected


def test_a_run_without_graphs_says_so(tmp_path: Path) -> None:
    model = load_model(str(save_tiny(tmp_path / "model")), device="cpu")
    data = write_questions(tmp_path, 2)
    for graphs in (True, False):
        (outcome,) = run(tmp_path / str(graphs), data, dataclasses.replace(model, graphs=graphs))
        assert outcome.folder
        assert read_run(outcome.folder)["config"].get("graphs", True) is graphs


@given(st.integers(1, 300), st.integers(1, 40_000))
def test_recorded_shapes_cover_everything_and_waste_little(most: int, capacity: int) -> None:
    rows, reads = row_counts(most), read_lengths(capacity)
    assert rows[-1] == most
    assert reads[-1] == capacity
    assert all(later <= 2 * n for n, later in itertools.pairwise(rows))
    assert all(later <= max(1.5 * n, n + 64) for n, later in itertools.pairwise(reads))
