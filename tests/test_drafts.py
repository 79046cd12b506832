"""Drafts whose keys and values are kept, in a line and in a tree, change the number of passes and nothing else."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import reference, run, tiny, tokens

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, Request
from decodebench.methods.ar import AR


class Oracle:
    """Knows the autoregressive continuations, and tells the truth with some probability."""

    def __init__(self, requests: Sequence[Request], answers: Sequence[list[int]], honesty: float, seed: int) -> None:
        self.texts = [[*r.prompt, *answer] for r, answer in zip(requests, answers, strict=True)]
        self.honesty = honesty
        self.random = random.Random(seed)

    def guess(self, text: list[int], ahead: int) -> int:
        """A token for position ``ahead`` after this text."""
        if self.random.random() < self.honesty:
            for whole in self.texts:
                if whole[: len(text)] == text and len(whole) > len(text) + ahead:
                    return whole[len(text) + ahead]
        return self.random.randrange(300)


def texts(batch: Batch) -> list[list[int]]:
    return [row[:total] for row, total in zip(batch.tokens.tolist(), batch.host_total, strict=True)]


@dataclass
class Line(Decoder):
    """Speculative decoding with a draft from an oracle."""

    lossless = True
    oracle: Oracle = field(default=None)  # type: ignore[assignment]
    length: int = 4

    def __post_init__(self) -> None:
        self.max_draft = self.length

    def draft(self, batch: Batch) -> Draft:
        return Draft(torch.tensor([[self.oracle.guess(t, j) for j in range(self.length)] for t in texts(batch)]))

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        assert draft is not None
        predicted = batch.choose(out.logits, None).tokens
        right = (draft.tokens == predicted[:, :-1]).long().cumprod(1).sum(1)
        return Commit(predicted, right + 1, kept=right)


@dataclass
class Tree(Decoder):
    """A tree of candidates; ``parents[i]`` is the slot that slot i follows, or −1 for the committed text."""

    lossless = True
    oracle: Oracle = field(default=None)  # type: ignore[assignment]
    parents: tuple[int, ...] = (-1, -1, 0, 1, 1, 4, 3, 5)

    def __post_init__(self) -> None:
        self.max_draft = len(self.parents)
        self.depth: list[int] = []
        self.sees = torch.eye(len(self.parents), dtype=torch.bool)
        for slot, parent in enumerate(self.parents):
            self.depth.append(0 if parent < 0 else self.depth[parent] + 1)
            if parent >= 0:
                self.sees[slot] |= self.sees[parent]

    def draft(self, batch: Batch) -> Draft:
        guesses = [[self.oracle.guess(t, depth) for depth in self.depth] for t in texts(batch)]
        return Draft(torch.tensor(guesses), mask=self.sees[None], offset=torch.tensor([self.depth]))

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        assert draft is not None
        predicted = batch.choose(out.logits, None).tokens
        longest = max(self.depth) + 1
        kept, paths, chosen = [], [], []
        for row, guesses in zip(predicted.tolist(), draft.tokens.tolist(), strict=True):
            path: list[int] = []
            at, committed = -1, [row[0]]
            while found := [s for s, p in enumerate(self.parents) if p == at and guesses[s] == committed[-1]]:
                at = found[-1]
                path.append(at)
                committed.append(row[1 + at])
            kept.append(len(path))
            paths.append(path + [0] * (longest - len(path)))
            chosen.append(committed + [0] * (longest + 1 - len(committed)))
        count = torch.tensor(kept)
        return Commit(torch.tensor(chosen), count + 1, kept=count, path=torch.tensor(paths))


REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(3, 299), min_size=1, max_size=40),
        max_new_tokens=st.integers(1, 24),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=60)
@given(REQUESTS, st.integers(1, 4), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.integers(1, 9), st.integers(0, 99))
def test_a_checked_line_of_guesses_gives_the_autoregressive_text(
    requests: list[Request], batch_size: int, honesty: float, length: int, seed: int
) -> None:
    model = tiny("llama")
    answers = [reference(model, request) for request in requests]
    decoder = Line(oracle=Oracle(requests, answers, honesty, seed), length=length)
    assert tokens(run(model, decoder, requests, batch_size)) == answers


@settings(max_examples=60)
@given(REQUESTS, st.integers(1, 4), st.sampled_from([0.3, 0.8, 1.0]), st.data())
def test_a_checked_tree_of_guesses_gives_the_autoregressive_text(
    requests: list[Request], batch_size: int, honesty: float, data: st.DataObject
) -> None:
    model = tiny("qwen2")
    answers = [reference(model, request) for request in requests]
    slots = data.draw(st.integers(1, 10))
    parents = tuple(data.draw(st.integers(-1, slot - 1)) for slot in range(slots))
    decoder = Tree(oracle=Oracle(requests, answers, honesty, seed=slots), parents=parents)
    assert tokens(run(model, decoder, requests, batch_size)) == answers


def test_an_empty_draft_is_none() -> None:
    class Nothing(AR):
        def draft(self, batch: Batch) -> Draft:
            return Draft(batch.repeat(0, 0))

    requests = [Request([5] * n, 9) for n in (4, 1, 20)]
    assert tokens(run(tiny(), Nothing(), requests, 2)) == [reference(tiny(), r) for r in requests]


def test_an_honest_oracle_saves_the_passes_it_should() -> None:
    model = tiny("llama", stop=False)
    requests = [Request([5, 6, 7], 21), Request([8] * 20, 11)]
    answers = [reference(model, request) for request in requests]
    decoder = Line(oracle=Oracle(requests, answers, honesty=1.0, seed=0), length=4)
    first, second = run(model, decoder, requests, batch_size=2)
    assert first.committed == [5, 5, 5, 5, 1]  # four guesses and the model's own next token
    assert second.committed == [5, 5, 1]
