"""The model as it is trained: which weights move, and which token is the mask."""

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from decodebench.errors import UserError
from decodebench.models import LoadedModel, load_model
from decodebench.models.adapters import adapter_folder, base_of, cast_parameters
from decodebench.models.gated import Gate
from decodebench.models.loading import read_card
from decodebench.models.medusa_heads import save_heads
from decodebench.training.heads import Headed
from decodebench.training.recipe import ONLY_FOR, Recipe

OWN_MASK = "<|mask|>"  # the name that the published checkpoints use


@dataclass
class Learner:
    """What the trainer trains.

    Attributes:
        model: a ``PeftModel``, a ``PreTrainedModel`` where all weights are trained, or a `Headed` one.
        tokenizer: with the mask token in it.
        base: the name that an adapter, or heads, give their base model.
        mask_id: −1 where the objective has no masks.
        added_mask: whether the mask token is new to the tokenizer.
        low_precision: whether matrix products run in bfloat16.
    """

    model: Any
    tokenizer: Any
    base: str
    mask_id: int
    added_mask: bool
    low_precision: bool


def prepare(recipe: Recipe, device: str = "auto", dtype: str = "auto") -> Learner:
    """Load a recipe's model and make the weights trainable that it trains.

    Raises:
        UserError: when the model cannot be loaded or trained, or has no token that could be the mask.
    """
    if dtype == "float16":
        raise UserError("--dtype float16: choose auto, float32 or bfloat16")
    adapter = None if recipe.full or recipe.gated or recipe.trains_heads else adapter_folder(recipe.model)
    loaded = load_model(base_of(adapter) if adapter else recipe.model, dtype=dtype, device=device)
    if adapter:
        loaded.card |= read_card(str(adapter))
    if loaded.card.get("gated") and not recipe.trains_heads:
        raise UserError(f"{recipe.model} is a gated adapter, which nothing can be trained on: start from its base")
    if loaded.dtype == torch.float16:  # small gradients would become 0 in it
        cast_parameters(loaded.model, torch.float32)
    torch.manual_seed(recipe.seed)  # of a new adapter's weights
    low = loaded.dtype == torch.bfloat16
    tokenizer, mask_id = loaded.tokenizer, -1
    if recipe.objective in ONLY_FOR["mask_token"]:
        tokenizer = copy.deepcopy(tokenizer)
        mask_id = choose_mask(loaded, tokenizer, recipe.mask_token)
    added = len(tokenizer) > len(loaded.tokenizer)
    if getattr(loaded.model.config.get_text_config(), "final_logit_softcapping", None):
        raise UserError(f"{loaded.name} caps its logits, which decodebench's loss does not know: it cannot be trained")
    if recipe.trains_heads:
        return Learner(_headed(loaded, recipe), tokenizer, recipe.model, mask_id, added, low)
    if recipe.full:
        # moving averages of float32: bfloat16 weights would lose most updates of this size
        model = cast_parameters(loaded.model, torch.float32).requires_grad_(True)
        return Learner(model, tokenizer, loaded.name, mask_id, added, low)
    from peft import LoraConfig, PeftModel, get_peft_model

    if adapter is not None:
        model = PeftModel.from_pretrained(loaded.model, str(adapter), is_trainable=True)
        base, rank = base_of(adapter), getattr(model.peft_config["default"], "r", None)
        if rank != recipe.lora_rank:
            raise UserError(f"--lora-rank {recipe.lora_rank}: the adapter {recipe.model} is trained on, of rank {rank}")
    else:
        config = LoraConfig(
            r=recipe.lora_rank, lora_alpha=2 * recipe.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model, base = get_peft_model(loaded.model, config), recipe.model
    if recipe.gated:
        Gate(model, mask_id)
    model.peft_config["default"].base_model_name_or_path = base
    # left to itself, peft asks the hub for the base model's configuration at every save
    model.save_pretrained = functools.partial(model.save_pretrained, save_embedding_layers=False)
    return Learner(model, tokenizer, base, mask_id, added, low)


def _headed(loaded: LoadedModel, recipe: Recipe) -> Headed:
    if recipe.objective == "medusa":
        return Headed(loaded.model, recipe.heads, recipe.layers)
    has = loaded.model.config.get_text_config().num_hidden_layers
    if recipe.exit_layer >= has:
        raise UserError(
            f"--exit-layer {recipe.exit_layer}: {loaded.name} has {has} layers, choose from 1 to {has - 1} of them"
        )
    return Headed(loaded.model, 1, 1, recipe.exit_layer)


def choose_mask(model: LoadedModel, tokenizer: Any, asked: str | None) -> int:
    """The mask token of a model that may have none yet.

    The one asked for, else the checkpoint's own, else the tokenizer's, else a new ``<|mask|>`` where the embedding
    matrix has an unused row for it (Qwen2.5's has; the tokenizer is changed then).

    Raises:
        UserError: when there is none of these.
    """
    for token in (asked, model.card.get("mask_token"), tokenizer.mask_token, OWN_MASK):
        if token is None:
            continue
        if (found := model.token_id(str(token))) is not None:
            return found
        if token == asked:
            raise UserError(f"--mask-token '{token}' is not in the vocabulary of {model.name}")
    if len(tokenizer) < model.model.get_input_embeddings().weight.shape[0]:
        tokenizer.add_special_tokens({"mask_token": OWN_MASK})
        return int(tokenizer.convert_tokens_to_ids(OWN_MASK))
    raise UserError(
        f"{model.name} has no token to use as the mask, and no unused embedding row for a new one: name a special "
        "token that no text contains with --mask-token"
    )


def save(learner: Learner, recipe: Recipe, folder: Path, merge: bool) -> None:
    """Write the result: heads, a PEFT adapter, or a whole checkpoint (asked for, or all of it was trained)."""
    model = learner.model
    if recipe.trains_heads:
        store = torch.bfloat16 if learner.low_precision else torch.float32
        save_heads(model.heads().to(torch.device("cpu"), store), folder, learner.base)
        return
    if recipe.full or merge:
        whole = model if recipe.full else model.merge_and_unload()
        cast_parameters(whole, torch.bfloat16 if learner.low_precision else torch.float32)
        whole.config.dtype = whole.dtype
        whole.save_pretrained(folder)
    else:
        store = torch.bfloat16 if learner.low_precision else torch.float32
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(store)
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)  # peft's empty form; the card says what is to be said
    # an adapter uses its base model's, unless that has no mask token
    if recipe.full or merge or learner.added_mask:
        learner.tokenizer.save_pretrained(folder)
