"""Gated adapters: masks are read by the adapter, everything else by the original model, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learning import MASK, mars_passes, training_logits
from test_models import make_adapter, save
from tiny import run, tokens

from decodebench.decoding import Request
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS, find_mask
from decodebench.models import LoadedModel, load_model
from decodebench.training import learner as learners
from decodebench.training.layout import lay_out
from decodebench.training.learner import Learner, prepare
from decodebench.training.recipe import Recipe

TEXT = torch.arange(20, 50)[None]
REQUESTS = [Request([9 + n] * (1 + 5 * n), 24 - n) for n in range(5)]


def load(name: object, **options: Any) -> LoadedModel:
    return load_model(str(name), device="cpu", **options)


def learner_on(base: Path) -> tuple[Learner, Recipe]:
    """A gated adapter that says something else than its base."""
    recipe = Recipe("mars", model=str(base), data="none", gated=True, lora_rank=4)
    learner = prepare(recipe, device="cpu")
    torch.manual_seed(2)
    for name, parameter in learner.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return learner, recipe


def saved(learner: Learner, recipe: Recipe, folder: Path) -> Path:
    learners.save(learner, recipe, folder, merge=False)
    card = {"gated": True, "mask_token": "<mask>", "block_size": 4}
    (folder / "card.json").write_text(json.dumps(card), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("base"), logit_scale=4.0)


@pytest.fixture(scope="module")
def learner(base: Path) -> Learner:
    return learner_on(base)[0]


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(*learner_on(base), tmp_path_factory.mktemp("gated"))


@torch.inference_mode()
def logits(model: Any, tokens: torch.Tensor = TEXT) -> torch.Tensor:
    return model(input_ids=tokens).logits[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_masks_the_model_is_the_original_bit_for_bit(base: Path, adapter: Path, dtype: str) -> None:
    original, gated = load(base, dtype=dtype), load(adapter, dtype=dtype)
    assert torch.equal(logits(gated.model), logits(original.model))
    masked = torch.cat([TEXT, torch.full((1, 3), MASK)], 1)
    before, after = logits(original.model, masked), logits(gated.model, masked)
    assert torch.equal(after[: TEXT.shape[1]], before[: TEXT.shape[1]])
    assert not torch.isclose(after[TEXT.shape[1] :], before[TEXT.shape[1] :]).all(-1).any()


def test_in_training_the_clean_stream_is_the_original_models(base: Path, learner: Learner) -> None:
    original = load(base).model
    assert torch.equal(logits(learner.model), logits(original))
    sample, _ = mars_passes(load(base), [9, 40, 41], passes=3, block_size=4)
    layout = lay_out([[sample, sample]], 64, 4, MASK)
    noisy = layout.slots.noisy
    before, after = (training_logits(model, layout).detach() for model in (original, learner.model))
    assert torch.equal(after[~noisy], before[~noisy])
    assert not torch.isclose(after[noisy], before[noisy]).all(-1).any()


def test_only_masks_teach_a_gated_adapter(learner: Learner) -> None:
    sample, _ = mars_passes(load(learner.base), [9, 40, 41], passes=3, block_size=4)
    layout = lay_out([[sample]], 64, 4, MASK)
    lora = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
    out = training_logits(learner.model, layout)
    for noisy in (False, True):
        chosen = (layout.slots.noisy == noisy) & (layout.slots.sample >= 0)
        gradients = torch.autograd.grad(out[chosen].logsumexp(-1).sum(), lora, retain_graph=True)
        assert all((gradient != 0).any() == noisy for gradient in gradients)


def test_a_gated_adapter_is_found_by_its_card_and_decodes_as_it_was_trained(adapter: Path, learner: Learner) -> None:
    gated = load(adapter)
    assert gated.card["gated"]
    assert find_mask(gated, None) == MASK
    sample, passes = mars_passes(gated, [9, 40, 41, 9, 77], passes=4, block_size=4)
    layout = lay_out([[sample]], 64, 4, MASK)
    trained = training_logits(learner.model, layout)[0].detach()
    noisy, place = layout.slots.noisy[0], layout.slots.position[0]
    for n, decoded in enumerate(passes):
        begin = len(sample.prompt) + 4 * n
        masks = trained[noisy & (place >= begin) & (place < begin + 3)]
        torch.testing.assert_close(masks, decoded[1:], atol=1e-4, rtol=1e-4)


def test_at_tau_1_it_says_exactly_what_the_base_model_says(base: Path, adapter: Path) -> None:
    original, gated = load(base), load(adapter)
    expected = tokens(run(original, AR(), REQUESTS))
    assert tokens(run(gated, AR(), REQUESTS)) == expected
    assert tokens(run(gated, MARS(tau=1.0), REQUESTS)) == expected


def test_with_masks_it_says_the_same_whatever_is_cached_and_batched(base: Path, adapter: Path) -> None:
    gated = load(adapter)
    expected = tokens(run(gated, MARS(tau=0.3, cache="none"), REQUESTS, batch_size=1))
    assert tokens(run(gated, MARS(tau=0.3), REQUESTS, batch_size=3)) == expected
    assert tokens(run(load(base), MARS(tau=0.3, block_size=4), REQUESTS)) != expected


@pytest.mark.parametrize("cache", ["ragged", "block", "none"])
def test_what_masks_draft_and_nobody_takes_changes_nothing(base: Path, adapter: Path, cache: str) -> None:
    mars = MARS(tau=0.0, cache=cache, max_commit=1)
    assert tokens(run(load(adapter), mars, REQUESTS, batch_size=3)) == tokens(run(load(base), AR(), REQUESTS))


def test_a_gated_adapter_may_stand_on_an_ordinary_one(base: Path, tmp_path: Path) -> None:
    ordinary = make_adapter(base, tmp_path / "ordinary")
    folder = saved(*learner_on(ordinary), tmp_path / "gated")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(ordinary)
    assert torch.equal(logits(load(folder).model), logits(load(ordinary).model))
    assert not torch.isclose(logits(load(folder).model), logits(load(base).model)).all()


def test_what_cannot_be_gated_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a gated adapter, which nothing can be trained on: start from its base"):
        prepare(Recipe("mars", model=str(adapter), data="none"), device="cpu")
    folder = saved(*learner_on(base), tmp_path / "gated")
    (folder / "card.json").write_text('{"gated": true}', encoding="utf-8")
    with pytest.raises(UserError, match="says gated, but names no mask token of its base model"):
        load(folder)
    with pytest.raises(UserError, match="--gated acts on masks only, and ar-sft has none"):
        Recipe("ar-sft", model="m", data="d", gated=True)
    with pytest.raises(UserError, match=r"--gated trains an adapter .* leave --full away"):
        Recipe("mars", model="m", data="d", gated=True, full=True)
