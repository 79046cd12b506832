"""Prompt lookup: what followed the last few tokens when they stood in the text before."""

import torch
from torch import Tensor

from decodebench.decoding import Batch
from decodebench.methods.drafts.source import DraftSource, Outlook, Proposal
from decodebench.models import LoadedModel


class Lookup(DraftSource):
    """Copies from the prompt and the text so far (Saxena 2023, "Prompt Lookup Decoding").

    The longest n-gram at the end of the text that occurred before is looked for, and of its occurrences the most
    recent one is taken; transformers' ``prompt_lookup_num_tokens`` takes the first one. A copy that runs into the end
    of the text goes on with itself, so that loops are drafted to any length.

    Args:
        ngram: longest n-gram to look for.
    """

    def __init__(self, ngram: int) -> None:
        self.ngram = ngram

    def bind(self, model: LoadedModel, k: int) -> None:
        self.state_size = k

    def propose(self, batch: Batch, k: int) -> Proposal:
        return Proposal(batch.state[:, :k].clamp(min=0))  # -1 where a row has found nothing

    def look_ahead(self, batch: Batch, tokens: Tensor, count: Tensor) -> Outlook:
        longest = int(batch.host_total.max()) + tokens.shape[1]
        after = batch.total[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        text = batch.tokens[:, :longest].scatter(1, after, tokens)
        return find(text, batch.total + count, self.ngram, self.state_size)


def find(text: Tensor, total: Tensor, ngram: int, k: int) -> Outlook:
    """The continuation of the most recent earlier occurrence of each row's last tokens.

    Args:
        text: ``[rows, n]`` ids, of which the first ``total`` (``[rows]``) of each row count.
        ngram: longest n-gram to compare; shorter ones follow where it does not occur.
        k: tokens to copy.

    Returns:
        k or 0 tokens found per row, and the tokens ``[rows, k]``; without meaning where there are none.
    """
    start = torch.zeros_like(total)  # of the continuation; 0 says that there is none
    for size in range(min(ngram, text.shape[1]), 0, -1):
        last = (total[:, None] - size + torch.arange(size, device=text.device)).clamp(min=0)
        windows = text.unfold(1, size, 1)
        follows = torch.arange(size, size + windows.shape[1], device=text.device)
        same = (windows == text.gather(1, last)[:, None]).all(-1) & (follows < total[:, None])
        start = torch.where(start > 0, start, (same * follows).amax(1))
    ahead = torch.arange(k, device=text.device) % (total - start)[:, None]
    return Outlook((start > 0).long() * k, text.gather(1, start[:, None] + ahead))
