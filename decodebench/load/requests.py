"""Which of a task's requests arrive, and under which keys their answers are recorded."""

from collections.abc import Sequence

import numpy as np

from decodebench.evaluation.lm import Key


class Deck:
    """A task's requests, drawn at random, each once before any comes again.

    A request that comes again is recorded under the same document with a further number.

    Args:
        keys: of the task's requests.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = list(keys)
        self.most = 1 + max((idx for _, _, idx in self.keys), default=0)  # requests about one document

    def draw(self, count: int, seed: int) -> list[Key]:
        """The keys of so many answers, in the order of their arrival."""
        rng = np.random.default_rng([seed, 2])
        drawn: list[Key] = []
        while len(drawn) < count:
            turn = len(drawn) // len(self.keys)
            shuffled = (self.keys[place] for place in rng.permutation(len(self.keys)))
            drawn += [(task, number, turn * self.most + idx) for task, number, idx in shuffled]
        return drawn[:count]

    def asked(self, key: Key) -> tuple[int, Key]:
        """How often a request had come before, and the task's own key of it."""
        turn, idx = divmod(key[2], self.most)
        return turn, (key[0], key[1], idx)
