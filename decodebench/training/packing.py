"""Packing samples into rows of one length, so that few slots are padding and every pass has the same shape."""

import random
from collections.abc import Sequence

OPEN_ROWS = 64  # rows that are looked at for each sample; more would pack little better


def pack(lengths: Sequence[int], row_length: int, seed: int) -> list[list[int]]:
    """Put samples into rows, first fit, in a random order.

    Args:
        lengths: slots that each sample takes; none more than ``row_length``.
        row_length: slots per row.
        seed: of the order.

    Returns:
        Per row the indices of its samples.
    """
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    rows: list[list[int]] = []
    room: list[int] = []
    opened: list[int] = []
    for index in order:
        length = lengths[index]
        row = next((row for row in opened if room[row] >= length), None)
        if row is None:
            row = len(rows)
            rows.append([])
            room.append(row_length)
            opened.append(row)
        rows[row].append(index)
        room[row] -= length
        if len(opened) > OPEN_ROWS:
            opened.remove(min(opened, key=room.__getitem__))  # the fullest
    return rows
