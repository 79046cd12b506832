"""Suites: what they stand for, what is left out of them, and their averages."""

import json
import math
from pathlib import Path
from typing import Any

import harness
import huggingface_hub
import pytest
import tiny
from fake_runs import write_run
from test_compare import invoke

from decodebench.analysis.compare import compare_runs
from decodebench.analysis.load import load_runs
from decodebench.analysis.suites import add_averages
from decodebench.errors import UserError
from decodebench.evaluation import taskfiles
from decodebench.evaluation.catalog import load_task, load_tasks
from decodebench.records import read_run
from decodebench.tasks.hub import NoAccess


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder for gsm8k, no hub, and a suite "pair" of gsm8k and gpqa."""

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    file = tmp_path / "pair.yaml"
    file.write_text("suite: [gsm8k, gpqa]\nmetadata: {description: two}\n")
    files = taskfiles.own_files() | {"pair": file}
    monkeypatch.setattr(taskfiles, "own_files", lambda: files)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    return harness.write_questions(tmp_path / "data", 3)


def test_the_papers_suite() -> None:
    assert taskfiles.read(taskfiles.own_files()["paper"])["suite"] == [
        *("ifeval", "bbh", "mmlu_pro", "gpqa", "gsm8k", "humaneval")
    ]
    with pytest.raises(UserError, match="'paper' stands for several tasks"):
        load_task("paper")


def test_what_cannot_be_had_is_left_out_of_a_suite_only(pair: Path) -> None:
    loaded, left_out = load_tasks(["pair"], data_dir=pair)
    assert list(loaded) == ["gsm8k"]
    assert list(left_out) == ["gpqa"]
    assert "Name or service not known" in str(left_out["gpqa"])
    assert loaded["gsm8k"].suite is not None
    assert loaded["gsm8k"].suite.left_out == {"gpqa": "no access"}
    with pytest.raises(NoAccess):
        load_tasks(["pair", "gpqa"], data_dir=pair)
    with pytest.raises(NoAccess):  # nothing is left
        load_tasks(["pair"])


def test_code_is_run_only_with_leave(pair: Path) -> None:
    taskfiles.own_files()["pair"].write_text("suite: [gsm8k, humaneval]\n")
    loaded, left_out = load_tasks(["pair"], data_dir=pair)
    assert list(loaded) == ["gsm8k"]
    assert left_out["humaneval"].reason == "code execution not allowed"
    assert list(load_tasks(["pair"], data_dir=pair, allow_code=True)[0]) == ["gsm8k", "humaneval"]
    with pytest.raises(UserError, match="add --allow-code-execution"):
        load_tasks(["humaneval"])


def test_a_run_may_be_wanted_by_itself_and_in_a_suite(pair: Path, tmp_path: Path) -> None:
    model, results = tiny.tiny("llama"), tmp_path / "results"
    tasks, _ = load_tasks(["pair"], data_dir=pair)
    (first,) = harness.run(results, pair, model, tasks=tasks)
    (second,) = harness.run(results, pair, model, repeats=2)
    assert first.error is second.error is None
    assert first.folder is not None
    assert read_run(first.folder)["task"]["suite"] == {
        "name": "pair", "tasks": ["gsm8k", "gpqa"], "left_out": {"gpqa": "no access"}
    }  # fmt: skip
    assert read_run(first.folder)["repeats"] == 2


SUITE = {"name": "exam", "tasks": ["gsm8k", "stepmath", "humaneval_chat", "gpqa"], "left_out": {"gpqa": "no access"}}


def write_suite_run(results: Path, method: str, task: str, **options: Any) -> None:
    folder = write_run(results, method, task=task, **options)
    run = json.loads((folder / "run.json").read_text())
    run["task"]["suite"] = SUITE
    (folder / "run.json").write_text(json.dumps(run))


def test_the_average_is_over_what_is_there_and_names_what_is_not(tmp_path: Path) -> None:
    for task in ("gsm8k", "stepmath"):
        write_suite_run(tmp_path, "ar", task)
        write_suite_run(tmp_path, "mars", task, tau=0.7, block_size=4)
    runs = load_runs([tmp_path])
    frame = compare_runs(runs)
    averaged = add_averages(frame, runs)
    assert averaged[:4].equals(frame.astype(averaged.dtypes))
    base, mars = (row for _, row in averaged[4:].iterrows())
    assert base["task"] == mars["task"] == "exam without humaneval_chat, gpqa"
    assert base["metric"] == "mean over gsm8k, stepmath (humaneval_chat: not run, gpqa: no access)"
    assert (base["label"], base["is_baseline"], mars["label"], mars["is_baseline"]) == ("ar", True, "mars τ=0.7", False)
    own = frame[frame["method"] == "mars"]
    assert mars["score"] == pytest.approx(own["score"].mean())
    assert mars["difference"] == pytest.approx(mars["score"] - base["score"])
    assert mars["documents"] == 128
    assert mars["speedup"] == pytest.approx(math.sqrt(own["speedup"].prod()))
    half = (own["score_high"] - own["score_low"]).max() / 2
    assert 0 < mars["score_high"] - mars["score"] < half  # twice the documents, so a narrower interval
    table = invoke(tmp_path)
    assert "exam without humaneval_chat, gpqa · batch 1" in table
    assert "gpqa: no access" in table
    assert invoke(tmp_path, "--format", "markdown").count("exam without") == 2


def test_means_over_different_tasks_stand_apart(tmp_path: Path) -> None:
    for task in ("gsm8k", "stepmath", "humaneval_chat"):
        write_suite_run(tmp_path, "ar", task, documents=8)
    for task in ("gsm8k", "stepmath"):
        write_suite_run(tmp_path, "jacobi", task, documents=8)
    runs = load_runs([tmp_path])
    averaged = add_averages(compare_runs(runs), runs)
    assert dict(zip(averaged["task"][5:], averaged["label"][5:], strict=True)) == {
        "exam without gpqa": "ar", "exam without humaneval_chat, gpqa": "jacobi"
    }  # fmt: skip


def test_no_average_of_one_or_of_none(tmp_path: Path) -> None:
    write_suite_run(tmp_path, "ar", "gsm8k", documents=4)
    write_run(tmp_path, "jacobi", documents=4)
    runs = load_runs([tmp_path])
    assert len(add_averages(compare_runs(runs), runs)) == 2
