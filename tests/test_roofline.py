"""What passes consist of, what the machine could do at best, and the share of it that was reached."""

import json
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import tiny
import torch
from fake_runs import write_run
from typer.testing import CliRunner

from decodebench.analysis.load import load_runs
from decodebench.analysis.roofline import roofline_rows, roofline_table
from decodebench.cli import build_app
from decodebench.decoding import Generator, Request, cache
from decodebench.decoding.clock import PassClock
from decodebench.errors import UserError
from decodebench.evaluation.roofline import model_cost, roofline
from decodebench.methods.ar import AR
from decodebench.methods.jacobi import Jacobi
from decodebench.methods.speculative import Speculative
from decodebench.records import read_run

PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12], [20, 21, 22, 23]]


def decoded(generator: Generator, max_new_tokens: int = 12) -> Generator:
    generator.generate([Request(prompt, max_new_tokens) for prompt in PROMPTS])
    return generator


@pytest.mark.parametrize("decoder", [AR(), Jacobi(), Speculative(draft_source="early-exit:1")], ids=repr)
def test_the_parts_of_decoding_passes_sum_to_the_decode_time(decoder: AR | Jacobi | Speculative) -> None:
    statistics = decoded(decoder.generator(tiny.tiny(), 2)).statistics
    decoding = statistics.decoding
    parts = astuple(decoding)[-4:]
    assert sum(parts) == pytest.approx(statistics.decode_seconds)
    assert min(parts) > 0
    assert decoding.draft_seconds <= statistics.draft_seconds
    assert 0 < decoding.passes < statistics.passes


def test_an_inner_part_is_not_counted_in_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr("decodebench.decoding.clock.time", SimpleNamespace(perf_counter=lambda: next(moments)))
    clock = PassClock(torch.device("cpu"))
    with clock.part("acceptance"), clock.part("draft"):
        pass
    assert clock.take() == {"acceptance": 1.0 + 4.0, "draft": 2.0}
    assert clock.take() == {}


