"""What a method did when: the race of one lane."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from decodebench.decoding import Generation, Method, Request
from decodebench.models import LoadedModel
from decodebench.pieces import decoder, pieces

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Lane:
    """One method's way through the prompt.

    Attributes:
        name: of the method, with its knobs.
        generation: what came of it.
        texts: what each of its tokens brings to the text; "" for one that ends the answer.
    """

    name: str
    generation: Generation
    texts: list[str]

    @property
    def seconds(self) -> float:
        """From the start to the last token."""
        return self.generation.latency

    @cached_property
    def ends(self) -> list[float]:
        """Seconds after the start at which each pass was done.

        What passes between passes is shared out evenly; a generator that does not time them is shown at its end.
        """
        times = self.generation.pass_seconds
        if len(times) != self.generation.passes:
            return [self.seconds] * self.generation.passes
        between = (self.seconds - sum(times)) / max(len(times), 1)
        return list(accumulate(seconds + between for seconds in times))

    @cached_property
    def passes(self) -> list[int]:
        """For each token the pass, counted from 0, that committed it."""
        return [number for number, count in enumerate(self.generation.committed) for _ in range(count)]

    def at(self, seconds: float) -> tuple[int, int]:
        """Passes and tokens that are done after so many seconds."""
        done = len(self.ends) if seconds >= self.seconds else bisect_right(self.ends, seconds)
        return done, sum(self.generation.committed[:done])


def run_lane(name: str, method: Method, model: LoadedModel, request: Request) -> Lane:
    """Decode the request alone, after a few passes that do not count.

    Raises:
        UserError: the method cannot run on this model.
    """
    generator = method.generator(model, 1)
    generator.generate([replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))])
    generation = generator.generate([request])[0]
    texts = pieces(generation.tokens, decoder(model.tokenizer))
    if generation.tokens and generation.tokens[-1] in model.stop_tokens:
        texts[-1] = ""
    return Lane(name, generation, texts)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The place, counted from 0, at which two answers part; ``None`` where they are the same."""
    if list(one) == list(other):
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
