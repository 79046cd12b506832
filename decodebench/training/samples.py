"""From conversations to token ids, prompts exactly as evaluation asks them."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jinja2.exceptions import TemplateError

from decodebench.errors import UserError, first_line
from decodebench.training.conversations import Conversation

BATCH = 1000  # conversations at a time: enough for the tokenizer's threads, little memory for the texts
PROBE = "decodebench"  # an answer that no template writes by itself


@dataclass(frozen=True)
class Sample:
    """Token ids of one conversation.

    Attributes:
        prompt: with chat template and generation prompt.
        response: with the token that ends the turn; without it where the response was cut.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]


@dataclass(frozen=True)
class Tokenized:
    """What became of the conversations.

    Attributes:
        samples: in the conversations' order.
        dropped: conversations that were too long and left out.
        cut: samples whose response was too long and shortened.
        digest: SHA-256 of all token ids.
    """

    samples: list[Sample]
    dropped: int
    cut: int
    digest: str


def tokenize(
    conversations: Sequence[Conversation],
    tokenizer: Any,
    max_length: int,
    over_long: Literal["drop", "cut"] = "drop",
) -> Tokenized:
    """Token ids of conversations that end in a response; only the last response is one to learn.

    Args:
        conversations: with responses.
        tokenizer: of the model that learns. Without a chat template, the messages of a prompt stand one per line.
        max_length: most tokens of prompt and response together.
        over_long: leave longer samples out, or cut their response, which then has no end. A prompt that leaves no
            room for a response is left out either way.

    Raises:
        UserError: the chat template refuses a conversation, or the tokenizer has no token that ends an answer.
        ValueError: a conversation has no response.
    """
    form = _Form(tokenizer)
    samples: list[Sample] = []
    dropped = cut = 0
    digest = hashlib.sha256()
    shared: dict[int, int] = {}  # one object per id, not one per occurrence: four fifths of the memory
    for start in range(0, len(conversations), BATCH):
        for prompt, response in form.encode(conversations[start : start + BATCH], start):
            room = max_length - len(prompt)
            if room < 1 or (len(response) > room and over_long == "drop"):
                dropped += 1
                continue
            cut += len(response) > room
            sample = Sample(*(tuple(shared.setdefault(i, i) for i in ids) for ids in (prompt, response[:room])))
            lengths = np.array([len(sample.prompt), len(sample.response)], dtype=np.int64)
            digest.update(lengths.tobytes() + np.array(sample.prompt + sample.response, dtype=np.int64).tobytes())
            samples.append(sample)
    return Tokenized(samples, dropped, cut, digest.hexdigest())


def prompt_ids(conversations: Sequence[Conversation], tokenizer: Any) -> list[list[int]]:
    """Token ids of the prompts, as `tokenize` has them. Raises the same UserErrors."""
    return _Form(tokenizer).prompts(conversations)


def end_token(tokenizer: Any) -> int:
    """The token that `tokenize` ends responses with. Raises the same UserErrors."""
    return _Form(tokenizer).end


class _Form:
    """How a tokenizer's model is spoken to, and which token ends its turn."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat = tokenizer.chat_template is not None
        self.written = False  # whether the template writes the end itself
        self.end: int = tokenizer.eos_token_id
        if self.chat:
            turn = [{"role": "user", "content": PROBE[::-1]}, {"role": "assistant", "content": PROBE}]
            rest = self._ids([self._text(turn).rpartition(PROBE)[2]], special=False)[0]
            ends = (token for token in rest if token in self._specials())
            self.end = next(ends, self.end)
            self.written = self.end in rest
        if self.end is None:
            raise UserError("the tokenizer has no token that ends an answer: set its eos_token")

    def prompts(self, conversations: Sequence[Conversation], start: int = 0) -> list[list[int]]:
        """Token ids of each prompt; `start` is the first conversation's place among all."""
        return self._encoded([one.prompt for one in conversations], True, start)

    def encode(self, conversations: Sequence[Conversation], start: int) -> Iterator[tuple[list[int], list[int]]]:
        """Token ids of each prompt and response."""
        prompts = self.prompts(conversations, start)
        wholes = self._encoded([one.messages for one in conversations], False, start)
        for number, (one, prompt, whole) in enumerate(zip(conversations, prompts, wholes, strict=True), start + 1):
            if one.response is None:
                raise ValueError(f"conversation {number} has no response")
            response = self._response(prompt, whole, one.response)
            yield prompt, response if one.finished else response[:-1]

    def _response(self, prompt: list[int], whole: list[int], answer: str) -> list[int]:
        """What follows the prompt, up to and with the end of the turn.

        Where the prompt is not how the whole begins (the template rewrites it, or its last token melts into the
        response's first), what the model meets when it decodes is the prompt, then the response by itself.
        """
        rest = whole[len(prompt) :]
        if whole[: len(prompt)] != prompt or (self.written and self.end not in rest):
            return [*self._ids([answer], special=False)[0], self.end]
        if not self.written:
            return [*rest, self.end]
        return rest[: len(rest) - rest[::-1].index(self.end)]

    def _encoded(self, turns: Iterable[Sequence[dict[str, str]]], generate: bool, start: int) -> list[list[int]]:
        texts: list[str] = []
        try:
            for messages in turns:
                texts.append(self._text(messages, generate))
        except TemplateError as error:
            place = f"conversation {start + len(texts) + 1}"
            raise UserError(f"{place}: the chat template refuses it ({first_line(error)})") from None
        return self._ids(texts)

    def _text(self, messages: Sequence[dict[str, str]], generate: bool = False) -> str:
        """As in evaluation: a template that knows no system role gets the conversation without it."""
        if not self.chat:
            *before, last = (message["content"] for message in messages)
            if messages[-1]["role"] == "assistant":
                return "\n".join(before) + last
            return "\n".join([*before, last])
        try:
            return self._template(list(messages), generate)
        except TemplateError:
            return self._template([message for message in messages if message["role"] != "system"], generate)

    def _template(self, messages: list[dict[str, str]], generate: bool) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)

    def _ids(self, texts: list[str], special: bool = True) -> list[list[int]]:
        """Token ids; texts that begin with the begin token do not get a second one."""
        begin = self.tokenizer.bos_token
        found: list[list[int]] = []
        for written, group in itertools.groupby(texts, lambda text: bool(begin and text.startswith(begin))):
            options = {"return_attention_mask": False, "verbose": False}
            found += self.tokenizer(list(group), add_special_tokens=special and not written, **options)["input_ids"]
        return found

    def _specials(self) -> set[int]:
        added = self.tokenizer.added_tokens_decoder
        return {token for token, entry in added.items() if entry.special} | set(self.tokenizer.all_special_ids)
