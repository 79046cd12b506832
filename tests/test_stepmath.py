"""The generated word problems: right, answerable, split without overlap, the same everywhere, and scored."""

import dataclasses
import hashlib
import json
import re
import statistics
from collections import Counter
from typing import Any

import pytest
from canned import evaluate, scores

from decodebench.evaluation.catalog import load_task
from decodebench.tasks.stepmath import PEOPLE, STEPS, Line, Problem, Split, problems, scenes

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
NAMES = re.compile(rf"\b({'|'.join(name for name, *_ in PEOPLE)})\b")
WORDS = {2: "half|twice|doubled?", 3: "third|three times|tripled?", 4: "quarter|four times", 5: "fifth|five times"}
SPLITS: tuple[Split, ...] = ("train", "test", "held_out")


@pytest.fixture(scope="module")
def drawn() -> dict[Split, list[Problem]]:
    return {"train": problems("train", 1500), "test": problems("test", 500), "held_out": problems("held_out", 500)}


def equations(problem: Problem) -> str:
    """The worked solution without its words."""
    return "; ".join("".join(part) for part in EQUATION.findall(problem.solution))


def numbers(text: str) -> set[int]:
    spelled = {number for number, words in WORDS.items() if re.search(words, text, re.IGNORECASE)}
    return spelled | set(map(int, re.findall(r"\d+", text)))


def test_every_line_is_right_and_leads_to_the_answer(drawn: dict[Split, list[Problem]]) -> None:
    for problem in [problem for split in drawn.values() for problem in split]:
        *lines, last = problem.solution.split("\n")
        steps, value, known = 0, -1, numbers(problem.question)
        for number, line in enumerate(lines):
            done = EQUATION.findall(line)
            if not done:
                assert number == 0, problem
                value = next(iter(numbers(line)))
                continue
            steps += 1
            for left, sign, right, result in done:
                a, b = int(left), int(right)
                assert sign != "/" or a % b == 0, problem
                assert {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign] == int(result), problem
                assert {a, b} <= known, problem  # nothing that the question does not say
                known.add(int(result))
            if number and "ogether" not in line:
                assert str(value) in (done[0][0], done[-1][0], done[-1][2]), problem  # goes on from the line before
            value = int(done[-1][3])
        assert set(NAMES.findall(problem.solution)) <= set(NAMES.findall(problem.question)), problem
        assert (last, problem.answer, problem.steps) == (f"The answer is {value}.", value, steps), problem


def test_numbers_stay_small(drawn: dict[Split, list[Problem]]) -> None:
    said = [number for split in drawn.values() for p in split for number in map(int, re.findall(r"\d+", p.solution))]
    assert max(said) <= 99
    assert min(said) >= 1
    assert sum(number <= 50 for number in said) > 0.9 * len(said)
    for _, sign, right, result in EQUATION.findall("\n".join(p.solution for p in drawn["train"])):
        assert sign != "*" or (int(right) <= 9 and int(result) <= 50)
        assert sign != "/" or int(right) <= 5


def test_steps_are_distributed_as_promised() -> None:
    counts = Counter(problem.steps for problem in problems("train", 4000, seed=3))
    assert {steps: round(count / 4000, 2) for steps, count in counts.items()} == pytest.approx(STEPS, abs=0.03)
    mean = sum(steps * share for steps, share in STEPS.items())
    assert statistics.mean(counts.elements()) == pytest.approx(mean, abs=0.1)


def test_a_quarter_says_something_that_does_not_matter(drawn: dict[Split, list[Problem]]) -> None:
    idle = 0
    for problem in drawn["train"]:
        unused = set(re.findall(r"\d+", problem.question)) - set(re.findall(r"\d+", problem.solution))
        assert len(unused) <= 1, problem
        idle += len(unused)
    assert 0.18 < idle / len(drawn["train"]) < 0.3


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_no_worked_calculation_of_training_is_in_a_test(seed: int, drawn: dict[Split, list[Problem]]) -> None:
    train = {equations(problem) for problem in problems("train", 1500, seed)}
    for split in ("test", "held_out"):
        assert train.isdisjoint(equations(problem) for problem in drawn[split])


def test_held_out_scenes_are_in_nothing_else(drawn: dict[Split, list[Problem]]) -> None:
    seen = {split: {problem.template for problem in drawn[split]} for split in SPLITS}
    assert len(seen["train"]) >= 25
    assert seen["train"] == seen["test"]
    assert len(seen["held_out"]) >= 5
    assert seen["held_out"].isdisjoint(seen["train"])


