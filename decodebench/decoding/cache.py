"""A key-value cache with a length per row, and the attention that reads it, for stock Hugging Face models.

A pass writes row b's window at its own offset. Committing moves a length and rejecting does not: nothing is cropped or
copied, and no row waits for another. Slots at and after a row's length hold leftovers; the mask hides them.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from decodebench.errors import UserError

if TYPE_CHECKING:
    from decodebench.decoding.graphs import PassGraphs

ATTENTION = "decodebench_window"


@dataclass
class Window:
    """Where a pass reads and writes.

    Attributes:
        rows: the slots of the cache that take part, contiguous.
        write: index of the new keys and values, ``([rows, 1], [rows, width])``, relative to ``rows``; of packed windows
            ``([1, n], [1, n])``.
        read: how many leading positions attention looks at.
        width: slots of a row's window.
        packed: ``[n]`` which slots of all windows, one after the other, are fed, as one sequence; ``None`` is all of
            them, as a batch.
    """

    rows: slice
    write: tuple[Tensor, Tensor]
    read: int
    width: int
    packed: Tensor | None = None


class _Pass(threading.local):
    """The pass that a thread is doing: attention is called by the model, which knows nothing of packed windows.

    Attributes:
        window: where it reads and writes.
        cache: of a compiled pass, which does not tell attention.
    """

    window: Window | None = None
    cache: "RaggedCache | None" = None


current = _Pass()


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, ``[rows, kv_heads, capacity, head_dim]``."""

    keys: Tensor
    values: Tensor

    def __init__(self, owner: "RaggedCache") -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate on first use: the model's own states tell heads, head size and dtype."""
        shape = (self.owner.rows, key_states.shape[1], self.owner.capacity)
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the window's states and return what attention reads: views, ``[rows, kv_heads, read, head_dim]``."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.owner.window
        row, position = window.write
        keys, values = self.keys[window.rows], self.values[window.rows]
        keys[row, :, position] = key_states.transpose(1, 2)
        values[row, :, position] = value_states.transpose(1, 2)
        return keys[:, :, : window.read], values[:, :, : window.read]

    # What transformers asks to build masks; we bring ours, so only the interface is served.
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.window.read, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.owner.capacity

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class RaggedCache(Cache):
    """The cache of a whole model.

    Args:
        layers: number of decoder layers.
        rows: slots for requests.
        capacity: positions per slot.
    """

    window: Window
    layers: list[RaggedLayer]  # type: ignore[assignment]
    graphs: "PassGraphs | None" = None
    """Recordings of passes over it, where passes are recorded."""

    def __init__(self, layers: int, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        super().__init__(layers=[RaggedLayer(self) for _ in range(layers)])

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one row over another's."""
        for layer in self.layers:
            for states in (layer.keys, layer.values):
                states[target, :, :length] = states[source, :, :length]

    def compact(self, rows: slice, source: Tensor, target: Tensor) -> None:
        """Within each row, copy positions ``source`` to ``target``, both ``[rows, n]``: a tree's chosen path."""
        row = torch.arange(source.shape[0], device=source.device)[:, None]
        for layer in self.layers:
            for states in (layer.keys, layer.values):
                view = states[rows]
                view[row, :, target] = view[row, :, source]  # the right side is gathered before anything is written


def position_bytes(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one position of one row in all layers.

    Args:
        config: a model's text configuration.
    """
    heads = config.num_attention_heads
    grouped = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * grouped * size * dtype.itemsize)


def window_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a window on its row's cache, without copying grouped key-value heads.

    The queries that share a key-value head are folded into the query length (SDPA's own ``enable_gqa`` is two to six
    times slower than this on CPU at decoding shapes).

    Args:
        query: ``[rows, heads, width, head_dim]``, or ``[1, heads, n, head_dim]`` of packed windows.
        key, value: ``[rows, kv_heads, read, head_dim]``.
        attention_mask: additive ``[rows, 1, heads / kv_heads · width, read]``, folded like the queries; ``None``
            where every query sees every key.
    """
    for unsupported in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(unsupported) is not None:
            raise UserError(f"{type(module).__name__} needs attention with {unsupported}, which is not supported")
    if torch.compiler.is_compiling():
        return torch.ops.decodebench.token_attention(query, key, value, module.layer_idx, scaling), None
    window = current.window
    packed = window.packed if window else None
    if window and packed is not None:
        query = _unpack(query, packed, key.shape[0], window.width)
    rows, heads, width, size = query.shape
    if attention_mask is not None and attention_mask.shape[2] * key.shape[1] != heads * width:
        raise UserError(
            f"{type(module).__name__} has {key.shape[1]} key-value heads, which is not what its configuration says: "
            "such models are not supported"
        )
    folded = query.reshape(rows, key.shape[1], -1, size)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    out = out.reshape(rows, heads, width, -1).transpose(1, 2)
    return out if packed is None else out.flatten(0, 1)[packed][None], None


def _unpack(query: Tensor, packed: Tensor, rows: int, width: int) -> Tensor:
    """``[1, heads, n, head_dim]`` to ``[rows, heads, width, head_dim]``, zero where nothing was fed."""
    slots = query.new_zeros(rows * width, query.shape[1], query.shape[3])
    slots[packed] = query[0].transpose(0, 1)
    return slots.view(rows, width, *slots.shape[1:]).transpose(1, 2)


def _token_attention(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float | None) -> Tensor:
    """What a compiled pass of one token calls: a black box to the compiler, since the cache grows.

    Args:
        query: ``[1, heads, 1, head_dim]``.
        key, value: the token's own, ``[1, kv_heads, 1, head_dim]``.

    Returns:
        ``[1, 1, heads, head_dim]``.
    """
    if current.cache is None:  # the compiler tries out what it made
        return _token_shape(query, key, value, layer, scaling).zero_()
    keys, values = current.cache.layers[layer].update(key, value)
    folded = query.reshape(1, key.shape[1], -1, query.shape[-1])
    return scaled_dot_product_attention(folded, keys, values, scale=scaling).reshape(1, 1, query.shape[1], -1)


def _token_shape(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float | None) -> Tensor:
    return query.new_empty(1, 1, query.shape[1], value.shape[-1])


torch.library.define(
    "decodebench::token_attention", "(Tensor query, Tensor key, Tensor value, int layer, float? scaling) -> Tensor"
)
torch.library.impl("decodebench::token_attention", "CPU", _token_attention)
torch.library.register_fake("decodebench::token_attention", _token_shape)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Stands where transformers would build a mask; every pass brings its own."""


AttentionInterface.register(ATTENTION, window_attention)
_register: Callable[[str, Any], None] = AttentionMaskInterface.register
_register(ATTENTION, _no_mask)
