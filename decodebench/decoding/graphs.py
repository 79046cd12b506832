"""Passes recorded once and replayed: on CUDA, launching a pass kernel by kernel takes longer than computing it."""

import logging
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module

from decodebench.decoding.cache import RaggedCache, Window
from decodebench.decoding.inputs import PassInputs

WARM_UPS = 2  # runs before a recording: kernels are chosen and libraries allocate what they need in the first ones
SMALLEST_READ = 128
log = logging.getLogger(__name__)


class Recording(Protocol):
    """Something that can be done again."""

    def replay(self) -> None: ...


Recorder = Callable[[Callable[[], None]], Recording]
"""Does a thing, and returns its recording. What is done reads and writes the same tensors each time."""


class CudaRecorder:
    """Records CUDA graphs, all in one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Recording:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):  # others may be at work
            run()
        return graph


class PassGraphs:
    """The recorded passes over one cache.

    A recording has fixed shapes. So a pass is padded to one that is there: rows to a power of two, by rows whose only
    slot is the cache's last, which no text reaches; and attention to the next of a few lengths (:func:`read_lengths`),
    of which the mask hides the rest. Window widths are the caller's affair.

    Args:
        cache: that the passes read and write; it must not move.
        record: how.
    """

    def __init__(self, cache: RaggedCache, record: Recorder) -> None:
        self.cache, self.record = cache, record
        self.rows, self.reads = row_counts(cache.rows), read_lengths(cache.capacity)
        self.kinds: dict[Any, _Kind] = {}
        self.refused: str | None = None
        """Why these passes cannot be recorded; none of them is tried again then."""

    def run(self, model: "Recordable", inputs: PassInputs, longest: int) -> tuple[Tensor, Tensor] | None:
        """What :meth:`Recordable.compute` returns for these inputs, or ``None`` where it cannot be recorded.

        The first pass of a kind (who computes it, window width, which inputs there are) records it for all numbers of
        rows and lengths, so that later ones, which may be timed, find theirs. What is returned is overwritten by the
        next pass of the kind.

        Args:
            longest: cached positions and window of the longest row, at most the cache's capacity.
        """
        if self.refused:
            return None
        rows = self.rows[bisect_left(self.rows, inputs.tokens.shape[0])]
        read = self.reads[bisect_left(self.reads, min(longest, self.cache.capacity))]
        key = model.identity, *((name, tensor.shape[1:]) for name, tensor in inputs.named().items())
        if key not in self.kinds:
            try:
                self.kinds[key] = _Kind(model, self.cache, inputs, self.rows, self.reads, self.record)
            except Exception as error:  # whatever a model does that a graph cannot hold
                self.refused = " ".join(str(error).split())[:200] or type(error).__name__
                log.warning("passes run without CUDA graphs, and slower: %s", self.refused)
                return None
        return self.kinds[key].replay(inputs, rows, read)


class Recordable(Protocol):
    """Who computes a pass from tensors alone: without asking any of them for a number."""

    identity: Any
    """Equal for two that compute the same, and hashable."""

    def compute(self, cache: RaggedCache, window: Window, inputs: PassInputs) -> tuple[Tensor, Tensor]:
        """Logits ``[rows, n, vocab]`` and what they were made of, ``[rows, n, hidden_size]``."""


class _Kind:
    """The recordings of passes that differ in rows and length only; they share inputs and outputs."""

    def __init__(
        self,
        model: Recordable,
        cache: RaggedCache,
        example: PassInputs,
        rows: list[int],
        reads: list[int],
        record: Recorder,
    ) -> None:
        self.idle_slot = cache.capacity - 1
        self.inputs = _buffers(example, cache.rows, self.idle_slot)
        self.index = torch.arange(cache.rows, device=example.tokens.device)[:, None]
        self.outputs: tuple[Tensor, Tensor] | None = None
        self.cache = cache
        self.recordings: dict[tuple[int, int], Recording] = {}
        for n in reversed(rows):  # the largest first: the others find room in its memory
            for read in reversed(reads):
                self.recordings[n, read] = record(partial(self._run, model, n, read))

    def _run(self, model: Recordable, rows: int, read: int) -> None:
        inputs = _first(self.inputs, rows)
        made = model.compute(self.cache, self._window(inputs, read), inputs)
        if self.outputs is None:  # the first run is one of all rows
            self.outputs = made[0].clone(), made[1].clone()
        for kept, new in zip(self.outputs, made, strict=True):
            kept[:rows].copy_(new)

    def _window(self, inputs: PassInputs, read: int) -> Window:
        rows = inputs.tokens.shape[0]
        return Window(slice(0, rows), (self.index[:rows], inputs.slots), read, inputs.slots.shape[1])

    def replay(self, inputs: PassInputs, rows: int, read: int) -> tuple[Tensor, Tensor]:
        count = inputs.tokens.shape[0]
        torch._foreach_copy_(list(_first(self.inputs, count).named().values()), list(inputs.named().values()))
        self.inputs.slots[count:rows] = self.idle_slot  # a row that is gone must not write where another is read in
        self.recordings[rows, read].replay()
        self.cache.window = self._window(_first(self.inputs, rows), read)
        assert self.outputs is not None
        return self.outputs[0][:count], self.outputs[1][:count]


def _buffers(example: PassInputs, rows: int, idle_slot: int) -> PassInputs:
    """Inputs of so many idle rows, shaped like the example's."""
    inputs = PassInputs(**{name: t.new_zeros(rows, *t.shape[1:]) for name, t in example.named().items()})
    inputs.slots.fill_(idle_slot)
    return inputs


def _first(inputs: PassInputs, rows: int) -> PassInputs:
    return PassInputs(**{name: tensor[:rows] for name, tensor in inputs.named().items()})


def row_counts(most: int) -> list[int]:
    """Numbers of rows that are recorded: powers of two, and the most there can be."""
    return sorted({min(1 << i, most) for i in range(most.bit_length() + 1)})


def read_lengths(capacity: int) -> list[int]:
    """Lengths of attention that are recorded: four steps from each power of two to the next, and the capacity."""
    lengths, length = [], SMALLEST_READ
    while length < capacity:
        lengths.append(length)
        length += max(64, (1 << (length.bit_length() - 1)) // 4)
    return [*lengths, capacity]


_kept: WeakKeyDictionary[Module, tuple[int, RaggedCache]] = WeakKeyDictionary()


def take_cache(model: Module, rows: int, capacity: int) -> RaggedCache | None:
    """The cache that the last run over a model left behind with its recordings, if it is large enough, else none.

    Who takes it has it alone, until :func:`keep_cache`. One that is too small, or that was recorded with weights that
    have moved since, is dropped.
    """
    where, cache = _kept.pop(model, (0, None))
    fits = cache and cache.rows >= rows and cache.capacity >= capacity and where == _address(model)
    return cache if fits else None


def keep_cache(model: Module, cache: RaggedCache) -> None:
    """Keep a cache for the next run over this model, as long as the model lives, if it has recordings."""
    if cache.graphs is not None:
        _kept[model] = _address(model), cache


def _address(model: Module) -> int:
    """Tells whether all weights are where they were: recordings read them there."""
    return hash(tuple(weight.data_ptr() for weight in model.parameters()))
