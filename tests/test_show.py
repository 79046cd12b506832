"""`decodebench tasks` and `tasks show`."""

from pathlib import Path

import harness
import pytest
from test_cli import decodebench_in
from typer.testing import CliRunner

from decodebench.cli.tasks import tasks_app

runner = CliRunner()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_fits_the_terminal_and_hides_nothing(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.delenv("DECODEBENCH_DATA", raising=False)
    listed = runner.invoke(tasks_app, [], catch_exceptions=False)
    assert listed.exit_code == 0
    assert max(map(len, listed.stdout.splitlines())) <= width
    words = " ".join(listed.stdout.split())
    for text in (
        "gsm8k", "1319 documents · 0 shots · exact_match", "hub:openai/gsm8k", "480 documents · 0 shots · no score",
        "none; needs --data-dir with spec_bench/question.jsonl", "ifeval, bbh, mmlu_pro, gpqa, gsm8k, humaneval",
    ):  # fmt: skip
        assert text in words


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show")
    model = harness.save_tiny(folder / "model")
    for weights in model.glob("*.safetensors"):
        weights.unlink()  # only the tokenizer is needed
    (model / "chat_template.jinja").write_text(
        "{% for turn in messages %}[{{ turn.role }}]{{ turn.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    harness.write_questions(folder / "data", 6)
    harness.write_group(folder / "tasks", {"history": 3, "physics": 3})
    return folder


def test_show_prints_the_exact_prompt(place: Path) -> None:
    shown = decodebench_in(place, "tasks", "show", "gsm8k", "--doc", "3", "--model", "model", "--data-dir", "data")
    assert shown.returncode == 0, shown.stderr
    parts = shown.stdout.split("--- ")
    assert parts[0] == "gsm8k, document 3 of 0 to 5\n"
    heading, _, prompt = parts[1].partition("\n")
    assert heading.startswith("prompt (")
    assert heading.endswith(" tokens of model)")
    question = "Ann has 3 apples and buys 4 more and buys 4 more and buys 4 more?"
    assert prompt == f"[user]Q: {question}\nA:[assistant]\n"
    assert parts[2].startswith("generation\nat most 256 tokens, greedy; stop: 'Q:'")
    assert parts[3] == "target\n3\n"


def test_show_of_a_group(place: Path) -> None:
    group = ("tasks", "show", "quiz", "--model", "model", "--tasks-dir", "tasks")
    shown = decodebench_in(place, *group, "--subtask", "physics", "--doc", "2")
    assert "physics, document 2 of 0 to 2\n" in shown.stdout
    assert "[user]physics 2?[assistant]" in shown.stdout
    assert "stop: only where the model ends its answer" in shown.stdout
    for arguments, words in (
        (("--doc", "3"), "history has no document 3: choose from 0 to 2"),
        (("--subtask", "phisics"), "unknown subtask of quiz 'phisics': did you mean 'physics'?"),
    ):
        refused = decodebench_in(place, *group, *arguments)
        assert refused.returncode == 2
        assert words in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
