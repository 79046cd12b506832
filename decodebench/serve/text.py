"""Text while it is being generated: whole characters only, and nothing that a stop string may take back."""

from collections.abc import Iterable, Sequence
from typing import Any

from decodebench.decoding import Generation
from decodebench.decoding.stopping import REPLACEMENT

UNFINISHED = ("length", "cancelled", "deadline")


class TextStream:
    """Turns tokens into text as they come; all pieces together are the answer's text.

    Tokens are decoded once: from the last place where the text ended in a whole character, together with the few
    before it, since some tokenizers write a token differently at the beginning of a text.

    Args:
        tokenizer: of the model.
        stop: strings that end the answer.
        stop_tokens: ids that end it; they are no text.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str], stop_tokens: frozenset[int]) -> None:
        self.tokenizer, self.stop_tokens = tokenizer, stop_tokens
        self.stop = _visible(stop, tokenizer)
        self.tokens: list[int] = []
        self.begun = 0  # token at which decoding begins
        self.read = 0  # tokens whose text is known
        self.held = ""  # text that a stop string may still take back
        self.sent = 0  # characters

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens make certain."""
        self.tokens += [token for token in tokens if token not in self.stop_tokens]
        before = self._decode(self.tokens[self.begun : self.read])
        text = self._decode(self.tokens[self.begun :])
        if len(text) <= len(before) or text.endswith(REPLACEMENT):  # a character is not complete yet
            return ""
        self.begun, self.read = self.read, len(self.tokens)
        self.held += text[len(before) :]
        certain = self.held[: _certain(self.held, self.stop)]
        self.held = self.held[len(certain) :]
        self.sent += len(certain)
        return certain

    def end(self, generation: Generation) -> str:
        """The rest of the text."""
        return final_text(generation)[self.sent :]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def final_text(generation: Generation) -> str:
    """The text of an answer; a character that was cut off in the middle is none of it."""
    return generation.text.rstrip(REPLACEMENT) if generation.finish in UNFINISHED else generation.text


def _visible(stop: Iterable[str], tokenizer: Any) -> set[str]:
    """The strings, and what is seen of those that contain special tokens, which are no text."""
    found = set()
    for string in stop:
        seen = string
        for special in tokenizer.all_special_tokens:
            seen = seen.replace(special, "")
        found |= {string, seen} - {""}
    return found


def _certain(text: str, stop: Iterable[str]) -> int:
    """How many characters come before whatever is, or may become, a stop string."""
    end = len(text)
    for string in stop:
        if (at := text.find(string, 0, end)) >= 0:
            end = at
        begin = max(len(text) - len(string) + 1, 0)
        end = min([end, *(at for at in range(begin, min(end, len(text))) if string.startswith(text[at:]))])
    return end
