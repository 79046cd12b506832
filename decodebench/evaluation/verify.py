"""Is a method lossless here? Its greedy tokens beside autoregressive ones, and how close the call was where not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from decodebench.decoding import Generation, Generator, Request
from decodebench.decoding.forward import WindowModel, round_up
from decodebench.decoding.inputs import PassInputs
from decodebench.decoding.registry import method
from decodebench.evaluation.grid import Cell
from decodebench.evaluation.lm import Key
from decodebench.evaluation.progress import GridProgress
from decodebench.models import LoadedModel

# Four units in the last place of a logit between 16 and 32: what rounding alone moves logits by when the shape of a
# batch or window changes.
TOLERANCE = {torch.float32: 0.0, torch.bfloat16: 0.5, torch.float16: 0.0625}


@dataclass(frozen=True)
class Divergence:
    """Where a request's answers first differ.

    Attributes:
        task, doc_id: the request's.
        position: in the answer, counted from 0.
        expected, found: the tokens of AR and of the method; ``None`` where the answer has ended.
        gap: AR's logit of its own token minus that of the method's, after the prompt and all tokens before; ``None``
            where one of the answers has ended.
    """

    task: str
    doc_id: int
    position: int
    expected: int | None
    found: int | None
    gap: float | None


@dataclass(frozen=True)
class Verdict:
    """What became of one cell.

    Attributes:
        requests: compared, those left out that do not fit in the model's context.
        tokens: of AR's answers to them.
        divergences: at most one per request.
        tolerance: the largest gap, in logits, that counts as a tie.
    """

    cell: Cell
    requests: int
    tokens: int
    divergences: list[Divergence]
    tolerance: float

    def is_tie(self, divergence: Divergence) -> bool:
        return divergence.gap is not None and abs(divergence.gap) <= self.tolerance

    @property
    def lossless(self) -> bool:
        """Whether all answers are equal, or differ by ties alone."""
        return all(self.is_tie(divergence) for divergence in self.divergences)


def verify(
    cells: Sequence[Cell],
    model: LoadedModel,
    requests: Mapping[str, Mapping[Key, Request]],
    tolerance: float | None = None,
) -> list[Verdict]:
    """Run methods and AR on the same requests, at the same batch size, and compare token by token.

    Args:
        cells: of the grid.
        model: loaded once for all of them.
        requests: by task; they must be greedy.
        tolerance: in logits; ``None`` takes what is stated for the model's dtype.

    Raises:
        UserError: before anything is run, for a method that lacks something on this model.
    """
    allowed = TOLERANCE[model.dtype] if tolerance is None else tolerance
    generators = [cell.build().generator(model, cell.batch_size) for cell in cells]
    pairs = {(cell.task, cell.batch_size): f"{cell.task} ar batch {cell.batch_size}" for cell in cells}
    total = Counter({name: len(requests[task]) for (task, _), name in pairs.items()})
    for cell in cells:
        total[str(cell)] += len(requests[cell.task])
    expected: dict[tuple[str, int], list[Generation]] = {}
    verdicts = []
    with GridProgress(total) as progress:

        def answers(name: str, generator: Generator, task: str) -> list[Generation]:
            progress.begin(name)
            return generator.generate([*requests[task].values()], on_finish=lambda _, done: progress.advance(done))

        for cell, generator in zip(cells, generators, strict=True):
            pair = cell.task, cell.batch_size
            if pair not in expected:
                ar = method("ar")().generator(model, cell.batch_size)
                expected[pair] = answers(pairs[pair], ar, cell.task)
            found = answers(str(cell), generator, cell.task)
            verdicts.append(compare(cell, model, requests[cell.task], expected[pair], found, allowed))
    return verdicts


def compare(
    cell: Cell,
    model: LoadedModel,
    requests: Mapping[Key, Request],
    expected: Sequence[Generation],
    found: Sequence[Generation],
    tolerance: float,
) -> Verdict:
    """Compare answers, both in the order of the requests; see :class:`Verdict`."""
    window = WindowModel(model.model)
    divergences, compared, tokens = [], 0, 0
    with window.ready():
        for ((task, doc_id, _), request), ours, theirs in zip(requests.items(), expected, found, strict=True):
            if ours.finish == "prompt_too_long":
                continue
            compared, tokens = compared + 1, tokens + len(ours.tokens)
            if ours.tokens == theirs.tokens:
                continue
            pairs = zip(ours.tokens, theirs.tokens, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours.tokens), len(theirs.tokens)))
            a, b = next(iter(ours.tokens[at:]), None), next(iter(theirs.tokens[at:]), None)
            gap = None
            if a is not None and b is not None:
                logits = last_logits(window, [*request.prompt, *ours.tokens[:at]])
                gap = float(logits[a] - logits[b])
            divergences.append(Divergence(task, doc_id, at, a, b, gap))
    return Verdict(cell, compared, tokens, divergences, tolerance)


def last_logits(window: WindowModel, tokens: Sequence[int]) -> torch.Tensor:
    """``[vocab]`` float32 logits after a text, in one pass."""
    ids = torch.tensor([tokens], device=window.device)
    slots = torch.arange(len(tokens), device=window.device)[None]
    cache = window.new_cache(1, round_up(len(tokens), 64))
    return window.forward(cache, slice(0, 1), PassInputs(ids, slots, slots[:, -1:]), 0)[0, 0].float()
