"""The adapters that come with the package: complete cards, and the effect that they are shipped for."""

import pytest
from tiny import run

from decodebench.decoding import Request
from decodebench.decoding.registry import method
from decodebench.models import EMBEDDED, load_model
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


def test_the_mars_adapter_takes_several_tokens_per_pass() -> None:
    model = load_model("smollm2-135m-mars", device="cpu")
    prompts = [
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True, return_dict=False
        )
        for problem in problems("test", 6)
    ]
    requests = [Request(tuple(prompt), max_new_tokens=96) for prompt in prompts]
    generations = run(model, method("mars")(tau=0.9), requests, batch_size=6)
    assert sum(len(g.tokens) for g in generations) > 1.5 * sum(g.passes for g in generations)
    assert any("The answer is" in g.text for g in generations)
