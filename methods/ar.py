"""Autoregressive decoding: the baseline of every ratio."""

from dataclasses import dataclass

import torch

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput


@dataclass
class AR(Decoder):
    """One token per pass with a key-value cache."""

    lossless = True

    def draft(self, batch: Batch) -> Draft | None:
        return None

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        return Commit(batch.choose(out.logits).tokens, torch.ones_like(batch.total))
