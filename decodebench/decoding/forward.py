"""One forward pass of a window through a stock Hugging Face causal language model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodebench.decoding.cache import ATTENTION, RaggedCache, Window, current
from decodebench.decoding.compiled import CompiledPass
from decodebench.decoding.inputs import PassInputs
from decodebench.decoding.packed import packed_weights
from decodebench.errors import UserError

READ_STEP = 32  # attention looks at a multiple of this many positions, so that shapes repeat
WIDE = 32  # windows wider than this are padded to a multiple of WIDTH_STEP, for the same reason
WIDTH_STEP = 16


class WindowModel:
    """Feeds windows to a model and returns logits for the slots that are asked for, and no others.

    Per row a window is the pending tokens (committed but not cached), then the draft, then padding, in contiguous
    slots from the row's cached length on. Prefill is the same thing with a long pending part.

    Args:
        model: a ``PreTrainedModel`` with full attention in every layer.

    Raises:
        UserError: for architectures that cannot work this way; it says why.
    """

    shares_cache = False
    """Whether it reads and writes the target's keys and values when it drafts, instead of its own."""

    def __init__(self, model: Any) -> None:
        check_supported(model)
        self.model = model
        self.config = model.config.get_text_config()
        self.context = context_length(self.config)
        heads = self.config.num_attention_heads
        self.group = heads // (getattr(self.config, "num_key_value_heads", None) or heads)
        self.vocabulary = model.get_output_embeddings().weight.shape[0]
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.identity: Any = None
        """Differs for passes that compute different things over one cache."""
        self.compiled: CompiledPass | None = None
        """Does decoding passes of one token."""
        self._select: tuple[Tensor, Tensor] | None = None
        self.hidden: Tensor
        """``[rows, n, hidden_size]`` what the unembedding made the last logits of."""

    def new_cache(self, rows: int, capacity: int) -> RaggedCache:
        return RaggedCache(self.config.num_hidden_layers, rows, capacity)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """While inside, the model uses our attention and unembeds selected slots only; then it is as it was.

        The model itself is switched, so one model serves one thread at a time.
        """
        before = self.model.config._attn_implementation
        hook = self.model.get_output_embeddings().register_forward_pre_hook(self._select_slots)
        try:
            self.model.set_attn_implementation(ATTENTION)
            with torch.inference_mode(), packed_weights(self.model):
                yield
        finally:
            self.model.set_attn_implementation(before)
            hook.remove()

    def _select_slots(self, module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # Before the unembedding and not after: at 49k to 152k words it costs more than any layer. In a hook and not
        # around the base model: what a model does to its logits afterwards (scaling, capping) stays the model's.
        hidden, *rest = inputs
        if self._select is None:  # somebody else's pass through the same model
            return inputs
        self.hidden = hidden[self._select]
        return (self.hidden, *rest)

    def forward(
        self, cache: RaggedCache, rows: slice, inputs: PassInputs, longest_cached: int, again: bool = False
    ) -> Tensor:
        """Logits ``[rows, n, vocab]`` of the slots that are selected.

        Args:
            cache: receives the window's keys and values, at each row's own offset.
            rows: which slots of the cache take part.
            inputs: of these rows.
            longest_cached: the maximum of ``cached``, known on the host.
            again: whether more passes like this one will come, so that it is worth recording where passes are.
        """
        longest = longest_cached + inputs.tokens.shape[1]
        done = cache.graphs.run(self, inputs, longest) if cache.graphs and again and rows.start == 0 else None
        if done is None:
            # one row, one token: everything in the cache is visible, and no mask is needed
            read = longest if inputs.tokens.numel() == 1 else min(round_up(longest, READ_STEP), cache.capacity)
            done = self.compute(cache, _window(rows, inputs, read), inputs)
        logits, self.hidden = done
        return logits

    def compute(self, cache: RaggedCache, window: Window, inputs: PassInputs) -> tuple[Tensor, Tensor]:
        """Logits ``[rows, n, vocab]`` and what they were made of, ``[rows, n, hidden_size]``, from tensors alone."""
        alone = inputs.tokens.numel() == 1 and cache.graphs is None
        mask = None if alone else self._fold(inputs.visible(window.read))
        tokens, self._select = inputs.tokens, (window.write[0], inputs.select)
        positions = inputs.slots if inputs.positions is None else inputs.positions
        if cache.capacity > self.context:  # padding and masks may lie beyond the positions that the model knows
            positions = positions.clamp(max=self.context - 1)
        if inputs.packed is not None:
            tokens, positions = (each.flatten()[inputs.packed][None] for each in (tokens, positions))
            self._select = _packed_places(inputs.packed, inputs.select, window.width)
        cache.window = current.window = window
        try:
            if alone and self.compiled and self.compiled.program:
                current.cache = cache
                out = self.compiled.run(self.model, tokens, positions)
            else:
                out = self.model(
                    input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
                )
        finally:
            self._select = current.window = current.cache = None
        return out.logits, self.hidden

    def _fold(self, visible: Tensor) -> Tensor:
        """bool ``[rows, width, read]`` to the additive, folded mask of :func:`window_attention`."""
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=visible.device)
        mask.masked_fill_(~visible, -torch.inf)
        return mask.repeat(1, self.group, 1)[:, None]


