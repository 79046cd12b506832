"""Training runs from recipe to checkpoint: what is written, and that it does not matter how the run got there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import peft
import pytest
import torch
import transformers
from learning import conversations, write_data
from safetensors.torch import load_file

from decodebench.decoding import Request
from decodebench.errors import UserError
from decodebench.methods.mars import MARS, find_mask
from decodebench.models import load_model
from decodebench.training import run as runs
from decodebench.training.recipe import Recipe
from decodebench.training.run import dry, train
from decodebench.training.work import Options, Work

TEXT = torch.arange(20, 50)[None]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


class Killed(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with ``model`` and ``data.jsonl``, in which everything here runs."""
    folder = tmp_path_factory.mktemp("place")
    harness.save_tiny(folder / "model")
    write_data(folder / "data.jsonl", conversations())
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


SETTINGS: dict[str, Any] = {
    "objective": "mars", "model": "model", "data": "data.jsonl", "batch_size": 4, "micro_batch": 2,
    "row_length": 128, "eval_samples": 6, "learning_rate": 1e-2, "lora_rank": 4, "max_steps": 5,
}  # fmt: skip
NAMES = {"out", "data_dir", "device", "dtype", "gradient_checkpointing", "save_steps", "log_steps", "merge"}


def fit(out: Path, kill_at: str | None = None, **changes: Any) -> tuple[dict[str, Any], list[str]]:
    """Train with these changes to `SETTINGS` and the usual options; killed when a line of progress begins so."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if kill_at and line.startswith(kill_at):
            raise Killed

    options = {"save_steps": 2, "log_steps": 1} | {name: changes.pop(name) for name in NAMES & changes.keys()}
    return train(Recipe(**(SETTINGS | changes)), Options(out, device="cpu", **options), say), lines


def curve(out: Path) -> list[dict[str, float]]:
    """Figures of each step."""
    state = json.loads((out / "trainer_state.json").read_text())
    names = ("step", "loss", "clean_loss", "noisy_loss", "grad_norm", "accuracy_2")
    return [{name: entry[name] for name in names} for entry in state["log_history"] if "loss" in entry]


def weights(out: Path) -> dict[str, torch.Tensor]:
    (file,) = out.glob("*.safetensors")
    return load_file(file)


def assert_same(first: Path, second: Path, exactly: bool = False) -> None:
    """The same losses on the way, and the same weights at the end."""
    absolute, relative = (0.0, 0.0) if exactly else (1e-5, 1e-4)
    assert len(curve(first)) == len(curve(second))
    for one, other in zip(curve(first), curve(second), strict=True):
        assert one == (other if exactly else pytest.approx(other, rel=1e-4))
    torch.testing.assert_close(weights(first), weights(second), atol=absolute, rtol=relative)


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """A run that nothing disturbed."""
    fit(place / "whole")
    return place / "whole"


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=TEXT).logits[0]


# What comes out


@pytest.mark.parametrize("kind", ["adapter", "merged", "full"])
def test_the_result_is_an_ordinary_checkpoint_or_adapter(kind: str, whole: Path, tmp_path: Path) -> None:
    out, base = tmp_path / "out", logits(transformers.AutoModelForCausalLM.from_pretrained("model"))
    card, _ = fit(out, full=kind == "full", merge=kind == "merged", max_steps=5)
    if kind == "adapter":
        model: Any = transformers.AutoModelForCausalLM.from_pretrained("model")
        model = peft.PeftModel.from_pretrained(model, out).merge_and_unload()
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        assert "packed" not in (out / "config.json").read_text()  # how it was trained is nobody's business
        assert transformers.AutoTokenizer.from_pretrained(out).mask_token == "<mask>"
    assert not torch.isclose(logits(model), base).all(-1).any()

    loaded = load_model(str(out), device="cpu")
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-5, rtol=1e-5)
    assert loaded.card == card == json.loads((out / "card.json").read_text())
    assert loaded.token_id("<mask>") == find_mask(loaded, None)
    mars = MARS(tau=0.0)
    assert mars.generator(loaded, 1).generate([Request([9, 40], 9)])[0].committed == [4, 4, 1]
    if kind == "merged":  # the same update, added once and for all
        torch.testing.assert_close(
            logits(model), logits(load_model(str(whole), device="cpu").model), atol=1e-4, rtol=1e-4
        )
    assert {path.name for path in out.iterdir()} >= {"card.json", "recipe.json", "trainer_state.json"}
    assert not (out / "state").exists()


def test_the_card_says_how_it_was_made_and_how_good_it_is(whole: Path) -> None:
    card = json.loads((whole / "card.json").read_text())
    assert (card["base"], card["block_size"], card["mask_token"], card["gated"]) == ("model", 4, "<mask>", False)
    assert card["recipe"]["learning_rate"] == 1e-2
    assert card["recipe"]["seed"] == 0
    assert len(card["data"]["sha256"]) == 64
    assert card["steps"] == 5
    assert {"torch", "transformers", "peft"} <= card["environment"]["packages"].keys()
    assert card["held_out"].keys() == {
        "clean_loss", "clean_accuracy", "noisy_loss", "noisy_accuracy", "accuracy_2", "accuracy_3", "accuracy_4",
        "accuracy_5",
    }  # fmt: skip


def test_it_learns(tmp_path: Path) -> None:
    _, lines = fit(tmp_path / "out", full=True, max_steps=25, learning_rate=2e-2, save_steps=100)
    steps = curve(tmp_path / "out")
    for name in ("clean_loss", "noisy_loss"):
        assert steps[-1][name] < 0.5 * steps[0][name]
    assert steps[-1]["accuracy_2"] > 0.3 > steps[0]["accuracy_2"]
    said = [line for line in lines if line.startswith("step ")]
    assert [line.split(" · ")[0] for line in said] == [f"step {n}/25" for n in range(1, 26)]
    assert all("tokens/s" in line and line.endswith(" left") for line in said)


def test_the_control_has_one_stream_and_no_masks(tmp_path: Path) -> None:
    card, lines = fit(tmp_path / "out", objective="ar-sft", max_steps=2)
    assert card["held_out"].keys() == {"clean_loss", "clean_accuracy"}
    assert not {"block_size", "mask_token", "gated"} & card.keys()
    assert not {"block_size", "ar_weight"} & card["recipe"].keys()
    assert not any("noisy" in line for line in lines)


def test_bfloat16_weights_are_trained_in_float32_and_saved_in_bfloat16(tmp_path: Path) -> None:
    for name in ("adapter", "full"):
        fit(tmp_path / name, dtype="bfloat16", max_steps=1, eval_samples=0, full=name == "full")
        kinds = {tensor.dtype for tensor in weights(tmp_path / name).values()}
        assert kinds == {torch.bfloat16}
    config = json.loads((tmp_path / "full" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"


def test_training_goes_on_from_an_adapter_as_one_adapter_on_the_same_base(tmp_path: Path) -> None:
    stage_1, stage_2 = tmp_path / "sft", tmp_path / "mars"
    fit(stage_1, objective="ar-sft", max_steps=3)
    card, lines = fit(stage_2, model=str(stage_1), max_steps=3)
    assert card["base"] == "model"
    assert json.loads((stage_2 / "adapter_config.json").read_text())["base_model_name_or_path"] == "model"
    first, second = weights(stage_1), weights(stage_2)
    assert first.keys() == second.keys()
    assert all(not torch.equal(first[name], second[name]) for name in first)
    # it began where the first stage ended, not at the base
    fresh = fit(tmp_path / "fresh", max_steps=1)[1]
    began, anew = (next(line for line in said if line.startswith("step 1/")) for said in (lines, fresh))
    assert began.split(" · ")[1] != anew.split(" · ")[1]
    with pytest.raises(UserError, match=r"--lora-rank 8: the adapter .* is trained on, of rank 4"):
        fit(tmp_path / "other", model=str(stage_1), lora_rank=8)
    # all weights, from the adapter merged into its base
    fit(tmp_path / "full", model=str(stage_1), full=True, max_steps=1)
    assert (tmp_path / "full" / "model.safetensors").is_file()


def test_a_mask_that_the_tokenizer_lacks_is_added_where_the_model_has_room(tmp_path: Path) -> None:
    base = harness.save_tiny(tmp_path / "roomy", vocab_size=320)
    words = transformers.AutoTokenizer.from_pretrained(base)
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer, eos_token="<eos>")
    plain.save_pretrained(base)
    card, _ = fit(tmp_path / "out", model=str(base), max_steps=1)
    assert card["mask_token"] == "<|mask|>"
    loaded = load_model(str(tmp_path / "out"), device="cpu")
    assert find_mask(loaded, None) == len(plain)


# How it got there


@pytest.mark.parametrize("changes", [{}, {"gated": True}, {"full": True, "objective": "ar-sft"}], ids=str)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(changes: dict[str, Any], tmp_path: Path) -> None:
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    _, expected = fit(unbroken, **changes)
    with pytest.raises(Killed):
        fit(broken, kill_at="step 1/", **changes)  # before anything is saved
    with pytest.raises(Killed):
        fit(broken, kill_at="step 4/", **changes)
    shutil.copytree(broken / "state" / "checkpoint-2", broken / "state" / "checkpoint-4")
    (broken / "state" / "checkpoint-4" / "trainer_state.json").write_text('{"epoch')  # killed while it was saving
    card, lines = fit(broken, **changes)
    assert "going on from step 2" in lines
    said, unmoved = ([line.split(" · ")[:-2] for line in some[-3:]] for some in (lines, expected))  # less the times
    assert said == unmoved
    names = ("step", "loss", "clean_loss", "grad_norm")
    states = [json.loads((out / "trainer_state.json").read_text())["log_history"] for out in (broken, unbroken)]
    histories = [[[e.get(name) for name in names] for e in state if "loss" in e] for state in states]
    assert histories[0] == histories[1]
    torch.testing.assert_close(weights(broken), weights(unbroken), atol=0, rtol=0)
    assert card["held_out"] == json.loads((unbroken / "card.json").read_text())["held_out"]


def test_a_run_that_was_killed_before_its_result_was_written_writes_it(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_result(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(runs, "save", no_result)
        with pytest.raises(Killed):
            fit(tmp_path / "out")
    _, lines = fit(tmp_path / "out")
    assert not any(line.startswith("step ") for line in lines)
    assert_same(tmp_path / "out", whole, exactly=True)


def command(out: str, *more: str) -> list[str]:
    settings = SETTINGS | {"out": out, "save_steps": 2, "log_steps": 1}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if name != "objective"]
    return ["-m", "decodebench", "train", "mars", *options, "--device=cpu", *more]


def test_a_process_that_was_killed_is_gone_on_from(whole: Path, place: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, *command("killed")], cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        saved = place / "killed" / "state" / "checkpoint-2" / "trainer_state.json"
        deadline = time.monotonic() + 240
        while not saved.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert not (place / "killed" / "card.json").exists()
    fit(place / "killed")
    assert_same(place / "killed", whole)


@pytest.mark.parametrize("changes", [{"micro_batch": 1}, {"micro_batch": 4}, {"gradient_checkpointing": True}], ids=str)
def test_how_a_step_is_divided_and_what_is_kept_changes_no_loss(
    changes: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    many: dict[str, Any] = {
        "max_steps": 0,
        "epochs": 2.5,
        "save_steps": 100,
    }  # rows that are no whole number of batches
    reference = place / "epochs"
    if not reference.exists():
        fit(reference, **many)
    fit(tmp_path / "out", **many, **changes)
    assert json.loads((reference / "card.json").read_text())["plan"]["rows"] % 4 == 0
    assert len(curve(reference)) >= 5
    assert_same(tmp_path / "out", reference)


def test_two_processes_learn_what_one_learns(place: Path, tmp_path: Path) -> None:
    """With all weights trained: the unembedding is used outside what the processes' wrapper sees."""
    fit(place / "one", max_steps=0, epochs=2.0, micro_batch=1, full=True)
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--rdzv_backend=c10d"]
    options = ("--full", "--epochs=2.0", "--micro-batch=1", "--max-steps=0")
    done = subprocess.run(
        [sys.executable, *launcher, "--rdzv_endpoint=localhost:0", *command("two", *options)],
        cwd=place, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "gloo" in done.stderr.lower():
        pytest.skip("gloo, through which two processes on CPU talk, cannot start here")
    assert done.returncode == 0, done.stderr
    assert f" of {SETTINGS['batch_size'] // 2} passes" in done.stderr  # each has half of the work
    assert done.stderr.count("rows of") == 1  # and one of them speaks
    assert done.stdout.count("clean_loss") == 1
    assert_same(place / "one", place / "two")
    cards = [json.loads((place / name / "card.json").read_text()) for name in ("one", "two")]
    assert cards[0]["held_out"] == pytest.approx(cards[1]["held_out"], abs=2e-4)


def test_a_launcher_that_starts_one_process_instead_of_several_is_remarked_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``accelerate launch --cpu --num_processes 2``, where there is no MPI."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    _, lines = fit(tmp_path / "out", max_steps=1)
    assert "accelerate has started one process; several on CPU are started by torchrun" in lines[0]


# What it learns from


def work(**changes: Any) -> Any:
    return Work.of(Recipe(**(SETTINGS | changes)), Options(Path("nowhere"), device="cpu"))


def test_what_is_held_out_is_not_trained_on_and_the_digest_is_of_all() -> None:
    one, again, other = work(max_steps=0), work(max_steps=0, seed=1), work(data="data.jsonl,data.jsonl")
    trained, held = ([sample for row in rows for sample in row] for rows in (one.train_rows.rows, one.held_out.rows))
    assert len(set(held)) == len(held) == 6 == one.plan.held_out
    assert not set(held) & set(trained)
    assert len(set(trained)) == len(trained) == one.plan.samples
    dropped = one.train_rows.samples
    assert len(dropped) - len(trained) - len(held) < 12  # what is in no whole batch
    assert one.data.digest == again.data.digest != other.data.digest
    assert {s for row in again.held_out.rows for s in row} != set(held)


def test_long_samples_are_dropped_or_cut_and_counted(place: Path) -> None:
    write_data(place / "long.jsonl", [*conversations(12), *({"prompt": "Why?", "response": "So " * 90 + str(n)}
                                                            for n in range(3))])  # fmt: skip
    for over_long, counts in (("drop", (3, 0)), ("cut", (0, 3))):
        plan = work(data="long.jsonl", over_long=over_long, max_length=90, eval_samples=2).plan
        assert (plan.dropped, plan.cut) == counts
        assert f"3 {'dropped' if over_long == 'drop' else 'cut'}" in plan.describe()[0]


def test_a_dry_run_plans_and_writes_nothing(place: Path) -> None:
    before = sorted(place.rglob("*"))
    recipe = Recipe(**(SETTINGS | {"max_steps": 0, "epochs": 3}))
    lines = dry(recipe, Options(place / "dry", device="cpu"))
    assert sorted(place.rglob("*")) == before
    plan = work(max_steps=0, epochs=3).plan
    assert lines[0].startswith(f"{plan.samples} samples, 6 held out; {plan.response_tokens} response tokens")
    assert lines[1].startswith(f"{plan.rows} rows of 128 slots")
    assert f"{plan.rows // 4 * 3} steps of 2 passes" in lines[1]
    assert "GiB of memory" in lines[2]
    assert "s per step" in lines[3]
    with pytest.raises(UserError, match="the responses of --self-distill are not written yet"):
        dry(Recipe(**(SETTINGS | {"self_distill": "data.jsonl"})), Options(place / "dry", device="cpu"))


def test_the_model_answers_prompts_itself_and_learns_from_both(place: Path, tmp_path: Path) -> None:
    prompts = write_data(place / "prompts.jsonl", [{"prompt": f"Count to {n}!"} for n in range(20)])
    out = tmp_path / "out"
    changes: dict[str, Any] = {"self_distill": str(prompts), "distill_tokens": 10, "max_steps": 2}
    with pytest.raises(Killed):
        fit(out, kill_at="self-distillation: 16/20", **changes)
    assert len((out / "distilled.jsonl").read_text().splitlines()) >= 16
    card, lines = fit(out, **changes)
    assert any(line.startswith("self-distillation: 20/20 responses") for line in lines)
    assert not any(line.startswith("self-distillation: 0/") for line in lines)
    assert card["data"]["sha256"] != work().data.digest
    assert card["recipe"]["self_distill"] == str(prompts)
    answers = [json.loads(line)["messages"] for line in (out / "distilled.jsonl").read_text().split("\n")[:-1]]
    assert {turns[0]["content"] for turns in answers} == {f"Count to {n}!" for n in range(20)}
    # the recipe counts for a killed run from its first answer on
    assert json.loads((out / "recipe.json").read_text())["data_sha256"] == card["data"]["sha256"]


def test_a_folder_goes_on_with_its_own_data_alone(place: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.jsonl", conversations())
    with pytest.raises(Killed):
        fit(tmp_path / "out", data=str(data), kill_at="step 3/")
    write_data(data, conversations(23))
    with pytest.raises(UserError, match="the data have changed since the run in it began"):
        fit(tmp_path / "out", data=str(data))
    write_data(data, conversations())
    fit(tmp_path / "out", data=str(data))
