"""Answers end exactly where a stop token or a stop string ends, wherever that falls among tokens and passes."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import run, tiny, tokenizer, tokens

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, Progress, Request
from decodebench.decoding.stopping import StopStrings, cut
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS


@dataclass
class Script(Decoder):
    """Says what it was told to, ``step`` tokens per pass, whatever the model thinks."""

    lossless = False
    answers: Sequence[Sequence[int]] = field(default=())
    step: int = 1

    def __post_init__(self) -> None:
        self.max_draft = self.step - 1

    def draft(self, batch: Batch) -> Draft:
        return Draft(batch.repeat(0, self.step - 1))

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        rows = []
        for text, total in zip(batch.tokens.tolist(), batch.host_total, strict=True):
            said = total - 2  # prompts are of two tokens; the first tells which answer to give
            rows.append(list(self.answers[text[0]][said : said + self.step]))
        padded = torch.tensor([row + [0] * (self.step - len(row)) for row in rows])
        return Commit(padded, torch.tensor([len(row) for row in rows]))


def slow_end(answer: Sequence[int], stop: Sequence[str], stop_tokens: frozenset[int]) -> tuple[int, str]:
    """How many tokens are kept, and why, by looking at every prefix."""
    for n in range(1, len(answer) + 1):
        if answer[n - 1] in stop_tokens:
            return n, "stop_token"
        if any(string in tokenizer().decode(answer[:n]) for string in stop):
            return n, "stop_string"
    return len(answer), "length"


def say(
    texts: Sequence[str], stop: Sequence[str], step: int, batch_size: int = 2, stop_tokens: frozenset[int] | None = None
) -> list[tuple[str, str, str]]:
    """Kept text, text of the kept tokens, and finish reason of scripted answers."""
    answers = [tokenizer().encode(text) for text in texts]
    model = tiny() if stop_tokens is None else dataclasses.replace(tiny(), stop_tokens=stop_tokens)
    requests = [Request([place, 7], len(answer), stop=stop) for place, answer in enumerate(answers)]
    said = run(model, Script(answers=answers, step=step), requests, batch_size)
    for generation, answer in zip(said, answers, strict=True):
        kept, finish = slow_end(answer, stop, model.stop_tokens)
        assert (generation.tokens, generation.finish) == (answer[:kept], finish)
        assert sum(generation.committed) == kept
    return [(g.text, tokenizer().decode(g.tokens), g.finish) for g in said]


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("Ann has 3 apples. Q: next", ["Q:"], "Ann has 3 apples. "),
        ("the answer is 7! So it is", ["er is 7! S"], "the answ"),  # begins and ends inside tokens
        ("naïve café 🙂 more", ["é 🙂"], "naïve caf"),  # characters of several bytes, and of several tokens
        ("café, 你好, more", ["好", "fé"], "ca"),
        ("one two three", ["three", "two", "wo t"], "one "),
        ("Ann buys\n\n4 more", ["\n\n"], "Ann buys"),
        ("So 7.<turn>And on", ["<turn>"], "So 7."),  # a special token, which is no text
        ("So<turn> 7.\nAnd", ["\nA"], "So 7."),  # a special token before the stop string
        ("So 7<turn>\nAnd", ["<turn>\n"], "So 7"),  # a special token and more
        ("a<turn>b", ["ab"], "ab"),  # what only looks adjacent once special tokens are gone
        ("no stop here", ["xyz"], "no stop here"),
    ],
)
def test_text_is_cut_before_a_stop_string_at_every_place_in_a_pass(
    text: str, stop: list[str], kept: str, step: int
) -> None:
    (said, _, finish) = say([text], stop, step)[0]
    assert said == kept
    assert finish == ("length" if kept in (text, "ab") else "stop_string")


@settings(max_examples=200)
@given(
    texts=st.lists(st.text("ab é好🙂.\n", min_size=1, max_size=14), min_size=1, max_size=4),
    stop=st.lists(st.text("ab é好🙂.\n", min_size=1, max_size=3), max_size=3),
    step=st.integers(1, 6),
)
def test_any_stop_strings_end_any_text_where_a_search_of_every_prefix_says(
    texts: list[str], stop: list[str], step: int
) -> None:
    for said, kept, _ in say(texts, stop, step):
        assert said == kept[: min([kept.find(s) for s in stop if s in kept], default=len(kept))]


def test_a_stop_token_counts_as_token_and_not_as_text() -> None:
    assert say(["So 7.<eos>more", "on"], [], step=3) == [("So 7.", "So 7.<eos>", "stop_token"), ("on", "on", "length")]


@pytest.mark.parametrize("step", [1, 2, 5])
def test_whichever_comes_first_ends_the_answer(step: int) -> None:
    texts = ["So 7.<eos>Q: b", "So Q: 7<eos>", "So 7<eos>"]
    assert [end[2] for end in say(texts, ["Q:", "<eos>"], step)] == ["stop_token", "stop_string", "stop_token"]


def test_without_stop_tokens_an_answer_runs_to_its_limit() -> None:
    assert say(["So 7.<eos>more"], [], step=2, stop_tokens=frozenset())[0][2] == "length"


@pytest.mark.parametrize("decoder", [AR(), MARS(tau=0.3), MARS(tau=0.3, cache="block", cache_block=5)], ids=str)
def test_stop_strings_only_shorten_what_would_have_been_said(decoder: Decoder) -> None:
    model = tiny("llama", logit_scale=4.0)
    requests = [Request([9 + n] * (3 * n + 1), 24) for n in range(6)]
    whole = tokens(run(model, decoder, requests, batch_size=3))
    stop = [tokenizer().decode(answer[9:11]) for answer in whole if len(answer) > 10]
    stop = [string for string in stop if string and "�" not in string]
    assert stop
    cut_short = run(model, decoder, [dataclasses.replace(r, stop=stop) for r in requests], batch_size=3)
    for answer, generation in zip(whole, cut_short, strict=True):
        kept, finish = slow_end(answer, stop, model.stop_tokens)
        assert generation.tokens == answer[:kept]
        assert finish == generation.finish
        assert not any(string in generation.text for string in stop)
    assert {g.finish for g in cut_short} >= {"stop_string"}


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    "decoder", [AR(), MARS(tau=0.2), MARS(tau=0.2, cache="none"), MARS(tau=0.2, cache="block")], ids=str
)
def test_streams_and_traces_are_the_generation(decoder: Decoder, batch_size: int) -> None:
    model = tiny("llama", logit_scale=4.0)
    requests = [Request([9 + n] * (2 * n + 1), 1 + 5 * n) for n in range(5)] + [Request([5] * 600, 3)]
    streamed: dict[int, list[int]] = {n: [] for n in range(6)}
    ended: list[int] = []

    def on_commit(progress: Progress, new: list[int]) -> None:
        assert progress.index not in ended
        streamed[progress.index] += new
        assert streamed[progress.index] == progress.tokens

    engine = decoder.generator(model, batch_size)
    generations = engine.generate(requests, on_commit, lambda index, generation: ended.append(index))
    assert sorted(ended) == list(range(6))
    for index, g in enumerate(generations):
        assert streamed[index] == g.tokens
        assert sum(g.committed) == len(g.tokens)
        assert len(g.pass_seconds) == len(g.committed) == g.passes
        assert all(seconds > 0 for seconds in g.pass_seconds)
        assert not g.tokens or 0 < g.ttft <= g.latency
        if isinstance(decoder, AR):
            assert g.committed == [1] * len(g.tokens)
    statistics = engine.statistics
    assert statistics.passes >= max(g.passes for g in generations)
    assert statistics.passes <= sum(g.passes for g in generations)
    assert 0 < statistics.draft_seconds < statistics.prefill_seconds + statistics.decode_seconds


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": []}, "at least one token"),
        ({"prompt": [5], "max_new_tokens": 0}, "max_new_tokens 0"),
        ({"prompt": [5], "stop": "Q:"}, "must be a list"),
        ({"prompt": [5], "stop": ["Q:", ""]}, "none of them empty"),
    ],
)
def test_impossible_requests_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**wrong)  # type: ignore[arg-type]


def test_only_tokens_that_can_end_a_stop_string_are_looked_at() -> None:
    finder = StopStrings(tokenizer(), ["Q:"], 300, torch.device("cpu"))
    colon, word, part = (tokenizer().encode(text)[0] for text in (":", "Ann", "🙂"))
    flagged = finder.flag(torch.tensor([[colon, word, part]]))
    assert flagged is not None
    assert flagged.tolist() == [[True, False, True]]  # a part of a character may complete any
    assert StopStrings(tokenizer(), [], 300, torch.device("cpu")).flag(torch.tensor([[colon]])) is None


def test_an_empty_answer_has_an_empty_text() -> None:
    assert cut(tokenizer(), [], ["Q:"], frozenset()) == ""
