"""Records of gated data hold numbers and answers, and no questions."""

import json
from pathlib import Path

import datasets
import harness
import huggingface_hub
import pytest
import tiny

from decodebench.evaluation.catalog import load_task
from decodebench.records import read_samples

GPQA = [
    {
        "Question": f"Which quokka number {n} hops farthest?",
        "Correct Answer": f"the {n}th marsupial",
        **{f"Incorrect Answer {i}": f"wombat {n} of kind {i}" for i in (1, 2, 3)},
    }
    for n in range(6)
]


def test_no_question_of_gpqa_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.DatasetDict({"train": datasets.Dataset.from_list(GPQA)})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    tasks = {"gpqa": load_task("gpqa")}
    (outcome,) = harness.run(tmp_path, tmp_path, tiny.tiny("llama"), tasks=tasks, repeats=2)
    assert outcome.error is None
    assert outcome.folder is not None
    assert [sample["doc_id"] for sample in read_samples(outcome.folder)] == [*range(6)] * 2
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    answers = "".join(json.dumps(sample["text"]) for sample in read_samples(outcome.folder))
    for word in ("quokka", "marsupial", "wombat", "hops"):
        assert word not in answers  # a random model does not say it of itself
        assert word not in written
