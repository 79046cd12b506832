"""Our benchmarks beside lm-eval's own, on the same documents and the same canned answers."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from canned import DATA, evaluate, needs_data, scores
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from decodebench.evaluation.catalog import LM_EVAL, OURS, load_task
from decodebench.tasks import humaneval


def stock(folder: str, name: str, monkeypatch: pytest.MonkeyPatch, rows: dict[str, list[dict[str, Any]]]) -> Any:
    """lm-eval's own task on given documents instead of the hub's."""
    tables = datasets.DatasetDict({split: datasets.Dataset.from_list(docs) for split, docs in rows.items()})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: tables)
    return TaskManager(include_path=LM_EVAL / folder, include_defaults=False).load(name)


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / path).read_text().splitlines()]


def gsm8k_answer(doc: dict[str, Any], number: int) -> str:
    right = doc["answer"].split("#### ")[1]
    forms = [
        f"Step by step. The answer is {right}.",
        f"It costs ${right}.00 in all. So {right}",
        "The answer is 0.5.",
        "I cannot say.",
        "",
        f"The answer is {right}. " + "And so on, 1 2 3. " * 500,
    ]
    return forms[number % len(forms)]


@needs_data
def test_gsm8k_is_lm_evals_gsm8k_cot(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = load_task("gsm8k", data_dir=DATA)
    theirs = stock(
        "gsm8k", "gsm8k_cot", monkeypatch, {"train": lines("gsm8k/train.jsonl")[:9], "test": lines("gsm8k/test.jsonl")}
    )
    theirs["tasks"]["gsm8k_cot"].set_config("num_fewshot", 0)
    our_results, our_requests = evaluate(ours.task_dict, gsm8k_answer, 50)
    their_results, their_requests = evaluate(theirs, gsm8k_answer, 50)
    assert [r.args[0] for r in our_requests] == [r.args[0] for r in their_requests]
    assert len(our_requests) == 50
    assert our_requests[0].args[1] == their_requests[0].args[1] | {"max_gen_toks": 256}
    rename = [score | {"task": "gsm8k"} for score in scores(their_results)]
    assert scores(our_results) == rename
    headline = our_results["results"]["gsm8k"][ours.headline]
    assert 0.3 < headline == their_results["results"]["gsm8k_cot"][ours.headline]


# --- HumanEval: lm-eval's scorer comes from the hub, so its file is compared, and the scores with what must be ---


def test_humaneval_is_lm_evals_humaneval_instruct() -> None:
    ours = load_yaml(OURS / "humaneval.yaml", resolve_func=False)
    theirs = load_yaml(LM_EVAL / "humaneval" / "humaneval_instruct.yaml", resolve_func=False)
    for config in (ours, theirs):
        config["generation_kwargs"].pop("max_gen_toks")
        assert config["filter_list"][0].pop("filter")[0]["function"] == "custom"
        del config["task"], config["metadata"], config["metric_list"]
    del ours["process_results"]
    assert ours == theirs


def humaneval_answer(doc: dict[str, Any], number: int) -> str:
    body = doc["canonical_solution"]
    forms = [body + "\n```\nThat is it.", "    return None\n", "I cannot.", "", body + "\n" + "x = 1\n" * 2000]
    return forms[number % len(forms)]


def test_humaneval_scores() -> None:
    task = load_task("humaneval")
    results, requests = evaluate(task.task_dict, humaneval_answer, 10)
    assert [s["pass@1"] for s in scores(results)] == [1, 0, 0, 0, 1] * 2
    assert results["results"]["humaneval"][task.headline] == 0.4
    prompt = requests[0].doc["prompt"]
    assert requests[0].args[0] == (
        "<user>Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{prompt}\n```\n<assistant>Here is the completed function:\n```python\n{prompt}\n"
    )
    assert requests[0].args[1]["max_gen_toks"] == 256


def chat_answer(doc: dict[str, Any], number: int) -> str:
    whole, body = doc["prompt"] + doc["canonical_solution"], doc["canonical_solution"]
    forms = [
        f"Certainly!\n\n```python\n{whole}```\nThis works because …\n```python\nraise SystemExit\n```",
        f"```\n{body}```",  # the body alone
        f"```python\n{whole}",  # cut off by the length limit
        body,  # no fence
        "```python\nprint('passed')\n```",
        f"```python\ndef {doc['entry_point']}(*args):\n    return None\n```",
        "Sorry, I cannot help with that.",
        "",
    ]
    return forms[number % len(forms)]


def test_humaneval_chat_scores() -> None:
    task = load_task("humaneval_chat")
    results, requests = evaluate(task.task_dict, chat_answer, 16)
    assert [s["pass@1"] for s in scores(results)] == [1, 1, 1, 1, 0, 0, 0, 0] * 2
    assert results["results"]["humaneval_chat"][task.headline] == 0.5
    assert requests[0].args[0].startswith("<user>Complete the following Python function.")
    assert requests[0].args[0].endswith("```<assistant>")
    assert requests[0].args[1]["until"] == []


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_first_code_block(line_end: str) -> None:
    answer = line_end.join(["Here:", "```Python3", "def f(): pass", "```", "```", "other", "```"])
    assert humaneval.from_chat("import x\n", answer).split() == ["import", "x", "def", "f():", "pass"]


def test_unsafe_tasks_say_so(tmp_path: Path) -> None:
    assert load_task("humaneval").unsafe_code
    assert load_task("humaneval_chat").unsafe_code
