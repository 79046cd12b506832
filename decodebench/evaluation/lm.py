"""lm-evaluation-harness' view of a model: its prompts, and its requests in our terms."""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import Task
from lm_eval.models.utils import normalize_gen_kwargs

from decodebench.decoding import Request, Sampling
from decodebench.errors import UserError
from decodebench.evaluation.quiet import quiet

Key = tuple[str, int, int]


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
        task = normalize_gen_kwargs({**kwargs, "until": kwargs.get("until") or []})
        own = kwargs if task["do_sample"] else {}
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
            max_new_tokens=self.max_new_tokens or task["max_gen_toks"],
            stop=tuple(task["until"]),
            sampling=sampling,
        )


class TaskLM(LM):
    """Puts lm-eval's requests to a model, through whoever runs the current cell.

    Args:
        name, tokenizer: of the model.
        settings: for all requests.
        documents: by task, the indices of the documents that are asked for, ascending; None for all of all tasks.
    """

    def __init__(
        self, name: str, tokenizer: Any, settings: GenerationSettings, documents: Mapping[str, list[int]] | None = None
    ) -> None:
        super().__init__()
        self.name, self.tokenizer, self.settings, self.documents = name, tokenizer, settings, documents
        chat = tokenizer.chat_template is not None
        self.prompt_form = {"apply_chat_template": chat, "fewshot_as_multiturn": chat}
        self.answer: Callable[[list[Instance]], list[str]] | None = None  # of the cell that is being run

    @property
    def tokenizer_name(self) -> str:
        return self.name.replace("/", "__")

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

    def instances(self, name: str, task: Task) -> list[Instance]:
        """lm-eval's requests for a task's documents, with the prompts as this model gets them."""
        with quiet():
            task.build_all_requests(
                samples=self.documents[name] if self.documents else None,
                chat_template=self.apply_chat_template,
                **self.prompt_form,
            )
        return task.instances

    def keys(self, instances: Sequence[Instance]) -> list[Key]:
        """What samples are recorded under: task, document, and which of the document's requests it is."""
        seen: Counter[tuple[str, int]] = Counter()
        found = []
        for instance in instances:
            name, number = str(instance.task_name), int(instance.doc_id or 0)
            if self.documents:  # which lm-eval numbers from 0
                number = self.documents[name][number]
            found.append((name, number, seen[name, number]))
            seen[name, number] += 1
        return found

    def requests(self, instances: list[Instance]) -> list[Request]:
        """The requests behind lm-eval's instances."""
        return [
            self.settings.request(self.encode(instance.args[0]), key, instance.args[1])
            for instance, key in zip(instances, self.keys(instances), strict=True)
        ]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        assert self.answer is not None
        return self.answer(requests)

    # Tasks that score given answers are refused before they are run.

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError
