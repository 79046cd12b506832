"""What `verify` says: where answers part, how close the call was, and whether that is a tie."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodebench.cli import main
from decodebench.decoding import Generation, Request
from decodebench.decoding.forward import WindowModel
from decodebench.errors import UserError
from decodebench.evaluation.grid import Cell, expand_grid
from decodebench.evaluation.verify import Divergence, Verdict, compare, last_logits, verify
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS

MODEL = tiny.tiny("llama", logit_scale=4.0)
ASKED = {("quiz", n, 0): Request([9 + n] * (1 + 5 * n), 24 - n) for n in range(6)}
Cli = Callable[..., tuple[int, str, str]]
VERIFY = ("verify", "--model", "model", "--data-dir", "data", "--max-new-tokens", "12", "--dtype", "float32")
CELL = Cell("quiz", "mars", 3, {})


def test_a_lossless_method_has_no_divergences() -> None:
    cells = expand_grid(["ar", "jacobi", "mars-verified", "hf-generate"], ["quiz"], [1, 4], {"window": ["3"]})
    verdicts = verify(cells, MODEL, {"quiz": ASKED})
    assert [verdict.cell for verdict in verdicts] == cells
    expected = sum(len(g.tokens) for g in tiny.run(MODEL, AR(), [*ASKED.values()]))
    for verdict in verdicts:
        assert verdict.lossless
        assert (verdict.requests, verdict.tokens, verdict.divergences) == (6, expected, [])


@torch.inference_mode()
def test_each_answer_that_differs_is_told_with_its_first_difference_and_gap() -> None:
    (verdict,) = verify(expand_grid(["mars"], ["quiz"], [3], {"tau": ["0.2"]}), MODEL, {"quiz": ASKED})
    requests = [*ASKED.values()]
    ours, theirs = (tiny.tokens(tiny.run(MODEL, method, requests, 3)) for method in (AR(), MARS(tau=0.2)))
    by_hand = []
    for n, (request, a, b) in enumerate(zip(requests, ours, theirs, strict=True)):
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                logits = MODEL.model(torch.tensor([[*request.prompt, *a[:i]]])).logits[0, -1]
                by_hand.append((n, i, x, y, pytest.approx(float(logits[x] - logits[y]), abs=1e-4)))
                break
    assert len(by_hand) > 1
    assert [(d.doc_id, d.position, d.expected, d.found, d.gap) for d in verdict.divergences] == by_hand
    assert not verdict.lossless
    assert {d.task for d in verdict.divergences} == {"quiz"}


def generation(tokens: list[int], finish: str = "length") -> Generation:
    return Generation("", tokens, finish, [], [], 0.0, 0.0)  # type: ignore[arg-type]


def test_an_answer_that_ends_early_differs_where_it_ends() -> None:
    asked = dict(list(ASKED.items())[:2])
    verdict = compare(
        CELL, MODEL, asked, [generation([7, 8]), generation([7])], [generation([7]), generation([7, 9])], 99
    )
    assert verdict.divergences == [
        Divergence("quiz", 0, 1, 8, None, None), Divergence("quiz", 1, 1, None, 9, None)
    ]  # fmt: skip
    assert not verdict.lossless


def test_prompts_that_do_not_fit_are_not_counted() -> None:
    asked = dict(list(ASKED.items())[:2])
    long = generation([], "prompt_too_long")
    verdict = compare(CELL, MODEL, asked, [long, generation([7])], [long, generation([7])], 0)
    assert (verdict.requests, verdict.tokens, verdict.lossless) == (1, 1, True)


@pytest.mark.parametrize(
    ("gap", "tolerance", "lossless"), [(0.0, 0.0, True), (0.1, 0.0, False), (-0.25, 0.5, True), (0.6, 0.5, False)]
)
def test_a_tie_is_a_gap_within_the_tolerance(gap: float, tolerance: float, lossless: bool) -> None:
    assert Verdict(CELL, 1, 9, [Divergence("quiz", 0, 3, 1, 2, gap)], tolerance).lossless is lossless


def test_the_tolerance_is_that_of_the_precision_unless_one_is_given() -> None:
    cells = expand_grid(["ar"], ["quiz"], [2], {})
    assert verify(cells, MODEL, {"quiz": ASKED})[0].tolerance == 0
    assert verify(cells, MODEL, {"quiz": ASKED}, tolerance=0.3)[0].tolerance == 0.3


@settings(max_examples=10)
@given(st.lists(st.integers(3, 299), min_size=1, max_size=80))
@torch.inference_mode()
def test_logits_after_a_text_are_the_stock_models(text: list[int]) -> None:
    expected = MODEL.model(torch.tensor([text])).logits[0, -1]
    window = WindowModel(MODEL.model)
    with window.ready():
        torch.testing.assert_close(last_logits(window, text), expected, rtol=1e-4, atol=1e-4)


def test_a_method_that_lacks_something_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    cells = expand_grid(["ar", "mars"], ["quiz"], [2], {"mask_token": ["<gone>"]})
    with pytest.raises(UserError, match="--mask-token '<gone>' is not in the vocabulary"):
        verify(cells, MODEL, {"quiz": ASKED})
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    harness.save_tiny(folder / "model", logit_scale=4.0)
    harness.write_questions(folder / "data", 3)
    return folder


@pytest.fixture
def cli(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `decodebench verify`; exit code, stdout and stderr."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["decodebench", *VERIFY, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def test_on_the_command_line_equal_answers_exit_with_0(cli: Cli) -> None:
    code, out, _ = cli("--method", "jacobi,mars-verified", "--layout", "linear")
    assert code == 0
    first, second = out.splitlines()
    assert first == "gsm8k jacobi batch 4, float32: 3 of 3 answers equal to AR's (36 tokens): lossless"
    assert second.startswith("gsm8k mars-verified layout=linear batch 4, float32: 3 of 3 answers")


def test_on_the_command_line_different_answers_exit_with_1_and_are_listed(cli: Cli) -> None:
    arguments = ("--method", "mars", "--tau", "0", "--tasks", "gsm8k", "--limit", "2")
    code, out, _ = cli(*arguments)
    assert code == 1
    line, header, *rows = out.splitlines()
    assert line.endswith("not lossless: 0 of 2 differences are ties (within 0)")
    assert header.split() == ["task", "document", "position", "AR", "method", "logit", "gap"]
    code, out, _ = cli(*arguments, "--format", "json")
    (verdict,) = json.loads(out)
    assert (verdict["requests"], verdict["lossless"], verdict["cell"]["method"]) == (2, False, "mars")
    for row, told in zip(rows, verdict["divergences"], strict=True):
        assert row.split()[:3] == ["gsm8k", str(told["doc_id"]), str(told["position"])]
        assert str(told["expected"]) in row
        assert f"{told['gap']:.4g}" in row
        assert told["tie"] is False
    assert cli(*arguments, "--tolerance", "1000")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing option '--method'"),
        (("--method", "jacoby"), "unknown method 'jacoby': did you mean 'jacobi'?"),
        (("--method", "jacobi", "--window", "0"), "--window 0: must be between 1 and 256"),
        (("--method", "jacobi", "--tau", "0.9"), "--tau belongs to method"),
        (("--method", "jacobi", "--batch-size", "0"), "--batch-size 0: must be at least 1"),
        (("--method", "jacobi", "--limit", "none"), "--limit none: give a number of documents"),
        (("--method", ","), "nothing to verify: name a --method"),
        (("--method", "jacobi", "--tasks", "gsm9k"), "unknown task 'gsm9k': did you mean 'gsm8k'?"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert words in line


def test_without_access_to_the_default_task_one_is_taken_that_needs_no_download(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from decodebench.evaluation import catalog

    real = catalog.load_task

    def offline(name: str, **where: Any) -> catalog.LoadedTask:
        if name == "gsm8k":
            raise catalog.NoAccess("the hub is out of reach")
        return real(name, **where)

    monkeypatch.setattr(catalog, "load_task", offline)
    code, out, err = cli("--method", "jacobi", "--limit", "1")
    assert code == 0
    assert out.startswith("humaneval_chat jacobi batch 4, float32: 1 of 1 answers equal")
    assert err.startswith("gsm8k: no access: taking humaneval_chat")
    assert cli("--method", "jacobi", "--tasks", "gsm8k")[0] == 2
