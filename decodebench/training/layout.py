"""The two-stream layout of MARS (arXiv 2604.07023): clean text and its masked copy in one row, and who sees whom."""

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
        block: blocks of ``block_size`` tile the response from its first token on; −1 in the prompt.
        position: in the sample; the two streams share positions.
    """

    sample: Tensor
    noisy: Tensor
    block: Tensor
    position: Tensor


class Layout(NamedTuple):
    """Packed rows, ready for one forward pass. All tensors are int64 ``[rows, row_length]``.

    Attributes:
        tokens: clean samples and their masked copies; padding is token 0.
        slots: for :func:`sees`.
        targets: the token that the slot has to predict (already shifted: the state at position i predicts token i+1),
            :data:`IGNORE` where there is none. Only response tokens are predicted.
        offset: how many tokens after the last visible real one the target lies: 1 in the clean stream, 2 to B+1 in
            the noisy one; 0 where there is no target.
    """

    tokens: Tensor
    slots: Slots
    targets: Tensor
    offset: Tensor


def laid_out_length(sample: Sample, block_size: int | None) -> int:
    """Slots that a sample takes: prompt and response, and all but the last response token once more as masks.

    Only the response has a noisy copy, and its last position has nothing left to predict.
    """
    noisy = 0 if block_size is None else len(sample.response) - 1
    return len(sample.prompt) + len(sample.response) + noisy


def lay_out(rows: Sequence[Sequence[Sample]], row_length: int, block_size: int | None, mask_id: int = 0) -> Layout:
    """Write packed samples into rows.

    Args:
        rows: the samples of each row; together they must fit.
        row_length: slots per row.
        block_size: B; ``None`` for the clean stream alone (plain autoregressive fine-tuning).
        mask_id: what stands in the noisy stream.

    Raises:
        ValueError: when a row does not fit.
    """
    parts = [_row(samples, row_length, block_size, mask_id) for samples in rows]
    tokens, sample, noisy, block, position, targets, offset = (
        torch.tensor(columns) for columns in zip(*parts, strict=True)
    )
    return Layout(tokens, Slots(sample, noisy.bool(), block, position), targets, offset)


def _row(samples: Sequence[Sample], row_length: int, block_size: int | None, mask_id: int) -> list[list[int]]:
    """The seven columns of a row: tokens, sample, noisy, block, position, targets, offset."""
    slots: list[tuple[int, ...]] = []
    for number, sample in enumerate(samples):
        text = [*sample.prompt, *sample.response]
        start = len(sample.prompt)
        for i, token in enumerate(text):
            target = text[i + 1] if start - 1 <= i < len(text) - 1 else IGNORE
            block = -1 if i < start else (i - start) // (block_size or 1)
            slots.append((token, number, 0, block, i, target, int(target != IGNORE)))
        for i in range(start, len(text) - 1) if block_size else ():
            block, ahead = divmod(i - start, block_size or 1)
            slots.append((mask_id, number, 1, block, i, text[i + 1], ahead + 2))
    if len(slots) > row_length:
        raise ValueError(f"{len(slots)} slots do not fit in a row of {row_length}")
    slots += [(0, -1, 0, -1, 0, IGNORE, 0)] * (row_length - len(slots))
    return [list(column) for column in zip(*slots, strict=True)]


def sees(query: Slots, key: Slots) -> Tensor:
    """The attention rule (arXiv 2604.07023), for slots that broadcast against each other; bool.

    Clean slots see the clean text up to themselves; noisy slots see their own block up to themselves and the clean
    text of earlier blocks; nobody sees another sample, and the clean stream never sees the noisy one.
    """
    before = key.position <= query.position
    clean_to_clean = ~query.noisy & ~key.noisy & before
    noisy_to_noisy = query.noisy & key.noisy & (key.block == query.block) & before
    noisy_to_clean = query.noisy & ~key.noisy & (key.block < query.block)
    return (query.sample == key.sample) & (clean_to_clean | noisy_to_noisy | noisy_to_clean)


def block_mask(slots: Slots) -> object:
    """The rule as a ``BlockMask`` of FlexAttention, which skips what nobody sees."""
    from torch.nn.attention.flex_attention import create_block_mask

    def rule(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(Slots(*(s[row, query] for s in slots)), Slots(*(s[row, key] for s in slots)))

    rows, length = slots.sample.shape
    return create_block_mask(rule, rows, None, length, length, device=str(slots.sample.device))
