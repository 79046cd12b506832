"""HumanEval's scorer: what of an answer is run, and whether it passes the problem's test in the sandbox.

The filters see all answers of a task at once, so all programs run there, several at a time; scoring only looks up.
"""

import re
from collections.abc import Callable
from typing import Any

from decodebench.evaluation.sandbox import Trial, run_many

Answers = list[list[str]]  # per document, per repetition
Verdicts = list[list[dict[str, Any]]]

FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)  # the last one may be cut off by the length limit


def completed(prompt: str, answer: str) -> str:
    """The prompt continued by the answer up to its first fence, as in lm-eval's humaneval_instruct."""
    return prompt + answer.partition("```")[0]


def from_chat(prompt: str, answer: str) -> str:
    """The answer's first code block, or all of the answer where there is none, run after the prompt.

    After the prompt, because its imports and helper functions are needed: a whole function replaces the prompt's
    unfinished one, and a bare body continues it.
    """
    block = FENCE.search(answer)
    return f"{prompt}\n{block.group(1) if block else answer}"


def judge_completed(answers: Answers, docs: list[dict[str, str]]) -> Verdicts:
    """An lm-eval filter: each answer's program with its verdict."""
    return _judge(answers, docs, completed)


def judge_chat(answers: Answers, docs: list[dict[str, str]]) -> Verdicts:
    """An lm-eval filter: each answer's program with its verdict."""
    return _judge(answers, docs, from_chat)


def _judge(answers: Answers, docs: list[dict[str, str]], program: Callable[[str, str], str]) -> Verdicts:
    trials = [
        Trial(program(doc["prompt"], answer), doc["test"], doc["entry_point"], doc["prompt"])
        for doc, repetitions in zip(docs, answers, strict=True)
        for answer in repetitions
    ]
    verdicts = (
        {"program": trial.solution, "passed": outcome.passed, "reason": outcome.reason}
        for trial, outcome in zip(trials, run_many(trials), strict=True)
    )
    return [[next(verdicts) for _ in repetitions] for repetitions in answers]


def pass_at_1(doc: dict[str, str], results: Verdicts) -> dict[str, float]:
    """The share of a document's programs that passed (Chen et al., 2021, arXiv 2107.03374, with k = 1)."""
    (verdicts,) = results
    return {"pass@1": sum(verdict["passed"] for verdict in verdicts) / len(verdicts)}
