"""From what a client asks to what the engine runs."""

import secrets
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from decodebench.decoding import Request, Sampling
from decodebench.errors import first_line
from decodebench.serve.errors import ApiError
from decodebench.serve.schema import ChatRequest, CommonRequest, CompletionRequest
from decodebench.serve.service import Service


def read(service: Service, asked: CommonRequest) -> list[Request]:
    """What to run, one request for each prompt. Takes as long as reading the prompts does.

    Raises:
        ApiError: the prompts are not for this model, or leave it no room to answer.
    """
    prompts = _tokens(service, asked)
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, "the prompt is empty", "prompt")
        if not 0 <= min(prompt) <= max(prompt) < service.vocabulary:
            raise ApiError(400, f"prompt: token ids must be from 0 to {service.vocabulary - 1}", "prompt")
        if len(prompt) >= service.length:
            raise ApiError(
                400, f"the prompt has {len(prompt)} tokens; prompt and answer have room for {service.length}",
                "messages" if isinstance(asked, ChatRequest) else "prompt", "context_length_exceeded",
            )  # fmt: skip
    most = asked.max_completion_tokens or asked.max_tokens or service.limits.new_tokens
    return [
        Request(prompt, min(most, service.length - len(prompt)), tuple(asked.stop or ()), _sampling(asked), asked.tau)
        for prompt in prompts
    ]


def _tokens(service: Service, asked: CommonRequest) -> Sequence[list[int]]:
    tokenizer = service.model.tokenizer
    if isinstance(asked, ChatRequest):
        return [_chat(tokenizer, asked)]
    assert isinstance(asked, CompletionRequest)
    prompts = asked.prompts
    if len(prompts) > service.limits.rows + service.limits.queue:
        raise ApiError(400, f"prompt: {len(prompts)} prompts are more than can ever wait here", "prompt")
    return [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]


def _chat(tokenizer: Any, asked: ChatRequest) -> list[int]:
    if tokenizer.chat_template is None:
        raise ApiError(400, "this model has no chat template: use /v1/completions", "messages")
    roles = {"developer": "system"}
    turns = [{"role": roles.get(turn.role, turn.role), "content": turn.text} for turn in asked.messages]
    try:
        return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
    except TemplateError as error:
        reason = first_line(error)
        raise ApiError(400, f"messages: the model's chat template refuses them: {reason}", "messages") from None


def _sampling(asked: CommonRequest) -> Sampling:
    seed = secrets.randbits(63) if asked.seed is None else asked.seed % 2**63
    return Sampling(asked.temperature or 0.0, asked.top_p or 1.0, asked.top_k or 0, seed)
