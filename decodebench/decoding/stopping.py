"""Where an answer ends: stop tokens, and stop strings that may span tokens and passes."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

SPARE = 8  # tokens that are decoded before those which a stop string can have
REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class StopStrings:
    """Finds stop strings in the text of running requests, decoding text only where one can have ended.

    A stop string ends with the token that brings its last character, so a table over the vocabulary tells, in one
    gather on the device, which rows can have reached one in this pass; only these are decoded and searched.

    Args:
        tokenizer: of the model.
        strings: stop strings of the requests to come; more can be added.
        vocabulary: size of the model's output.
    """

    def __init__(self, tokenizer: Any, strings: Iterable[str], vocabulary: int, device: torch.device) -> None:
        self.tokenizer, self.vocabulary, self.device = tokenizer, vocabulary, device
        self.endings: frozenset[str] = frozenset()
        self.suspects: Tensor | None = None
        self.add(strings)

    def add(self, strings: Iterable[str]) -> None:
        """Look for these strings, too."""
        endings = self.endings.union(string[-1] for string in strings)
        if endings != self.endings:
            self.endings = endings
            table = _suspects(self.tokenizer, "".join(sorted(endings)), self.vocabulary)
            self.suspects = torch.from_numpy(table).to(self.device)

    def flag(self, tokens: Tensor) -> Tensor | None:
        """``[rows, n]`` bool: which of these tokens can end a stop string; ``None`` where there are no stop strings."""
        return None if self.suspects is None else self.suspects[tokens]

    def find(self, before: Sequence[int], new: Sequence[int], strings: Sequence[str]) -> int | None:
        """How many of the ``new`` tokens are kept when a stop string ends among them, or ``None``.

        Args:
            before: tokens generated in earlier passes, in which no stop string has ended.
            new: tokens committed in this pass.
        """
        # A token has a byte or more, so a string is among the last few; what precedes them may change how the first of
        # them is decoded, so a string that is found there is looked for in the whole.
        longest = max((len(string.encode()) for string in strings), default=0)
        near = before[-(longest + SPARE) :]
        for count in range(1, len(new) + 1):
            if self._ends(near, new[:count], strings) and self._ends(before, new[:count], strings):
                return count
        return None

    def _ends(self, before: Sequence[int], new: Sequence[int], strings: Sequence[str]) -> bool:
        text = self.tokenizer.decode([*before, *new], skip_special_tokens=False)
        return any(string in text for string in strings)


def cut(tokenizer: Any, tokens: Sequence[int], strings: Sequence[str], stop_tokens: frozenset[int]) -> str:
    """The text of an answer: without special tokens, and cut before the first stop string.

    Args:
        tokens: all generated ids.
        stop_tokens: ids that end an answer; a last token among them is not text.
    """
    if tokens and tokens[-1] in stop_tokens:
        tokens = tokens[:-1]
    whole = tokenizer.decode(tokens, skip_special_tokens=False)
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    ends = [at for string in strings if (at := whole.find(string)) >= 0]
    if not ends:
        return text
    end = min(ends)
    if whole == text:
        return text[:end]
    # Special tokens, which are no text, stand among the others: take the tokens that end before the cut, and what the
    # token on the cut brings before it.
    heads = [tokenizer.decode(tokens[:n], skip_special_tokens=False) for n in range(len(tokens) + 1)]
    kept = max(n for n, head in enumerate(heads) if whole[:end].startswith(head))
    rest = "" if tokens[kept] in tokenizer.all_special_ids else whole[len(heads[kept]) : end]
    return tokenizer.decode(tokens[:kept], skip_special_tokens=True) + rest


@lru_cache(maxsize=8)
def _suspects(tokenizer: Any, endings: str, vocabulary: int) -> np.ndarray:
    """``[vocabulary]`` bool: tokens whose text has one of the characters, or part of a character."""
    if any(character.isspace() for character in endings):
        return np.ones(vocabulary, dtype=bool)  # some tokenizers drop white space when they decode one token alone
    wanted = set(endings) | {REPLACEMENT}
    texts = _texts(tokenizer, min(vocabulary, len(tokenizer)))
    table = np.zeros(vocabulary, dtype=bool)
    table[: len(texts)] = [not wanted.isdisjoint(text) for text in texts]
    return table


@lru_cache(maxsize=2)
def _texts(tokenizer: Any, known: int) -> list[str]:
    """What each of the first ``known`` tokens says."""
    return list(tokenizer.batch_decode([[i] for i in range(known)], skip_special_tokens=False))
