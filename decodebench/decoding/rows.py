"""The rows of a running batch: committed text on the device, mirrored lengths and progress on the host."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from decodebench.decoding.cache import RaggedCache
from decodebench.decoding.decoder import Batch, DraftPass
from decodebench.decoding.request import Progress
from decodebench.decoding.sampling import Choice, RowSampling, choose, row_sampling


class Rows:
    """State of the requests that are running, in slots ``0 … n−1``.

    Lengths live twice: on the device, where passes use them, and on the host, where the loop plans with them. Both are
    updated from the one transfer that ends a pass, so neither side ever waits to learn what the other knows.

    Args:
        size: the most rows at a time.
        capacity: positions per row.
        caches: the target's and, where a second model drafts, that model's.
        state_size: ids that a method carries per row.
        streams: uniform draws that it uses per output position.
        ahead: the most draft slots in any pass, so positions beyond an answer's end that a method may draw for.
    """

    def __init__(
        self,
        size: int,
        capacity: int,
        caches: Sequence[RaggedCache],
        device: torch.device,
        state_size: int = 0,
        streams: int = 1,
        ahead: int = 0,
    ) -> None:
        self.caches = caches
        self.device = device
        self.streams, self.ahead = streams, ahead
        self.progress: list[Progress] = []
        self.reading = 0  # the last so many rows have prompts that are yet to be read to their end
        self.tokens = torch.zeros(size, capacity, dtype=torch.long, device=device)
        # per row: committed tokens; leading tokens with cached keys and values; length of the prompt; most tokens
        self.lengths = torch.zeros(4, size, dtype=torch.long, device=device)
        self.total, self.cached, self.prompt, self.limit = self.lengths
        self.host_total = np.zeros(size, dtype=np.int64)
        self.host_cached = np.zeros(size, dtype=np.int64)
        self.host_wanted = np.full(size, -1, dtype=np.int64)
        self.tau = torch.zeros(size, dtype=torch.float32, device=device)
        self.host_tau = np.full(size, np.nan, dtype=np.float32)
        self.state = torch.full((size, state_size), -1, dtype=torch.long, device=device)
        self.sampling: RowSampling | None = None

    def __len__(self) -> int:
        return len(self.progress)

    @property
    def decoding(self) -> int:
        """How many rows decode: all but those whose prompts are being read."""
        return len(self) - self.reading

    def admit(self, new: Sequence[Progress], limits: Sequence[int]) -> slice:
        """Give rows to requests; returns which. ``limits`` are most tokens per row, prompts included."""
        first = len(self)
        for row, (progress, limit) in enumerate(zip(new, limits, strict=True), first):
            prompt = progress.request.prompt
            self.tokens[row, : len(prompt)] = torch.as_tensor(prompt, device=self.device)
            self.lengths[:, row] = torch.tensor([len(prompt), 0, len(prompt), limit], device=self.device)
            self.host_total[row], self.host_cached[row], self.host_wanted[row] = len(prompt), 0, -1
        self.progress.extend(new)
        self.reading = len(new)
        self.state[first : len(self)] = -1
        self._composition_changed()
        return slice(first, len(self))

    def retire(self, finished: Sequence[int]) -> None:
        """Take rows out of the batch; the last rows move into the gaps, behind them those that are being read."""
        for row in sorted(finished, reverse=True):
            if row < self.decoding:
                self._move(self.decoding - 1, row)
                row = self.decoding - 1
            else:
                self.reading -= 1
            self._move(len(self) - 1, row)
            self.progress.pop()
        if finished:
            self._composition_changed()

    def _move(self, source: int, target: int) -> None:
        if source == target:
            return
        self.tokens[target] = self.tokens[source]
        self.state[target] = self.state[source]
        self.lengths[:, target] = self.lengths[:, source]
        for known in (self.host_total, self.host_cached, self.host_wanted):
            known[target] = known[source]
        self.progress[target] = self.progress[source]
        for cache in self.caches:
            cache.move(source, target, int(self.host_cached[source]))

    def _composition_changed(self) -> None:
        sampling = [p.request.sampling for p in self.progress]
        answer = max((p.request.max_new_tokens for p in self.progress), default=0)
        longest = min(answer + self.ahead, self.tokens.shape[1])
        self.sampling = row_sampling(sampling, longest, self.device, self.streams)
        self.host_tau[:] = np.nan

    def refresh_tau(self, rows: slice, default: float) -> None:
        """Read every request's τ for the coming pass; the device hears of it only when one has changed."""
        values = np.array([_tau(p, default) for p in self.progress[rows]], dtype=np.float32)
        if not np.array_equal(values, self.host_tau[rows]):
            self.host_tau[rows] = values
            self.tau[rows] = torch.from_numpy(values).to(self.device)

    def batch(self, rows: slice, draft_pass: DraftPass, drafting: Callable[[], AbstractContextManager[None]]) -> Batch:
        """What a method sees of these rows, which either all decode or are all being read."""
        total = self.total[rows]
        generated = total - self.prompt[rows]
        sampling = self.sampling and self.sampling.narrow(rows.start, total.shape[0])

        def pick(logits: Tensor, metric: str | None = None, ahead: Tensor | None = None) -> Choice:
            return choose(logits, sampling, generated, metric, ahead)

        return Batch(
            fresh=rows.start >= self.decoding,
            tokens=self.tokens[rows],
            total=total,
            cached=self.cached[rows],
            tau=self.tau[rows],
            state=self.state[rows],
            generated=generated,
            sampling=sampling,
            host_total=self.host_total[rows],
            host_cached=self.host_cached[rows],
            host_tau=self.host_tau[rows],
            host_wanted=self.host_wanted[rows],
            choose=pick,
            draft_pass=draft_pass,
            drafting=drafting,
        )


def _tau(progress: Progress, default: float) -> float:
    tau = progress.request.tau
    if tau is None:
        return default
    return tau(progress) if callable(tau) else tau
