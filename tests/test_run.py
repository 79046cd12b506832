"""From a grid to records."""

import math
from pathlib import Path

import harness
import pytest
import tiny

from decodebench.decoding import Batch, Commit, Draft, PassOutput
from decodebench.errors import UserError
from decodebench.evaluation.lm import GenerationSettings
from decodebench.methods.ar import AR
from decodebench.records import read_run, read_samples


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.write_questions(tmp_path_factory.mktemp("data"))


def test_a_record_holds_what_is_needed_to_repeat_the_run_and_to_check_its_numbers(tmp_path: Path, data: Path) -> None:
    (outcome,) = harness.run(tmp_path, data, tiny.tiny("llama"), methods="mars", knobs={"tau": ["0.5"]}, repeats=2)
    assert outcome.error is None
    assert outcome.folder is not None
    run, samples = read_run(outcome.folder), read_samples(outcome.folder)
    assert run["status"] == "done"
    assert run["repeats"] == 2
    config = run["config"]
    assert config["knobs"]["tau"] == 0.5
    assert config["knobs"]["block_size"] == 4  # looked up, not left open
    assert (config["method"], config["task"], config["batch_size"], config["dtype"]) == ("mars", "gsm8k", 4, "float32")
    assert (run["task"]["data"]["source"], run["task"]["data"]["rows"]) == ("dir:gsm8k/test.jsonl", 12)
    assert {"torch", "transformers", "lm_eval"} <= run["environment"]["packages"].keys()
    assert len(samples) == 24
    for sample in samples:
        assert sum(sample["committed"]) == len(sample["tokens"])
        assert len(sample["pass_seconds"]) == sample["passes"] == len(sample["committed"])
        assert sample["finish"] in ("length", "stop_token", "stop_string")
        assert 0 < sample["ttft"] <= sample["latency"]
        assert set(sample["scores"]) == {"exact_match,strict-match", "exact_match,flexible-extract"}
    numbers = run["aggregates"]
    assert numbers["documents"] == 12
    tokens, passes = sum(len(s["tokens"]) for s in samples), sum(s["passes"] for s in samples)
    assert math.isclose(numbers["tokens_per_pass"], tokens / passes)
    for repeat in numbers["repeats"]:
        assert repeat["prefill_seconds"] + repeat["decode_seconds"] <= repeat["seconds"]


def test_no_path_of_this_machine_is_recorded(tmp_path: Path, data: Path) -> None:
    (outcome,) = harness.run(tmp_path, data, tiny.tiny("llama"))
    assert outcome.folder is not None
    text = "".join(path.read_text() for path in outcome.folder.glob("*.json*"))
    assert str(tmp_path) not in text
    assert str(data) not in text


def test_methods_that_should_agree_do_on_every_recorded_token(tmp_path: Path, data: Path) -> None:
    outcomes = harness.run(
        tmp_path, data, tiny.tiny("llama"), methods="ar,mars,hf-generate", batch_sizes=(1, 4), knobs={"tau": ["1"]}
    )
    assert len(outcomes) == 6
    first, *others = [[s["tokens"] for s in read_samples(o.folder)] for o in outcomes if o.folder]
    assert len(others) == 5
    assert all(other == first for other in others)


def test_recorded_cells_are_skipped_and_fresh_runs_them_again(tmp_path: Path, data: Path) -> None:
    model = tiny.tiny("llama")
    (first,) = harness.run(tmp_path, data, model)
    assert first.folder is not None
    created = read_run(first.folder)["finished"]
    before = (first.folder / "samples.jsonl").stat().st_mtime_ns
    harness.run(tmp_path, data, model)
    assert (first.folder / "samples.jsonl").stat().st_mtime_ns == before
    harness.run(tmp_path, data, model, fresh=True)
    assert (first.folder / "samples.jsonl").stat().st_mtime_ns > before
    assert read_run(first.folder)["finished"] >= created


def test_more_repeats_extend_a_recorded_run(tmp_path: Path, data: Path) -> None:
    model = tiny.tiny("llama")
    harness.run(tmp_path, data, model)
    (outcome,) = harness.run(tmp_path, data, model, repeats=3)
    assert outcome.folder is not None
    assert read_run(outcome.folder)["repeats"] == 3
    assert [s["repeat"] for s in read_samples(outcome.folder)] == [0] * 12 + [1] * 12 + [2] * 12


def test_another_checkpoint_under_the_same_name_is_another_run(tmp_path: Path, data: Path) -> None:
    for seed in (0, 1):
        harness.run(tmp_path, data, tiny.tiny("llama", seed=seed))
    assert len(list(tmp_path.glob("*/run.json"))) == 2


def test_a_prompt_longer_than_the_context_is_counted_and_the_others_go_on(tmp_path: Path, data: Path) -> None:
    (outcome,) = harness.run(tmp_path, data, tiny.tiny("llama", max_position_embeddings=28))
    assert outcome.folder is not None
    finishes = [sample["finish"] for sample in read_samples(outcome.folder)]
    rejected = finishes.count("prompt_too_long")
    assert 0 < rejected < 12
    assert outcome.aggregates["failed_requests"] == rejected
    assert outcome.aggregates["documents"] == 12


class Broken(AR):
    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        if int(batch.total.max()) > 60:
            raise RuntimeError("out of luck")
        return super().accept(batch, draft, out)


def test_one_bad_cell_does_not_stop_the_others(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from decodebench.evaluation import grid

    monkeypatch.setattr(grid, "method", lambda name: {"ar": AR, "broken": Broken}[name])
    bad, good = harness.run(tmp_path, data, tiny.tiny("llama"), methods="broken,ar", repeats=2)
    assert bad.error == "RuntimeError: out of luck"
    assert good.error is None
    assert bad.folder is not None
    assert (read_run(bad.folder)["status"], read_run(bad.folder)["error"]) == ("failed", bad.error)
    assert "out of luck" in capsys.readouterr().err


def test_repeats_take_turns(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harness.run(tmp_path, data, tiny.tiny("llama"), methods="ar,mars", knobs={"tau": ["0.9"]}, repeats=2)
    begun = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines() if "repeat" in line]
    assert begun == [f"gsm8k {cell} batch 4, repeat {i}" for i in (1, 2) for cell in ("ar", "mars tau=0.9")]


def test_the_same_seed_gives_the_same_text_at_every_batch_size(tmp_path: Path, data: Path) -> None:
    settings = GenerationSettings(max_new_tokens=24, temperature=1.0, top_p=0.9, seed=7)
    outcomes = harness.run(tmp_path, data, tiny.tiny("llama"), batch_sizes=(1, 3), settings=settings)
    one, three = [[s["text"] for s in read_samples(o.folder)] for o in outcomes if o.folder]
    assert one == three
    assert len(set(one)) > 6


def test_a_model_without_a_mask_token_is_refused_before_anything_is_written(tmp_path: Path, data: Path) -> None:
    model = tiny.tiny("llama")
    words = type(model.tokenizer)(tokenizer_object=model.tokenizer.backend_tokenizer)
    plain = tiny.LoadedModel(model.name, model.model, words, frozenset())
    with pytest.raises(UserError, match="has no mask token, which mars needs"):
        harness.run(tmp_path / "results", data, plain, methods="ar,mars")
    assert not (tmp_path / "results").exists()
