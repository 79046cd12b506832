"""Which of a task's documents a limited run looks at: the same for every method."""

import math
import random

from decodebench.errors import UserError


def parse_limit(text: str) -> float | None:
    """What the user means by a limit.

    Args:
        text: a number of documents ("20"), or a share of them ("0.1", "10%").

    Returns: a limit for `select_documents`; None for the whole share ("1.0", "100%").

    Raises:
        UserError: it is neither.
    """
    percent, share = text.endswith("%"), "." in text or text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if share and 0 < value < 1:
        return value
    if share and value == 1:
        return None
    if not share and 1 <= value < math.inf and value == int(value):
        return int(value)
    raise UserError(f"--limit {text}: give a number of documents (20), or a share of them (0.1 or 10%)")


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
