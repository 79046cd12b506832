"""Our benchmarks beside lm-eval's own, on the same documents and the same canned answers."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from canned import DATA, evaluate, needs_data, scores
from datasets.exceptions import DatasetNotFoundError
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from decodebench.errors import UserError
from decodebench.evaluation.catalog import LoadedTask, load_task
from decodebench.evaluation.taskfiles import LM_EVAL, OURS
from decodebench.tasks import humaneval, ifeval
from decodebench.tasks.hub import NoAccess

Rows = list[dict[str, Any]]


def stock(
    folder: str, name: str, monkeypatch: pytest.MonkeyPatch, tables: Callable[[str | None], dict[str, Rows]]
) -> dict[str, Any]:
    """lm-eval's own task or group, on given documents (by split, for a subset's name) instead of the hub's."""

    def load_dataset(path: str, name: str | None = None, **_: Any) -> datasets.DatasetDict:
        return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in tables(name).items()})

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_dataset", load_dataset)
        return TaskManager(include_path=LM_EVAL / folder, include_defaults=False).load(name)


def lines(path: str) -> Rows:
    return [json.loads(line) for line in (DATA / path).read_text().split("\n") if line]


def compare(
    ours: LoadedTask,
    theirs: dict[str, Any],
    answer: Callable[[dict[str, Any], int], str],
    limit: int,
    docs: int,
    skip: Sequence[int] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Same prompts, same settings but for the length, same scores but for some documents; both results."""
    our_results, our_requests = evaluate(ours.task_dict, answer, limit)
    their_results, their_requests = evaluate(theirs, answer, limit)
    assert len(our_requests) == docs
    assert [request.args[0] for request in our_requests] == [request.args[0] for request in their_requests]
    for our_request, their_request in zip(our_requests, their_requests, strict=True):
        assert our_request.args[1] == {**their_request.args[1], "max_gen_toks": 256}
    without_names = [
        [{**score, "task": ""} for score in scores(results) if score["doc"] not in skip]
        for results in (our_results, their_results)
    ]
    assert without_names[0] == without_names[1]
    return our_results, their_results


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
    rows = {"train": lines("gsm8k/train.jsonl")[:9], "test": lines("gsm8k/test.jsonl")}
    theirs = stock("gsm8k", "gsm8k_cot", monkeypatch, lambda _: rows)
    theirs["tasks"]["gsm8k_cot"].set_config("num_fewshot", 0)
    our_results, their_results = compare(ours, theirs, gsm8k_answer, 50, 50)
    headline = our_results["results"]["gsm8k"][ours.headline]
    assert 0.3 < headline == their_results["results"]["gsm8k_cot"][ours.headline]


def ifeval_answer(doc: dict[str, Any], number: int) -> str:
    forms = [
        "<<a title>>\n\n*one* *two* *three* [place] [other place]\n\nP.S. nothing more",
        doc["prompt"],
        '"quiet words and no commas"',
        "",
        "All of this is WRONG, of course! " * 400,
        '{"answer": 1}',
    ]
    return forms[number % len(forms)]


@needs_data
def test_ifeval_is_lm_evals(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = load_task("ifeval", data_dir=DATA)
    theirs = stock("ifeval", "ifeval", monkeypatch, lambda _: {"train": lines("ifeval/input_data.jsonl")})
    # of these two, lm-eval's score is a matter of chance, and ours is not
    chance = [number for number, doc in enumerate(ours.task.eval_docs) if doc["key"] in (1122, 1129)]
    our_results, _ = compare(ours, theirs, ifeval_answer, 52, 52, chance)
    assert 0 < our_results["results"]["ifeval"][ours.headline] < 1
    assert scores(our_results) == scores(evaluate(ours.task_dict, ifeval_answer, 52)[0])


@needs_data
def test_ifeval_says_what_its_scorer_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)
    with pytest.raises(UserError, match=r"punkt_tab.*NLTK_DATA"):
        load_task("ifeval", data_dir=tmp_path)
    monkeypatch.setattr(ifeval, "PACKAGES", ("nltk", "no_such_package"))
    with pytest.raises(UserError, match=r"needs no_such_package: pip install"):
        load_task("ifeval", data_dir=tmp_path)


def bbh_answer(doc: dict[str, Any], number: int) -> str:
    forms = [
        f"Let us see. So the answer is {doc['target']}.",
        "So the answer is none of these.",
        "I do not know",
        "",
        f"So the answer is {doc['target']}." + " Or is it?" * 1000,
    ]
    return forms[number % len(forms)]


@needs_data
def test_bbh_is_lm_evals(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables(name: str | None) -> dict[str, Rows]:
        return {"test": json.loads((DATA / "bbh" / f"{name}.json").read_text())["examples"]}

    ours = load_task("bbh", data_dir=DATA)
    assert (len(ours.tasks), ours.shots, ours.data.source, ours.data.rows) == (27, 3, "dir:bbh/*", 6511)
    our_results, their_results = compare(ours, stock("bbh/cot_fewshot", "bbh", monkeypatch, tables), bbh_answer, 2, 54)
    assert 0 < our_results["groups"]["bbh"][ours.headline] == their_results["groups"]["bbh"][ours.headline]


def mmlu_pro_answer(doc: dict[str, Any], number: int) -> str:
    forms = [
        f"Thus the answer is ({doc['answer']}).",
        "The answer is (Z).",
        "Who knows?",
        "",
        f"the answer is {doc['answer']}" + ", as said" * 1000,
    ]
    return forms[number % len(forms)]


@needs_data
def test_mmlu_pro_is_lm_evals(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {split: lines("mmlu_pro/test.jsonl") for split in ("test", "validation")}
    theirs = stock("mmlu_pro", "mmlu_pro", monkeypatch, lambda _: rows)
    for task in theirs["tasks"].values():
        task.set_config("num_fewshot", 0)
    ours = load_task("mmlu_pro", data_dir=DATA)
    assert (len(ours.tasks), ours.shots, ours.data.rows) == (14, 0, 12032)
    our_results, their_results = compare(ours, theirs, mmlu_pro_answer, 4, 56)
    assert 0 < our_results["groups"]["mmlu_pro"][ours.headline] == their_results["groups"]["mmlu_pro"][ours.headline]


# --- GPQA: gated, so on questions of our own ---

GPQA = [
    {
        "Question": f"What is {n} times {n}?",
        "Correct Answer": f"{n * n} ",
        "Incorrect Answer 1": f"{n * n + 1}",
        "Incorrect Answer 2": f" {n * n + 2} [title] indeed",
        "Incorrect Answer 3": f"{n * n + 3}",
        "Subdomain": "Arithmetic",
    }
    for n in range(2, 52)
]


def gpqa_answer(doc: dict[str, Any], number: int) -> str:
    forms = [
        f"The answer is {doc['answer']}.",
        f"Surely (A)? No, {doc['answer']}",
        "The answer is (E).",
        "Hm.",
        "",
        f"{doc['answer']} " + "well " * 2000,
    ]
    return forms[number % len(forms)]


def test_gpqa_is_lm_evals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a data set that lies in a cache like the hub's, which lm-eval's shuffling relies on."""
    file, cache, load_dataset = tmp_path / "gpqa.json", tmp_path / "cache", datasets.load_dataset
    file.write_text(json.dumps(GPQA))

    def cached(path: str, name: str | None = None, **_: Any) -> datasets.DatasetDict:
        assert (path, name) == ("Idavidrein/gpqa", "gpqa_main")
        return load_dataset("json", data_files={"train": str(file)}, cache_dir=str(cache))

    monkeypatch.setattr(datasets, "load_dataset", cached)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    cached("Idavidrein/gpqa", "gpqa_main")
    before = sorted(cache.rglob("*"))
    ours = load_task("gpqa")
    assert ours.data == load_task("gpqa").data
    assert ours.task.eval_docs["choice1"] == ours.task.eval_docs["choice1"]
    evaluate(ours.task_dict, gpqa_answer)
    assert sorted(cache.rglob("*")) == before  # the questions were written nowhere
    random.seed(0)  # as lm-eval's command line does
    theirs = TaskManager(include_path=LM_EVAL / "gpqa" / "cot_zeroshot", include_defaults=False)
    stock_task: Any = theirs.load("gpqa_main_cot_zeroshot")
    our_results, their_results = compare(load_task("gpqa"), stock_task, gpqa_answer, 50, 50)
    headline = our_results["results"]["gpqa"][ours.headline]
    assert 0.3 < headline == their_results["results"]["gpqa_main_cot_zeroshot"][ours.headline]


def test_gpqa_without_access(monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(*_: Any, **__: Any) -> None:
        raise DatasetNotFoundError(
            "Dataset 'Idavidrein/gpqa' is a gated dataset on the Hub. You must be authenticated."
        )

    monkeypatch.setattr(datasets, "load_dataset", gated)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    with pytest.raises(NoAccess, match=r"is gated: accept its terms"):
        load_task("gpqa")


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


def test_unsafe_tasks_say_so() -> None:
    assert load_task("humaneval").unsafe_code
    assert load_task("humaneval_chat").unsafe_code


# --- speed ---


@needs_data
def test_speed_has_prompts_and_no_score() -> None:
    task = load_task("speed", data_dir=DATA)
    _, requests = evaluate(task.task_dict, lambda *_: "Well.", 30)
    assert (task.headline, task.data.rows, len(requests)) == (None, 480, 30)
    assert requests[0].args[0] == f"<user>{requests[0].doc['turns'][0]}<assistant>"
    assert requests[0].doc["category"] == "writing"
    assert requests[0].args[1]["max_gen_toks"] == 256


def test_speed_on_own_prompts(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Hello?"}\n{"turns": ["One", "Two"], "category": "counting", "other": 1}\n')
    task = load_task("speed", prompts=file)
    assert (task.name, task.data.source, task.data.rows) == ("speed:mine", "file:mine.jsonl", 2)
    _, requests = evaluate(task.task_dict, lambda *_: "Well.")
    assert [request.args[0] for request in requests] == ["<user>Hello?<assistant>", "<user>One<assistant>"]
    assert [request.doc["category"] for request in requests] == ["prompts", "counting"]
    file.write_text('{"prompt": "Hello?"}\n{"text": "One"}\n')
    with pytest.raises(UserError, match=r"mine.jsonl, line 2: no text under 'prompt'"):
        load_task("speed", prompts=file)
    with pytest.raises(UserError, match=r"no file .*none.jsonl"):
        load_task("speed", prompts=tmp_path / "none.jsonl")


def test_speed_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DECODEBENCH_DATA", raising=False)
    with pytest.raises(UserError, match=r"no copy of hemingkx/Spec-Bench at hand"):
        load_task("speed")
