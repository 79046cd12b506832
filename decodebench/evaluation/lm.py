"""lm-evaluation-harness' view of a generator, with every finished request recorded at once."""

import hashlib
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import lm_eval.api.task
import torch
from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from decodebench.decoding import Generation, Generator, Request, Sampling
from decodebench.errors import UserError
from decodebench.evaluation.environment import PeakMemory
from decodebench.models import LoadedModel
from decodebench.records import RunStore

Key = tuple[str, int, int]
ONLY_GENERATION = UserError("a task that scores given answers generates nothing: decoding methods cannot differ on it")


@dataclass(frozen=True)
class GenerationSettings:
    """What the user sets for all tasks; ``None`` leaves it to the task.

    Attributes:
        max_new_tokens: instead of the task's ``max_gen_toks``.
        temperature, top_p, top_k: instead of the task's own sampling; temperature 0 is greedy.
        seed: every document's own stream is drawn from it.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0

    def request(self, prompt: Sequence[int], key: Key, kwargs: dict[str, Any]) -> Request:
        """A request from lm-eval's generation arguments.

        Raises:
            UserError: when the sampling settings are out of range.
        """
        until = kwargs.get("until") or []
        own = kwargs if kwargs.get("do_sample") else {}
        temperature = own.get("temperature", 1.0 if own else 0.0) if self.temperature is None else self.temperature
        top_p = own.get("top_p", 1.0) if self.top_p is None else self.top_p
        top_k = own.get("top_k", 0) if self.top_k is None else self.top_k
        stream = zlib.crc32("/".join(map(str, key)).encode())
        try:
            sampling = Sampling(float(temperature), float(top_p), int(top_k), (self.seed << 32) + stream)
        except ValueError as error:
            raise UserError(str(error)) from None
        return Request(
            prompt,
            max_new_tokens=self.max_new_tokens or int(kwargs.get("max_gen_toks", 256)),
            stop=tuple([until] if isinstance(until, str) else until),
            sampling=sampling,
        )


class TaskLM(LM):
    """Answers lm-eval's requests by handing them to whoever runs the current cell.

    Args:
        model: for its tokenizer and chat template.
        settings: for all requests.
    """

    def __init__(self, model: LoadedModel, settings: GenerationSettings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.tokenizer = model.tokenizer
        self.recorder: Recorder | None = None  # of the cell that is being run

    @property
    def tokenizer_name(self) -> str:
        return self.model.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.tokenizer.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation; models whose template knows no system role get it without one."""
        try:
            return self._template(chat_history, add_generation_prompt)
        except TemplateError:
            return self._template([m for m in chat_history if m["role"] != "system"], add_generation_prompt)

    def _template(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt; a template that writes the begin token itself does not get a second one."""
        begin = self.tokenizer.bos_token
        return self.tokenizer.encode(text, add_special_tokens=not (begin and text.startswith(begin)))

    def requests(self, instances: list[Instance]) -> list[Request]:
        """The requests behind lm-eval's instances."""
        return [
            self.settings.request(self.encode(instance.args[0]), key, instance.args[1])
            for instance, key in zip(instances, keys(instances), strict=True)
        ]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        assert self.recorder is not None
        return self.recorder.answer(requests, self)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise ONLY_GENERATION

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise ONLY_GENERATION


@contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """lm-eval's own progress bars are off inside: they would run through ours."""
    with mock.patch.object(lm_eval.api.task, "tqdm", lambda documents, **_: documents):
        yield


def keys(instances: Sequence[Instance]) -> list[Key]:
    """What samples are recorded under: task, document, and which of the document's requests it is."""
    seen: Counter[tuple[str, int]] = Counter()
    found = []
    for instance in instances:
        document = (str(instance.task_name), int(instance.doc_id or 0))
        found.append((*document, seen[document]))
        seen[document] += 1
    return found


class Recorder:
    """Runs the requests of one repeat of one cell that are not recorded yet, and records each as it ends.

    Args:
        store: of the cell.
        repeat: which one.
        generator: of the cell's method, fresh: its statistics become the repeat's.
        device: whose memory is watched.
        on_sample: told of every request that ends.
    """

    def __init__(
        self,
        store: RunStore,
        repeat: int,
        generator: Generator,
        device: torch.device,
        on_sample: Callable[[Generation], None],
    ) -> None:
        self.store, self.repeat, self.generator = store, repeat, generator
        self.device, self.on_sample = device, on_sample
        self.session = store.next_session(repeat)

    def answer(self, instances: list[Instance], lm: TaskLM) -> list[str]:
        """The texts of these instances, in order."""
        known = {(s["task"], s["doc_id"], s["idx"]): s["text"] for s in self.store.samples(self.repeat)}
        wanted = list(zip(keys(instances), instances, lm.requests(instances), strict=True))
        missing = [each for each in wanted if each[0] not in known]
        before = self.store.seconds_before(self.repeat)
        peak = PeakMemory(self.device)
        begun, recording = time.perf_counter(), 0.0

        def record(index: int, generation: Generation) -> None:
            nonlocal recording
            now = time.perf_counter()
            elapsed = now - begun - recording  # what recording takes is not the engine's time
            self.store.append(self._sample(*missing[index], generation, elapsed))
            known[missing[index][0]] = generation.text
            self.on_sample(generation)
            recording += time.perf_counter() - now

        if missing:
            self.generator.generate([request for _, _, request in missing], on_finish=record)
        seconds = time.perf_counter() - begun - recording
        if self.store.timing(self.repeat) is None:
            self.store.record_timing(self.repeat, self._timing(before + seconds, peak.bytes()))
        return [known[key] for key, _, _ in wanted]

    def _timing(self, seconds: float, peak_memory: int | None) -> dict[str, Any]:
        """How long the repeat took. What a killed session spent on prefill and decoding is not known afterwards."""
        timing = {"seconds": seconds, "peak_memory_bytes": peak_memory, "interrupted": self.session > 0}
        return timing if self.session else timing | asdict(self.generator.statistics)

    def _sample(
        self, key: Key, instance: Instance, request: Request, generation: Generation, elapsed: float
    ) -> dict[str, Any]:
        task, doc_id, idx = key
        return {
            "repeat": self.repeat,
            "task": task,
            "doc_id": doc_id,
            "idx": idx,
            "prompt_sha256": sha256(instance.args[0]),
            "prompt_tokens": len(request.prompt),
            "text": generation.text,
            "tokens": generation.tokens,
            "finish": generation.finish,
            "passes": generation.passes,
            "committed": generation.committed,
            "pass_seconds": [round(seconds, 6) for seconds in generation.pass_seconds],
            "ttft": generation.ttft,
            "latency": generation.latency,
            "session": self.session,
            "elapsed": elapsed,
            "scores": None,
        }


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
