"""The command line: exit codes, one-line errors, nothing half-written."""

import os
import subprocess
import sys
from pathlib import Path

import harness
import pytest
from canned import DATA, needs_data

import decodebench


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model``, ``data``, data that are ``torn`` and ``bare``, and somebody else's ``photos``."""
    folder = tmp_path_factory.mktemp("place")
    harness.save_tiny(folder / "model")
    harness.write_questions(folder / "data", 3)
    torn = harness.write_questions(folder / "torn", 3) / "gsm8k" / "test.jsonl"
    torn.write_text(torn.read_text()[:-9])
    bare = harness.write_questions(folder / "bare", 1) / "gsm8k" / "test.jsonl"
    bare.write_text('{"question": "Why?"}\n')
    (folder / "photos").mkdir()
    (folder / "photos" / "cat.jpg").write_bytes(b"miaow")
    return folder


def decodebench_in(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
    environment.pop("DECODEBENCH_DATA", None)
    return subprocess.run(
        [sys.executable, "-m", "decodebench", *arguments], cwd=place, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


RUN = ("run", "--model", "model", "--tasks", "gsm8k", "--data-dir", "data")


def test_version_and_help_need_no_torch(place: Path) -> None:
    assert decodebench_in(place, "--version").stdout.strip() == decodebench.__version__
    for command in ((), ("compare",), ("plot", "frontier")):
        shown = decodebench_in(place, *command, "--help")
        assert shown.returncode == 0
        assert "Usage" in shown.stdout
    loaded = "import sys, decodebench.cli as c; c.build_app([]); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_run_help_lists_every_knob_with_its_default(place: Path) -> None:
    shown = decodebench_in(place, "run", "--help").stdout
    for words in ("--tau", "--block-size", "--cache-block", "ragged|block|none", "default 0.95"):
        assert words in shown


def test_methods_tasks_and_models_say_what_is_there(place: Path) -> None:
    listed = decodebench_in(place, "methods")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in ("ar", "mars", "hf-generate", "--tau"))
    assert "gsm8k" in decodebench_in(place, "tasks").stdout
    assert "smollm2-135m" in decodebench_in(place, "models").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*RUN, "--method", "jacoby"), "unknown method 'jacoby'"),
        ((*RUN, "--tasks", "gsm9k"), "unknown task 'gsm9k': did you mean 'gsm8k'?"),
        ((*RUN, "--model", "smolm2-135m"), "unknown model 'smolm2-135m': did you mean 'smollm2-135m'?"),
        ((*RUN, "--model", "./nowhere"), "model folder './nowhere' does not exist"),
        ((*RUN, "--model", "photos"), "model folder 'photos' has no config.json"),
        ((*RUN, "--taw", "0.9"), "No such option: --taw"),
        ((*RUN, "--method", "mars", "--tau", "1.5"), "--tau 1.5: must be between 0 and 1"),
        ((*RUN, "--batch-size", "0"), "--batch-size 0: must be at least 1"),
        ((*RUN, "--batch-size", "four"), "--batch-size four: must be a whole number"),
        ((*RUN, "--method", ","), "nothing to run: name a --method"),
        ((*RUN, "--limit", "0"), "--limit 0: give a number of documents (20), or a share of them (0.1 or 10%)"),
        ((*RUN, "--limit", "150%"), "--limit 150%"),
        ((*RUN, "--limit-seed", "1"), "--limit-seed needs --limit"),
        ((*RUN, "--prompts", "mine.jsonl"), "--prompts mine.jsonl is for task speed"),
        ((*RUN, "--tasks", "speed", "--prompts", "mine.jsonl"), "no file mine.jsonl with prompts"),
        ((*RUN, "--tasks", "gpqa"), "cannot load Idavidrein/gpqa from the hub"),
        ((*RUN, "--data-dir", "torn"), "gsm8k/test.jsonl, line 3: broken JSON"),
        ((*RUN, "--data-dir", "bare"), "gsm8k/test.jsonl, line 1: no column 'answer'"),
        ((*RUN, "--dtype", "float8"), "unknown dtype 'float8'"),
        ((*RUN, "--device", "tpu"), "--device tpu: choose auto, cpu, cuda, cuda:N or mps"),
        ((*RUN, "--batching", "dynamic"), "--batching dynamic: choose continuous or static"),
        ((*RUN, "--top-p", "2", "--temperature", "1"), "top_p 2.0: must be above 0 and at most 1"),
        ((*RUN, "--data-dir", "photos"), "gsm8k"),
        ((*RUN, "--data-dir", "nowhere"), "nowhere"),
        ((*RUN, "--results", "photos"), "'photos' holds other files and no decodebench runs"),
        ((*RUN, "--results", "photos/cat.jpg"), "results folder 'photos/cat.jpg' is a file"),
        ((*RUN, "--results", "/proc/nowhere"), "cannot write to results folder '/proc/nowhere'"),
        ((*RUN, "--tasks", "humaneval_chat"), "add --allow-code-execution"),
        (("compare", "nowhere"), "nowhere"),
        (("plot", "frontier", "photos"), "photos"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2_and_leaves_nothing_behind(
    place: Path, arguments: tuple[str, ...], words: str
) -> None:
    before = sorted(place.rglob("*"))
    done = decodebench_in(place, *arguments)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert sorted(place.rglob("*")) == before


def test_run_compare_and_plot_from_end_to_end(place: Path) -> None:
    grid = ("--method", "ar,mars", "--tau", "1,0.5", "--max-new-tokens", "16", "--batch-size", "2")
    done = decodebench_in(place, *RUN, *grid)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("tokens/pass" in line for line in lines)
    compared = decodebench_in(place, "compare")
    assert compared.returncode == 0, compared.stderr
    assert "mars τ=0.5" in compared.stdout
    drawn = decodebench_in(place, "plot", "frontier")
    assert drawn.returncode == 0, drawn.stderr
    assert (place / "frontier.png").stat().st_size > 10_000
    assert (place / "frontier.svg").read_text().startswith("<?xml")


def test_own_prompts_from_end_to_end(place: Path) -> None:
    rows = [f'{{"prompt": "Count to {n}", "category": "{"even" if n % 2 == 0 else "odd"}"}}' for n in range(8)]
    (place / "counts.jsonl").write_text("\n".join(rows))
    prompts = ("--tasks", "speed", "--prompts", "counts.jsonl", "--limit", "75%", "--limit-seed", "1")
    done = decodebench_in(
        place, "run", "--model", "model", *prompts, "--max-new-tokens", "8", "--batch-size", "2", "--results", "speeds"
    )
    assert done.returncode == 0, done.stderr
    compared = decodebench_in(place, "compare", "speeds", "--by-category")
    assert compared.returncode == 0, compared.stderr
    for words in ("speed:counts · batch 2", "speed:counts: even · batch 2", "speed:counts: 6 documents", "p99 s"):
        assert words in compared.stdout


@needs_data
def test_the_papers_suite_from_end_to_end(place: Path) -> None:
    harness.save_tiny(place / "roomy", max_position_embeddings=4096)
    suite = ("--tasks", "paper", "--limit", "1", "--max-new-tokens", "4", "--batch-size", "8", "--allow-code-execution")
    done = decodebench_in(
        place, "run", "--model", "roomy", "--data-dir", str(DATA), "--method", "ar,mars", *suite, "--results", "paper"
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 10
    assert "gpqa: no access (cannot load Idavidrein/gpqa from the hub" in done.stderr
    compared = decodebench_in(place, "compare", "paper")
    assert compared.returncode == 0, compared.stderr
    assert "paper without gpqa · batch 8" in compared.stdout
    assert "mean over ifeval, bbh, mmlu_pro, gsm8k, humaneval (gpqa: no access) of 44 documents" in compared.stdout
