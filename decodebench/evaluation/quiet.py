"""Keeps the remarks and bars of lm-eval and the hub client off the terminal."""

import contextlib
import logging
from collections.abc import Iterator
from unittest import mock

import datasets
import lm_eval.api.task

LOGGERS = ("lm_eval", "lm-eval", "datasets", "huggingface_hub")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What they say of every task and table is no news to the user, and their bars would run through ours.

    Errors are still shown.
    """
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels, bars = [logger.level for logger in loggers], datasets.is_progress_bar_enabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        with mock.patch.object(lm_eval.api.task, "tqdm", lambda documents, **_: documents):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()
