"""The tensors that a pass is made of."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass
class PassInputs:
    """What a pass is told on the device.

    Attributes:
        tokens: ``[rows, width]`` the windows.
        slots: ``[rows, width]`` where in its row of the cache each token goes.
        select: ``[rows, n]`` window slots whose logits are wanted.
        positions: ``[rows, width]`` where they differ from ``slots`` (trees).
        sees: ``[rows, width]`` the last slot of the cache that each window slot sees; ``None`` is its own.
        draft_query, draft_key, draft_rule: ``[rows, d]``, ``[rows, d]`` and bool ``[rows, d, d]``, all or none: these
            window slots see these slots of the cache as the rule says, instead of causally.
        packed: ``[n]`` which slots of the windows, flattened, hold more than padding; others are not fed. ``None``
            feeds all. Not of passes that are recorded, since its length varies.
    """

    tokens: Tensor
    slots: Tensor
    select: Tensor
    positions: Tensor | None = None
    sees: Tensor | None = None
    draft_query: Tensor | None = None
    draft_key: Tensor | None = None
    draft_rule: Tensor | None = None
    packed: Tensor | None = None

    def named(self) -> dict[str, Tensor]:
        """Those that there are."""
        return {each.name: t for each in fields(self) if (t := getattr(self, each.name)) is not None}

    def visible(self, read: int) -> Tensor:
        """bool ``[rows, width, read]``: which positions of its row of the cache each slot of the window sees."""
        last = self.slots if self.sees is None else self.sees
        visible = torch.arange(read, device=last.device) <= last[..., None]
        if self.draft_query is not None:
            assert self.draft_key is not None
            assert self.draft_rule is not None
            row = torch.arange(last.shape[0], device=last.device)[:, None, None]
            visible[row, self.draft_query[..., None], self.draft_key[:, None, :]] = self.draft_rule
        return visible
