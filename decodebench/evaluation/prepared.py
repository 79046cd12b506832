"""A benchmark's documents and prompts for one model, chosen once for every cell that is run on them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict

import lm_eval.evaluator
from lm_eval.api.instance import Instance

from decodebench.decoding import Request
from decodebench.errors import UserError
from decodebench.evaluation.catalog import LoadedTask
from decodebench.evaluation.lm import GenerationSettings, Key, TaskLM
from decodebench.evaluation.quiet import quiet
from decodebench.evaluation.recorder import Recorder, sha256
from decodebench.evaluation.selection import select_documents
from decodebench.models import LoadedModel


class PreparedTask:
    """A benchmark's requests to a model.

    Args:
        task: a single one or a group.
        model: that is asked.
        settings: of generation.
        limit, limit_seed: which documents, of a group of each of its tasks; see `select_documents`.

    Attributes:
        requests: all of them by the keys of their samples, in the order in which they are run.
        instances: what they are to lm-eval.
        info: what a run records of its questions.

    Raises:
        UserError: the task generates nothing, or a setting is out of range.
    """

    def __init__(
        self,
        task: LoadedTask,
        model: LoadedModel,
        settings: GenerationSettings,
        limit: float | None = None,
        limit_seed: int | None = None,
    ) -> None:
        self.task = task
        with quiet():  # some tasks filter their documents only now
            documents = {
                name: select_documents(len(each.eval_docs), limit, limit_seed) for name, each in task.tasks.items()
            }
        self.lm = TaskLM(model.name, model.tokenizer, settings, None if limit is None else documents)
        instances = [instance for name, each in task.tasks.items() for instance in self.lm.instances(name, each)]
        if any(instance.request_type != "generate_until" for instance in instances):
            raise UserError(
                f"task '{task.name}' scores given answers and generates nothing: decoding methods cannot differ on it"
            )
        repeated = [i for i in instances for _ in range(i.repeats or 1)]
        self.instances: dict[Key, Instance] = dict(zip(self.lm.keys(repeated), repeated, strict=True))
        self.requests: dict[Key, Request] = dict(zip(self.instances, self.lm.requests(repeated), strict=True))
        digest = hashlib.sha256("".join(sha256(repr(instance.args)) for instance in instances).encode())
        self.info = {
            "headline": task.headline,
            "version": task.version,
            "shots": task.shots,
            "data": asdict(task.data),
            "chat_template": self.lm.prompt_form["apply_chat_template"],
            "prompts_sha256": digest.hexdigest(),
            "suite": task.suite and asdict(task.suite),
        }

    def score(self, recorder: Recorder) -> dict[tuple[str, int], dict[str, float]]:
        """Let lm-eval ask for all answers, filter and score them; by task and document, "metric,filter" to value."""
        return self._score(lambda instances: recorder.answer(instances, self.lm))

    def score_texts(self, texts: Mapping[Key, str]) -> dict[tuple[str, int], dict[str, float]]:
        """The same for answers that are there already; documents without one get no score."""
        asked = self.lm.documents
        wanted = {name: {number for task, number, _ in texts if task == name} for name in self.task.tasks}
        for name, number, _ in self.requests:  # of every task in a group lm-eval wants one
            wanted[name] = wanted[name] or {number}
        self.lm.documents = {name: sorted(numbers) for name, numbers in wanted.items()}
        try:
            scores = self._score(lambda instances: [texts.get(key, "") for key in self.lm.keys(instances)])
        finally:
            self.lm.documents = asked
        answered = {key[:2] for key in texts}
        return {document: values for document, values in scores.items() if document in answered}

    def _score(self, answer: Callable[[list[Instance]], list[str]]) -> dict[tuple[str, int], dict[str, float]]:
        self.lm.answer = answer
        with quiet():
            results = lm_eval.evaluator.evaluate(
                self.lm,
                self.task.task_dict,
                samples=self.lm.documents,
                bootstrap_iters=0,
                log_samples=True,
                confirm_run_unsafe_code=True,  # asked of the user when the task was chosen
                **self.lm.prompt_form,
            )
        scores: dict[tuple[str, int], dict[str, float]] = {}
        for name, samples in (results or {}).get("samples", {}).items():
            for sample in samples:
                values = scores.setdefault((name, sample["doc_id"]), {})
                for metric in sample["metrics"]:
                    if isinstance(sample[metric], int | float):
                        values[f"{metric},{sample['filter']}"] = float(sample[metric])
        return scores
