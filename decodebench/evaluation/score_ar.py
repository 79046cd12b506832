"""How likely a model finds answers in its plain autoregressive mode: quality that needs no right answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from decodebench.decoding import Request
from decodebench.decoding.forward import WindowModel, round_up
from decodebench.decoding.inputs import PassInputs
from decodebench.evaluation.lm import Key
from decodebench.models import LoadedModel
from decodebench.records import RunStore


def score_run(model: LoadedModel, store: RunStore, requests: Mapping[Key, Request]) -> None:
    """Record for each output of the first repeat what the model says of it, unless it is recorded already.

    Args:
        model: that made the outputs.
        store: of a run whose first repeat is complete.
        requests: by the keys of the samples.
    """
    if store.has_ar_scores:
        return
    window = WindowModel(model.model)
    scores = {}
    with window.ready():
        for sample in store.samples(0):
            key = (sample["task"], sample["doc_id"], sample.get("idx", 0))
            if sample["tokens"]:
                scores[key] = score_output(window, requests[key].prompt, sample["tokens"])
    store.add_ar_scores(scores)


def score_output(window: WindowModel, prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """One teacher-forced pass over an output.

    Args:
        window: made ready.
        prompt: at least one token.
        tokens: the output, at least one token.

    Returns:
        For each token "ar_logprobs", its log-probability (nats) after the prompt and the tokens before it, and
        "ar_equal", whether it is the one that greedy autoregressive decoding would have taken there (1 or 0).
    """
    ids = torch.tensor([[*prompt, *tokens[:-1]]], device=window.device)
    answer = torch.tensor(tokens, device=window.device)
    slots = torch.arange(ids.shape[1], device=window.device)[None]
    cache = window.new_cache(1, round_up(ids.shape[1] + 1, 64))
    inputs = PassInputs(ids, slots, slots[:, len(prompt) - 1 :])
    logits = window.forward(cache, slice(0, 1), inputs, 0)[0].float()
    chosen = logits.gather(-1, answer[:, None])[:, 0] - logits.logsumexp(-1)
    return {
        "ar_logprobs": [round(value, 5) for value in chosen.tolist()],
        "ar_equal": (logits.argmax(-1) == answer).long().tolist(),
    }
