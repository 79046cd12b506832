"""`--score-ar` and `--trace`: what is recorded, and that it is what the model itself says."""

from pathlib import Path

import harness
import pytest
import tiny
import torch

from decodebench.decoding.forward import WindowModel
from decodebench.evaluation.score_ar import score_output
from decodebench.records import read_run, read_samples


@torch.inference_mode()
@pytest.mark.parametrize("prompt", [[5], [7, 8, 9, 10]])
def test_scores_are_those_of_a_plain_forward_pass(prompt: list[int]) -> None:
    model = tiny.tiny()
    tokens = [*tiny.reference(model, tiny.Request(prompt, max_new_tokens=9))[:6], 11, 12, 13]
    window = WindowModel(model.model)
    with window.ready():
        found = score_output(window, prompt, tokens)
    logits = model.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    assert found["ar_logprobs"] == pytest.approx(logits[range(9), tokens].tolist(), abs=1e-4)
    assert found["ar_equal"][:6] == [1] * 6
    assert found["ar_equal"] == (logits.argmax(-1) == torch.tensor(tokens)).long().tolist()


def test_recorded_runs_are_scored_afterwards_and_once(tmp_path: Path) -> None:
    data, model = harness.write_questions(tmp_path / "data", 4), tiny.tiny("llama", logit_scale=3)
    options = {"methods": "ar,mars", "knobs": {"tau": ["0.1"]}, "repeats": 2}
    plain = [outcome.folder for outcome in harness.run(tmp_path / "r", data, model, **options)]
    assert plain[0] is not None
    assert read_run(plain[0])["aggregates"]["ar_logprob"] is None
    seconds = read_run(plain[0])["timings"]
    scored = harness.run(tmp_path / "r", data, model, **options, score_ar=True)
    assert [outcome.folder for outcome in scored] == plain
    assert read_run(plain[0])["timings"] == seconds
    for outcome in scored:
        assert outcome.folder is not None
        samples = read_samples(outcome.folder)
        for sample in samples:
            assert ("ar_logprobs" in sample) == (sample["repeat"] == 0)
            assert len(sample["tokens"]) == len(sample.get("ar_logprobs", sample["tokens"]))
        means = [sum(s["ar_logprobs"]) / len(s["tokens"]) for s in samples if s["repeat"] == 0]
        numbers = read_run(outcome.folder)["aggregates"]["ar_logprob"]
        assert numbers["value"] == pytest.approx(sum(means) / 4)
        assert numbers["n"] == 4
    ar, mars = (read_samples(outcome.folder) for outcome in scored if outcome.folder)
    assert all(all(sample["ar_equal"]) for sample in ar if sample["repeat"] == 0)
    assert not all(all(sample["ar_equal"]) for sample in mars if sample["repeat"] == 0)
    before = (plain[0] / "samples.jsonl").stat().st_mtime_ns
    harness.run(tmp_path / "r", data, model, **options, score_ar=True)
    assert (plain[0] / "samples.jsonl").stat().st_mtime_ns == before


def test_a_traced_run_is_another_run_and_holds_the_confidences(tmp_path: Path) -> None:
    data, model = harness.write_questions(tmp_path / "data", 3), tiny.tiny("llama", logit_scale=3)
    options = {"methods": "ar,mars", "knobs": {"tau": ["0.1"]}}
    plain = harness.run(tmp_path / "r", data, model, **options)
    traced = harness.run(tmp_path / "r", data, model, **options, trace=True)
    folders = {outcome.folder for outcome in (*plain, *traced)}
    assert len(folders) == 4
    _, mars = (read_samples(outcome.folder) for outcome in traced if outcome.folder)
    assert all(len(sample["confidence"]) == len(sample["tokens"]) for sample in mars)
    known = [value for sample in mars for value in sample["confidence"]]
    assert any(value is not None and value >= 0.1 for value in known)
