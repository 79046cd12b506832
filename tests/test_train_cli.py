"""`decodebench train` on the command line: what is said, and mistakes in one line that leave everything as it was."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import harness
import pytest
import transformers
from learning import conversations, write_data
from test_models import make_adapter

from decodebench import cli
from decodebench.training import run as runs

RECIPE = {"objective": "mars", "model": "model", "data": "good.jsonl", "block_size": 8}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, data of all kinds, and folders that are in use."""
    folder = tmp_path_factory.mktemp("place")
    harness.save_tiny(folder / "model")
    words = transformers.AutoTokenizer.from_pretrained(harness.save_tiny(folder / "maskless"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer, eos_token="<eos>").save_pretrained(
        folder / "maskless"
    )
    write_data(folder / "good.jsonl", conversations())
    (folder / "empty.jsonl").write_text("\n")
    (folder / "torn.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a", "respo')
    write_data(folder / "mute.jsonl", [{"prompt": "a", "response": "b"}, {"prompt": "a"}])
    for name, files in {
        "photos": {"cat.jpg": "miaow"},
        "other": {"recipe.json": json.dumps(RECIPE)},
        "broken": {"recipe.json": "{"},
    }.items():
        (folder / name).mkdir()
        for file, content in files.items():
            (folder / name / file).write_text(content)
    return folder


def call(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output, standard error."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["decodebench", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


OPTIONS = ("--model", "model", "--data", "good.jsonl", "--out", "out", "--eval-samples", "4", "--device", "cpu")
MARS = ("mars", *OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*MARS, "--data", "empty.jsonl"), "empty.jsonl: no conversations in it"),
        ((*MARS, "--data", "torn.jsonl"), "torn.jsonl, line 2: broken JSON"),
        ((*MARS, "--data", "mute.jsonl"), "mute.jsonl, line 2: 'prompt' has no text under 'response' beside it"),
        ((*MARS, "--data", "nowhere.jsonl"), "no file nowhere.jsonl with training data"),
        ((*MARS, "--data", "stepmaths"), "unknown data 'stepmaths': did you mean 'stepmath'?"),
        ((*MARS, "--self-distill", "nowhere.jsonl"), "no file nowhere.jsonl with training data"),
        ((*MARS, "--self-distill", "good.jsonl", "--data", "torn.jsonl"), "torn.jsonl, line 2: broken JSON"),
        ((*MARS, "--self-distill", "good.jsonl", "--batch-size", "6", "--micro-batch", "4"), "--batch-size 6"),
        ((*MARS, "--block-size", "1"), "--block-size 1: must be at least 2"),
        ((*MARS, "--ar-weight", "-1"), "--ar-weight -1.0: must be at least 0"),
        ((*MARS, "--ar-weight", "nan"), "--ar-weight nan: must be at least 0"),
        ((*MARS, "--learning-rate", "-1e-4"), "--learning-rate -0.0001: must be above 0"),
        ((*MARS, "--epochs", "0"), "--epochs 0.0: must be above 0"),
        ((*MARS, "--warmup", "3"), "--warmup 3.0: is a share of the steps"),
        ((*MARS, "--batch-size", "6", "--micro-batch", "4"), "--batch-size 6 is no multiple of --micro-batch 4"),
        ((*MARS, "--max-length", "10"), "0 samples of at most 10 tokens are too few with 4 held out"),
        ((*MARS, "--eval-samples", "24"), "24 samples of at most 512 tokens are too few with 24 held out"),
        ((*MARS, "--model", "nowhere"), "unknown model 'nowhere'"),
        ((*MARS, "--model", "photos"), "model folder 'photos' has no config.json"),
        ((*MARS, "--model", "maskless"), "has no token to use as the mask, and no unused embedding row for a new one"),
        ((*MARS, "--mask-token", "<gone>"), "--mask-token '<gone>' is not in the vocabulary of model"),
        ((*MARS, "--device", "tpu"), "--device tpu: choose auto, cpu, cuda, cuda:N or mps"),
        ((*MARS, "--dtype", "float8"), "unknown dtype 'float8'"),
        ((*MARS, "--dtype", "float16"), "--dtype float16: choose auto, float32 or bfloat16"),
        ((*MARS, "--over-long", "squeeze"), "squeeze"),
        ((*MARS, "--gated", "--full"), "--gated trains an adapter that acts on masks only: leave --full away"),
        ((*MARS, "--gated", "--merge"), "--gated trains an adapter that acts on masks only, and cannot be merged"),
        (("ar-sft", *OPTIONS, "--gated"), "No such option: --gated"),
        ((*MARS, "--out", "photos"), "--out photos: it exists and holds no training run: choose another folder"),
        ((*MARS, "--out", "photos/cat.jpg"), "--out photos/cat.jpg: it exists and holds no training run"),
        ((*MARS, "--out", "other"), "--out other: it holds a run with other options (--block-size"),
        ((*MARS, "--out", "broken"), "recipe.json is not valid JSON"),
        ((*MARS, "--out", "/proc/nowhere"), "cannot write to --out /proc/nowhere"),
        (("mars", "--model", "model", "--out", "out"), "Missing option '--data'"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2_and_leaves_nothing_behind(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    code, out, err = call(place, capsys, monkeypatch, *arguments)
    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("error: ")
    assert words in err
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_too_little_memory_says_how_much_and_what_to_lower(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decodebench.training.work.available_memory", lambda _: 300 << 20)
    for more in ((), ("--dry-run",)):
        code, out, err = call(place, capsys, monkeypatch, *MARS, *more)
        assert (code, out) == (2, "")
        assert re.fullmatch(
            r"error: training would need about \d+\.\d GiB and 0\.3 GiB are free: lower --micro-batch or --max-length, "
            r"or add --gradient-checkpointing\n", err
        )  # fmt: skip
    assert not (place / "out").exists()


def test_a_dry_run_prints_the_plan(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = call(place, capsys, monkeypatch, *MARS, "--dry-run")
    assert (code, err) == (0, "")
    assert re.fullmatch(
        r"20 samples, 4 held out; \d+ response tokens\n\d+ rows of 2048 slots \(\d+% padding\), 1 steps of 4 passes\n"
        r"0\.0M trained weights, about \d+\.\d GiB of memory \(\d+\.\d GiB free\)\n"
        r"\d+\.\d s per step, \d+:\d\d in all\n",
        out,
    )
    assert not (place / "out").exists()


LINES = (
    r"\d+ samples, 4 held out; \d+ response tokens",
    r"\d+ rows of 128 slots \(\d+% padding\), 4 steps of 2 passes",
    r"0\.0M trained weights, about \d+\.\d GiB of memory \(\d+\.\d GiB free\)",
    r"step 2/4 · clean loss \d\.\d+ · noisy \d\.\d+ · accuracy \d\.\d\d →( \d\.\d\d){4} · \d+ tokens/s · \d:\d\d left",
    r"step 4/4 · clean loss \d\.\d+ · noisy \d\.\d+ · accuracy \d\.\d\d →( \d\.\d\d){4} · \d+ tokens/s · \d:\d\d left",
)


def test_progress_goes_to_stderr_and_nothing_but_ours_and_figures_to_stdout(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_adapter(place / "model", place / "stage-1")  # whose vocabulary peft would want to look up on the hub
    options = ("--row-length=128", "--batch-size=2", "--max-steps=4", "--log-steps=2", "--save-steps=2")
    arguments = ("mars", *OPTIONS, "--model=stage-1", "--gated", "--gradient-checkpointing", *options)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "decodebench", "train", *arguments], cwd=place, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(LINES), done.stderr
    assert all(re.fullmatch(form, line) for form, line in zip(LINES, said, strict=True)), done.stderr
    figures = dict(line.split() for line in done.stdout.splitlines())
    assert list(figures) == [
        "clean_loss", "clean_accuracy", "noisy_loss", "noisy_accuracy", "accuracy_2", "accuracy_3", "accuracy_4",
        "accuracy_5",
    ]  # fmt: skip
    assert {name: float(value) for name, value in figures.items()} == json.loads(
        (place / "out" / "card.json").read_text()
    )["held_out"]
    # the same once more, and something else in the same place
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    code, _, err = call(place, capsys, monkeypatch, *arguments)
    assert (code, err) == (2, "error: --out out: this run is done: choose another folder to train again\n")
    code, _, err = call(place, capsys, monkeypatch, *arguments, "--seed=1", "--learning-rate=1")
    assert code == 2
    assert "it holds a run with other options (--learning-rate, --seed): choose another" in err
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_training_again_takes_the_options_that_matter_and_no_others(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("ar-sft", *OPTIONS, "--out", "sft", "--row-length", "128", "--max-steps", "1")
    monkeypatch.setattr(runs, "save", lambda *_: sys.exit(99))
    assert call(place, capsys, monkeypatch, *arguments)[0] == 99
    monkeypatch.undo()
    code, out, err = call(place, capsys, monkeypatch, *arguments, "--save-steps", "7", "--log-steps", "3", "--merge")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()] == ["clean_loss", "clean_accuracy"]
    assert (place / "sft" / "model.safetensors").is_file()
