"""Weights laid out for the CPU's bfloat16 instructions once, and not again in every pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Linear, Module

from decodebench.memory import available_memory

ROWS = 16  # oneDNN asks how many rows to lay out for: one layout is read at about the same speed from 1 row to 512

_packed: WeakKeyDictionary[Linear, tuple[Tensor, int, Tensor]] = WeakKeyDictionary()  # weight, its version, the copy


@contextmanager
def packed_weights(model: Module) -> Iterator[None]:
    """While inside, a model's bfloat16 linear layers on a CPU read a copy of their weights in oneDNN's own layout.

    ``torch.nn.functional.linear`` brings the weights into that layout in every call, which at decoding shapes takes as
    long as the product itself. The copies stay with the layers, for the next time. They take as much memory as the
    weights: where less than twice that is free, nothing is packed. Other dtypes and devices are left alone.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, Linear) and _can_pack(layer)]
    new = [layer for layer in layers if not _is_packed(layer)]
    if new and 2 * sum(layer.weight.nbytes for layer in new) > available_memory(torch.device("cpu")):
        layers = new = []
    for layer in new:
        _packed[layer] = layer.weight, _version(layer.weight), _ops()._reorder_linear_weight(layer.weight, ROWS)
    for layer in layers:
        layer.forward = _Product(_packed[layer][-1], layer.bias)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Product:
    """In place of a layer's ``forward``; holds no reference to the layer, so that the copy goes when the layer does."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias, self.run = weight, bias, _ops()._linear_pointwise.default

    def __call__(self, input: Tensor) -> Tensor:
        out: Tensor = self.run(input, self.weight, self.bias, "none", [], "")
        return out


def _can_pack(layer: Linear) -> bool:
    weight = layer.weight
    plain = type(layer) is Linear and "forward" not in vars(layer)  # not packed already, by an outer `with`
    return plain and weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and _available()


def _is_packed(layer: Linear) -> bool:
    weight, version, _ = _packed.get(layer, (None, 0, None))
    return weight is layer.weight and version == _version(layer.weight)


def _version(weight: Tensor) -> int:
    return 0 if weight.is_inference() else weight._version


def _available() -> bool:
    """Whether this build and machine have the products that torch's own compiler would use."""
    ops = _ops()
    has = all(hasattr(ops, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    return has and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _ops() -> torch._ops._OpNamespace:
    return torch.ops.mkldnn
