"""One load of a grid: run what is not recorded yet, and record it in the same form as other runs."""

import logging
from contextlib import ExitStack
from typing import Any

import numpy as np

from decodebench.errors import UserError
from decodebench.evaluation.lm import Key
from decodebench.evaluation.prepared import PreparedTask
from decodebench.evaluation.progress import GridProgress
from decodebench.evaluation.recorder import sha256
from decodebench.evaluation.runner import RunOptions
from decodebench.load.drive import Departure, Outcome
from decodebench.load.grid import LoadCell, LoadOptions, LoadOutcome
from decodebench.load.place import Place
from decodebench.load.report import measure
from decodebench.load.requests import Deck
from decodebench.load.trace import write_passes
from decodebench.records import RunStore
from decodebench.records.files import sample_key
from decodebench.records.passes import passes_file

log = logging.getLogger(__name__)


class LoadRun:
    """One load while its grid is running.

    Args:
        cell: what is run.
        prepared: the task that its requests are drawn from.
        place: that serves them.
        run, load: what holds for all loads.
        config: of the record.
        surroundings: versions and hardware.
    """

    def __init__(
        self,
        cell: LoadCell,
        prepared: PreparedTask,
        place: Place,
        run: RunOptions,
        load: LoadOptions,
        config: dict[str, Any],
        surroundings: dict[str, Any],
    ) -> None:
        self.cell, self.prepared, self.place, self.options, self.load = cell, prepared, place, run, load
        self.config, self.surroundings = config, surroundings
        self.store: RunStore | None = None
        self.deck = Deck(list(prepared.requests))
        self.warm = False
        self.error: str | None = None

    def arrivals(self, repeat: int) -> np.ndarray:
        return self.cell.arrivals.times(self.load.seed + repeat)

    def guarded(self, repeat: int, stack: ExitStack, progress: GridProgress) -> None:
        """Run one repeat; whatever goes wrong ends this load only, but Ctrl-C ends all."""
        try:
            self._repeat(repeat, stack, progress)
        except Exception as error:
            log.debug("load %s", self.cell, exc_info=True)
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            self.error = kind + (" ".join(str(error).split()) or "no reason given")
            if self.store:
                self.store.fail(self.error)
            progress.fail(str(self.cell), self.error)
        except KeyboardInterrupt:
            if self.store:
                self.store.fail("stopped by Ctrl-C")
            raise

    def _repeat(self, repeat: int, stack: ExitStack, progress: GridProgress) -> None:
        if self.store is None:
            self.store = stack.enter_context(RunStore.open_or_create(
                self.options.results, self.config, self.prepared.info, self.surroundings, fresh=self.options.fresh
            ))  # fmt: skip
        store, times = self.store, self.arrivals(repeat)
        if repeat < store.repeats:
            progress.skip(str(self.cell), len(times))
            return
        keys = self.deck.draw(len(times), self.load.seed + repeat)
        if store.timing(repeat) is None:
            store.discard(repeat)
            self._warm_up()
            progress.begin(str(self.cell), f", repeat {repeat + 1}" if self.options.repeats > 1 else "")
            store.record_timing(repeat, self._serve(repeat, store, times, keys, progress))
        else:
            progress.skip(str(self.cell), len(times))
        store.finish_repeat(repeat, {}, self._scores(store.samples(repeat)))

    def _serve(
        self, repeat: int, store: RunStore, times: np.ndarray, keys: list[Key], progress: GridProgress
    ) -> dict[str, Any]:
        """Offer the load; returns what the run records of the repeat."""
        load, place = self.load, self.place
        asked = [self.deck.asked(key)[1] for key in keys]
        requests = [self.prepared.requests[key] for key in asked]
        texts = [self.prepared.instances[key].args[0] for key in asked]

        def record(outcome: Outcome) -> None:
            store.append(self._sample(repeat, keys[outcome.place], outcome, offered.begun))
            if outcome.generation is None:
                progress.skip(str(self.cell), 1)
            else:
                progress.advance(outcome.generation)

        with write_passes(passes_file(store.folder, repeat), place.has_tau) as trace:
            offered = place.offered(requests, texts, trace, record)
            leaving = Departure(load.cancel, load.cancel_within, load.seed + repeat)
            offered.run(times, leaving.moments(times.tolist()))
        duration = self.cell.arrivals.duration
        numbers = measure(offered.outcomes, trace.lines, offered.begun, duration, load.target)
        return {"seconds": numbers["seconds"], "interrupted": False} | place.timing() | {"load": numbers}

    def _sample(self, repeat: int, key: Key, outcome: Outcome, begun: float) -> dict[str, Any]:
        generation, target = outcome.generation, self.load.target
        asked = self.deck.asked(key)[1]
        instance, request = self.prepared.instances[asked], self.prepared.requests[asked]
        category = self.prepared.task.category
        return {
            "repeat": repeat,
            "task": key[0],
            "doc_id": key[1],
            "idx": key[2],
            **({"category": str(instance.doc[category])} if category else {}),
            "prompt_sha256": sha256(instance.args[0]),
            "prompt_tokens": len(request.prompt),
            "text": generation.text if generation else "",
            "tokens": generation.tokens if generation else [],
            "finish": outcome.finish,
            **({"error": outcome.error} if outcome.error else {}),
            **({"completion_tokens": outcome.told} if outcome.told is not None else {}),
            "passes": None if outcome.passes_unknown else generation.passes if generation else 0,
            "committed": generation.committed if generation else [],
            "pass_seconds": [round(seconds, 6) for seconds in generation.pass_seconds] if generation else [],
            "ttft": outcome.ttft,
            "latency": outcome.latency,
            "per_token": outcome.per_token,
            "due": outcome.due - begun,
            "late": outcome.sent - outcome.due,
            "good": outcome.meets(target.latency, target.per_token),
            "session": 0,
            "elapsed": outcome.ended - begun,
            "scores": None,
        }

    def _scores(self, samples: list[dict[str, Any]]) -> dict[tuple[str, int, int], dict[str, float]]:
        """The task's scores of all answers that came to their end, however often a document was asked."""
        if self.prepared.task.headline is None:
            return {}
        rounds: dict[int, dict[Key, str]] = {}
        for key, sample in zip(map(sample_key, samples), samples, strict=True):
            if sample["latency"] is not None:
                turn, asked = self.deck.asked(key[1:])
                rounds.setdefault(turn, {})[asked] = sample["text"]
        scores: dict[tuple[str, int, int], dict[str, float]] = {}
        for turn, texts in sorted(rounds.items()):
            found = self.prepared.score_texts(texts)
            scores |= {(*key[:2], turn * self.deck.most + key[2]): found[key[:2]] for key in texts}
        return scores

    def _warm_up(self) -> None:
        if not self.warm:
            self.place.warm_up(list(self.prepared.requests.values())[: self.cell.cell.batch_size])
            self.warm = True

    def finish(self) -> None:
        if self.store and self.error is None and not self.store.is_complete(self.options.repeats):
            self.store.finish()

    def outcome(self) -> LoadOutcome:
        run: dict[str, Any] = self.store.run if self.store else {"timings": [], "aggregates": {}}
        numbers = run["timings"][-1]["load"] if run["timings"] else {}
        score = run["aggregates"].get("score", {}).get("value")
        return LoadOutcome(self.cell, self.store.folder if self.store else None, numbers, score, self.error)
