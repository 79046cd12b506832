"""Limited runs: which documents are asked, and under which numbers they are recorded."""

from pathlib import Path

import harness
import pytest
import tiny

from decodebench.evaluation.catalog import load_task
from decodebench.evaluation.selection import select_documents
from decodebench.records import read_run, read_samples


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.write_questions(tmp_path_factory.mktemp("data"))


def test_a_random_subset_is_the_same_for_every_method_and_recorded_as_what_it_is(tmp_path: Path, data: Path) -> None:
    (whole,) = harness.run(tmp_path, data, tiny.tiny("llama"))
    outcomes = harness.run(
        tmp_path, data, tiny.tiny("llama"), methods="ar,mars", knobs={"tau": ["1"]}, limit=5, limit_seed=3
    )
    assert whole.folder is not None
    everything = {sample["doc_id"]: sample for sample in harness.timeless(whole.folder)}
    chosen = select_documents(12, 5, 3)
    assert chosen != list(range(5))
    for outcome in outcomes:
        assert outcome.folder is not None
        assert outcome.folder != whole.folder
        config = read_run(outcome.folder)["config"]
        assert (config["limit"], config["limit_seed"]) == (5, 3)
        samples = harness.timeless(outcome.folder)
        assert [sample["doc_id"] for sample in samples] == chosen
        for sample in samples:  # prompt, answer and score are those of that very document
            of_whole = everything[sample["doc_id"]]
            assert {name: sample[name] for name in ("prompt_sha256", "tokens", "scores")} == {
                name: of_whole[name] for name in ("prompt_sha256", "tokens", "scores")
            }


def test_a_share(tmp_path: Path, data: Path) -> None:
    (outcome,) = harness.run(tmp_path, data, tiny.tiny("llama"), limit=0.3)
    assert outcome.folder is not None
    assert [sample["doc_id"] for sample in read_samples(outcome.folder)] == [0, 1, 2, 3]
    assert read_run(outcome.folder)["config"]["limit"] == 0.3


def test_a_number_counts_for_each_task_of_a_group(tmp_path: Path, data: Path) -> None:
    folder = harness.write_group(tmp_path / "tasks", {"history": 9, "physics": 2})
    tasks = {"quiz": load_task("quiz", tasks_dir=folder)}
    (outcome,) = harness.run(tmp_path / "results", data, tiny.tiny("llama"), tasks=tasks, limit=3, limit_seed=1)
    assert outcome.error is None
    assert outcome.folder is not None
    asked = [(sample["task"], sample["doc_id"]) for sample in read_samples(outcome.folder)]
    assert asked == [("history", number) for number in select_documents(9, 3, 1)] + [("physics", 0), ("physics", 1)]
    assert outcome.aggregates["documents"] == 5
    assert all(sample["scores"] for sample in read_samples(outcome.folder))
