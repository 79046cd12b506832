"""A model that answers from a script, and the running of lm-eval with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.evaluator
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the data folder beside the checkout")


class Canned(LM):
    """Answers with what `answer` makes of a document, and keeps the requests."""

    tokenizer_name = "canned"

    def __init__(self, answer: Callable[[dict[str, Any], int], str]) -> None:
        super().__init__()
        self.answer = answer
        self.requests: list[Instance] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.requests = requests
        return [self.answer(request.doc, number) for number, request in enumerate(requests)]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        text = "".join(f"<{turn['role']}>{turn['content']}" for turn in chat_history)
        return text + "<assistant>" if add_generation_prompt else text


def evaluate(
    task_dict: Any, answer: Callable[[dict[str, Any], int], str], limit: int | None = None
) -> tuple[dict[str, Any], list[Instance]]:
    """lm-eval's results and the requests that the model got."""
    lm = Canned(answer)
    results = lm_eval.evaluator.evaluate(
        lm, task_dict, limit=limit, apply_chat_template=True, bootstrap_iters=0, confirm_run_unsafe_code=True
    )
    assert results is not None
    return results, lm.requests


def scores(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Every sample's score, under every filter, by task and document."""
    return [
        {"task": name, "doc": s["doc_id"], "filter": s["filter"], **{metric: s[metric] for metric in s["metrics"]}}
        for name, samples in sorted(results["samples"].items())
        for s in samples
    ]
