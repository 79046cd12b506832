"""`compare --where --sort --best --by`: which runs, in which order, and which one to take."""

import json
from pathlib import Path

import pandas as pd
import pytest
from fake_runs import write_run
from test_compare import invoke

from decodebench.analysis.compare import compare_runs
from decodebench.analysis.load import load_runs
from decodebench.analysis.selection import choose_best, pareto, select_where, sort_rows
from decodebench.analysis.study import study_cells
from decodebench.errors import UserError


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for batch_size in (1, 4, 16):
        write_run(folder, "ar", batch_size=batch_size, documents=32)
        for cache in ("ragged", "block"):
            write_run(
                folder, "mars", batch_size=batch_size, documents=32, tau=0.9, block_size=4, cache=cache, cache_block=16
            )
        write_run(
            folder, "mars", batch_size=batch_size, documents=32, tau=0.5, block_size=4, cache="ragged", cache_block=16
        )
    return folder


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        (["cache=block"], 6),
        (["cache=block,ragged"], 12),
        (["tau=0.9"], 9),
        (["tau!=0.9"], 6),
        (["tau<0.9", "method=mars"], 3),
        (["batch-size>=4"], 8),
        (["batch_size = 4", "cache = block"], 2),
        (["limit=32"], 12),
    ],
)
def test_where(results: Path, conditions: list[str], kept: int) -> None:
    assert len(select_where(load_runs([results]), conditions)) == kept


@pytest.mark.parametrize(
    ("condition", "message"),
    [("tua=0.9", "did you mean 'tau'"), ("tau", "write NAME=VALUE"), ("method=medusa", "no run with method=medusa")],
)
def test_where_that_makes_no_sense(results: Path, condition: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        select_where(load_runs([results]), [condition])


def test_sorting_stays_within_a_task_and_batch_size(results: Path) -> None:
    frame = compare_runs(load_runs([results]))
    fast = sort_rows(frame, "tokens-per-second")
    assert list(fast["batch_size"]) == list(frame["batch_size"])
    for _, group in fast.groupby("batch_size"):
        assert group["tokens_per_second"].is_monotonic_decreasing
    assert sort_rows(frame, "latency_p95").groupby("batch_size")["latency_p95"].is_monotonic_increasing.all()
    with pytest.raises(UserError, match="did you mean 'speedup'"):
        sort_rows(frame, "sped_up")


def test_the_pareto_set() -> None:
    points = [(1, 5), (2, 4), (2, 3), (3, 4), (4, 1), (4, 1), (0, 5), (5, None)]
    frame = pd.DataFrame(points, columns=["tokens_per_second", "score"]).assign(task="t", batch_size=1)
    assert list(pareto(frame)) == [True, False, False, True, True, True, False, False]


def test_the_best_is_the_fastest_that_loses_little(results: Path) -> None:
    frame = compare_runs(load_runs([results]))
    for loss in (0, 5, 100):
        rows, sentences = choose_best(frame, loss)
        assert len(sentences) == 3
        assert rows["pareto"].sum() == frame["pareto"].sum()
        for _, group in frame.groupby("batch_size"):
            fit = group[group["is_baseline"] | (group["difference"] >= -loss / 100)]
            label = fit["label"].iloc[fit["tokens_per_second"].argmax()]
            assert any(f": {label}" in sentence for sentence in sentences)
    assert "do not rule out" in choose_best(frame, 1)[1][0]
    assert "gsm8k · batch 4: " in invoke(results, "--best", "1")


def test_best_needs_scores(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", documents=0)
    with pytest.raises(UserError, match="no run has a score"):
        invoke(tmp_path, "--best", "1")


def test_headings_can_be_methods(results: Path) -> None:
    lines = [line.strip() for line in invoke(results, "--by", "method").splitlines()]
    assert lines.count("ar") == lines.count("mars τ=0.9 block/16") == 1
    assert max(map(len, lines)) <= 100


def test_the_study_stands_beside_the_papers(results: Path) -> None:
    frame = compare_runs(load_runs([results]))
    columns, cells, sources = study_cells(frame)
    assert columns == ["task", "method", "batch 1", "batch 4", "batch 16"]
    assert [row[1] for row in cells] == [
        *("mars τ=0.5 ragged", "mars τ=0.9 block/16", "mars τ=0.9 ragged"),
        *("paper: mars block (best)", "paper: mars none"),
    ]
    assert cells[3][2:] == ["–", "1.71×", "1.34×"]
    assert "2604.07023" in sources[0]
    text = invoke(results, "--by", "batch")
    assert sources[0] in text
    assert max(map(len, text.splitlines())) <= 110
    assert invoke(results, "--by", "batch", "--format", "markdown").startswith("| task | method | batch 1 |")
    assert len(json.loads(invoke(results, "--by", "batch", "--format", "json"))) == 12


def test_a_study_without_a_baseline(results: Path) -> None:
    with pytest.raises(UserError, match="no run has a speed-up"):
        invoke(results, "--by", "batch", "--where", "method=mars")


def test_tasks_are_averaged(results: Path, tmp_path: Path) -> None:
    for task in ("gsm8k", "stepmath"):
        write_run(tmp_path, "ar", task=task, documents=8)
    assert "all tasks · batch 1" in invoke(tmp_path)
    assert "all tasks" not in invoke(results)
