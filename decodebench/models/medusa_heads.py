"""Medusa heads (arXiv 2401.10774): small networks on a model's last hidden state that predict further tokens."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu

from decodebench.errors import UserError, first_line
from decodebench.hub import impatient_hub
from decodebench.models.adapters import SHIPPED
from decodebench.models.loading import LoadedModel

CONFIG = "config.json"
WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")


@dataclass
class MedusaHeads:
    """Heads of one shape. Head i (from 0) predicts the token after next, and i tokens further on.

    A head is a chain of residual blocks, x + SiLU(Wx + b), and an unembedding (section 2.1.1): its own, or the model's
    (then four heads for a hidden size of 576 take 2.7 MB in bfloat16).

    Attributes:
        weight: ``[heads, layers, hidden, hidden]``.
        bias: ``[heads, layers, hidden]``.
        unembedding: ``[heads, vocab, hidden]``; ``None`` where the model's own is used.
    """

    weight: Tensor
    bias: Tensor
    unembedding: Tensor | None = None

    @property
    def count(self) -> int:
        return self.weight.shape[0]

    def hidden(self, hidden: Tensor) -> Tensor:
        """What the unembedding is applied to: ``[rows, heads, hidden]`` of ``[rows, hidden]``."""
        states = hidden.expand(self.count, -1, -1)
        for layer in range(self.weight.shape[1]):
            inner = torch.baddbmm(self.bias[:, layer, None], states, self.weight[:, layer].transpose(1, 2))
            states = states + silu(inner)
        return states.transpose(0, 1)

    def logits(self, hidden: Tensor, unembed: Any) -> Tensor:
        """Predictions ``[rows, heads, vocab]`` from last hidden states ``[rows, hidden]``.

        Args:
            unembed: the model's module, for heads that have none of their own.
        """
        states = self.hidden(hidden)
        if self.unembedding is None:
            return unembed(states)
        return torch.einsum("rhd,hvd->rhv", states, self.unembedding)

    def first(self, n: int) -> "MedusaHeads":
        """The first n heads."""
        own = None if self.unembedding is None else self.unembedding[:n]
        return MedusaHeads(self.weight[:n], self.bias[:n], own)

    def to(self, device: torch.device, dtype: torch.dtype) -> "MedusaHeads":
        own = None if self.unembedding is None else self.unembedding.to(device, dtype)
        return MedusaHeads(self.weight.to(device, dtype), self.bias.to(device, dtype), own)


def save_heads(heads: MedusaHeads, folder: Path, base: str) -> None:
    """Write heads in the published layout, with safetensors for weights.

    Args:
        base: the name of the model they were trained on.
    """
    count, layers = heads.weight.shape[:2]
    tensors = {}
    for head in range(count):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = heads.weight[head, layer].contiguous()
            tensors[f"{head}.{layer}.linear.bias"] = heads.bias[head, layer].contiguous()
        if heads.unembedding is not None:
            tensors[f"{head}.{layers}.weight"] = heads.unembedding[head].contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    config = {"medusa_num_heads": count, "medusa_num_layers": layers, "base_model_name_or_path": base}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS[0])


def load_heads(name: str | None, model: LoadedModel) -> MedusaHeads:
    """Heads for a model, on its device and in its dtype.

    Args:
        name: a local folder or a hub id, in the published layout (``config.json`` and ``medusa_lm_head.pt`` or
            ``.safetensors``), with or without unembeddings; ``None`` takes what the model's card names.

    Raises:
        UserError: when there are none, or they are damaged or of another size than the model.
    """
    if not name:
        if not model.card.get("medusa_heads"):
            raise UserError(f"{model.name} comes without Medusa heads: give some that were trained for it with --heads")
        name = place_of(model.card["medusa_heads"], model)
    try:
        config, weights = _files(name)
        count, layers = _shape(name, config)
        tensors = _read(weights)
    except UserError:
        raise
    except Exception as error:  # torch, safetensors and the hub client raise whatever their libraries do
        raise UserError(f"heads '{name}' cannot be loaded: {first_line(error)}") from error
    return _assemble(name, tensors, count, layers, model).to(model.device, model.dtype)


def place_of(named: str, model: LoadedModel) -> str:
    """Where the heads are that a model's card names: beside the model, among what is shipped, or a hub id."""
    places = [Path(model.name) / named, SHIPPED / model.name / named, SHIPPED / named]
    return next((str(place) for place in places if place.is_dir()), str(named))


def _files(name: str) -> tuple[Path, Path]:
    """Configuration and weights, from a folder or the hub."""
    from transformers.utils import cached_file

    if Path(name).is_dir():
        found = [Path(name) / file for file in (CONFIG, *WEIGHTS) if (Path(name) / file).is_file()]
    elif re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        with impatient_hub(name, "model"):
            paths = [cached_file(name, f, _raise_exceptions_for_missing_entries=False) for f in (CONFIG, *WEIGHTS)]
        found = [Path(path) for path in paths if path]
    else:
        raise UserError(f"heads folder '{name}' does not exist")
    if len(found) < 2 or found[0].name != CONFIG:
        raise UserError(f"heads '{name}' need {CONFIG} and {' or '.join(WEIGHTS)}")
    return found[0], found[1]


def _shape(name: str, path: Path) -> tuple[int, int]:
    """Heads, and residual blocks per head."""
    config = json.loads(path.read_text(encoding="utf-8"))
    sizes = [config.get(key) for key in ("medusa_num_heads", "medusa_num_layers")]
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise UserError(f"heads '{name}': {CONFIG} names no medusa_num_heads and medusa_num_layers of 1 or more")
    return sizes[0], sizes[1]


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        tensors = load_file(path)
    else:
        tensors = torch.load(path, map_location="cpu", weights_only=True)  # never code
    return {key.removeprefix("medusa_head."): tensor for key, tensor in tensors.items()}


def _assemble(name: str, tensors: dict[str, Tensor], count: int, layers: int, model: LoadedModel) -> MedusaHeads:
    """Heads from their tensors, all of them checked."""
    there = len({key.split(".")[0] for key in tensors})
    if there != count:
        raise UserError(f"heads '{name}': {CONFIG} says {count} heads, the weights hold {there}")
    vocabulary, size = model.model.get_output_embeddings().weight.shape
    expected: dict[str, tuple[int, ...]] = {}
    for head in range(count):
        for layer in range(layers):
            expected |= {
                f"{head}.{layer}.linear.weight": (size, size),
                f"{head}.{layer}.linear.bias": (size,),
            }
        if f"0.{layers}.weight" in tensors:
            expected[f"{head}.{layers}.weight"] = (vocabulary, size)
    if wrong := sorted(expected.keys() ^ tensors.keys()):
        raise UserError(f"heads '{name}': {CONFIG} says {layers} layers, but {wrong[0]} is missing or too much")
    for key, shape in expected.items():
        if tensors[key].shape != shape:
            raise UserError(
                f"heads '{name}' were made for another model: {key} is {_times(tensors[key].shape)}, "
                f"{model.name} needs {_times(shape)}"
            )
    own = f"0.{layers}.weight" in tensors
    blocks = [[f"{head}.{layer}.linear" for layer in range(layers)] for head in range(count)]
    return MedusaHeads(
        torch.stack([torch.stack([tensors[f"{block}.weight"] for block in head]) for head in blocks]),
        torch.stack([torch.stack([tensors[f"{block}.bias"] for block in head]) for head in blocks]),
        torch.stack([tensors[f"{head}.{layers}.weight"] for head in range(count)]) if own else None,
    )


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
