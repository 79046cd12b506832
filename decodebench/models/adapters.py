"""PEFT adapters, merged into the model they were made for."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from decodebench.errors import UserError, first_line
from decodebench.models.gated import Gate

CONFIG = "adapter_config.json"
SHIPPED = Path(__file__).parent / "shipped"


def shipped_names() -> list[str]:
    """Names of the adapters that come with the package."""
    return sorted(folder.parent.name for folder in SHIPPED.glob(f"*/{CONFIG}"))


def adapter_folder(name: str) -> Path | None:
    """The folder of a shipped or local adapter of this name; ``None`` where the name is something else."""
    folder = SHIPPED / name if name in shipped_names() else Path(name)
    return folder if (folder / CONFIG).is_file() else None


def base_of(adapter: Path) -> str:
    """The name of the model that an adapter's folder says it was made for.

    Raises:
        UserError: when it says nothing, or cannot be read.
    """
    try:
        base = json.loads((adapter / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{CONFIG} of '{adapter}' is not a JSON object: {first_line(error)}") from error
    if not base:
        raise UserError(f"adapter '{adapter}' does not name its base model: use --model BASE --adapter {adapter}")
    return base


def apply_adapter(model: Any, adapter: str, base: str, gate: int | None = None) -> Any:
    """The model with an adapter's update added to its weights, in float32: bfloat16 would round small updates away.

    Args:
        model: a ``PreTrainedModel``; it is changed.
        adapter: a local folder or a hub id.
        base: the model's name, for messages.
        gate: the mask token of a gated adapter, which stays beside the weights and acts on masks only.

    Raises:
        UserError: when the adapter is not there or was made for another model.
    """
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict, load_peft_weights

    try:
        PeftConfig.from_pretrained(adapter)
        weights = load_peft_weights(adapter, device="cpu")
    except Exception as error:  # peft and the hub client raise whatever their libraries do
        raise UserError(f"adapter '{adapter}' cannot be loaded: {first_line(error)}") from error
    try:
        with warnings.catch_warnings():  # of layers that one has and the other has not; looked for below
            warnings.simplefilter("ignore")
            merged = PeftModel.from_pretrained(cast_parameters(model, torch.float32), adapter)
    except (RuntimeError, ValueError, KeyError) as error:
        raise _misfit(adapter, base, first_line(error)) from error
    # without embeddings: to know whether they changed, peft would ask the hub for the base model
    there = get_peft_model_state_dict(merged, save_embedding_layers=False)
    differing = {name for name in weights.keys() ^ there.keys() if "lora_" in name}
    if differing:
        raise _misfit(adapter, base, f"the two differ in {min(differing)}")
    if gate is not None:
        inner = merged.get_base_model()
        Gate(inner, gate)
        return inner
    return merged.merge_and_unload()


def cast_parameters(model: Any, dtype: torch.dtype) -> Any:
    """Convert a model's parameters, and only them.

    ``model.to(dtype)`` converts the buffers, too, and rotary frequencies that are rounded to bfloat16 put tokens a few
    hundred positions away in the wrong place.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _misfit(adapter: str, base: str, why: str) -> UserError:
    return UserError(f"adapter '{adapter}' does not fit model '{base}': it was made for another model ({why})")
