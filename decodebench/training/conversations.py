"""Conversations to learn from: the user's JSON Lines, the named sources, or a data set of the hub."""

import json
import logging
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodebench.errors import UserError, unknown
from decodebench.training.sources import SOURCES

ROLES = ("system", "user", "assistant")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversation:
    """What a model is asked and, where it is known, what it is to answer.

    Attributes:
        messages: role and content of each; the last one is the assistant's response to learn, or the user's where
            there are only prompts.
        finished: False for a response that the length limit cut off, so that no end is learned from it.
    """

    messages: tuple[dict[str, str], ...]
    finished: bool = True

    @property
    def prompt(self) -> tuple[dict[str, str], ...]:
        """The messages before the response."""
        return self.messages[:-1] if self.messages[-1]["role"] == "assistant" else self.messages

    @property
    def response(self) -> str | None:
        last = self.messages[-1]
        return last["content"] if last["role"] == "assistant" else None


def read_conversations(
    spec: str, data_dir: Path | None = None, seed: int = 0, responses: bool = True
) -> list[Conversation]:
    """All conversations that a specification names, in its order.

    Args:
        spec: a comma list of JSON Lines files, named sources (`SOURCES`) and data sets of the hub (their training
            split); the last two with ``:N`` for a number of conversations, drawn by `seed`. A line of a file, or a
            row of a data set, has ``messages`` (a list of role and content), or ``prompt`` and ``response``.
        data_dir: folder with local copies of data sets, for the named sources.
        seed: of what is drawn or generated.
        responses: False where only prompts are wanted: responses may be missing, and are left out.

    Raises:
        UserError: what is named is not there, has nothing in it, or a line of a file is no conversation; with its
            number.
    """
    found: list[Conversation] = []
    for part in [spec] if Path(spec).is_file() else spec.split(","):
        if part.strip():
            found += _read_one(part.strip(), data_dir, seed, responses)
    if not found:
        raise UserError(f"no data in '{spec}': name a JSON Lines file, {', '.join(SOURCES)}, or a data set of the hub")
    return found if responses else [Conversation(one.prompt) for one in found]


def _read_one(part: str, data_dir: Path | None, seed: int, responses: bool) -> list[Conversation]:
    name, colon, number = part.partition(":")
    if name not in SOURCES and (Path(part).is_file() or Path(part).suffix in (".jsonl", ".json")):
        return read_file(Path(part), responses)
    count = int(number) if number.isdecimal() else 0
    if colon and not count:
        raise UserError(f"data '{part}': what follows the colon must be a number of conversations, as in {name}:1000")
    if name in SOURCES:
        from decodebench.evaluation.catalog import resolve_data_dir

        pairs = SOURCES[name](resolve_data_dir(data_dir), count or None, seed)
        if responses and any(response is None for _, response in pairs):
            raise UserError(f"data '{name}' has prompts only: let the model answer them itself with --self-distill")
        return [_pair(prompt, response) for prompt, response in pairs]
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        return _from_hub(name, count, seed, responses)
    raise unknown("data", part, [*SOURCES, "FILE.jsonl", "ORG/NAME (a data set of the hub)"])


def read_file(path: Path, responses: bool = True) -> list[Conversation]:
    """The conversations of one JSON Lines file; as `read_conversations`, without leaving responses out."""
    found = []
    for number, text in _lines(path):
        place = f"{path}, line {number}"
        try:
            row = json.loads(text)
        except ValueError as error:
            raise UserError(f"{place}: broken JSON ({error})") from None
        if not isinstance(row, dict):
            raise UserError(f"{place}: not a JSON object")
        found.append(_conversation(row, place, responses))
    if not found:
        raise UserError(f"{path}: no conversations in it")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with something in them, numbered from 1. Only a newline ends one: a JSON string may hold U+2028."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # tolerates a byte-order mark
                except UnicodeDecodeError as error:
                    raise UserError(f"{path}, line {number}: not UTF-8 text (byte {error.start})") from None
                if text.strip():
                    yield number, text
    except FileNotFoundError:
        raise UserError(f"no file {path} with training data") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _from_hub(name: str, count: int, seed: int, responses: bool) -> list[Conversation]:
    """A data set's training split. Rows that are no conversations are left out: nobody can mend them on the hub."""
    from decodebench.tasks.hub import from_hub

    rows: Any = from_hub(name, None, {"split": "train"})
    found: list[Conversation] = []
    order, refused, why = list(range(len(rows))), 0, ""
    if count:  # sources often come one after the other
        random.Random(seed).shuffle(order)
    for index in order:
        try:
            found.append(_conversation(rows[index], f"{name}, row {index}", responses))
        except UserError as error:
            refused, why = refused + 1, why or str(error)
        if count and len(found) == count:
            break
    if len(found) < max(count, 1):
        reason = f"; the first of {refused} left out: {why}" if refused else ""
        raise UserError(f"{name} has {len(found)} conversations that can be used{reason}")
    if refused:
        log.warning("%s: %d rows left out, the first because of %s", name, refused, why)
    return found


def _conversation(row: Mapping[str, Any], place: str, responses: bool) -> Conversation:
    """A row in either form; `place` names it in messages."""
    if row.get("messages") is not None:
        messages = row["messages"]
        if not isinstance(messages, list) or not messages:
            raise UserError(f"{place}: 'messages' is not a list with messages in it")
        plain = tuple(_message(message, f"{place}, message {n}") for n, message in enumerate(messages, 1))
    elif isinstance(row.get("prompt"), str):
        if responses and not isinstance(row.get("response"), str):
            raise UserError(f"{place}: 'prompt' has no text under 'response' beside it")
        plain = _pair(row["prompt"], row.get("response")).messages
    else:
        raise UserError(
            f"{place}: neither 'messages' nor a text under 'prompt' (there are: {', '.join(row) or 'none'})"
        )
    found = Conversation(plain, finished=row.get("finish") != "length")
    if responses and found.response is None:
        raise UserError(f"{place}: the last message is the {plain[-1]['role']}'s: there is no response to learn")
    if responses and not (found.response or "").strip():
        raise UserError(f"{place}: the response is empty")
    if not found.prompt or found.prompt[-1]["role"] != "user":
        raise UserError(f"{place}: no message of the user before the response")
    if not found.prompt[-1]["content"].strip():
        raise UserError(f"{place}: the prompt is empty")
    return found


def _message(message: Any, place: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise UserError(f"{place}: not an object with 'role' and 'content'")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise UserError(f"{place}: role {json.dumps(role, ensure_ascii=False)}; known are {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise UserError(f"{place}: no text under 'content'")
    return {"role": role, "content": content}


def _pair(prompt: str, response: str | None) -> Conversation:
    asked = {"role": "user", "content": prompt}
    return Conversation((asked,) if response is None else (asked, {"role": "assistant", "content": response}))
