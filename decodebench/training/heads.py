"""Heads on a model that is left as it is."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from decodebench.models.layers import Shortened
from decodebench.models.medusa_heads import MedusaHeads


class HeadStates(NamedTuple):
    """Attributes:
    logits: ``[rows, length, heads, hidden]`` what is to be unembedded for each head; so called because it is in the
        place of a model's logits.
    whole: ``[rows, length, hidden]`` what the whole model unembeds, where heads sit behind its first layers.
    """

    logits: Tensor
    whole: Tensor | None


class Headed(nn.Module):
    """Residual blocks on a model's last hidden states, each chain of them a head (see :class:`MedusaHeads`).

    All begin at 0, so that every head begins with the model's own prediction of the next token (arXiv 2401.10774,
    section 2.1.1). The heads are the module's only weights: those of the model are neither trained, nor saved, nor
    shared between processes.

    Args:
        base: a ``PreTrainedModel`` in evaluation mode.
        heads: how many.
        layers: residual blocks of each.
        exit_layer: put the heads behind so many of the base's layers and its last norm; ``None`` for all.

    Raises:
        UserError: for a base that cannot be left early.
    """

    def __init__(self, base: Any, heads: int, layers: int, exit_layer: int | None = None) -> None:
        super().__init__()
        size = base.get_output_embeddings().weight.shape[1]
        place = {"device": base.device, "dtype": torch.float32}
        self.weight = nn.Parameter(torch.zeros(heads, layers, size, size, **place))
        self.bias = nn.Parameter(torch.zeros(heads, layers, size, **place))
        self.shortened = None if exit_layer is None else Shortened(base, exit_layer)
        self._outside = (base,)  # in a tuple, where torch does not look for parts of a module

    @property
    def base(self) -> Any:
        return self._outside[0]

    @property
    def config(self) -> Any:
        return self.base.config

    @property
    def device(self) -> torch.device:
        return self.base.device

    def get_output_embeddings(self) -> nn.Module:
        return self.base.get_output_embeddings()

    def set_attn_implementation(self, name: str) -> None:
        self.base.set_attn_implementation(name)

    def heads(self) -> MedusaHeads:
        return MedusaHeads(self.weight, self.bias)

    def forward(self, **inputs: Any) -> HeadStates:
        """One pass of the base, or two; all arguments are the base's."""
        whole, hidden = None, self._last_hidden(inputs)
        if self.shortened is not None:
            with self.shortened:
                whole, hidden = hidden, self._last_hidden(inputs)
        states = self.heads().hidden(hidden.flatten(0, 1))
        return HeadStates(states.unflatten(0, hidden.shape[:2]), whole)

    @torch.no_grad()
    def _last_hidden(self, inputs: dict[str, Any]) -> Tensor:
        """``[rows, length, hidden]`` what the base is about to unembed."""
        seen: list[Tensor] = []
        hook = self.get_output_embeddings().register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            self.base(**inputs)
        finally:
            hook.remove()
        return seen[0]
