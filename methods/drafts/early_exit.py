"""Drafts from the target's own first layers."""

from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import Module, ModuleList

from decodebench.decoding import Batch
from decodebench.decoding.forward import WindowModel
from decodebench.errors import UserError
from decodebench.methods.drafts.model import ModelSource
from decodebench.models import LoadedModel


class EarlyExit(ModelSource):
    """The target's first layers with its own last norm and unembedding (LayerSkip, arXiv 2404.16710).

    It reads and writes the target's cache: a layer's keys and values are the same whether or not others follow it, so
    those of the prompt and the text are there already, and the pass that checks a draft writes the draft's again.

    Args:
        layers: how many.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers

    def bind(self, model: LoadedModel, k: int) -> None:
        has = model.model.config.get_text_config().num_hidden_layers
        if self.layers >= has:
            raise UserError(
                f"--draft early-exit:{self.layers}: {model.name} has {has} layers, choose from 1 to {has - 1} of them"
            )
        self.drafter = FirstLayers(model.model, self.layers)
        self.vocabulary = self.drafter.vocabulary

    def cached(self, batch: Batch) -> tuple[Tensor, np.ndarray]:
        return batch.cached, batch.host_cached


class FirstLayers(WindowModel):
    """A model that leaves out all layers after the first few.

    Args:
        model: whose layers they are; it is whole between passes.
        layers: how many are run.
    """

    shares_cache = True

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__(model)
        self.owner, self.name, self.all = _stack(model, self.config.num_hidden_layers)
        self.first = self.all[:layers]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        setattr(self.owner, self.name, self.first)
        try:
            return super().forward(*args, **kwargs)
        finally:
            setattr(self.owner, self.name, self.all)


def _stack(model: Module, layers: int) -> tuple[Module, str, ModuleList]:
    """The module that holds a model's layers, under which name, and the layers."""
    for owner in model.modules():
        for name, child in owner.named_children():
            if isinstance(child, ModuleList) and len(child) == layers:
                return owner, name, child
    raise UserError(f"{type(model).__name__} does not keep its layers in one list: it cannot be left early")
