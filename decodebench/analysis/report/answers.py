"""The answers that a report shows: what was said, in which pass, and how sure the model was."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from decodebench.analysis.load import Run
from decodebench.errors import UserError
from decodebench.pieces import Decode, pieces
from decodebench.records import read_samples
from decodebench.records.aggregates import number

TOKENS_MOST = 500_000  # in all answers of a page: about 2 MB of it
Key = tuple[str, str, int, int]  # the run's task, the sample's task, document, request of the document

log = logging.getLogger(__name__)


class Pool:
    """Every distinct token once, as [id, text]; answers refer to them by place."""

    def __init__(self) -> None:
        self.places: dict[tuple[int, str], int] = {}

    def place(self, token: int, text: str) -> int:
        return self.places.setdefault((token, text), len(self.places))

    def entries(self) -> list[list[Any]]:
        return [list(entry) for entry in self.places]


def collect_answers(
    runs: Sequence[Run], decoder_of: Callable[[str], Decode], documents: int
) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """The answers of every run to the first documents of each task, from the first repeat.

    Args:
        runs: what is shown, in the order of the page's table.
        decoder_of: for a model's name, how its ids are written out. Where it raises a UserError, ids stand for text.
        documents: at most so many of each task, and fewer where the page would become too large.

    Returns:
        Documents, each with "answers" by run number (as text, for JSON), and the pool of tokens that they refer to.
    """
    chosen = _choose(runs, documents) if documents else []
    samples: dict[Key, dict[int, dict[str, Any]]] = {key: {} for key in chosen}
    for place, run in enumerate(runs if chosen else ()):
        for sample in _first_repeat(run):
            key = (run.config["task"], sample["task"], sample["doc_id"], sample.get("idx") or 0)
            if key in samples:
                samples[key][place] = sample
    decoders = _decoders({run.config["model"] for run in runs}, decoder_of) if chosen else {}
    pool = Pool()
    shown = []
    for key in chosen:
        answers = {
            str(place): _answer(sample, runs[place], decoders[runs[place].config["model"]], pool)
            for place, sample in sorted(samples[key].items())
        }
        task, subtask, doc, idx = key
        name = f"document {doc}" + (f", turn {idx + 1}" if idx else "") + (f" of {subtask}" if subtask != task else "")
        shown.append({"task": task, "name": name, "answers": answers})
    return shown, pool.entries()


def _first_repeat(run: Run) -> list[dict[str, Any]]:
    try:
        return [sample for sample in read_samples(run.folder) if sample["repeat"] == 0]
    except UserError as error:
        log.warning("%s; showing none of its answers", error)
        return []


def _choose(runs: Sequence[Run], most: int) -> list[Key]:
    """The first documents of each task, in turn, as long as there is room."""
    tokens: Counter[Key] = Counter()
    for run in runs:
        first = run.samples[run.samples["repeat"] == 0]
        columns = (first[name].tolist() for name in ("task", "doc_id", "idx", "tokens"))
        for task, doc, idx, count in zip(*columns, strict=True):
            tokens[run.config["task"], task, doc, idx] += count
    by_task: defaultdict[str, list[Key]] = defaultdict(list)
    for key in sorted(tokens):
        by_task[key[0]].append(key)
    chosen, room = [], TOKENS_MOST
    for place in range(most):
        for keys in by_task.values():
            if place < len(keys):
                room -= tokens[keys[place]]
                if room >= 0:
                    chosen.append(keys[place])
    return sorted(chosen)


def _decoders(models: set[str], decoder_of: Callable[[str], Decode]) -> dict[str, Decode | None]:
    decoders: dict[str, Decode | None] = {}
    for model in sorted(models):
        try:
            decoders[model] = decoder_of(model)
        except UserError as error:
            log.warning("the tokenizer of %s is not at hand, its answers are shown as token ids: %s", model, error)
            decoders[model] = None
    return decoders


def _answer(sample: Mapping[str, Any], run: Run, decode: Decode | None, pool: Pool) -> dict[str, Any]:
    """What the page knows of an answer: tokens (places in the pool), tokens per pass, confidences, and the outcome."""
    ids = [int(token) for token in sample.get("tokens") or ()]
    texts = pieces(ids, decode) if decode else [f"{token} " for token in ids]
    committed = [count for count in sample.get("committed") or () if count]
    confidence = [number(value) for value in sample.get("confidence") or ()]
    headline = run.aggregates["score"]["metric"]
    answer = {
        "tokens": [pool.place(token, text) for token, text in zip(ids, texts, strict=True)],
        "committed": committed if sum(committed) == len(ids) else [],
        "passes": sample.get("passes"),
        "finish": sample.get("finish"),
        "latency": number(sample.get("latency")),
        "score": number((sample.get("scores") or {}).get(headline)),
    }
    if len(confidence) == len(ids) and any(value is not None for value in confidence):
        answer["confidence"] = [None if value is None else round(value, 3) for value in confidence]
    equal = sample.get("ar_equal") or ()
    if len(equal) == len(ids):
        answer["not_ar"] = [place for place, same in enumerate(equal) if not same]
    if decode is None:
        answer["text"] = str(sample.get("text") or "")
    return answer
