"""The pictures beside the frontier: the right numbers in them, labels that can be read, the same bytes each time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import write_run
from typer.testing import CliRunner

from decodebench.analysis.compare import compare_runs
from decodebench.analysis.load import load_runs
from decodebench.analysis.plot_acceptance import acceptance
from decodebench.analysis.plot_batch import batch
from decodebench.analysis.plot_calibration import calibration, sure_tokens
from decodebench.analysis.plot_latency import latency
from decodebench.cli.plot import plot_app
from decodebench.errors import UserError

runner = CliRunner()
NAMES = ("frontier", "batch", "acceptance", "calibration", "latency")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AR and MARS at two batch sizes, traced."""
    folder = tmp_path_factory.mktemp("results")
    for batch_size in (4, 16):
        write_run(folder, "ar", batch_size=batch_size, documents=24, traced=True)
        for tau in (0.9, 0.5):
            write_run(folder, "mars", batch_size=batch_size, documents=24, tau=tau, block_size=4, traced=True)
    return folder


def draw(*arguments: object) -> list[str]:
    outcome = runner.invoke(plot_app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout.split()


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_has_the_same_bytes_each_time(name: str, results: Path, tmp_path: Path) -> None:
    contents = []
    for path in (tmp_path / "one.svg", tmp_path / "two.svg"):
        assert draw(name, results, "--out", path) == [str(path)]
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    svg = contents[0].decode()
    assert "<dc:date>" not in svg
    assert str(tmp_path) not in svg


@pytest.mark.parametrize("name", NAMES)
def test_default_names_and_filters(name: str, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert draw(name, results, "--task", "gsm8k", "--where", "batch_size=4") == [f"{name}.png", f"{name}.svg"]


def test_speedups_by_batch_size_beside_the_papers(results: Path) -> None:
    frame = compare_runs(load_runs([results]))
    figure = batch(frame)
    (axes,) = figure.axes
    drawn = [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
    for label in ("mars τ=0.9", "mars τ=0.5"):
        line = frame[frame["label"] == label]
        assert line[["batch_size", "speedup"]].to_numpy().tolist() in drawn
    assert [[4.0, 1.71], [16.0, 1.34]] in drawn
    texts = {text.get_text() for text in axes.texts}
    assert texts == {"mars τ=0.9", "mars τ=0.5", "paper: mars block (best)", "paper: mars none"}
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", documents=4)
    runs = load_runs([tmp_path])
    for picture, message in (
        (lambda: batch(compare_runs(runs)), "no run has a speed-up"),
        (lambda: acceptance(runs), "no run commits more than one token"),
        (lambda: calibration(runs), "no run holds confidences"),
    ):
        with pytest.raises(UserError, match=message):
            picture()
    write_run(tmp_path / "empty", "ar", documents=0)
    with pytest.raises(UserError, match="no run has latencies"):
        latency(load_runs([tmp_path / "empty"]))


def test_shares_of_passes_add_up(results: Path) -> None:
    runs = load_runs([results])
    axes: list[Any] = acceptance(runs).axes
    left, right = axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["mars τ=0.5", "mars τ=0.9"]
    for row in (0.5, 1.5):
        widths = [bar.get_width() for bar in left.patches if abs(bar.get_y() + bar.get_height() / 2 - row) < 1e-9]
        assert sum(widths) == pytest.approx(1)
    bold = [run.aggregates["committed_histogram"] for run in runs if run.knobs.get("tau") == 0.5]
    passes = sum(sum(its.values()) for its in bold)
    second = sum(count for its in bold for size, count in its.items() if int(size) > 1) / passes
    assert right.collections[0].get_array()[0, 1] == pytest.approx(second)


def test_only_tokens_that_had_to_be_sure_are_calibrated(results: Path) -> None:
    run = next(run for run in load_runs([results]) if run.knobs.get("tau") == 0.5)
    confidence, equal = sure_tokens(run)
    counts = run.aggregates["committed_histogram"]
    later = sum((int(size) - 1) * count for size, count in counts.items()) // run.record["repeats"]
    assert later <= len(confidence) == len(equal) <= later + 24  # each made-up output has one token more than passes
    assert confidence.min() >= 0.5
    assert abs(equal.mean() - (confidence**2).mean()) < 0.05


def test_latency_boxes_hold_the_middle_half(results: Path) -> None:
    runs = load_runs([results])
    figure = latency(runs)
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == ["gsm8k · batch 4", "gsm8k · batch 16"]
    run = next(run for run in runs if (run.config["method"], run.config["batch_size"]) == ("ar", 4))
    numbers = " · ".join(f"{value:.3g}" for value in np.percentile(run.samples["latency"], [50, 95, 99]))
    assert numbers in [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("quality", ["equal-tokens", "ar-logprob"])
def test_a_frontier_without_right_answers(quality: str, results: Path, tmp_path: Path) -> None:
    assert draw("frontier", results, "--quality", quality, "--out", tmp_path / "a.svg")
    words = {"equal-tokens": "tokens equal to the", "ar-logprob": "log p per token"}[quality]
    assert words in (tmp_path / "a.svg").read_text()
