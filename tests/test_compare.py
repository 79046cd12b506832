"""`decodebench compare`: the right numbers, baselines, labels, formats and warnings."""

import csv
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from fake_runs import ENVIRONMENT, write_run
from typer.testing import CliRunner

from decodebench.analysis.compare import COLUMNS, compare_runs
from decodebench.analysis.labels import in_common, labels, natural
from decodebench.analysis.load import Run, load_runs, select_tasks
from decodebench.cli.compare import compare
from decodebench.errors import UserError

runner = CliRunner()
app = typer.Typer()
app.command()(compare)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AR and MARS on two tasks at two batch sizes."""
    folder = tmp_path_factory.mktemp("results")
    for task in ("gsm8k", "humaneval_chat"):
        for batch_size in (1, 4):
            write_run(folder, "ar", task=task, batch_size=batch_size)
            for tau in (0.7, 0.9, 1.0):
                write_run(folder, "mars", task=task, batch_size=batch_size, tau=tau, block_size=4)
    return folder


def invoke(*arguments: object) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


# ---- loading ----


def test_runs_are_found_where_they_are(results: Path, tmp_path: Path) -> None:
    one = next(results.iterdir())
    assert [run.folder for run in load_runs([one])] == [one]
    assert len(load_runs([results])) == 16
    assert len(load_runs([one, results])) == 16
    shutil.copytree(results, tmp_path / "reference")
    assert len(load_runs([tmp_path])) == 16
    shutil.copytree(one, tmp_path / "own")
    assert [run.name for run in load_runs([tmp_path])] == ["own"]


def test_nothing_to_load(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no results at"):
        load_runs([tmp_path / "missing"])
    with pytest.raises(UserError, match="no runs in"):
        load_runs([tmp_path])


def spoil(folder: Path, **changes: Any) -> None:
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | changes))


def test_unusable_runs_are_left_out_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept, torn, failed, unfinished, newer = (write_run(tmp_path, "ar", batch_size=n, documents=2) for n in range(1, 6))
    (torn / "run.json").write_text('{"schema": 1')
    spoil(failed, repeats=0, status="failed", error="out of memory")
    spoil(unfinished, repeats=0, status="running")
    spoil(newer, schema=2)
    assert [run.folder for run in load_runs([tmp_path])] == [kept]
    for folder, reason in (
        (torn, "not valid"),
        (failed, "out of memory"),
        (unfinished, "not fin"),
        (newer, "version 2"),
    ):
        assert any(folder.name in message and reason in message for message in caplog.messages)
    shutil.rmtree(kept)
    with pytest.raises(UserError, match="no finished run"):
        load_runs([tmp_path])


def test_tasks_are_selected(results: Path) -> None:
    runs = load_runs([results])
    assert {run.config["task"] for run in select_tasks(runs, ["gsm8k"])} == {"gsm8k"}
    assert len(select_tasks(runs, ["gsm8k,humaneval_chat"])) == len(select_tasks(runs, [])) == 16
    with pytest.raises(UserError, match="did you mean 'gsm8k'"):
        select_tasks(runs, ["gsm8"])


# ---- labels ----


def fake(method: str, config: dict[str, Any] | None = None, **knobs: Any) -> Run:
    settings = {"task": "t", "method": method, "knobs": knobs, "batch_size": 1, "model": "m"}
    return Run(Path(method), {"config": settings | (config or {}), "environment": ENVIRONMENT})


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([fake("ar"), fake("mars", tau=0.9, block_size=4)], ["ar", "mars τ=0.9"]),
        ([fake("mars", tau=0.9, block_size=4), fake("mars", tau=1, block_size=8)], ["mars B=4 τ=0.9", "mars B=8 τ=1"]),
        (
            [
                fake("mars", tau=0.9, cache="block", cache_block=16),
                fake("mars", tau=0.9, cache="ragged", cache_block=8),
            ],
            ["mars τ=0.9 block/16", "mars τ=0.9 ragged"],
        ),
        ([fake("ngram", width=2), fake("ngram", width=3)], ["ngram width=2", "ngram width=3"]),
        ([fake("ar"), fake("ar", {"model": "n"})], ["ar m", "ar n"]),
        ([fake("ar"), fake("ar", {"task": "u", "limit": 3})], ["ar", "ar"]),
        ([fake("ar", {"limit": None}), fake("ar", {"limit": 3})], ["ar limit=None", "ar limit=3"]),
    ],
)
def test_labels_say_what_differs(runs: list[Run], expected: list[str]) -> None:
    assert labels(runs) == expected


def test_labels_of_lines_have_no_tau() -> None:
    assert labels([fake("mars", tau=0.9), fake("mars", tau=0.8)], leave_out={"tau"}) == ["mars", "mars"]


def test_order_and_common_facts() -> None:
    assert sorted(["B=16", "B=8", "A"], key=natural) == ["A", "B=8", "B=16"]
    assert sorted(["τ=0.8", "τ=0.65", "τ=1.0"], key=natural) == ["τ=0.65", "τ=0.8", "τ=1.0"]
    assert in_common([fake("ar"), fake("mars", {"dtype": "float32"})]) == "m · A CPU · 2 threads"


# ---- the comparison ----


def test_rows_and_their_order(results: Path) -> None:
    frame = compare_runs(load_runs([results]))
    assert list(frame.columns) == COLUMNS
    assert list(frame["label"][:4]) == ["ar", "mars τ=1", "mars τ=0.9", "mars τ=0.7"]
    assert list(frame["task"]) == ["gsm8k"] * 8 + ["humaneval_chat"] * 8
    assert list(frame["batch_size"][:8]) == [1] * 4 + [4] * 4
    assert frame["is_baseline"].sum() == 4


def test_numbers(results: Path) -> None:
    runs = {run.name: run for run in load_runs([results])}
    frame = compare_runs(list(runs.values()))
    row, base = frame.iloc[3], frame.iloc[0]
    mine, theirs = (runs[one["run"]].aggregates for one in (row, base))
    assert row["baseline"] == base["run"]
    assert row["tokens_per_pass"] == mine["tokens"] / mine["passes"]
    ratios = [
        m["tokens_per_second"] / t["tokens_per_second"] for m, t in zip(mine["repeats"], theirs["repeats"], strict=True)
    ]
    assert row["speedup"] == sorted(ratios)[1]
    assert (row["speedup_min"], row["speedup_max"]) == (min(ratios), max(ratios))
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    assert row["difference"] == pytest.approx(row["score"] - base["score"])
    assert row["paired"] == 64
    assert row["score_low"] < row["score"] < row["score_high"]
    assert frame.iloc[1]["equal_outputs"] == 1.0
    assert 0 < row["equal_outputs"] < 1
    assert base["speedup"] == 1.0
    assert row["draft_share"] == pytest.approx(0.02)
    assert math.isnan(base["draft_share"])
    assert math.isnan(base["difference"])


def test_without_a_baseline_the_rest_is_there(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = [run for run in load_runs([results]) if run.config["method"] != "ar"]
    frame = compare_runs(runs)
    assert frame["speedup"].isna().all()
    assert frame["score"].notna().all()
    assert "no run of the baseline 'ar'" in caplog.text


def test_a_baseline_missing_for_one_batch_size(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = [run for run in load_runs([results]) if (run.config["method"], run.config["batch_size"]) != ("ar", 4)]
    frame = compare_runs(runs)
    assert frame.loc[frame["batch_size"] == 4, "speedup"].isna().all()
    assert frame.loc[frame["batch_size"] == 1, "speedup"].notna().all()
    assert "batch size 4" in caplog.text


def test_a_setting_can_be_the_baseline(results: Path) -> None:
    runs = load_runs([results])
    frame = compare_runs(runs, "mars τ=1")
    assert frame["label"][0] == "mars τ=1"
    assert frame["speedup"].notna().all()
    with pytest.raises(UserError, match=r"choose one of 'mars τ=0\.7'"):
        compare_runs(runs, "mars")


def test_the_baseline_is_the_run_most_alike(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        for method in ("ar", "mars"):
            write_run(tmp_path, method, config={"dtype": dtype}, documents=8)
    frame = compare_runs(load_runs([tmp_path]))
    bases = frame.set_index("label")["baseline"]
    runs = frame.set_index("label")["run"]
    assert bases["mars float32"] == runs["ar float32"]
    assert bases["mars bfloat16"] == runs["ar bfloat16"]


def test_what_should_be_equal_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, "ar", documents=8)
    newer = ENVIRONMENT | {"cpu": "Another CPU", "packages": {"torch": "2.14.0", "transformers": "5.23.0"}}
    write_run(tmp_path, "mars", tau=0.9, documents=6, environment=newer, config={"max_new_tokens": 64})
    compare_runs(load_runs([tmp_path]))
    for name in ("prompts_sha256", "limit", "max_new_tokens", "cpu", "torch", "6 requests in common"):
        assert name in caplog.text
    assert "transformers" not in caplog.text
    assert "float" not in caplog.text


def test_equal_runs_raise_no_doubt(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    compare_runs(load_runs([results]))
    assert not caplog.text


def test_samples_that_are_gone_or_broken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base, gone, broken = (write_run(tmp_path, *one, documents=4) for one in (["ar"], ["mars"], ["jacobi"]))
    (gone / "samples.jsonl").unlink()
    (broken / "samples.jsonl").write_text("nonsense\n" + (broken / "samples.jsonl").read_text())
    frame = compare_runs(load_runs([base, gone, broken]))
    assert frame["speedup"].notna().all()
    assert frame["difference"].isna().all()
    assert "line 1 is broken" in caplog.text
    assert "no request in common" in caplog.text


def test_runs_without_tokens_scores_or_times(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", documents=0)
    folder = write_run(tmp_path, "mars", documents=2, tau=0.9, config={"limit": 0})
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"scores": {"exact_match": None}, "latency": None, "tokens": [], "committed": [], "passes": 0}
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for arguments in ([], ["--format", "latex"], ["--format", "json"], ["--wide"]):
        assert "mars" in invoke(tmp_path, *arguments)


def test_an_interrupted_repeat_is_not_a_speed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for method in ("ar", "mars"):
        folder = write_run(tmp_path, method, documents=8)
        aggregates = json.loads((folder / "run.json").read_text())["aggregates"]
        aggregates["repeats"][0] |= {
            "interrupted": method == "mars",
            "tokens_per_second": 1e6 if method == "mars" else 1,
        }
        spoil(folder, aggregates=aggregates)
    row = compare_runs(load_runs([tmp_path])).iloc[1]
    assert row["speedup_max"] < 10
    assert not caplog.text
    for folder in tmp_path.iterdir():
        aggregates = json.loads((folder / "run.json").read_text())["aggregates"]
        spoil(folder, repeats=1, aggregates=aggregates | {"repeats": aggregates["repeats"][:1]})
    row = compare_runs(load_runs([tmp_path])).iloc[1]
    assert row["speedup"] == 1e6
    assert "was interrupted" in caplog.text


# ---- the command ----


def test_the_table_fits_a_page(results: Path) -> None:
    lines = invoke(results).splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.strip() == "humaneval_chat · batch 4" for line in lines)
    assert any(line.split()[:2] == ["mars", "τ=0.9"] for line in lines)
    assert "gsm8k: exact_match of 64 documents" in lines


def test_csv_and_json_hold_every_column(results: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(invoke(results, "--format", "csv", "--task", "gsm8k"))))
    assert list(rows[0]) == COLUMNS
    assert len(rows) == 8
    records = json.loads(invoke(results, "--format", "json", "--task", "gsm8k"))
    assert float(rows[3]["score"]) == records[3]["score"]
    assert records[0]["difference"] is None


def test_markdown_and_latex(results: Path) -> None:
    markdown = invoke(results, "--format", "markdown").splitlines()
    assert markdown[0].startswith("| task | batch | method |")
    assert len({line.count("|") for line in markdown}) == 1
    latex = invoke(results, "--format", "latex")
    assert latex.startswith("\\begin{tabular}")
    assert latex.count("\\toprule") == latex.count("\\bottomrule") == 1
    assert latex.count("\\midrule") == 6
    assert "humaneval\\_chat" in latex
    assert not set(latex) & set("τ×−–Δ")


@pytest.mark.parametrize(
    ("name", "beginning"),
    [("t.md", "| task"), ("t.tex", "\\begin"), ("t.csv", "task,"), ("t.json", "["), ("t.txt", "  ")],
)
def test_the_suffix_says_the_format(name: str, beginning: str, results: Path, tmp_path: Path) -> None:
    assert invoke(results, "--out", tmp_path / "new" / name) == ""
    assert (tmp_path / "new" / name).read_text().startswith(beginning)


def test_a_file_that_cannot_be_written(results: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        invoke(results, "--out", tmp_path)
