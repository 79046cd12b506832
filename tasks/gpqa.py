"""GPQA's documents: the answers' order is fixed, and no processed copy of the questions goes to disk."""

import random

import datasets
from lm_eval.tasks.gpqa.cot_zeroshot.utils import process_docs

SEED = 0  # what lm-eval seeds the global generator with before it loads a task


def shuffled(dataset: datasets.Dataset) -> datasets.Dataset:
    """lm-eval's own preparation, always with the order of answers that it gives when GPQA is the one task of a run.

    lm-eval shuffles anew whenever it looks at the documents, and relies on a cache file to see the same order twice.
    """
    state = random.getstate()
    random.seed(SEED)
    try:
        return process_docs(datasets.Dataset.from_list(dataset.to_list()))  # a table in memory is cached nowhere
    finally:
        random.setstate(state)
