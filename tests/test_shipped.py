"""The adapters that come with the package: complete cards, and the effect that they are shipped for."""

import pytest
from tiny import run

from decodebench.decoding import Request
from decodebench.decoding.registry import method
from decodebench.models import EMBEDDED, LoadedModel, load_model
from decodebench.models.adapters import SHIPPED, adapter_folder, base_of, shipped_names
from decodebench.models.loading import read_card
from decodebench.tasks.stepmath import problems

MOST_BYTES = 10_500_000


@pytest.mark.parametrize("name", shipped_names())
def test_every_adapter_is_small_and_says_how_it_was_made(name: str) -> None:
    folder = SHIPPED / name
    assert sum(file.stat().st_size for file in folder.iterdir()) < MOST_BYTES
    card = read_card(str(folder))
    assert base_of(folder) == EMBEDDED
    assert {"recipe", "data", "held_out", "environment", "steps"} <= card.keys()
    assert "sha256" in card["data"]
    assert adapter_folder(name) == folder


def questions(model: LoadedModel, count: int) -> list[Request]:
    """Problems that no adapter was trained on."""
    prompts = [
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True, return_dict=False
        )
        for problem in problems("test", count)
    ]
    return [Request(tuple(prompt), max_new_tokens=96) for prompt in prompts]


def test_the_mars_adapter_takes_several_tokens_per_pass() -> None:
    model = load_model("smollm2-135m-mars", device="cpu")
    generations = run(model, method("mars")(tau=0.9), questions(model, 6), batch_size=6)
    assert sum(len(g.tokens) for g in generations) > 1.5 * sum(g.passes for g in generations)
    assert any("The answer is" in g.text for g in generations)


def test_the_medusa_heads_are_found_and_guess_well() -> None:
    pytest.importorskip("medusa.model.utils", reason="needs the package medusa-llm, extra decodebench[medusa]")
    check_guesses("medusa")


def test_the_exit_head_is_found_and_guesses_well() -> None:
    check_guesses("speculative", draft_source="early-exit:6")


def check_guesses(name: str, **knobs: str) -> None:
    """The answers are autoregressive decoding's, in far fewer passes."""
    model = load_model("smollm2-135m-mars", dtype="float32", device="cpu")
    requests = questions(model, 3)
    generations = run(model, method(name)(**knobs), requests, batch_size=3)
    assert sum(len(g.tokens) for g in generations) > 1.5 * sum(g.passes for g in generations)
    assert [g.tokens for g in generations] == [g.tokens for g in run(model, method("ar")(), requests, batch_size=3)]
