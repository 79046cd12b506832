"""Which of a task's documents a limited run looks at: the same for every method."""

import math
import random

from decodebench.errors import UserError


def select_documents(n_docs: int, limit: float | None, seed: int | None = None) -> list[int]:
    """The indices of the documents to run, ascending.

    Args:
        n_docs: how many the task has.
        limit: a number of documents (1 or more), a share of them (below 1, rounded up, as in lm-eval), or None for all.
        seed: None for the first ones; else a random subset, always the same for one seed and one number of documents,
            and part of every larger one with that seed.

    Raises:
        UserError: a limit that is not positive, or a number of documents that is not whole.
    """
    if limit is None:
        return list(range(n_docs))
    if not limit > 0 or (limit >= 1 and limit != int(limit)):
        raise UserError(f"limit {limit}: a whole number of documents from 1, or a share of them below 1")
    count = min(n_docs, math.ceil(n_docs * limit) if limit < 1 else int(limit))
    order = list(range(n_docs))
    if seed is not None:
        random.Random(seed).shuffle(order)
    return sorted(order[:count])
