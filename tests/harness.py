"""A whole evaluation in miniature: a saved tiny model, a dozen questions in GSM8K's columns, and the runner."""

import json
from pathlib import Path
from typing import Any

import tiny

from decodebench.evaluation.catalog import LoadedTask, load_task
from decodebench.evaluation.grid import expand_grid
from decodebench.evaluation.lm import GenerationSettings
from decodebench.evaluation.runner import Outcome, RunOptions, run_grid
from decodebench.models import LoadedModel
from decodebench.records import read_samples

TIMES = {"pass_seconds", "ttft", "latency", "session", "elapsed"}
SHORT = GenerationSettings(max_new_tokens=24)


def write_questions(folder: Path, count: int = 12) -> Path:
    """A data folder with a GSM8K test split of ``count`` questions of different lengths."""
    (folder / "gsm8k").mkdir(parents=True)
    rows = [
        {"question": f"Ann has {i} apples" + " and buys 4 more" * (i % 5) + "?", "answer": f"{i} #### {i}"}
        for i in range(count)
    ]
    for split in ("train", "test"):
        path = folder / "gsm8k" / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def write_group(folder: Path, sizes: dict[str, int], generation: str = "{until: []}") -> Path:
    """A folder with a group of the user's own, "quiz", of tasks with so many questions each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in sizes.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"q": f"{name} {i}?", "a": str(i)}) + "\n" for i in range(size)))
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test\n"
            f'doc_to_text: "{{{{q}}}}"\ndoc_to_target: a\ngeneration_kwargs: {generation}\n'
            "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
        )
    (folder / "quiz.yaml").write_text(
        f"group: quiz\ntask: [{', '.join(sizes)}]\naggregate_metric_list: [{{metric: exact_match}}]\n"
    )
    return folder


def save_tiny(folder: Path, **config: Any) -> Path:
    """A tiny model as an ordinary checkpoint folder."""
    model = tiny.tiny("llama", **config)
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def run(
    results: Path,
    data: Path,
    model: LoadedModel,
    *,
    tasks: dict[str, LoadedTask] | None = None,
    methods: str = "ar",
    batch_sizes: tuple[int, ...] = (4,),
    knobs: dict[str, list[str]] | None = None,
    **options: Any,
) -> list[Outcome]:
    """Run a grid on the questions, or on other tasks, 24 new tokens each unless told otherwise."""
    tasks = tasks or {"gsm8k": load_task("gsm8k", data_dir=data)}
    cells = expand_grid(methods.split(","), list(tasks), batch_sizes, knobs or {})
    return run_grid(cells, model, tasks, RunOptions(results=results, **({"settings": SHORT} | options)))


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The samples of a run without what differs from one run to the next."""
    return [{k: v for k, v in sample.items() if k not in TIMES} for sample in read_samples(folder)]
