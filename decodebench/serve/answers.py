"""Answers in OpenAI's words, whole or piece by piece."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from decodebench.decoding import Generation, Request
from decodebench.serve import EXTRA
from decodebench.serve.schema import ChatRequest, CommonRequest
from decodebench.serve.text import final_text


class Form:
    """The form of all answers to one call.

    Args:
        asked: the call.
        model: the model's name.
        method: that decodes.
        tau: confidence threshold of the requests, where the method has one.
        requests: what runs, one for each choice.
    """

    def __init__(
        self, asked: CommonRequest, model: str, method: str, tau: float | None, requests: Sequence[Request]
    ) -> None:
        self.asked, self.method, self.tau, self.requests = asked, method, tau, requests
        self.chat = isinstance(asked, ChatRequest)
        self.name = "chat.completion" if self.chat else "text_completion"
        id = ("chatcmpl-" if self.chat else "cmpl-") + uuid.uuid4().hex
        self.head = {"id": id, "created": int(time.time()), "model": model}
        self.done: dict[int, Generation] = {}

    def whole(self) -> dict[str, Any]:
        """The answer, when all choices are done."""
        choices = []
        for place, generation in sorted(self.done.items()):
            text = final_text(generation)
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            choices.append({"index": place, **said, **self._end(generation)})
        return {**self.head, "object": self.name, "choices": choices, "usage": self.usage()}

    def first(self) -> list[str]:
        """What opens a stream."""
        if not self.chat:
            return []
        return [self._chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})]

    def piece(self, place: int, text: str, generation: Generation | None = None) -> list[str]:
        """A piece of the text of a choice; the last one comes with what became of it."""
        if not text and generation is None:
            return []
        said: dict[str, Any] = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        end = {"finish_reason": None} if generation is None else self._end(generation)
        return [self._chunk({"index": place, **said, **end})]

    def last(self) -> list[str]:
        """What closes a stream."""
        usage = []
        if self._wants_usage:
            usage = [event({**self.head, "object": self._chunk_name, "choices": [], "usage": self.usage()})]
        return [*usage, "data: [DONE]\n\n"]

    def usage(self) -> dict[str, int]:
        prompt = sum(len(request.prompt) for request in self.requests)
        answer = sum(len(generation.tokens) for generation in self.done.values())
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    @property
    def _chunk_name(self) -> str:
        return self.name + ".chunk" if self.chat else self.name

    @property
    def _wants_usage(self) -> bool:
        return bool(self.asked.stream_options and self.asked.stream_options.include_usage)

    def _chunk(self, choice: dict[str, Any]) -> str:
        usage = {"usage": None} if self._wants_usage else {}
        return event({**self.head, "object": self._chunk_name, "choices": [choice], **usage})

    def _end(self, generation: Generation) -> dict[str, Any]:
        tokens, passes = generation.tokens, generation.passes
        extra: dict[str, Any] = {
            "method": self.method,
            "tau": self.tau,
            "finish": generation.finish,
            "passes": passes,
            "tokens_per_pass": len(tokens) / passes if passes else None,
            "first_token_seconds": generation.ttft if tokens else None,
            "seconds": generation.latency,
        }
        if self.asked.return_tokens:
            extra |= {"tokens": tokens, "committed": generation.committed}
        reason = "length" if generation.finish == "length" else "stop"
        return {"finish_reason": reason, "logprobs": None, EXTRA: extra}


def event(content: dict[str, Any]) -> str:
    """One server-sent event; in ASCII, because some clients take a line separator within a text for the end of it."""
    return f"data: {json.dumps(content)}\n\n"
