"""A compiled pass changes nothing: the tokens are those of passes that are not."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run, save_tiny, write_questions
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import reference, tiny, tokens
from tiny import run as decode

from decodebench.decoding import Decoder, Request
from decodebench.decoding.compiled import CompiledPass, check_compilable, compile_pass
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.jacobi import Jacobi
from decodebench.methods.mars import MARS
from decodebench.models import LoadedModel, load_model
from decodebench.records import read_run, read_samples


def _has_compiler() -> bool:
    try:
        check_compilable(tiny("llama").model)
    except UserError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def models() -> tuple[LoadedModel, LoadedModel]:
    """A model as it is, and the same compiled."""
    plain = tiny("llama", seed=5, logit_scale=2.0)
    return plain, dataclasses.replace(plain, compiled=compile_pass(plain.model))


class Counting(CompiledPass):
    """Notes how often it is run."""

    runs = 0

    def run(self, *args: Any) -> Any:
        self.runs += 1
        return super().run(*args)


REQUESTS = st.lists(
    st.builds(
        Request, prompt=st.lists(st.integers(3, 299), min_size=1, max_size=30), max_new_tokens=st.integers(1, 12)
    ),
    min_size=1,
    max_size=6,
)


@needs_compiler
@pytest.mark.parametrize("method", [AR(), MARS(tau=0.3), MARS(tau=0.3, cache="block", cache_block=8), Jacobi(window=3)])
@settings(max_examples=12, deadline=None)
@given(requests=REQUESTS, batch_size=st.integers(1, 5))
def test_tokens_are_the_same(
    models: tuple[LoadedModel, LoadedModel], method: Decoder, requests: list[Request], batch_size: int
) -> None:
    plain, compiled = models
    expected = tokens(decode(plain, dataclasses.replace(method), requests, batch_size))
    assert tokens(decode(compiled, dataclasses.replace(method), requests, batch_size)) == expected


@needs_compiler
def test_decoding_passes_of_one_token_run_the_program_and_no_others(models: tuple[LoadedModel, LoadedModel]) -> None:
    plain, compiled = models
    assert compiled.compiled
    for lengths, alone in (([9], 8), ([4, 9], 5), ([4, 4], 0), ([1], 0)):
        counting = Counting(compiled.compiled.program, 0.0)
        requests = [Request([5, 6, 7 + i], length) for i, length in enumerate(lengths)]
        found = decode(dataclasses.replace(plain, compiled=counting), AR(), requests)
        assert tokens(found) == [reference(plain, request) for request in requests]
        assert counting.runs == alone


@needs_compiler
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "cohere"])
def test_models_of_all_kinds_keep_their_own_programs(models: tuple[LoadedModel, LoadedModel], kind: str) -> None:
    other = tiny(kind, seed=6, logit_scale=2.0)
    both = [models[1], dataclasses.replace(other, compiled=compile_pass(other.model))]
    assert both[1].compiled
    assert both[1].compiled.program
    request = Request([5, 6, 7], 12)
    for model, plain in (*zip(both, (models[0], other), strict=True), (both[0], models[0])):
        assert tokens(decode(model, AR(), [request])) == [reference(plain, request)]


@needs_compiler
def test_a_model_that_cannot_be_compiled_is_run(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny("llama", seed=7)
    before = model.model.config._attn_implementation

    def look(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert inputs[0].sum().item() != 12345

    looks = model.model.model.layers[0].register_forward_pre_hook(look)
    try:
        compiled = compile_pass(model.model)
    finally:
        looks.remove()
    assert compiled.program is None
    assert "--compile: passes run uncompiled, and slower: " in caplog.text
    assert model.model.config._attn_implementation == before
    request = Request([5, 6, 7], 6)
    assert tokens(decode(dataclasses.replace(model, compiled=compiled), AR(), [request])) == [reference(model, request)]


@needs_compiler
def test_a_run_says_that_it_was_compiled_and_how_long_that_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(str(save_tiny(tmp_path / "model")), device="cpu")
    data = write_questions(tmp_path, 2)
    found = []
    for name, options in (("plain", {}), ("compiled", {"compile": True})):
        (outcome,) = run(tmp_path / name, data, model, batch_sizes=(2,), **options)
        assert outcome.folder
        found.append((read_run(outcome.folder), [s["tokens"] for s in read_samples(outcome.folder)]))
    (plain, expected), (compiled, tokens_) = found
    assert tokens_ == expected
    assert compiled["config"].pop("compile") is True
    assert compiled["config"] == plain["config"]
    assert compiled["environment"].pop("compile_seconds") > 1
    assert "compile_seconds" not in plain["environment"]
    assert compiled["aggregates"]["repeats"][0]["seconds"] < model.compiled.seconds
    assert "uncompiled" not in caplog.text


def test_what_it_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama").model
    with monkeypatch.context() as little:
        little.setattr("decodebench.decoding.compiled.available_memory", lambda device: 100)
        with pytest.raises(
            UserError, match=r"^--compile needs about 0\.3 MiB for copies of the weights, and 0\.0 MiB are fr"
        ):
            compile_pass(model)
    monkeypatch.setattr("decodebench.decoding.compiled.shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"^--compile needs a C\+\+ compiler: install g\+\+"):
        compile_pass(model)
    with pytest.raises(UserError, match=r"^--compile is for CPUs: leave it out on meta"):
        compile_pass(type(model)(model.config).to("meta"))
