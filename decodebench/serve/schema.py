"""What a request may say: OpenAI's fields that we can honour, and ours. Everything else is refused, not ignored."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from decodebench.errors import unknown
from decodebench.serve.errors import ApiError

MOST_STOPS = 16
MOST_STOP_CHARACTERS = 256
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
# Fields that would change the answer, and the values at which they do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": (False,), "top_logprobs": (0,),
    "logit_bias": ({},), "presence_penalty": (0,), "frequency_penalty": (0,), "tools": ([],), "tool_choice": ("none",),
    "functions": ([],), "function_call": ("none",), "response_format": ({"type": "text"},), "modalities": (["text"],),
}  # fmt: skip

Number = Annotated[float, Field(allow_inf_nan=False)]
Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARACTERS)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class CommonRequest(BaseModel):
    """What both kinds of request have.

    Attributes:
        temperature: 0, the default here, is greedy.
        tau, method: the confidence threshold, and which of the server's methods decodes.
        return_tokens: whether the answer's token ids are wanted, and how many were committed in each pass.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=1e-6, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    seed: int | None = None
    stop: Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True), BeforeValidator(_as_list)] | None = None
    tau: Number | None = None
    method: str | None = None
    return_tokens: bool = False


class Part(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of a conversation; ``text`` is what it says."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(CommonRequest):
    """Of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class CompletionRequest(CommonRequest):
    """Of ``/v1/completions``. The prompt is text or token ids, or a list of either; ``prompts`` takes it apart."""

    prompt: Any  # looked at by hand: a union would report every wrong item of a long list, once for every alternative

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """All of them.

        Raises:
            ApiError: it is something else.
        """
        value = self.prompt
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and value:
            if all(isinstance(each, str) for each in value):
                return value
            if _are_ids(value):
                return [value]
            if all(isinstance(each, list) and _are_ids(each) for each in value):
                return value
        raise ApiError(400, "prompt: must be a string or a list of token ids, or a list of these", "prompt")


def _are_ids(value: list[Any]) -> bool:
    return all(type(each) is int for each in value)


Asked = TypeVar("Asked", bound=CommonRequest)


def parse(kind: type[Asked], body: bytes) -> Asked:
    """A request from its body.

    Raises:
        ApiError: it is not JSON, or not such a request; the message names the first field that is wrong.
    """
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error) from None
    for name, value in (request.model_extra or {}).items():
        if name in IGNORED or value is None:
            continue
        if name not in NEUTRAL:
            known = [*kind.model_fields, *NEUTRAL, *IGNORED]
            raise ApiError(400, f"{unknown('field', name[:80], known)}", name[:80], "unknown_parameter")
        if value not in NEUTRAL[name]:
            allowed = repr(NEUTRAL[name][0])
            raise ApiError(400, f"{name}: not supported here, leave it out or say {allowed}", name, "unsupported")
    return request


def _explained(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier())
    message = " ".join(first["msg"].split())
    return ApiError(400, f"{place}: {message}" if place else message, place.partition(".")[0] or None)
