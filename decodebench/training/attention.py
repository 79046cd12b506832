"""Attention over packed rows: every sample by itself, and its clean stream without a mask where that is causal."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from decodebench.training.layout import Slots, sees

PACKED = "decodebench_packed"


class Piece(NamedTuple):
    """Where a sample lies.

    Attributes:
        row: of the batch.
        clean: slots of its clean stream.
        noisy: slots of its noisy stream, right behind; empty where there is none.
        visible: additive mask of the noisy queries over all its slots, ``[noisy, clean + noisy]``.
        backward: additive mask of the clean queries over the clean slots; ``None`` where it is the causal one.
    """

    row: int
    clean: slice
    noisy: slice
    visible: Tensor
    backward: Tensor | None


def pieces(slots: Slots, dtype: torch.dtype) -> list[Piece]:
    """The samples of packed rows, in order."""
    found: list[Piece] = []
    for row in range(slots.sample.shape[0]):
        part = Slots(*(column[row] for column in slots))
        for number in range(int(part.sample.max()) + 1):
            places = (part.sample == number).nonzero()[:, 0]
            begin, end = int(places[0]), int(places[-1]) + 1
            middle = end - int(part.noisy[begin:end].sum())
            clean, noisy = slice(begin, middle), slice(middle, end)
            causal = torch.equal(part.reach[clean], part.position[clean])
            backward = None if causal else _mask(part, clean, clean, dtype)
            found.append(Piece(row, clean, noisy, _mask(part, noisy, slice(begin, end), dtype), backward))
    return found


def _mask(part: Slots, queries: slice, keys: slice, dtype: torch.dtype) -> Tensor:
    """``[queries, keys]`` 0 where a slot sees another, else −∞."""
    rule = sees(Slots(*(column[queries, None] for column in part)), Slots(*(column[None, keys] for column in part)))
    return torch.zeros(rule.shape, dtype=dtype, device=rule.device).masked_fill_(~rule, -torch.inf)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    pieces: Sequence[Piece] = (),
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer, as transformers calls it.

    A dense mask over a packed row would compute what nobody sees: of n samples of equal length it keeps one part in n,
    and of that a half again. So each sample is its own call, and each stream.

    Args:
        query: ``[rows, heads, length, head_dim]``.
        key, value: ``[rows, kv_heads, length, head_dim]``.
        pieces: where the samples lie; slots in none of them get zeros.

    Returns:
        ``[rows, length, heads, head_dim]``, and no weights.
    """
    group = query.shape[1] // key.shape[1]
    out = torch.zeros_like(query)
    for piece in pieces:
        whole = slice(piece.clean.start, piece.noisy.stop)
        q, k, v = (tensor[piece.row : piece.row + 1, :, whole] for tensor in (query, key, value))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        n = piece.clean.stop - piece.clean.start
        out[piece.row, :, piece.clean] = scaled_dot_product_attention(
            q[:, :, :n], k[:, :, :n], v[:, :, :n], piece.backward, is_causal=piece.backward is None, scale=scaling
        )[0]
        if piece.visible.numel():
            mask = piece.visible[None, None]
            out[piece.row, :, piece.noisy] = scaled_dot_product_attention(
                q[:, :, n:], k, v, attn_mask=mask, scale=scaling
            )[0]
    return out.transpose(1, 2), None


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, lambda *_, **__: None)
