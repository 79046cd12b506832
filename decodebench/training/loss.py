"""Unembedding and cross-entropy in one, a few hundred positions at a time."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 25  # of float32 logits: a long batch does not fit, and small chunks stay in the cache


class Losses(NamedTuple):
    """Attributes:
    total: Σ weight × cross-entropy, with gradient; float32 scalar.
    each: cross-entropy per position in nats, without gradient; float32 ``[n]``.
    correct: whether the likeliest token is the target; bool ``[n]``.
    """

    total: Tensor
    each: Tensor
    correct: Tensor


def unembedding_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor, chunk: int | None = None
) -> Losses:
    """Weighted cross-entropy of the tokens that hidden states predict.

    The gradient is computed on the way forward, while a chunk's logits are there anyway, so that they are neither kept
    nor computed twice.

    Args:
        hidden: ``[n, width]`` states of labelled positions.
        weight: ``[vocabulary, width]`` the unembedding.
        bias: ``[vocabulary]`` or ``None``.
        targets: ``[n]`` int64.
        weights: ``[n]`` float32, of each position's cross-entropy in the total.
        chunk: positions at a time; by default as many as fit into 32 MiB.
    """
    chunk = chunk or max(16, CHUNK_BYTES // (4 * weight.shape[0]))
    total, each, correct = _UnembeddingLoss.apply(hidden, weight, bias, targets, weights, chunk)
    return Losses(total, each, correct)


def likeliest(hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk: int | None = None) -> Tensor:
    """``[n]`` the most probable tokens; arguments are those of :func:`unembedding_loss`."""
    chunk = chunk or max(16, CHUNK_BYTES // (4 * weight.shape[0]))
    parts = [torch.nn.functional.linear(part, weight, bias).argmax(-1) for part in hidden.split(chunk)]
    return torch.cat(parts)


class _UnembeddingLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        wants = ctx.needs_input_grad
        d_hidden = torch.zeros_like(hidden) if wants[0] else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wants[1] else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wants[2] else None
        each = torch.empty(len(hidden), device=hidden.device)
        correct = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        for begin in range(0, len(hidden), chunk):
            part = slice(begin, begin + chunk)
            logits = torch.nn.functional.linear(hidden[part], weight, bias).float()
            target = targets[part, None]
            likelihood = torch.log_softmax(logits, -1)
            each[part] = -likelihood.gather(1, target)[:, 0]
            correct[part] = logits.argmax(-1) == target[:, 0]
            if not any(wants):
                continue
            slope = likelihood.exp_()
            slope.scatter_add_(1, target, torch.full_like(target, -1, dtype=slope.dtype))
            slope *= weights[part, None]
            low = slope.to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[part] = low @ weight
            if d_weight is not None:
                d_weight += low.T @ hidden[part]
            if d_bias is not None:
                d_bias += slope.sum(0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.types = weight.dtype, bias.dtype if bias is not None else None
        ctx.mark_non_differentiable(each, correct)
        return (each * weights).sum(), each, correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        weight_type, bias_type = ctx.types
        return (
            None if d_hidden is None else d_hidden * grad.to(d_hidden.dtype),
            None if d_weight is None else (d_weight * grad).to(weight_type),
            None if d_bias is None else (d_bias * grad).to(bias_type),
            None, None, None,
        )  # fmt: skip
