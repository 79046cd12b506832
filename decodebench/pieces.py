"""The text that each token of an answer brings."""

from collections.abc import Callable, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


def decoder(tokenizer: Any) -> Decode:
    """How a tokenizer of transformers writes ids out, special tokens included."""
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text of each token in its place; joined, they are the whole text.

    A character that several tokens share is given to the last of them, and the others get "": what a token brings
    depends on those before it alone.

    Args:
        ids: tokens of one answer.
        decode: from ids to text.
    """
    alone = [decode([token]) for token in ids]
    if not any(REPLACEMENT in text for text in alone) and "".join(alone) == decode(ids):
        return alone
    # Some tokenizers write a token otherwise at the beginning of a text, and some share characters between tokens.
    found, known = [], ""
    for end in range(1, len(ids) + 1):
        text = decode(ids[:end])
        complete = end == len(ids) or not text.endswith(REPLACEMENT)
        found.append(text[len(known) :] if complete else "")
        known = text if complete else known
    return found
