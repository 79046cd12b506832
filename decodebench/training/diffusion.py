"""The layout of block diffusion (BD3LM, arXiv 2503.09573): clean text, and blocks of it with masks in them.

It trains exactly what ``methods/block_diffusion.py`` decodes: each noisy block sees the clean text of earlier blocks
and itself in both directions, and the state at position i predicts the token at i+1, so that a block's first token is
predicted by the last one before it, which has not seen the block.

In context ``causal`` blocks tile the response, and clean text sees backwards only. In context ``block`` they tile the
whole sample, and clean text sees all of its own block. The first block with response in it then begins with what the
prompt leaves of its last; of that, the noisy block has a copy that does not see the response yet.
"""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from decodebench.training.layout import Layout, Slot, assemble
from decodebench.training.samples import Sample

Context = Literal["block", "causal"]
Noise = Callable[[Sample, Sequence[int]], Sequence[Collection[int]]]
"""Of a sample, and how many positions each of its blocks has to fill: which of them are masked."""


def drawn(seed: int, epoch: int, sample: Sample, rooms: Sequence[int]) -> list[list[int]]:
    """A :data:`Noise`, the same for the same seed, epoch and sample, whatever was drawn before.

    A mask rate t drawn evenly from (0, 1) for each block, a mask at each position with probability t, and a loss
    weighted by 1/t are what the paper bounds the likelihood with (equation 8). A number of masks drawn evenly from 1 to
    the room, and a loss weighted by room ÷ masks, have the same expectation and less variance; no block is without.
    """
    source = random.Random(f"{seed} {epoch} {sample}")
    return [source.sample(range(room), source.randint(1, room)) for room in rooms]


def laid_out_length(sample: Sample, block_size: int, context: Context) -> int:
    """Slots that a sample takes: prompt and response, and once more all blocks with response in them."""
    total = len(sample.prompt) + len(sample.response)
    return total + len(_begins(sample, block_size, context)) * block_size


def lay_out(
    rows: Sequence[Sequence[Sample]],
    row_length: int,
    block_size: int,
    mask_id: int,
    context: Context,
    end: int,
    noise: Noise,
) -> Layout:
    """Write packed samples into rows.

    Args:
        rows: the samples of each row; together they must fit.
        row_length: slots per row.
        block_size: B.
        mask_id: the mask.
        context: how clean text sees itself.
        end: the token that ends a response. A response that it ends goes on with it to the end of its last block, as
            in LLaDA (arXiv 2502.09992), for blocks are decoded whole; of another nobody knows how it goes on, and
            masks stand there that are not learned from.
        noise: what is masked.

    Returns:
        Only masked positions have targets. ``offset`` counts from the last token before what a block has to fill.

    Raises:
        ValueError: when a row does not fit.
    """
    return assemble(
        [[slot for number, sample in enumerate(samples)
          for slot in _slots(sample, number, block_size, mask_id, context, end, noise)] for samples in rows], row_length
    )  # fmt: skip


def _begins(sample: Sample, block_size: int, context: Context) -> range:
    """Where the blocks with response in them begin."""
    start = len(sample.prompt)
    first = start if context == "causal" else start - start % block_size
    return range(first, start + len(sample.response), block_size)


def _slots(
    sample: Sample, number: int, block_size: int, mask_id: int, context: Context, end: int, noise: Noise
) -> list[Slot]:
    """The slots of a sample: clean, then noisy."""
    text, start = [*sample.prompt, *sample.response], len(sample.prompt)
    begins = _begins(sample, block_size, context)
    known = text + [end] * (begins[-1] + block_size - len(text)) if text[-1] == end else text
    first = [max(begin, start) for begin in begins]  # to be filled
    rooms = [min(begin + block_size, len(known)) - fill for begin, fill in zip(begins, first, strict=True)]
    goals: dict[int, tuple[int, int, float]] = {}  # target, offset and weight of the state at a position
    for fill, room, masked in zip(first, rooms, noise(sample, rooms), strict=True):
        goals |= {fill + i - 1: (known[fill + i], i + 1, room / len(masked)) for i in masked}

    def slot(i: int, token: int, noisy: bool, reach: int) -> Slot:
        # what a block begins with is predicted from behind the block before it, all of which is clean
        goal = goals.get(i, ()) if noisy == (i + 1 not in begins) else ()
        return Slot(token, number, noisy, (i - begins[0]) // block_size, i, reach, *goal)

    def last(i: int) -> int:
        return i + block_size - 1 - (i - begins[0]) % block_size

    clean = [slot(i, token, False, i if context == "causal" else last(i)) for i, token in enumerate(text)]
    noisy = []
    for i in range(begins[0], begins[-1] + block_size):
        token = mask_id if i - 1 in goals or i >= len(known) else known[i]
        noisy.append(slot(i, token, True, last(i) if i >= start else start - 1))
    return clean + noisy
