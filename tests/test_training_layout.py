"""The two-stream layout, slot by slot, against tables written out the long way."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decodebench.training.layout import IGNORE, Layout, Slots, block_mask, laid_out_length, lay_out, sees
from decodebench.training.packing import OPEN_ROWS, pack
from decodebench.training.samples import Sample

MASK = 9999
LENGTHS = st.tuples(st.integers(1, 9), st.integers(1, 14))  # of prompt and response
ROWS = st.lists(st.lists(LENGTHS, max_size=4), min_size=1, max_size=3).filter(any)
BLOCK_SIZES = st.none() | st.integers(2, 9)


def samples(lengths: Sequence[tuple[int, int]], start: int = 0) -> list[Sample]:
    """Samples of these lengths, no two tokens of which are the same."""
    ids = iter(range(start, MASK))
    return [Sample(*(tuple(next(ids) for _ in range(n)) for n in pair)) for pair in lengths]


def laid_out(rows: Sequence[Sequence[tuple[int, int]]], block_size: int | None, spare: int) -> tuple[Layout, Any]:
    """A layout with so many slots to spare in its fullest row, and the samples in it."""
    packed = [samples(lengths, 500 * n) for n, lengths in enumerate(rows)]
    longest = max(sum(laid_out_length(sample, block_size) for sample in row) for row in packed)
    return lay_out(packed, longest + spare, block_size, MASK), packed


def slots_of(slots: Slots, row: int) -> list[tuple[int, bool, int, int]]:
    return list(zip(*(column[row].tolist() for column in slots[:4]), strict=True))


@settings(max_examples=25)
@given(rows=ROWS, block_size=BLOCK_SIZES, spare=st.integers(0, 5))
def test_who_sees_whom_is_the_table_of_four_rules(
    rows: list[list[tuple[int, int]]], block_size: int | None, spare: int
) -> None:
    layout, packed = laid_out(rows, block_size, spare)
    for row in range(len(packed)):
        rule = sees(*(Slots(*(column[row][index] for column in layout.slots)) for index in ((..., None), (None, ...))))
        texts = [[*sample.prompt, *sample.response] for sample in packed[row]]
        starts = [len(sample.prompt) for sample in packed[row]]
        for q, (sample, noisy, block, place) in enumerate(slots_of(layout.slots, row)):
            seen = []
            for k, (other, masked, its_block, its_place) in enumerate(slots_of(layout.slots, row)):
                if other != sample or sample < 0:
                    visible = False
                elif not noisy:
                    visible = not masked and its_place <= place
                elif masked:
                    visible = its_block == block and its_place <= place
                else:
                    visible = its_block < block
                if sample >= 0:  # nobody asks what padding sees
                    assert bool(rule[q, k]) == visible
                if visible:
                    seen.append(int(layout.tokens[row, k]))
            if sample < 0:
                continue
            # and the same once more in the words of the paper: a prefix of the text, then masks of one's own block
            text, start = texts[sample], starts[sample]
            if noisy:
                begin = start + (place - start) // (block_size or 1) * (block_size or 1)
                assert seen == text[:begin] + [MASK] * (place - begin + 1)
            else:
                assert seen == text[: place + 1]


@settings(max_examples=25)
@given(rows=ROWS, block_size=BLOCK_SIZES, spare=st.integers(0, 5))
def test_every_slot_predicts_what_comes_next(
    rows: list[list[tuple[int, int]]], block_size: int | None, spare: int
) -> None:
    layout, packed = laid_out(rows, block_size, spare)
    for row, inside in enumerate(packed):
        expected: list[tuple[int, ...]] = []  # token, position, target, how far ahead
        for sample in inside:
            text, start = [*sample.prompt, *sample.response], len(sample.prompt)
            for place, token in enumerate(text):
                following = place + 1
                learnt = start <= following < len(text)
                expected.append((token, place, text[following] if learnt else IGNORE, int(learnt)))
            if block_size is None:
                continue
            for begin in range(start, len(text), block_size):
                for place in range(begin, min(begin + block_size, len(text) - 1)):
                    last_seen = begin - 1  # the last real token before the block
                    expected.append((MASK, place, text[place + 1], place + 1 - last_seen))
        assert len(expected) == sum(laid_out_length(sample, block_size) for sample in inside)
        columns = (layout.tokens, layout.slots.position, layout.targets, layout.offset)
        found = list(zip(*(column[row].tolist() for column in columns), strict=True))
        assert found[: len(expected)] == expected
        assert set(found[len(expected) :]) <= {(0, 0, IGNORE, 0)}
        assert (layout.slots.sample[row, len(expected) :] == -1).all()


def test_every_response_token_is_learnt_once_per_stream_and_the_first_in_the_clean_one_alone() -> None:
    (sample,) = samples([(3, 10)])
    layout = lay_out([[sample]], 32, 4, MASK)
    clean = layout.targets[(layout.offset == 1)]
    noisy = layout.targets[(layout.offset > 1)]
    assert tuple(clean.tolist()) == sample.response
    assert tuple(noisy.tolist()) == sample.response[1:]
    # blocks of 4, 4 and 1: the tenth predicts nothing
    assert layout.offset.flatten().bincount().tolist()[2:] == [3, 2, 2, 2]


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="7 slots do not fit in a row of 6"):
        lay_out([samples([(2, 3)])], 6, 4, MASK)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 40), max_size=60),
    row_length=st.integers(40, 100),
    seed=st.integers(0, 9),
)
def test_packing_places_every_sample_once_and_fills_no_row_too_far(
    lengths: list[int], row_length: int, seed: int
) -> None:
    rows = pack(lengths, row_length, seed)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in row) <= row_length for row in rows)
    assert rows == pack(lengths, row_length, seed)
    # first fit: at most one row is not more than half full
    assert sum(sum(lengths[index] for index in row) <= row_length / 2 for row in rows) <= 1


def test_packing_wastes_little_and_shuffles() -> None:
    draw = random.Random(0)
    lengths = [draw.randint(20, 400) for _ in range(4 * OPEN_ROWS * 5)]
    rows = pack(lengths, 1024, seed=0)
    assert sum(lengths) / (1024 * len(rows)) > 0.97
    assert rows != pack(lengths, 1024, seed=1)


@settings(max_examples=8)
@given(rows=ROWS, block_size=BLOCK_SIZES, spare=st.integers(0, 5))
@example(rows=[[(1, 10), (5, 14), (9, 14), (9, 14)]], block_size=2, spare=5)  # longer than one block of the mask
def test_the_block_mask_of_flex_attention_is_the_same_rule(
    rows: list[list[tuple[int, int]]], block_size: int | None, spare: int
) -> None:
    layout, _ = laid_out(rows, block_size, spare)
    mask: Any = block_mask(layout.slots)
    length = layout.tokens.shape[1]
    place = torch.arange(length)
    for row in range(len(rows)):
        found = mask.mask_mod(torch.tensor(row), torch.tensor(0), place[:, None], place[None])
        query, key = (Slots(*(column[row][index] for column in layout.slots)) for index in ((..., None), (None, ...)))
        assert torch.equal(found, sees(query, key))
    blocks = -(-length // 128)
    assert mask.to_dense().shape == (len(rows), 1, blocks, blocks)


def test_the_block_mask_skips_what_no_pair_of_slots_sees() -> None:
    layout, _ = laid_out([[(100, 90), (40, 60)], [(3, 200)]], 4, 30)
    mask: Any = block_mask(layout.slots)
    length, size = layout.tokens.shape[1], mask.BLOCK_SIZE[0]
    for row in range(2):
        query, key = (Slots(*(column[row][index] for column in layout.slots)) for index in ((..., None), (None, ...)))
        rule = torch.zeros(-(-length // size) * size, -(-length // size) * size, dtype=torch.bool)
        rule[:length, :length] = sees(query, key)
        blocks = rule.view(rule.shape[0] // size, size, -1, size).any(3).any(1)
        assert torch.equal(mask.to_dense()[row, 0].bool(), blocks)
    assert mask.to_dense().sum() < mask.to_dense().numel()
