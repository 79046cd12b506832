"""Drafts from the target's own first layers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodebench.decoding import Batch
from decodebench.decoding.forward import WindowModel
from decodebench.errors import UserError
from decodebench.methods.drafts.model import ModelSource
from decodebench.models import LoadedModel
from decodebench.models.layers import Shortened
from decodebench.models.loading import read_card
from decodebench.models.medusa_heads import MedusaHeads, load_heads, place_of


class EarlyExit(ModelSource):
    """The target's first layers with its own last norm and unembedding (LayerSkip, arXiv 2404.16710).

    Between norm and unembedding may stand a head (``decodebench train draft``): a residual block that turns what the
    first layers know into what the last one would say. Without it, a model that was not trained to be left early says
    little of use there.

    It reads and writes the target's cache: a layer's keys and values are the same whether or not others follow it, so
    those of the prompt and the text are there already, and the pass that checks a draft writes the draft's again.

    Args:
        layers: how many.
        head: folder or hub id of the head; ``none`` for none, ``None`` for the one that the model's card names under
            ``exit_heads`` for this number of layers, if any.
    """

    def __init__(self, layers: int, head: str | None = None) -> None:
        self.layers, self.head = layers, head

    def bind(self, model: LoadedModel, k: int) -> None:
        has = model.model.config.get_text_config().num_hidden_layers
        if self.layers >= has:
            raise UserError(
                f"--draft early-exit:{self.layers}: {model.name} has {has} layers, choose from 1 to {has - 1} of them"
            )
        self.drafter = FirstLayers(model.model, self.layers, self._load(model))
        self.vocabulary = self.drafter.vocabulary

    def _load(self, model: LoadedModel) -> MedusaHeads | None:
        named = model.card.get("exit_heads", {}).get(str(self.layers))
        name = self.head or (place_of(named, model) if named else "none")
        if name == "none":
            return None
        head, trained = load_heads(name, model), read_card(name).get("exit_layer", self.layers)
        if head.count > 1 or head.unembedding is not None:
            raise UserError(f"--draft early-exit:{self.layers}: '{name}' holds heads for Medusa, not one for an exit")
        if trained != self.layers:
            raise UserError(f"--draft early-exit:{self.layers}: head '{name}' was trained for early-exit:{trained}")
        return head

    def cached(self, batch: Batch) -> tuple[Tensor, np.ndarray]:
        return batch.cached, batch.host_cached


class FirstLayers(WindowModel):
    """A model that leaves out all layers after the first few.

    Args:
        model: whose layers they are; it is whole between passes.
        layers: how many are run.
        head: applied to what is unembedded.
    """

    shares_cache = True

    def __init__(self, model: Any, layers: int, head: MedusaHeads | None = None) -> None:
        super().__init__(model)
        self.shortened, self.head = Shortened(model, layers), head
        self.identity = layers, head

    def compute(self, *args: Any) -> tuple[Tensor, Tensor]:
        with self.shortened:
            return super().compute(*args)

    def _select_slots(self, module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *rest = super()._select_slots(module, inputs)
        if self.head is None or self._select is None:
            return (hidden, *rest)
        return (self.head.hidden(hidden.flatten(0, 1)).view_as(hidden), *rest)
