"""Where the tokens of a pass go: each row's window, pending tokens before draft."""

import numpy as np
import torch
from torch import Tensor

from decodebench.decoding.decoder import Batch, Decoder, Draft
from decodebench.decoding.forward import round_up, window_width
from decodebench.decoding.inputs import PassInputs

PACK_STEP = 8
WORTH_PACKING = 0.9  # of the slots: to pack windows takes time, too


def lay_out(batch: Batch, draft: Draft | None, decoder: Decoder, few_shapes: bool) -> PassInputs:
    """The windows of a pass over these rows; the draft is written into ``batch.tokens``, behind the committed text.

    Args:
        few_shapes: pad windows to what they can be at most, with a draft and without, so that few shapes occur.
    """
    size = draft.tokens.shape[1] if draft else 0
    width, predictions = _shape(batch, draft, decoder, few_shapes)
    ahead = torch.arange(max(width, predictions), device=batch.total.device)
    last = batch.tokens.shape[1] - 1  # a position that no text reaches: padding goes there
    if draft:  # behind the committed text, so that the window is one contiguous piece
        batch.tokens.scatter_(1, batch.total[:, None] + ahead[:size], draft.tokens)
    slots = (batch.cached[:, None] + ahead[:width]).clamp_(max=last)
    pending = (batch.total - batch.cached)[:, None]
    select = (pending - 1 + ahead[:predictions]).clamp_(max=width - 1)
    inputs = PassInputs(batch.tokens.gather(1, slots), slots, select, sees=_sees(batch, decoder, slots))
    if draft and draft.offset is not None:
        inputs.positions = slots.scatter(1, pending + ahead[:size], batch.total[:, None] + draft.offset)
    if draft and draft.mask is not None:
        inputs.draft_query, inputs.draft_key = pending + ahead[:size], batch.total[:, None] + ahead[:size]
        inputs.draft_rule = draft.mask.expand(batch.rows, -1, -1)
    if batch.total.device.type == "cpu" and not (few_shapes or (draft and draft.width)):
        inputs.packed = _packed(batch.pending + size, width)
    return inputs


def chunk(batch: Batch, decoder: Decoder, size: int) -> PassInputs:
    """The next so many tokens of prompts that are being read; nothing is predicted from them."""
    slots = batch.cached[:, None] + torch.arange(size, device=batch.cached.device)
    return PassInputs(batch.tokens.gather(1, slots), slots, slots[:, :0], sees=_sees(batch, decoder, slots))


def _shape(batch: Batch, draft: Draft | None, decoder: Decoder, few_shapes: bool) -> tuple[int, int]:
    """Slots of the window, and predictions wanted of it."""
    size = draft.tokens.shape[1] if draft else 0
    if draft and draft.width:
        return draft.width, 1 + size
    pending = batch.pending
    if few_shapes:
        size = decoder.max_draft if draft else 0
        if draft or pending.max() > 1:
            pending = np.maximum(pending, decoder.max_pending or 1)
    return window_width(pending, size), 1 + size


def _packed(used: np.ndarray, width: int) -> Tensor | None:
    """Slots to feed where rows use so many of a window of this width; ``None`` for all, where few are padding.

    What is fed is as long as a multiple of a step, by some of the padding, so that few lengths occur.
    """
    padding = np.arange(width) >= used[:, None]
    fed = round_up(int(used.sum()), PACK_STEP)
    if fed > WORTH_PACKING * padding.size:
        return None
    order = np.argsort(padding, axis=None, kind="stable")  # what is used first
    return torch.from_numpy(np.sort(order[:fed]))


def _sees(batch: Batch, decoder: Decoder, slots: Tensor) -> Tensor | None:
    """The last slot that each one sees; ``None`` where that is its own."""
    block = decoder.block
    if block is None:
        return None
    committed = batch.total[:, None] - 1
    end = slots - slots % block + block - 1
    return torch.where(slots <= committed, torch.minimum(end, committed), end)
