"""Records that are torn, empty, alien or full of NaN: every view of them works or says in one line what is wrong."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import typer
from fake_runs import write_run
from typer.testing import CliRunner

from decodebench.analysis.compare import compare_runs
from decodebench.analysis.load import load_runs
from decodebench.cli.compare import compare
from decodebench.cli.plot import plot_app
from decodebench.errors import UserError
from decodebench.records import aggregate

runner = CliRunner()
app = typer.Typer()
app.command("compare")(compare)
app.add_typer(plot_app, name="plot")

VIEWS = [
    *(["compare"], ["compare", "--wide"], ["compare", "--by", "method"], ["compare", "--by", "batch"]),
    *(["compare", "--best", "1"], ["compare", "--sort", "speedup"], ["compare", "--format", "latex"]),
    *(["plot", name, "--out", "x.svg"] for name in ("frontier", "batch", "acceptance", "calibration", "latency")),
]


def look(results: Path, folder: Path) -> dict[str, str]:
    """What each view says: its output, or the message of its one error."""
    said = {}
    for command, *arguments in VIEWS:
        parts = [str(folder / part) if part == "x.svg" else part for part in arguments]
        if command == "plot":
            name, *rest = parts
            outcome = runner.invoke(app, [command, name, str(results), *rest])
        else:
            outcome = runner.invoke(app, [command, str(results), *parts])
        if outcome.exit_code:
            assert isinstance(outcome.exception, UserError), (command, arguments, outcome.exception)
            assert "\n" not in str(outcome.exception)
        said[" ".join([command, *arguments[:2]])] = str(outcome.exception) if outcome.exit_code else outcome.stdout
    return said


def rewrite(folder: Path, **changes: Any) -> None:
    """Give all samples of a run these values, and the run the aggregates that they lead to."""
    run = json.loads((folder / "run.json").read_text())
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        line |= changes
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run["aggregates"] = aggregate(lines, run["timings"], run["task"]["headline"])
    (folder / "run.json").write_text(json.dumps(run))


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert all("no runs in" in said for said in look(tmp_path / "results", tmp_path).values())


def test_a_torn_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = tmp_path / "results"
    write_run(results, "ar", documents=6)
    path = write_run(results, "mars", documents=6, tau=0.5, block_size=4) / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    said = look(results, tmp_path)
    assert "cut short" in caplog.text
    assert "mars τ=0.5" in said["compare"]
    assert (tmp_path / "x.svg").exists()


def test_records_from_two_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, "ar", documents=6, config={"model": "small", "weights": "a"})
    write_run(tmp_path, "mars", documents=6, tau=0.5, config={"model": "large", "weights": "b"})
    frame = compare_runs(load_runs([tmp_path]))
    assert "which has another model and weights" in caplog.text
    assert {"ar small", "mars τ=0.5 large"} == set(frame["label"])
    caplog.clear()
    write_run(tmp_path, "ar", documents=6, config={"model": "large", "weights": "b"})
    frame = compare_runs(load_runs([tmp_path])).set_index("label")
    assert "another model" not in caplog.text
    assert frame["baseline"]["mars τ=0.5 large"] == frame["run"]["ar large"]


def test_a_run_without_a_baseline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = tmp_path / "results"
    write_run(results, "mars", documents=6, tau=0.5, block_size=4)
    said = look(results, tmp_path)
    assert "no run of the baseline 'ar'" in caplog.text
    assert "×" not in said["compare"]
    assert "no run has a speed-up" in said["plot batch --out"]
    assert "no setting is known to lose" in said["compare --best 1"]


@pytest.mark.parametrize("times", [None, float("nan")])
def test_nan_and_outputs_without_tokens(times: float | None, tmp_path: Path) -> None:
    results = tmp_path / "results"
    nothing = {"tokens": [], "committed": [], "passes": 0, "text": "", "latency": times, "ttft": times}
    for method in ("ar", "mars"):
        folder = write_run(results, method, documents=5, traced=True)
        rewrite(folder, **nothing, scores={"exact_match": float("nan")}, confidence=[], ar_logprobs=[], ar_equal=[])
    said = look(results, tmp_path)
    assert "mars" in said["compare"]
    assert "nan" not in said["compare"] + said["compare --wide"]


def test_confidences_that_are_nan(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for method in ("ar", "mars"):
        folder = write_run(results, method, documents=5, tau=0.5, traced=True)
        rewrite(folder, confidence=[float("nan")] * 300)
    assert "no run holds confidences" in look(results, tmp_path)["plot calibration --out"]


def test_one_document_one_repeat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = tmp_path / "results"
    for method in ("ar", "mars"):
        write_run(results, method, documents=1, repeats=1, tau=0.5, traced=True)
    with caplog.at_level(logging.WARNING):
        assert "mars" in look(results, tmp_path)["compare --wide"]
    assert not caplog.text