def _window(rows: slice, inputs: PassInputs, read: int) -> Window:
    slots, packed = inputs.slots, inputs.packed
    width = slots.shape[1]
    if packed is None:
        return Window(rows, (torch.arange(slots.shape[0], device=slots.device)[:, None], slots), read, width)
    return Window(rows, ((packed // width)[None], slots.flatten()[packed][None]), read, width, packed)


def _packed_places(packed: Tensor, select: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Where in a packed sequence the selected slots of the windows are, ``([1, 1], [rows, n])``."""
    rows = torch.arange(select.shape[0], device=select.device)[:, None]
    place = torch.zeros(select.shape[0] * width, dtype=torch.long, device=select.device)
    place[packed] = torch.arange(packed.shape[0], device=select.device)
    return torch.zeros_like(select[:1, :1]), place[rows * width + select]


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def window_width(pending: np.ndarray, draft: int) -> int:
    """Slots of a pass: the longest pending part and the draft, rounded up where wide, so that shapes repeat."""
    width = int(pending.max()) + draft
    return round_up(width, WIDTH_STEP) if width > WIDE else width


def context_length(config: Any) -> int:
    """Positions that a model can use, from its text configuration."""
    length = int(getattr(config, "max_position_embeddings", None) or 2**31)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond this, it turns every position by other angles: one long row would change its neighbours, and the keys
        # already cached would be wrong.
        length = min(length, int(rope.get("original_max_position_embeddings") or length))
    return length


def check_supported(model: Any) -> None:
    """Raise a UserError that says why, unless every layer has full causal attention with a key-value cache."""
    config = model.config
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{name} is an encoder-decoder model: decodebench decodes causal (decoder-only) models")
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    sliding = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    if "sliding_attention" in kinds or (sliding and "layer_types" not in text.to_dict()):
        raise UserError(
            f"{name} uses sliding-window attention (window {sliding}), which the ragged cache cannot hold: "
            "take a model with full attention in every layer"
        )
    if kinds != {"full_attention"}:
        other = ", ".join(sorted(kinds - {"full_attention"}))
        raise UserError(f"{name} has layers of type {other}: take a model with full attention in every layer")
    if any(getattr(module, "is_causal", True) is False for module in model.modules()):
        raise UserError(f"{name} attends in both directions: decodebench decodes causal (decoder-only) models")
    if not getattr(model, "_supports_attention_backend", False) or model.get_output_embeddings() is None:
        raise UserError(f"{name} does not support custom attention functions in transformers: take another model")
