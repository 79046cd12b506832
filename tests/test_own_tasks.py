"""The user's own tasks and data, from file to record."""

import json
from pathlib import Path

import harness
import pytest
import tiny

from decodebench.errors import UserError
from decodebench.evaluation.catalog import load_task
from decodebench.evaluation.lm import GenerationSettings
from decodebench.records import read_samples


@pytest.mark.parametrize("key", ["max_gen_toks", "max_new_tokens"])
def test_a_task_file_says_how_long_answers_are(key: str, tmp_path: Path) -> None:
    folder = harness.write_group(tmp_path / "tasks", {"essay": 2}, f"{{until: null, {key}: 300}}")
    tasks = {"essay": load_task("essay", tasks_dir=folder)}
    model = tiny.tiny("llama", stop=False)
    (outcome,) = harness.run(tmp_path / "results", tmp_path, model, tasks=tasks, settings=GenerationSettings())
    assert outcome.error is None
    assert outcome.folder is not None
    assert [len(sample["tokens"]) for sample in read_samples(outcome.folder)] == [300, 300]


def test_answers_may_be_longer_than_the_task_says(tmp_path: Path) -> None:
    data = harness.write_questions(tmp_path / "data", 2)
    model = tiny.tiny("llama", stop=False, max_position_embeddings=2048)
    settings = GenerationSettings(max_new_tokens=600)
    (outcome,) = harness.run(tmp_path / "results", data, model, settings=settings)
    assert outcome.folder is not None
    assert max(len(sample["tokens"]) for sample in read_samples(outcome.folder)) > 256


def test_a_task_that_generates_nothing_is_refused(tmp_path: Path) -> None:
    folder = harness.write_group(tmp_path / "tasks", {"choice": 2})
    file = folder / "choice.yaml"
    file.write_text(
        file.read_text().replace("generation_kwargs", "output_type: loglikelihood\nmetadata") + "\nrepeats: 1\n"
    )
    file.write_text(file.read_text().replace("exact_match", "acc"))
    tasks = {"choice": load_task("choice", tasks_dir=folder)}
    with pytest.raises(UserError, match="task 'choice' scores given answers"):
        harness.run(tmp_path / "results", tmp_path, tiny.tiny("llama"), tasks=tasks)
    assert not (tmp_path / "results").exists()


def test_marks_and_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = harness.write_questions(tmp_path / "plain", 3)
    windows = harness.write_questions(tmp_path / "windows", 3)
    file = windows / "gsm8k" / "test.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    folders = [
        harness.run(tmp_path / f"results-{data.name}", data, tiny.tiny("llama"))[0].folder for data in (plain, windows)
    ]
    first, second = (harness.timeless(folder) for folder in folders if folder)
    assert first == second


def test_a_prompt_of_100_000_tokens_is_counted_as_wrong_and_the_others_go_on(tmp_path: Path) -> None:
    data = harness.write_questions(tmp_path / "data", 3)
    file = data / "gsm8k" / "test.jsonl"
    long = {"question": "0 1 2 3 4 5 6 7 8 9 " * 10_000, "answer": "#### 1"}
    file.write_text(json.dumps(long) + "\n" + file.read_text())
    (outcome,) = harness.run(tmp_path / "results", data, tiny.tiny("llama"))
    assert outcome.error is None
    assert outcome.folder is not None
    first, *others = read_samples(outcome.folder)
    assert first["prompt_tokens"] > 100_000
    assert (first["finish"], first["text"], set(first["scores"].values())) == ("prompt_too_long", "", {0.0})
    assert all(sample["passes"] for sample in others)
    assert (outcome.aggregates["failed_requests"], outcome.aggregates["score"]["n"]) == (1, 4)
