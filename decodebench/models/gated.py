"""Gated LoRA (arXiv 2507.11851): an adapter that acts on mask tokens only.

Where no mask is fed, the model is the original one, bit for bit; so the adapter cannot be merged, and is applied slot
by slot instead.
"""

from typing import Any

import torch
from torch import Tensor


class Gate:
    """Multiplies the update of every LoRA layer of a model by 1 at masks and by 0 elsewhere.

    Args:
        model: a ``PeftModel`` or what it wraps, called with ``input_ids``.
        mask_id: the mask token.
    """

    def __init__(self, model: Any, mask_id: int) -> None:
        self.mask_id = mask_id
        self.open: Tensor | None = None
        model.register_forward_pre_hook(self._look, with_kwargs=True)
        for name, module in model.named_modules():
            if ".lora_A." in name:
                module.register_forward_hook(self._close)

    def _look(self, module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        tokens = named["input_ids"] if "input_ids" in named else inputs[0]
        self.open = (tokens == self.mask_id)[..., None]

    def _close(self, module: torch.nn.Module, inputs: tuple[Tensor, ...], low: Tensor) -> Tensor:
        # Between the two factors, where it is cheapest. A product with 0 would keep a NaN.
        assert self.open is not None
        return torch.where(self.open, low, torch.zeros((), dtype=low.dtype, device=low.device))
