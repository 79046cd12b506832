"""What a model is asked for one document, to look at."""

from dataclasses import dataclass
from typing import Any

from decodebench.decoding import Request
from decodebench.errors import UserError, unknown
from decodebench.evaluation.catalog import LoadedTask
from decodebench.evaluation.lm import GenerationSettings, TaskLM
from decodebench.evaluation.quiet import quiet


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt and what belongs to it.

    Args:
        subtask: that the document is of, the task itself where it is no group.
        documents: how many that has.
        prompt: as the model gets it, special tokens of its chat template included.
        prompt_tokens: its length.
        generation: the settings, in words.
        target: the right answer, or how an answer is checked.
    """

    subtask: str
    documents: int
    prompt: str
    prompt_tokens: int
    generation: str
    target: str


def show_prompt(task: LoadedTask, doc_id: int, subtask: str | None, model: str, tokenizer: Any) -> ShownPrompt:
    """The prompt of a document.

    Args:
        task: a single one or a group.
        doc_id: counted from 0, as records have it.
        subtask: of a group; its first if None.
        model, tokenizer: the model's name, and its tokenizer.

    Raises:
        UserError: there is no such document or subtask, or the task generates nothing.
    """
    name = subtask or next(iter(task.tasks))
    if name not in task.tasks:
        raise unknown(f"subtask of {task.name}", name, task.tasks)
    one = task.tasks[name]
    with quiet():
        documents = len(one.eval_docs)
    if not 0 <= doc_id < documents:
        raise UserError(f"{name} has no document {doc_id}: choose from 0 to {documents - 1}")
    lm = TaskLM(model, tokenizer, GenerationSettings(), {name: [doc_id]})
    instance = lm.instances(name, one)[0]
    if instance.request_type != "generate_until":
        raise UserError(f"task '{name}' scores given answers: a model is not asked to generate any")
    (request,) = lm.requests([instance])
    target = str(one.doc_to_target(instance.doc))
    return ShownPrompt(name, documents, instance.args[0], len(request.prompt), _in_words(request), target)


def _in_words(request: Request) -> str:
    sampling = request.sampling
    how = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}"
    stop = ", ".join(map(repr, request.stop)) or "only where the model ends its answer"
    return f"at most {request.max_new_tokens} tokens, {how}; stop: {stop}"
