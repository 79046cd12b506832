"""Leaving a model early: its first layers, its last norm and its unembedding."""

from typing import Any

from torch.nn import Module, ModuleList

from decodebench.errors import UserError


class Shortened:
    """While inside (``with``), a model leaves out all layers after the first few; outside, it is whole.

    Args:
        model: a ``PreTrainedModel``.
        layers: how many are run.

    Raises:
        UserError: for a model that does not keep its layers in one list.
    """

    def __init__(self, model: Any, layers: int) -> None:
        self.owner, self.name, self.all = _stack(model, model.config.get_text_config().num_hidden_layers)
        self.first = self.all[:layers]

    def __enter__(self) -> None:
        setattr(self.owner, self.name, self.first)

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.all)


def _stack(model: Module, layers: int) -> tuple[Module, str, ModuleList]:
    """The module that holds a model's layers, under which name, and the layers."""
    for owner in model.modules():
        for name, child in owner.named_children():
            if isinstance(child, ModuleList) and len(child) == layers:
                return owner, name, child
    raise UserError(f"{type(model).__name__} does not keep its layers in one list: it cannot be left early")
