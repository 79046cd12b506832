"""Quality without right answers: likeness to the baseline's outputs, and what the AR mode says of them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compare import invoke

from decodebench.analysis import samples
from decodebench.analysis.compare import compare_runs
from decodebench.analysis.load import load_runs
from decodebench.analysis.paired import agreement

outputs = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=5)


def change(folder: Path, **changes: Any) -> None:
    """Give all samples of a run these values, or what a function makes of each sample."""
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {name: value(line) if callable(value) else value for name, value in changes.items()}
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@settings(deadline=None)
@given(outputs, st.randoms(use_true_random=False))
def test_agreement_is_counted_token_by_token(mine: list[list[int]], random: Any) -> None:
    theirs = [[token if random.random() < 0.7 else 9 for token in one][: random.randint(0, 6)] for one in mine]
    same = sum(a == b for one, other in zip(mine, theirs, strict=True) for a, b in zip(one, other, strict=False))
    longer = sum(max(len(one), len(other)) for one, other in zip(mine, theirs, strict=True))
    first = []
    for one, other in zip(mine, theirs, strict=True):
        if one != other:
            place = 0
            while place < min(len(one), len(other)) and one[place] == other[place]:
                place += 1
            first.append(place + 1)
    arrays = ([np.array(one, dtype=np.int32) for one in side] for side in (mine, theirs))
    assert agreement(*arrays) == (same, longer, first)


def test_shares_and_the_first_difference(tmp_path: Path) -> None:
    base, mine = write_run(tmp_path, "ar", documents=4), write_run(tmp_path, "mars", documents=4, tau=0.9)
    change(base, tokens=lambda sample: [1, 2, 3, 4])
    change(mine, tokens=lambda sample: [[1, 2, 3, 4], [1, 2, 9, 4], [1, 2, 3], []][sample["doc_id"]])
    row = compare_runs(load_runs([tmp_path])).iloc[1]
    assert row["equal_outputs"] == 0.25
    assert row["equal_tokens"] == (4 + 3 + 3 + 0) / 16
    assert row["first_difference"] == 3  # of 3, 4 and 1
    assert "1st diff" in invoke(tmp_path, "--wide")


def test_outputs_without_a_single_token(tmp_path: Path) -> None:
    for method in ("ar", "mars"):
        change(write_run(tmp_path, method, documents=3), tokens=[], committed=[], passes=0, latency=None)
    row = compare_runs(load_runs([tmp_path])).iloc[1]
    assert (row["equal_outputs"], row["equal_tokens"]) == (1.0, 1.0)
    assert math.isnan(row["first_difference"])
    assert "mars" in invoke(tmp_path, "--wide")


def test_differences_of_log_probability_are_paired(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", documents=40, traced=True)
    write_run(tmp_path, "mars", documents=40, tau=0.5, block_size=4, traced=True)
    row = compare_runs(load_runs([tmp_path])).iloc[1]
    base = compare_runs(load_runs([tmp_path])).iloc[0]
    assert row["ar_logprob_difference"] == pytest.approx(row["ar_logprob"] - base["ar_logprob"])
    assert row["ar_logprob_difference_low"] < row["ar_logprob_difference"] < row["ar_logprob_difference_high"] < 0
    assert "log p" in invoke(tmp_path)
    assert "Δ log p 95 %" in invoke(tmp_path, "--wide")


def test_samples_are_read_from_their_columns_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path, "ar", documents=5)
    write_run(tmp_path, "mars", documents=5, tau=0.5, block_size=4)
    before = compare_runs(load_runs([tmp_path]))
    with monkeypatch.context() as patch:
        patch.setattr(samples, "read_samples", lambda folder: pytest.fail("the samples were read again"))
        assert compare_runs(load_runs([tmp_path])).equals(before)
    change(folder, tokens=[7, 7])
    assert compare_runs(load_runs([tmp_path]))["equal_outputs"][1] == 0
    (folder / samples.CACHE).write_bytes(b"torn")
    assert compare_runs(load_runs([tmp_path]))["equal_outputs"][1] == 0


def test_samples_with_nonsense_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, "ar", documents=3)
    change(write_run(tmp_path, "mars", documents=3), tokens=["a", None])
    frame = compare_runs(load_runs([tmp_path]))
    assert frame["speedup"].notna().all()
    assert "holds what is no sample" in caplog.text
