"""`decodebench plot`: the right points, labels that can be read, the same bytes each time."""

from pathlib import Path

import numpy as np
import pytest
from fake_runs import write_run
from typer.testing import CliRunner

from decodebench.analysis.compare import compare_runs
from decodebench.analysis.load import load_runs
from decodebench.analysis.plot import frontier, save_figure
from decodebench.cli.plot import plot_app
from decodebench.errors import UserError

runner = CliRunner()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for task in ("gsm8k", "humaneval_chat"):
        write_run(folder, "ar", task=task)
        for block_size in (4, 8):
            for tau in (0.7, 0.8, 0.9, 1.0):
                write_run(folder, "mars", task=task, block_size=block_size, tau=tau)
    return folder


def test_points_lines_and_labels(results: Path) -> None:
    frame = compare_runs(load_runs([results]), paired=False)
    figure = frontier(frame)
    assert len(figure.axes) == 4
    group = frame[(frame["task"] == "gsm8k") & (frame["series"] == "mars B=4")]
    for axes, x in zip(figure.axes[:2], ("tokens_per_pass", "tokens_per_second"), strict=True):
        drawn = [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
        assert [[x, 100 * y] for x, y in zip(group[x], group["score"], strict=True)] in drawn
        texts = [text.get_text() for text in axes.texts]
        assert {"ar", "mars B=4", "mars B=8", "1", "0.9", "0.8", "0.7"} == set(texts)
        assert axes.get_xlabel() in ("tokens per pass", "tokens/s")
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == ["gsm8k · batch 1", "humaneval_chat · batch 1"]


def test_labels_do_not_cover_each_other(results: Path) -> None:
    figure = frontier(compare_runs(load_runs([results]), paired=False))
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
        assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


@pytest.mark.parametrize(("suffix", "beginning"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_records_give_the_same_bytes(suffix: str, beginning: bytes, results: Path, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.{suffix}"
        save_figure(frontier(compare_runs(load_runs([results]), paired=False)), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].startswith(beginning)


def test_runs_without_baseline_or_tau(tmp_path: Path) -> None:
    write_run(tmp_path, "jacobi", documents=8)
    write_run(tmp_path, "mars", documents=8, tau=0.9)
    figure = frontier(compare_runs(load_runs([tmp_path]), paired=False))
    assert {text.get_text() for text in figure.axes[0].texts} == {"jacobi", "mars", "0.9"}


def test_the_baseline_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", documents=8)
    figure = frontier(compare_runs(load_runs([tmp_path]), paired=False))
    assert [text.get_text() for text in figure.axes[0].texts] == ["ar"]


def test_cache_modes_share_a_colour(tmp_path: Path) -> None:
    for cache in ("ragged", "block"):
        write_run(tmp_path, "mars", documents=8, tau=0.9, cache=cache, cache_block=16)
    figure = frontier(compare_runs(load_runs([tmp_path]), paired=False))
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    assert len(lines) == 2
    assert len({line.get_color() for line in lines}) == 1
    assert {line.get_linestyle() for line in lines} == {"-", "--"}


def test_nothing_to_draw(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", documents=0)
    with pytest.raises(UserError, match="no run has a score"):
        frontier(compare_runs(load_runs([tmp_path]), paired=False))


def test_the_command(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = runner.invoke(plot_app, ["frontier", str(results), "--task", "gsm8k"], catch_exceptions=False)
    assert outcome.stdout.split() == ["frontier.png", "frontier.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.png", "frontier.svg"]
    runner.invoke(plot_app, ["frontier", str(results), "--out", "new/a.pdf"], catch_exceptions=False)
    assert (tmp_path / "new" / "a.pdf").exists()
    with pytest.raises(UserError, match=r"must end in \.png"):
        runner.invoke(plot_app, ["frontier", str(results), "--out", "a.jpg"], catch_exceptions=False)
