"""Prompts for speed alone: no score anywhere, and numbers for each kind of prompt."""

import json
from pathlib import Path

import harness
import pytest
import tiny
from test_compare import invoke

from decodebench.analysis.categories import by_category
from decodebench.analysis.compare import compare_runs
from decodebench.analysis.load import load_runs
from decodebench.analysis.plot import frontier
from decodebench.errors import UserError
from decodebench.evaluation.catalog import load_tasks
from decodebench.records import read_samples


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AR and MARS on six prompts of the user's own, of two kinds."""
    folder = tmp_path_factory.mktemp("speed")
    prompts = folder / "mine.jsonl"
    rows = [{"prompt": f"Sing {'la ' * n}", "category": "songs" if n % 3 else "poems"} for n in range(1, 7)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks, _ = load_tasks(["speed"], prompts=prompts)
    for outcome in harness.run(
        folder / "results",
        folder,
        tiny.tiny("llama"),
        tasks=tasks,
        methods="ar,mars",
        knobs={"tau": ["0.5"]},
        repeats=2,
    ):
        assert outcome.error is None
        assert outcome.aggregates["score"]["value"] is None
    return folder / "results"


def test_own_prompts_are_a_task_of_their_own_and_their_kinds_are_recorded(results: Path) -> None:
    run = load_runs([results])[0]
    assert run.config["task"] == "speed:mine"
    assert run.record["task"]["headline"] is None
    kinds = [sample["category"] for sample in read_samples(run.folder)]
    assert kinds == ["songs", "songs", "poems"] * 4


def test_prompts_are_for_one_task() -> None:
    with pytest.raises(UserError, match=r"--prompts mine.jsonl is for task speed"):
        load_tasks(["gsm8k"], prompts=Path("mine.jsonl"))


def test_numbers_by_category(results: Path) -> None:
    runs = load_runs([results])
    whole = compare_runs(runs).set_index("label")
    frame = compare_runs(by_category(runs)).set_index(["task", "label"])
    assert len(frame) == 6
    samples = {run.config["method"]: read_samples(run.folder) for run in runs}
    for task, kind in (("speed:mine: songs", "songs"), ("speed:mine: poems", "poems")):
        own = [sample for sample in samples["mars"] if sample["category"] == kind]
        row = frame.loc[task, "mars τ=0.5"]
        assert row["documents"] == len(own) / 2
        tokens, passes = sum(len(s["tokens"]) for s in own), sum(s["passes"] for s in own)
        assert row["tokens_per_pass"] == pytest.approx(tokens / passes)
        assert min(s["latency"] for s in own) <= row["latency_p50"] <= row["latency_p99"]
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    for label in whole.index:  # the parts' times add up to the whole's
        parts = frame.loc[["speed:mine: songs", "speed:mine: poems"]].xs(label, level="label")
        runs_parts = [
            p for p in by_category(runs) if p.config["task"] != "speed:mine" and p.name == parts["run"].iloc[0]
        ]
        seconds = [sum(p.aggregates["repeats"][i]["seconds"] for p in runs_parts) for i in (0, 1)]
        (run,) = [run for run in runs if run.name == parts["run"].iloc[0]]
        assert seconds == pytest.approx([repeat["seconds"] for repeat in run.aggregates["repeats"]])


def test_tables_without_scores(results: Path) -> None:
    lines = invoke(results, "--by-category").splitlines()
    assert max(map(len, lines)) <= 100
    header = next(line for line in lines if "tok/s" in line)
    assert " ".join(header.split()) == "method same % tok/pass tok/s speed-up p50 s p95 s p99 s"
    assert [line.strip() for line in lines if "· batch" in line] == [
        f"speed:mine{kind} · batch 4" for kind in ("", ": poems", ": songs")
    ]
    assert "speed:mine: poems: 2 documents" in lines
    for format in ("markdown", "latex", "csv", "json"):
        assert "mars" in invoke(results, "--by-category", "--format", format)
    with pytest.raises(UserError, match="no run has a score"):
        frontier(compare_runs(load_runs([results]), paired=False))


def test_categories_need_prompts_that_have_some(tmp_path: Path) -> None:
    data = harness.write_questions(tmp_path / "data", 2)
    harness.run(tmp_path / "results", data, tiny.tiny("llama"))
    with pytest.raises(UserError, match="--by-category: none of these runs"):
        by_category(load_runs([tmp_path / "results"]))