def test_draws_are_the_same_everywhere_and_without_repeats(drawn: dict[Split, list[Problem]]) -> None:
    for split in SPLITS:
        assert len({problem.question for problem in drawn[split]}) == len(drawn[split])
        assert problems(split, 30) == drawn[split][:30] != problems(split, 30, seed=1)
    text = json.dumps([dataclasses.asdict(problem) for problem in drawn["test"][:50]])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "2e74b8b441fbde91"
    assert problems("train", 0) == []


def test_there_are_many_forms(drawn: dict[Split, list[Problem]]) -> None:
    short = [problem for problem in drawn["train"] if problem.steps == 2]
    forms = {NAMES.sub("N", re.sub(r"\d+", "#", problem.question)) for problem in short}
    sentences = {
        NAMES.sub("N", re.sub(r"\d+", "#", sentence))
        for problem in drawn["train"]
        for sentence in re.split(r"(?<=[.?]) ", problem.question)
    }
    assert len(forms) > 300
    assert len(sentences) > 1000


def lines_of(held_out: bool) -> list[tuple[str, Line]]:
    return [
        (scene.name, line)
        for scene in scenes(held_out)
        for line in (*scene.openings, *scene.changes, *scene.endings, *scene.asides)
    ]


@pytest.mark.parametrize("held_out", [False, True])
def test_every_phrasing_says_the_same(held_out: bool) -> None:
    """The numbers that a line's arithmetic takes, no more and no fewer, so that each phrasing can be answered."""
    needed = {
        "=": "a", "=+": "ab", "=*": "kx", "+": "a", "-": "a", "*": "k", "+*": "kx", "-*": "kx", "/": "k", "/-": "k",
        "?": "", ">+": "a", ">-": "a", ">*": "k", ">/": "k", ">T": "a", ">+2": "a", ">-2": "a", ">*2": "k", "~": "a",
    }  # fmt: skip
    for name, line in lines_of(held_out):
        for phrasing in line.phrasings:
            fields = re.sub("[tdDf]", "k", "".join(re.findall(r"\{([abkxtdDf])\}", phrasing)))
            assert sorted(fields) == sorted(needed[line.kind]), (name, phrasing)
            assert line.kind[0] not in ">?" or phrasing.endswith("?"), (name, phrasing)
        assert len(line.words.split("; ")) == (2 if line.kind.endswith("2") else 1), (name, line)


@pytest.mark.parametrize("held_out", [False, True])
def test_nobody_is_she_or_he_before_being_named(held_out: bool) -> None:
    for scene in scenes(held_out):
        texts = [text for line in (*scene.changes, *scene.endings, *scene.asides) for text in line.phrasings]
        if any(re.search(r"\{[sop]\}", text) for text in texts):
            assert all("{N}" in text for line in scene.openings for text in line.phrasings), scene.name


def test_text_is_clean(drawn: dict[Split, list[Problem]]) -> None:
    for problem in [problem for split in drawn.values() for problem in split]:
        for text in (problem.question, *problem.solution.split("\n")):
            assert not re.search(r"[{}|_\[\]]|  | [.,?]|\.\.|None|\b(\w+) \1\b", text), text
            assert text[0].isupper() or text[0].isdigit()
        assert problem.question.endswith("?")
        assert problem.solution.isascii()


# --- as a benchmark ---


def test_the_benchmark_is_the_test_split(drawn: dict[Split, list[Problem]]) -> None:
    for name, split in (("stepmath", "test"), ("stepmath_held_out", "held_out")):
        task = load_task(name)
        assert (task.data.source, task.data.rows) == (f"generated:stepmath/{split}", 500)
        assert [doc["question"] for doc in task.task.eval_docs] == [problem.question for problem in drawn[split]]
        assert not task.unsafe_code


def answer(doc: dict[str, Any], number: int) -> str:
    right, wrong = doc["answer"], doc["answer"] + 1
    forms = [
        doc["solution"],
        f"The answer is {wrong}.",
        f"The answer is {wrong}. No, wait.\nThe answer is {right}",
        f"The answer is ${right:,}.00.",
        f"The answer is {right}, I think.",
        f"The answer is 1{right}.",
        f"It is {right}.",
        f"{right}",
        "The answer is unknown.",
        "",
    ]
    return forms[number % len(forms)]


def test_scores() -> None:
    task = load_task("stepmath")
    results, requests = evaluate(task.task_dict, answer, 20)
    assert [score["exact_match"] for score in scores(results)] == [1, 0, 1, 1, 1, 0, 0, 0, 0, 0] * 2
    assert results["results"]["stepmath"][task.headline] == 0.4
    assert requests[0].args[0] == f"<user>{requests[0].doc['question']}<assistant>"
    assert requests[0].args[1]["until"] == []
    assert requests[0].args[1]["max_gen_toks"] == 256
