"""Text broken into lines of a given width, every stretch of it with the pass that brought it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len


class Stretch(NamedTuple):
    """Neighbouring characters of one pass.

    Attributes:
        text: the characters.
        number: of the pass, counted from 0.
    """

    text: str
    number: int


def layout(texts: Sequence[str], passes: Iterable[int], width: int) -> list[list[Stretch]]:
    """Lines of at most `width` columns, broken at spaces where there are any.

    Args:
        texts: of the tokens.
        passes: of the tokens; tokens without one are left out.
        width: columns, at least 2 (some characters take two).
    """
    lines: list[list[tuple[str, int]]] = [[]]
    wrapped = False  # whether the line was begun for want of room
    for character, number in ((c, n) for text, n in zip(texts, passes, strict=False) for c in _printable(text)):
        if character == "\n":
            lines.append([])
            wrapped = False
            continue
        if _columns(lines[-1]) + cell_len(character) > width:
            lines.append([] if character == " " else _last_word(lines[-1], width - cell_len(character)))
            wrapped = True
        if character != " " or lines[-1] or not wrapped:  # a break takes the place of a space
            lines[-1].append((character, number))
    return [_stretches(line) for line in lines]


def _printable(text: str) -> str:
    """Control characters would move the cursor of a terminal, and are not allowed in a picture."""
    return "".join(c if c == "\n" or c.isprintable() else " " for c in text.expandtabs(4))


def _columns(line: Sequence[tuple[str, int]]) -> int:
    return sum(cell_len(character) for character, _ in line)


def _last_word(line: list[tuple[str, int]], room: int) -> list[tuple[str, int]]:
    """Take the word that is being written off the end of a line, unless it is the whole line or has more columns."""
    start = next((place + 1 for place in range(len(line) - 1, -1, -1) if line[place][0] == " "), 0)
    word = line[start:]
    if start == 0 or _columns(word) > room:
        return []
    del line[start:]
    return word


def _stretches(line: Iterable[tuple[str, int]]) -> list[Stretch]:
    stretches: list[Stretch] = []
    for character, number in line:
        if stretches and stretches[-1].number == number:
            stretches[-1] = Stretch(stretches[-1].text + character, number)
        else:
            stretches.append(Stretch(character, number))
    return stretches
