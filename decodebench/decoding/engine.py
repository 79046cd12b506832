"""The loop that all methods share: admit, draft, forward, accept, commit, retire."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decodebench.decoding.cache import RaggedCache, Window
from decodebench.decoding.clock import PassClock
from decodebench.decoding.decoder import (
    Batch,
    Batching,
    Commit,
    Decoder,
    Draft,
    Generator,
    OnCommit,
    OnFinish,
    PassOutput,
    Statistics,
)
from decodebench.decoding.feed import Feed, ListFeed, Pass, unstarted
from decodebench.decoding.footprint import check_memory
from decodebench.decoding.forward import WindowModel, round_up
from decodebench.decoding.graphs import CudaRecorder, PassGraphs, Recorder, keep_cache, take_cache
from decodebench.decoding.inputs import PassInputs
from decodebench.decoding.layout import chunk, lay_out
from decodebench.decoding.request import Finish, Generation, Progress, Request
from decodebench.decoding.rows import Rows
from decodebench.decoding.stopping import StopStrings, cut

if TYPE_CHECKING:
    from decodebench.models import LoadedModel

# Tokens of prompts that a pass reads, padding included: enough to keep any device busy, little to wait for. Longer
# prompts are read alone, in chunks of so many.
PREFILL_TOKENS = 512


class Engine(Generator):
    """Runs a :class:`Decoder` on a model.

    Args:
        model: what to run.
        decoder: bound to the same model.
        batch_size: the most requests that run at a time.
        batching: ``continuous`` gives the row of a finished request to the next one at once; ``static`` starts the
            next batch when the last row of this one is done (the setting of arXiv 2604.07023).

    Raises:
        ValueError: for a batch size below 1.
    """

    def __init__(
        self, model: "LoadedModel", decoder: Decoder, batch_size: int, batching: Batching = "continuous"
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: must be at least 1")
        self.model = WindowModel(model.model)
        self.model.compiled = model.compiled
        self.tokenizer = model.tokenizer
        self.stop_tokens = model.stop_tokens
        self.decoder = decoder
        self.batch_size = batch_size
        self.batching = batching
        self.statistics = Statistics()
        self.recorder: Callable[[], Recorder] | None = None
        """Makes what records decoding passes; ``None`` has each of them run anew."""
        if model.graphs and self.model.device.type == "cuda":
            self.recorder = CudaRecorder

    def generate(
        self,
        requests: Sequence[Request],
        on_commit: OnCommit | None = None,
        on_finish: OnFinish | None = None,
    ) -> list[Generation]:
        """See :meth:`Generator.generate`.

        Raises:
            UserError: for a request that the method cannot serve, or requests that do not fit into memory together.
        """
        for request in requests:
            self.decoder.check_request(request)
        feed = ListFeed(requests, on_commit, on_finish)
        longest = max((row_limit(request, self.model.context) for request in requests), default=1)
        longest = max(longest, min(self.room, self.model.context))
        self.serve(feed, longest, min(self.batch_size, max(len(requests), 1)))
        return [feed.done[index] for index in range(len(requests))]

    def serve(self, feed: Feed, max_length: int, rows: int | None = None) -> None:
        """Run what a feed brings, until it says that there is no more.

        Args:
            feed: of requests that the decoder has checked.
            max_length: most tokens of a request, prompt included; the cache is as long. Answers end there, and
                prompts that leave no room for one are reported as too long.
            rows: how many requests the cache has room for, at least as many as will run at a time; default: the batch
                size.

        Raises:
            UserError: before any of it is taken, where caches and passes need more memory than is free.
        """
        drafter = self.decoder.drafter
        with self.model.ready(), drafter.ready() if drafter else nullcontext():
            run = _Run(self, feed, max_length, rows or self.batch_size)
            run.all()
            run.keep_caches()


@dataclass
class _Result:
    """A pass, on the host. Arrays are per row."""

    tokens: np.ndarray
    count: np.ndarray
    kept: np.ndarray
    stopped: np.ndarray
    suspect: np.ndarray
    confidence: np.ndarray | None


class _Run:
    """One ``generate`` or ``serve`` call."""

    def __init__(self, engine: Engine, feed: Feed, max_length: int, size: int) -> None:
        self.engine, self.model, self.decoder = engine, engine.model, engine.decoder
        self.continuous = engine.batching == "continuous"
        self.feed, self.queue = feed, feed.queue
        self.free = 0  # rows that may still be given away before the next decoding pass
        self.longest = min(max_length, self.model.context)
        device = self.model.device
        self.stop_ids = torch.tensor(sorted(engine.stop_tokens), dtype=torch.long, device=device)
        strings = {string for _, request in self.queue for string in request.stop}
        self.stop_strings = StopStrings(engine.tokenizer, strings, self.model.vocabulary, device)
        # one position more than any row can fill: padding beyond a row's end is written there
        capacity = round_up(self.longest + self.decoder.max_draft + 1, 64)
        self.rows = Rows(
            size, capacity, self._caches(size, capacity), device,
            self.decoder.state_size, self.decoder.random_streams, self.decoder.max_draft,
        )  # fmt: skip
        self.clock = PassClock(device)
        # tokens of a chunk, 0 where nothing stays cached; tokens see all of their blocks, so none is cut
        self.chunk = PREFILL_TOKENS // (self.decoder.block or 1) * (self.decoder.block or 1)
        if self.decoder.max_pending is None:
            self.chunk = 0
        self.chunk_seconds = 0.0  # that the chunks of the prompt took that is being read
        self.waited = False  # whether decoding rows have waited for a chunk, and have the next pass

    def _owners(self) -> list[WindowModel]:
        """Who has a cache."""
        drafter = self.decoder.drafter
        return [self.model] if drafter is None or drafter.shares_cache else [self.model, drafter]

    def _caches(self, size: int, capacity: int) -> list[RaggedCache]:
        """New ones, or where passes are recorded those of the last run."""
        record, owners = self.engine.recorder, self._owners()
        kept = [take_cache(owner.model, size, capacity) if record else None for owner in owners]
        if None in kept:
            check_memory(self.model, self.decoder, size, capacity, PREFILL_TOKENS)
        caches = [old or owner.new_cache(size, capacity) for old, owner in zip(kept, owners, strict=True)]
        if record:
            for cache in caches:
                cache.graphs = cache.graphs or PassGraphs(cache, record())
        return caches

    def keep_caches(self) -> None:
        """Leave caches and recordings to the next run."""
        for owner, cache in zip(self._owners(), self.rows.caches, strict=True):
            keep_cache(owner.model, cache)

    def all(self) -> None:
        """Pass after pass: prompts while rows are free, else decoding; chunks of long prompts and decoding in turn."""
        while self.feed.ready(len(self.rows)):
            if dropped := self.feed.dropped():
                rows = enumerate(self.rows.progress)
                self._finish([(row, dropped[p.index]) for row, p in rows if p.index in dropped])
            if not self.rows.reading:
                self._admit()
            if self.rows.reading and not (self.waited and self.rows.decoding):
                self._read(slice(self.rows.decoding, len(self.rows)))
            elif self.rows.decoding:
                self.free, self.waited = 0, False
                self._finish(self._step(slice(0, self.rows.decoding), prefill=False))

    def _admit(self) -> None:
        """Give free rows to requests."""
        if self.continuous or not (len(self.rows) or self.free):
            self.free = self.engine.batch_size - len(self.rows)
        if new := self._next():
            self.free -= len(new)
            self.stop_strings.add(string for progress in new for string in progress.request.stop)
            self.rows.admit(new, [row_limit(progress.request, self.longest) for progress in new])
            self.chunk_seconds = 0.0

    def _read(self, rows: slice) -> None:
        """The first pass of new rows; or, where that would be too wide, a chunk of the prompt."""
        cached = self.rows.host_cached[rows]
        if self.chunk and (self.rows.host_total[rows] - cached > self.chunk).any():
            self._read_chunk(rows, self.chunk)
            self.waited = self.continuous
            return
        self.waited = self.continuous and bool(cached.any())
        progress = self.rows.progress[rows]
        finished = self._step(rows, prefill=True)
        self.rows.reading = 0
        for each in progress:
            each.pass_seconds[0] += self.chunk_seconds
        self._finish(finished)

    def _read_chunk(self, rows: slice, size: int) -> None:
        """Read so many tokens of prompts that are longer than that: nothing is predicted or told to the host."""
        begun = time.perf_counter()
        self.rows.refresh_tau(rows, self.decoder.default_tau)
        batch = self.rows.batch(rows, partial(self._draft_pass, rows), partial(self.clock.part, "draft"))
        inputs = chunk(batch, self.decoder, size)
        self.model.forward(self.rows.caches[0], rows, inputs, int(batch.host_cached.max()))
        with self.clock.part("draft"):
            self.decoder.read(batch, inputs.tokens, inputs.slots)
        batch.cached.add_(size)
        self.rows.host_cached[rows] += size
        if self.model.device.type == "cuda":  # the next pass is not to be charged with what this one takes
            torch.cuda.synchronize(self.model.device)
        ended = time.perf_counter()
        statistics = self.engine.statistics
        statistics.passes += 1
        statistics.prefill_seconds += ended - begun
        statistics.draft_seconds += self.clock.take()["draft"]
        self.chunk_seconds += ended - begun
        self.feed.passed(Pass(begun, ended, True, batch.rows, 0, batch.host_tau.copy()))

    def _next(self) -> list[Progress]:
        """Requests for free rows, with a few hundred tokens of prompts at most, unless one alone has more."""
        new: list[Progress] = []
        while self.queue and len(new) < self.free:
            index, request = self.queue[0]
            if not row_limit(request, self.longest):
                self.queue.popleft()
                self.feed.finished(index, unstarted("prompt_too_long"))
                continue
            longest = max([len(request.prompt), *(len(p.request.prompt) for p in new)])
            if new and longest * (len(new) + 1) > PREFILL_TOKENS:
                break
            self.queue.popleft()
            new.append(Progress(request, index, time.perf_counter()))
        return new

    def _step(self, rows: slice, prefill: bool) -> list[tuple[int, Finish]]:
        """One pass over these rows; returns which of them ended, and why."""
        begun = time.perf_counter()
        self.rows.refresh_tau(rows, self.decoder.default_tau)
        batch = self.rows.batch(rows, partial(self._draft_pass, rows), partial(self.clock.part, "draft"))
        with self.clock.part("draft"):
            draft = self.decoder.draft(batch)
        logits = self._forward(rows, batch, draft)
        window = self.rows.caches[0].window
        with self.clock.part("acceptance"):
            commit = self.decoder.accept(batch, draft, PassOutput(logits, self.model.hidden))
        result = self._apply(rows, batch, commit)
        ended = time.perf_counter()
        finished = self._record(rows, result, begun, ended)
        self._count(prefill, window, logits, time.perf_counter() - begun)
        committed = sum(progress.committed[-1] for progress in self.rows.progress[rows])
        self.feed.passed(Pass(begun, ended, prefill, batch.rows, committed, batch.host_tau.copy()))
        return finished

    def _count(self, prefill: bool, window: Window, logits: Tensor, seconds: float) -> None:
        """Add the pass that has just been done, with its bookkeeping, to the statistics."""
        statistics, parts = self.engine.statistics, self.clock.take()
        statistics.passes += 1
        statistics.draft_seconds += parts["draft"]
        if prefill:
            statistics.prefill_seconds += seconds
            return
        statistics.decode_seconds += seconds
        decoding = statistics.decoding
        rows = window.rows.stop - window.rows.start
        decoding.passes += 1
        decoding.slots += window.write[1].numel()
        decoding.unembedded += logits.shape[0] * logits.shape[1]
        decoding.keys_read += rows * window.read
        decoding.scores += rows * window.width * window.read
        decoding.model_seconds += parts["model"]
        decoding.acceptance_seconds += parts["acceptance"]
        decoding.draft_seconds += parts["draft"]
        decoding.host_seconds += seconds - sum(parts.values())

    def _draft_pass(self, rows: slice, tokens: Tensor, slots: Tensor, select: Tensor, longest_cached: int) -> Tensor:
        """See :class:`DraftPass`."""
        assert self.decoder.drafter is not None
        self.engine.statistics.draft_passes += 1
        decodes = rows.start < self.rows.decoding
        inputs = PassInputs(tokens, slots, select)
        return self.decoder.drafter.forward(self.rows.caches[-1], rows, inputs, longest_cached, again=decodes)

    def _forward(self, rows: slice, batch: Batch, draft: Draft | None) -> Tensor:
        """Run the model on every row's pending tokens and draft."""
        again = not batch.fresh and self.decoder.max_pending is not None
        cache = self.rows.caches[0]
        inputs = lay_out(batch, draft, self.decoder, few_shapes=again and cache.graphs is not None)
        with self.clock.part("model"):
            logits = self.model.forward(cache, rows, inputs, int(batch.host_cached.max()), again)
        wanted = 1 + (draft.tokens.shape[1] if draft else 0)
        self.model.hidden = self.model.hidden[:, :wanted]
        return logits[:, :wanted]

    def _apply(self, rows: slice, batch: Batch, commit: Commit) -> _Result:
        """Write what is kept and move the lengths, on the device; then the one transfer to the host."""
        tokens, n = commit.tokens, commit.tokens.shape[1]
        index = torch.arange(n, device=tokens.device)
        stop = (tokens[..., None] == self.stop_ids).any(-1)  # torch.isin may sort, and wait for the device
        first_stop = torch.where(stop, index + 1, n + 1).amin(1)
        count = torch.minimum(torch.minimum(commit.count, first_stop), self.rows.limit[rows] - batch.total)
        suspects = self.stop_strings.flag(tokens)
        suspect = torch.zeros_like(count) if suspects is None else (suspects & (index < count[:, None])).any(1).long()
        kept = torch.zeros_like(count) if commit.kept is None else commit.kept

        batch.tokens.scatter_(1, batch.total[:, None] + index, tokens)
        if commit.path is not None:
            draft_start = batch.total[:, None]  # pending tokens end where the committed text ends
            slot = torch.arange(commit.path.shape[1], device=tokens.device)
            self.rows.caches[0].compact(rows, draft_start + commit.path, (draft_start + slot).expand_as(commit.path))
        if commit.cache_pending:
            batch.cached.copy_(batch.total + kept)
        batch.total.add_(count)
        if commit.state is not None:
            batch.state.copy_(commit.state)

        wanted = torch.zeros_like(count) if commit.wanted is None else commit.wanted
        packet = torch.stack([count, kept, (first_stop <= count).long(), suspect, wanted], 1)
        parts = [tokens, packet]
        if self.engine.trace and commit.confidence is not None:  # as bits, so that it needs no transfer of its own
            parts.append(commit.confidence.float().view(torch.int32).long())
        host = torch.cat(parts, 1).cpu().numpy()
        if commit.cache_pending:
            self.rows.host_cached[rows] = self.rows.host_total[rows] + host[:, n + 1]
        self.rows.host_total[rows] += host[:, n]
        self.rows.host_wanted[rows] = host[:, n + 4]
        sure = host[:, n + 5 :].astype(np.int32).view(np.float32) if len(parts) > 2 else None
        return _Result(host[:, :n], host[:, n], host[:, n + 1], host[:, n + 2], host[:, n + 3], sure)

    def _record(self, rows: slice, result: _Result, begun: float, ended: float) -> list[tuple[int, Finish]]:
        """Add the pass to every row's trace, look for stop strings, tell who listens."""
        finished: list[tuple[int, Finish]] = []
        for i, row in enumerate(range(rows.start, rows.stop)):
            progress = self.rows.progress[row]
            new = result.tokens[i, : result.count[i]].tolist()
            finish: Finish | None = "stop_token" if result.stopped[i] else None
            if result.suspect[i] and progress.request.stop:
                found = self.stop_strings.find(progress.tokens, new, progress.request.stop)
                if found is not None and not (finish and found == len(new)):
                    new, finish = new[:found], "stop_string"
            progress.tokens.extend(new)
            progress.committed.append(len(new))
            if self.engine.trace:
                sure = [np.nan] * len(new) if result.confidence is None else result.confidence[i, : len(new)].tolist()
                progress.confidence.extend(sure)
            progress.pass_seconds.append(ended - begun)
            if new and progress.first_token is None:
                progress.first_token = ended
            length = len(progress.request.prompt) + len(progress.tokens)
            if finish is None and length >= row_limit(progress.request, self.longest):
                finish = "length"
            if new:
                self.feed.committed(progress, new)
            if finish:
                finished.append((row, finish))
        return finished

    def _finish(self, finished: list[tuple[int, Finish]]) -> None:
        now = time.perf_counter()
        for row, finish in finished:
            progress = self.rows.progress[row]
            text = cut(self.engine.tokenizer, progress.tokens, progress.request.stop, self.engine.stop_tokens)
            first = np.nan if progress.first_token is None else progress.first_token - progress.admitted
            self.feed.finished(progress.index, Generation(
                text, progress.tokens, finish, progress.committed, progress.pass_seconds,
                ttft=first, latency=now - progress.admitted,
                confidence=progress.confidence if self.engine.trace else None,
            ))  # fmt: skip
        self.rows.retire([row for row, _ in finished])


def row_limit(request: Request, longest: int) -> int:
    """Most tokens of a request's row, prompt included; 0 for a prompt that leaves no room for an answer.

    Args:
        longest: most tokens of any row.
    """
    return min(len(request.prompt) + request.max_new_tokens, longest) if len(request.prompt) < longest else 0
