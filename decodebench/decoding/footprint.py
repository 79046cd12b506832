"""What a run will take of the device's memory, before it takes any of it."""

from typing import Any

from decodebench.decoding.cache import position_bytes
from decodebench.decoding.decoder import Decoder
from decodebench.decoding.forward import WIDTH_STEP, WindowModel, round_up
from decodebench.errors import UserError
from decodebench.memory import available_memory, readable


def check_memory(model: WindowModel, decoder: Decoder, rows: int, capacity: int, prefill_tokens: int) -> None:
    """Raise a UserError, unless caches and the largest pass fit into what is free now, the weights being loaded.

    Args:
        rows: at a time.
        capacity: positions of a row of the cache.
        prefill_tokens: the most tokens of prompts that a pass reads.
    """
    free = available_memory(model.device)
    needed = [run_bytes(model, decoder, n, capacity, prefill_tokens) for n in range(rows + 1)]
    if needed[rows] <= free:
        return
    fits = max((n for n in range(1, rows) if needed[n] <= free), default=0)
    remedy = f"a batch size of {fits} would fit" if fits else "not even one does: ask for shorter prompts or answers"
    raise UserError(
        f"{rows} × {capacity:,} tokens at a time would need about {readable(needed[rows])} beside the weights, and "
        f"{readable(free)} are free on {model.device.type}: {remedy}"
    )


def run_bytes(model: WindowModel, decoder: Decoder, rows: int, capacity: int, prefill_tokens: int) -> int:
    """Estimated peak beside the weights: keys and values, text, and the larger of a prefill and a decoding pass.

    Args: see :func:`check_memory`.
    """
    drafter = decoder.drafter
    caches = [model] if drafter is None or drafter.shares_cache else [model, drafter]
    kept = rows * capacity * (sum(position_bytes(each.config, each.dtype) for each in caches) + 8)
    pending = capacity if decoder.max_pending is None else decoder.max_pending
    prompt = capacity if decoder.max_pending is None else min(prefill_tokens, capacity)
    predictions = rows * (1 + decoder.max_draft)
    decoding = rows * round_up(pending + decoder.max_draft, WIDTH_STEP)
    prefill = round_up(prompt + decoder.max_draft, WIDTH_STEP)  # by itself where it is long, so that no other row pads
    return kept + pass_bytes(model, max(decoding, prefill), capacity, predictions)


def pass_bytes(model: WindowModel, slots: int, read: int, predictions: int) -> int:
    """The peak of a pass: its mask, folded and not; what one layer holds; logits, and two float32 copies of them.

    Args:
        slots: rows times window width.
        read: positions of the cache that each of them may see.
        predictions: slots that logits are made of.
    """
    config: Any = model.config
    size = model.dtype.itemsize
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    mask = slots * read * (1 + size * (1 + model.group))
    layer = slots * size * (6 * config.hidden_size + 3 * inner)
    logits = predictions * model.vocabulary * (size + 2 * 4)
    return mask + layer + logits