def test_events_time_the_parts_on_cuda_and_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    now = 0

    class Event:
        """Stands in for ``torch.cuda.Event``: every record is a millisecond after the last; to wait is an error."""

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            made.append(self)

        def record(self, stream: object) -> None:
            nonlocal now
            now += 1
            self.at = now

        def elapsed_time(self, other: "Event") -> float:
            return float(other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    clock = PassClock(torch.device("cuda"))
    for _ in range(3):
        with clock.part("model"):
            pass
        with clock.part("acceptance"), clock.part("draft"):
            pass
        assert clock.take() == pytest.approx({"model": 0.001, "acceptance": 0.002, "draft": 0.001})
    assert len(made) == 6


def test_what_is_counted_is_what_the_model_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.tiny(stop=False)
    queries: list[tuple[int, int, int]] = []  # rows, window width times query heads per key-value head, keys read
    own = cache.scaled_dot_product_attention

    def attend(query: torch.Tensor, key: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        queries.append((query.shape[0], query.shape[2], key.shape[2]))
        return own(query, key, *args, **named)

    monkeypatch.setattr(cache, "scaled_dot_product_attention", attend)
    statistics = decoded(AR().generator(model, 3)).statistics
    decoding = statistics.decoding
    seen = queries[2::2]  # of the first of two layers, and without the pass that reads the prompts
    assert statistics.passes == 12
    assert (decoding.passes, decoding.slots, decoding.unembedded) == (11, 33, 33)
    assert decoding.keys_read == sum(rows * read for rows, _, read in seen)
    assert decoding.scores == sum(rows * folded // 2 * read for rows, folded, read in seen)


def test_windows_count_every_slot_and_the_unembedding_those_it_was_given() -> None:
    decoding = decoded(Jacobi(window=4).generator(tiny.tiny(stop=False), 3)).statistics.decoding
    assert decoding.unembedded % 5 == 0
    assert decoding.slots >= decoding.unembedded > 3 * decoding.passes


@pytest.mark.parametrize("tied", [False, True])
def test_bytes_and_flops_equal_a_calculation_by_hand(tied: bool) -> None:
    words = len(tiny.tokenizer())
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48  # q, k and v, o, and the three of the MLP
    biases = 32 + 16 + 16
    assert model_cost(tiny.tiny("qwen2", tie_word_embeddings=tied).model) == {
        "weight_bytes": 4 * (2 * (layer + biases) + 32 * words),
        "slot_flops": 2 * 2 * layer,
        "unembedding_flops": 2 * 32 * words,
        "key_bytes": 4 * 2 * 2 * 2 * 8,  # float32; keys and values of two layers, two heads, eight dimensions
        "score_flops": 2 * 2 * 2 * 4 * 8,  # a product and a sum, for scores and values, in two layers of four heads
    }


LIMITS = {
    "machine": {"bytes_per_second": 1e9, "flops_per_second": 1e9},
    "model": {"weight_bytes": 900, "slot_flops": 200, "unembedding_flops": 50, "key_bytes": 10, "score_flops": 1},
}


def counted(folder: Path, *repeats: dict[str, float], limits: dict[str, Any] = LIMITS) -> Path:
    """Make a run one whose passes were counted."""
    run = read_run(folder)
    run["environment"] = run["environment"] | {"roofline": limits}
    for repeat, passes in zip(run["aggregates"]["repeats"], repeats, strict=True):
        repeat["decoding"] = passes
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def passes(model_seconds: float, slots: int = 10) -> dict[str, float]:
    return {
        "passes": 10, "slots": slots, "unembedded": 10, "keys_read": 100, "scores": 100,
        "model_seconds": model_seconds, "acceptance_seconds": 2e-6, "draft_seconds": 1e-6, "host_seconds": 7e-6,
    }  # fmt: skip


def test_shares_of_the_limit_come_from_the_median_repeat(tmp_path: Path) -> None:
    counted(write_run(tmp_path, "ar", documents=4), passes(9e-5), passes(2e-5), passes(3e-5))
    counted(write_run(tmp_path, "jacobi", documents=4, repeats=1), passes(4e-5, slots=80))
    ar, jacobi = roofline_rows(load_runs([tmp_path]))
    assert (ar["bytes"], ar["flops"], ar["binds"]) == (900 + 10 * 10, 200 + 50 + 10, "read")
    assert (ar["read_seconds"], ar["math_seconds"]) == pytest.approx((1e-6, 0.26e-6))
    assert ar["model_share"] == pytest.approx(1e-6 / 3e-6)
    assert ar["pass_share"] == pytest.approx(1e-6 / 4e-6)
    assert (jacobi["slots"], jacobi["flops"], jacobi["binds"]) == (8, 1600 + 50 + 10, "math")
    assert jacobi["model_share"] == pytest.approx(1.66e-6 / 4e-6)


def invoke(*arguments: object) -> str:
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(build_app(words), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run_records_its_roofline_and_compare_shows_it_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decodebench.evaluation.roofline.BUFFER", 1 << 20)
    data, results = harness.write_questions(tmp_path / "data", 4), tmp_path / "results"
    model = tiny.tiny("llama")
    harness.run(results, data, model, methods="ar")  # before anything was measured
    outcomes = harness.run(results, data, model, methods="ar,mars,hf-generate", roofline=True)
    environments = [read_run(outcome.folder)["environment"] for outcome in outcomes if outcome.folder]
    assert all(environment["roofline"] == environments[0]["roofline"] for environment in environments)
    assert min(environments[0]["roofline"]["machine"].values()) > 0
    repeat = outcomes[1].aggregates["repeats"][0]
    times = [value for name, value in repeat["decoding"].items() if name.endswith("_seconds")]
    assert sum(times) == pytest.approx(repeat["decode_seconds"])

    harness.run(results, data, model, methods="mars", repeats=2)  # goes on without measuring, and says nothing of it
    assert "another environment" not in caplog.text
    text = roofline_table(load_runs([results]))
    assert outcomes[2].folder
    assert f"are lost): {outcomes[2].folder.name}" in caplog.text
    lines = text.splitlines()
    assert max(map(len, lines[:6])) <= 100
    assert [line.split()[0] for line in lines if line.startswith((" ar ", " mars "))] == ["ar", "mars"]
    for format in ("markdown", "latex", "csv", "json"):
        assert "mars" in invoke("compare", results, "--roofline", "--format", format)
    (row,) = json.loads(invoke("compare", results, "--roofline", "--format", "json", "--where", "method=mars"))
    assert row["pass_seconds"] > row["model_seconds"] > row["read_seconds"] > 0


def test_rooflines_that_cannot_be_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match="--roofline: hf-generate does not run in decodebench's engine"):
        invoke("run", "--method", "hf-generate", "--roofline", "--results", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    folder = write_run(tmp_path / "old", "ar", documents=4)
    with pytest.raises(UserError, match="no run here has a roofline"):
        roofline_table(load_runs([tmp_path / "old"]))
    assert f"'{folder.name}' was recorded without --roofline" in caplog.text
    assert "ar" in invoke("compare", tmp_path / "old")
    with pytest.raises(UserError, match="give one of them"):
        invoke("compare", tmp_path / "old", "--roofline", "--load")


def test_the_limits_of_this_machine_are_measured_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodebench.evaluation.roofline.BUFFER", 1 << 22)
    machine = roofline(tiny.tiny())["machine"]
    assert 1e7 < machine["bytes_per_second"] < 1e14
    assert 1e7 < machine["flops_per_second"] < 1e17
