"""Weights laid out for the CPU's bfloat16 instructions once, and not again in every pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Linear, Module

from decodebench.memory import available_memory

ROWS = 16  # oneDNN asks how many rows to lay out for: one layout is read at about the same speed from 1 row to 512

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers that a model feeds the same input

Layers = tuple[Linear, ...]


@dataclass
class _Copy:
    """Weights of layers, one below the other, in oneDNN's layout."""

    of: list[tuple[Tensor, int]]
    """The layers' own weights and biases, and their versions."""
    weight: Tensor
    bias: Tensor | None


_packed: WeakKeyDictionary[Linear, _Copy] = WeakKeyDictionary()  # by the first of the layers


@contextmanager
def packed_weights(model: Module) -> Iterator[None]:
    """While inside, a model's bfloat16 linear layers on a CPU read a copy of their weights in oneDNN's own layout.

    ``torch.nn.functional.linear`` brings the weights into that layout in every call, which at decoding shapes takes as
    long as the product itself. Layers that read the same input (queries, keys and values; gate and up) become one
    product, since a small one costs little less than a large one. The copies stay with the layers, for the next time.
    They take as much memory as the weights: where less than twice that is free, nothing is packed. Other dtypes and
    devices are left alone.
    """
    groups = _groups(model)
    new = [group for group in groups if not _is_packed(group)]
    if new and 2 * sum(layer.weight.nbytes for group in new for layer in group) > available_memory(torch.device("cpu")):
        groups = new = []
    for group in new:
        _packed[group[0]] = _pack(group)
    for group in groups:
        product = _Product(_packed[group[0]], [layer.out_features for layer in group])
        for part, layer in enumerate(group):
            layer.forward = _Part(product, part) if len(group) > 1 else product.whole  # type: ignore[method-assign]
    try:
        yield
    finally:
        for group in groups:
            for layer in group:
                del layer.forward


class _Product:
    """The product of layers with one input; holds no reference to them, so that the copy goes when they do."""

    def __init__(self, copy: _Copy, sizes: Sequence[int]) -> None:
        self.weight, self.bias, self.run = copy.weight, copy.bias, _ops()._linear_pointwise.default
        self.sizes = list(sizes)
        self.input: Tensor | None = None
        self.parts: list[Tensor | None] = []

    def whole(self, input: Tensor) -> Tensor:
        out: Tensor = self.run(input, self.weight, self.bias, "none", [], "")
        return out

    def part(self, input: Tensor, number: int) -> Tensor:
        """What one layer makes of its input; all of them are computed when the first one is asked."""
        if self.input is not input or self.parts[number] is None:
            self.input, self.parts = input, list(self.whole(input).split_with_sizes(self.sizes, -1))
        out, self.parts[number] = self.parts[number], None
        assert out is not None
        if not any(part is not None for part in self.parts):
            self.input = None
        return out


class _Part:
    """In place of a layer's ``forward``."""

    def __init__(self, product: _Product, number: int) -> None:
        self.product, self.number = product, number

    def __call__(self, input: Tensor) -> Tensor:
        return self.product.part(input, self.number)


def _groups(model: Module) -> list[Layers]:
    """The layers that can be packed, together or alone."""
    groups: list[Layers] = []
    seen: set[Linear] = set()  # a layer may have two parents
    for module in model.modules():
        children = {n: child for n, child in module.named_children() if _can_pack(child) and child not in seen}
        seen.update(children.values())
        for names in SIBLINGS:
            layers = tuple(children[name] for name in names if name in children)
            if len(layers) == len(names) and len({(each.in_features, each.bias is None) for each in layers}) == 1:
                groups.append(layers)
                children = {name: child for name, child in children.items() if name not in names}
        groups += [(child,) for child in children.values()]
    return groups


def _pack(layers: Layers) -> _Copy:
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    weight = torch.cat([layer.weight for layer in layers])
    return _Copy(_state(layers), _ops()._reorder_linear_weight(weight, ROWS), bias)


def _can_pack(layer: Module) -> TypeGuard[Linear]:
    if type(layer) is not Linear or "forward" in vars(layer):  # packed already, by an outer `with`
        return False
    return layer.weight.dtype == torch.bfloat16 and layer.weight.device.type == "cpu" and _available()


def _is_packed(layers: Layers) -> bool:
    of, now = (_packed[layers[0]].of if layers[0] in _packed else []), _state(layers)
    return len(of) == len(now) and all(a is b and v == w for (a, v), (b, w) in zip(of, now, strict=True))


def _state(layers: Layers) -> list[tuple[Tensor, int]]:
    tensors = (tensor for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None)
    return [(tensor, 0 if tensor.is_inference() else tensor._version) for tensor in tensors]


def _available() -> bool:
    """Whether this build and machine have the products that torch's own compiler would use."""
    ops = _ops()
    has = all(hasattr(ops, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    return has and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _ops() -> torch._ops._OpNamespace:
    return torch.ops.mkldnn
