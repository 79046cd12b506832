"""What goes into a generator and what comes out of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Finish = Literal["stop_token", "stop_string", "length", "prompt_too_long", "cancelled", "deadline"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen from the model's distribution.

    Args:
        temperature: 0 decodes greedily; otherwise logits are divided by it.
        top_p: keep the smallest set of tokens whose probability reaches this mass (nucleus sampling).
        top_k: keep the k most probable tokens; 0 keeps all.
        seed: of this request's own random stream, so that its text does not depend on its neighbours in the batch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature {self.temperature}: must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top_k {self.top_k}: must be 0 (off) or more")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = Sampling()


@dataclass
class Request:
    """One prompt to be continued.

    Args:
        prompt: token ids, at least one.
        max_new_tokens: at most this many tokens are generated.
        stop: strings that end the text; the text is cut before the first of them.
        sampling: how tokens are chosen.
        tau: this request's own confidence threshold, for methods that have one; ``None`` takes the method's. Read
            before every pass: assign another value, or give a callable, to change it while the request is running.

    Raises:
        ValueError: for an empty prompt, no room for an answer, or an empty stop string.
    """

    prompt: Sequence[int]
    max_new_tokens: int = 256
    stop: Sequence[str] = ()
    sampling: Sampling = GREEDY
    tau: "float | Callable[[Progress], float] | None" = None

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise ValueError("a request needs a prompt of at least one token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens {self.max_new_tokens}: must be at least 1")
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop {self.stop!r}: must be a list of strings, none of them empty")


@dataclass
class Progress:
    """A request while it is running, as callbacks see it.

    Attributes:
        request: what was asked for.
        index: its place in the list given to ``generate``.
        tokens: token ids generated so far.
        committed: tokens committed in each pass so far.
        pass_seconds: wall-clock time of each of these passes.
        admitted: ``time.perf_counter()`` when the request got its row.
        confidence: of each token so far, where it is traced; NaN where the method did not ask.
    """

    request: Request
    index: int
    admitted: float
    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    pass_seconds: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    first_token: float | None = None


@dataclass(frozen=True)
class Generation:
    """One finished request.

    Attributes:
        text: the answer, without the stop token or stop string and what follows it.
        tokens: the generated ids, up to and with the token that ended the text, as ``transformers`` returns them.
        finish: why it ended.
        committed: tokens committed in each target-model pass this row took part in, prefill included.
        pass_seconds: wall-clock seconds of each of these passes.
        ttft: seconds from admission (the request got a row) to its first token; NaN where there is none.
        latency: seconds from admission to the end.
        confidence: of each token, as for :class:`Progress`; ``None`` where it is not traced.
    """

    text: str
    tokens: list[int]
    finish: Finish
    committed: list[int]
    pass_seconds: list[float]
    ttft: float
    latency: float
    confidence: list[float] | None = None

    @property
    def passes(self) -> int:
        return len(self.committed)
