"""Rows of slots: clean text and its noisy copy in one row, who sees whom, and what each slot has to predict.

The layout of MARS (arXiv 2604.07023) is made here; that of block diffusion differs in its noisy copy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decodebench.training.samples import Sample

IGNORE = -100


class Slots(NamedTuple):
    """What the attention rule needs to know of each slot; int64 tensors of one shape (``noisy`` is bool).

    Attributes:
        sample: number of the sample within its row; −1 for padding.
        noisy: whether the slot belongs to the noisy stream.
        block: blocks of ``block_size`` tile the response from its first token on; below 0 in the prompt.
        position: in the sample; the two streams share positions.
        reach: the last position that the slot sees of its own stream: its own, unless attention is bidirectional.
    """

    sample: Tensor
    noisy: Tensor
    block: Tensor
    position: Tensor
    reach: Tensor


class Layout(NamedTuple):
    """Packed rows, ready for one forward pass. All tensors are ``[rows, row_length]``, int64 but for `weight`.

    Attributes:
        tokens: clean samples and their masked copies; padding is token 0.
        slots: for :func:`sees`.
        targets: the token that the slot has to predict (already shifted: the state at position i predicts token i+1),
            :data:`IGNORE` where there is none. Only response tokens are predicted.
        offset: how many tokens after the last visible real one the target lies: 1 in the clean stream, 2 to B+1 in
            the noisy one; 0 where there is no target.
        weight: float32, of the slot's cross-entropy in the loss.
    """

    tokens: Tensor
    slots: Slots
    targets: Tensor
    offset: Tensor
    weight: Tensor


class Slot(NamedTuple):
    """One slot of a row, as `Slots` and `Layout` describe it; what it is by default is padding."""

    token: int = 0
    sample: int = -1
    noisy: bool = False
    block: int = -1
    position: int = 0
    reach: int = 0
    target: int = IGNORE
    offset: int = 0
    weight: float = 0.0


def laid_out_length(sample: Sample, block_size: int | None) -> int:
    """Slots that a sample takes: prompt and response, and all but the last response token once more as masks.

    Only the response has a noisy copy, and its last position has nothing left to predict.
    """
    noisy = 0 if block_size is None else len(sample.response) - 1
    return len(sample.prompt) + len(sample.response) + noisy


def lay_out(
    rows: Sequence[Sequence[Sample]],
    row_length: int,
    block_size: int | None,
    mask_id: int = 0,
    clean_weight: float = 1.0,
) -> Layout:
    """Write packed samples into rows.

    Args:
        rows: the samples of each row; together they must fit.
        row_length: slots per row.
        block_size: B; ``None`` for the clean stream alone (plain autoregressive fine-tuning).
        mask_id: what stands in the noisy stream.
        clean_weight: α, the weight of the clean stream in the loss.

    Raises:
        ValueError: when a row does not fit.
    """
    return assemble(
        [[slot for number, sample in enumerate(samples)
          for slot in _slots(sample, number, block_size, mask_id, clean_weight)] for samples in rows], row_length
    )  # fmt: skip


def _slots(sample: Sample, number: int, block_size: int | None, mask_id: int, clean_weight: float) -> list[Slot]:
    """The slots of a sample: clean, then noisy."""
    text, start = [*sample.prompt, *sample.response], len(sample.prompt)
    slots = []
    for i, token in enumerate(text):
        block = -1 if i < start else (i - start) // (block_size or 1)
        slot = Slot(token, number, False, block, i, i)
        if start - 1 <= i < len(text) - 1:
            slot = slot._replace(target=text[i + 1], offset=1, weight=clean_weight)
        slots.append(slot)
    for i in range(start, len(text) - 1) if block_size else ():
        block, ahead = divmod(i - start, block_size or 1)
        slots.append(Slot(mask_id, number, True, block, i, i, text[i + 1], ahead + 2, 1.0))
    return slots


def assemble(rows: Sequence[list[Slot]], row_length: int) -> Layout:
    """The slots of rows as tensors, each row padded.

    Raises:
        ValueError: when a row does not fit.
    """
    every: list[Slot] = []
    for slots in rows:
        if len(slots) > row_length:
            raise ValueError(f"{len(slots)} slots do not fit in a row of {row_length}")
        every += [*slots, *[Slot()] * (row_length - len(slots))]
    tokens, *place, targets, offset, weight = (
        torch.tensor(column).view(len(rows), row_length) for column in zip(*every, strict=True)
    )
    return Layout(tokens, Slots(*place), targets, offset, weight)


def look_ahead(layout: Layout, distances: Sequence[int], decay: float) -> Layout:
    """The layout of a clean stream for heads: what has to be predicted lies further ahead for each head.

    Args:
        layout: without noisy streams.
        distances: per head, how far behind the next token its target lies.
        decay: the weight of each head in the loss, relative to the one before it.

    Returns:
        The layout with ``[rows, row_length, heads]`` targets, offsets and weights. Slots whose own next token is none
        to predict have no other target either: when text is decoded, heads begin at the prompt's last token.
    """
    columns = []
    for head, distance in enumerate(distances):
        target, sample = (
            torch.nn.functional.pad(column, (0, distance), value=nothing)[:, distance:]
            for column, nothing in ((layout.targets, IGNORE), (layout.slots.sample, -1))
        )
        there = (layout.targets != IGNORE) & (target != IGNORE) & (sample == layout.slots.sample)
        columns.append((torch.where(there, target, IGNORE), there * (distance + 1), there * decay**head))
    targets, offset, weight = (torch.stack(column, -1) for column in zip(*columns, strict=True))
    return layout._replace(targets=targets, offset=offset, weight=weight)


def sees(query: Slots, key: Slots) -> Tensor:
    """The attention rule (arXiv 2604.07023, 2503.09573), for slots that broadcast against each other; bool.

    Clean slots see the clean text up to their reach; noisy slots see their own block up to their reach and the clean
    text of earlier blocks; nobody sees another sample, and the clean stream never sees the noisy one.
    """
    reached = key.position <= query.reach
    clean_to_clean = ~query.noisy & ~key.noisy & reached
    noisy_to_noisy = query.noisy & key.noisy & (key.block == query.block) & reached
    noisy_to_clean = query.noisy & ~key.noisy & (key.block < query.block)
    return (query.sample == key.sample) & (clean_to_clean | noisy_to_noisy | noisy_to_clean)


def block_mask(slots: Slots) -> object:
    """The rule as a ``BlockMask`` of FlexAttention, which skips what nobody sees."""
    from torch.nn.attention.flex_attention import create_block_mask

    def rule(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(Slots(*(s[row, query] for s in slots)), Slots(*(s[row, key] for s in slots)))

    rows, length = slots.sample.shape
    return create_block_mask(rule, rows, None, length, length, device=str(slots.sample.device))
