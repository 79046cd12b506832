"""Self-distillation: what is written, and what a killed session leaves to do."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from decodebench.decoding import GREEDY, Request, Sampling
from decodebench.errors import UserError
from decodebench.models import LoadedModel
from decodebench.records.lock import acquire
from decodebench.training.conversations import Conversation, read_conversations
from decodebench.training.distill import Distilled, self_distill
from decodebench.training.samples import tokenize

PROMPTS = [f"Ann has {n} apples" + " and buys 4 more" * (n % 3) + "?" for n in range(12)]
SAMPLED = Sampling(temperature=0.9, seed=3)
LENGTH = 12


class Killed(Exception):
    pass


def asked(*prompts: str) -> list[Conversation]:
    return [Conversation(({"role": "user", "content": prompt},)) for prompt in prompts]


def distil(
    out: Path, model: LoadedModel, prompts: list[str] = PROMPTS, kill_after: int | None = None, **changes: Any
) -> list[Distilled]:
    """Run a session, which may be killed after so many calls of `on_progress`; all of these."""
    seen: list[Distilled] = []

    def progress(state: Distilled) -> None:
        seen.append(state)
        if len(seen) == kill_after:
            raise Killed

    settings: dict[str, Any] = {"batch_size": 3, "max_new_tokens": LENGTH, "sampling": GREEDY} | changes
    assert self_distill(model, asked(*prompts), out, on_progress=progress, **settings) == out
    return seen


def lines(out: Path) -> list[str]:
    return sorted(out.read_text(encoding="utf-8").split("\n")[:-1])  # answers may hold other line ends


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """A model that ends about one answer in three by itself."""
    plain = tiny.tiny(logit_scale=2.0)
    heard = [tiny.reference(plain, request(plain, prompt)) for prompt in PROMPTS]
    late = sorted(
        {token for tokens in heard for token in tokens[2:]} - {token for tokens in heard for token in tokens[:2]}
    )
    return dataclasses.replace(plain, stop_tokens=frozenset(late[::12]))


def request(model: LoadedModel, prompt: str) -> Request:
    return Request(model.tokenizer.encode(prompt), LENGTH)


def test_greedy_answers_are_the_models_own(model: LoadedModel, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "own.jsonl"
    states = distil(out, model)
    assert [state.done for state in states] == list(range(len(PROMPTS) + 1))
    assert {state.total for state in states} == {len(PROMPTS)}
    found = {one.prompt[0]["content"]: one for one in read_conversations(str(out))}
    finished = []
    for prompt in PROMPTS:
        tokens = tiny.reference(model, request(model, prompt))
        ended = tokens[-1] in model.stop_tokens
        text = model.tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=True)
        assert found[prompt].response == text
        assert found[prompt].finished == ended
        finished.append(ended)
        (sample,) = tokenize([found[prompt]], model.tokenizer, 500).samples
        assert (sample.response[-1] == model.tokenizer.eos_token_id) == ended
    assert len(set(finished)) == 2  # both kinds occur
    assert states[-1].empty == 0


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_killed_session_goes_on_to_the_same_set(sampling: Sampling, model: LoadedModel, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    distil(whole, model, sampling=sampling, batch_size=5)
    for kill_after in (1, 5, 4):
        with pytest.raises(Killed):
            distil(broken, model, sampling=sampling, kill_after=kill_after)
    done = lines(broken)
    assert 0 < len(done) <= 7  # four and three answers, less the empty ones
    with open(broken, "ab") as file:
        file.write(b'{"messages": [{"role": "us')  # a line that was cut short
    states = distil(broken, model, sampling=sampling)
    assert states[0].done == len(done)
    assert lines(broken) == lines(whole)
    size = broken.stat().st_size
    distil(broken, model, sampling=sampling)  # nothing is left to do
    assert broken.stat().st_size == size


def test_more_prompts_later_and_the_same_prompt_twice(model: LoadedModel, tmp_path: Path) -> None:
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    states = distil(out, model, PROMPTS[:4] * 2, sampling=SAMPLED)
    assert states[-1].done == states[-1].total == 4
    distil(out, model, sampling=SAMPLED)
    distil(whole, model, PROMPTS[::-1], sampling=SAMPLED)
    assert lines(out) == lines(whole)
    assert len({json.loads(line)["messages"][1]["content"] for line in lines(whole)}) > 6


def test_prompts_without_an_answer_are_counted_and_not_written(model: LoadedModel, tmp_path: Path) -> None:
    first = tiny.reference(model, request(model, PROMPTS[0]))[0]
    silent = dataclasses.replace(model, stop_tokens=frozenset({first}))
    long = "long " * 600  # for a context of 512
    out = tmp_path / "out.jsonl"
    states = distil(out, silent, [*PROMPTS, long])
    assert states[-1].done == len(PROMPTS) + 1
    assert states[-1].empty >= 2
    assert len(read_conversations(str(out))) == len(PROMPTS) + 1 - states[-1].empty
    with pytest.raises(UserError, match="no answer to any of the 1 prompts"):
        distil(tmp_path / "none.jsonl", silent, PROMPTS[:1])


def test_a_file_of_another_kind_is_refused_and_untouched(model: LoadedModel, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    distil(out, model)
    before = out.read_bytes()
    changed: list[tuple[dict[str, Any], str]] = [
        ({"max_new_tokens": 5}, "made with max_new_tokens 12, not 5"),
        ({"sampling": SAMPLED}, "made with temperature 0.0, not 0.9"),
        ({"model": tiny.tiny(seed=1)}, "made with weights"),
    ]
    for changes, complaint in changed:
        with pytest.raises(UserError, match=complaint):
            distil(out, **({"model": model} | changes))
    other = tmp_path / "mine.jsonl"
    other.write_text('{"prompt": "a", "response": "b"}\n')
    with pytest.raises(UserError, match="not written by self-distillation"):
        distil(other, model)
    lock = acquire(tmp_path / "out.jsonl.settings.json")
    with open(lock), pytest.raises(UserError, match="being written by another process"):
        distil(out, model)
    with pytest.raises(UserError, match="cannot write"):
        distil(other / "inside.jsonl", model)
    assert out.read_bytes() == before
    distil(out, model)
