"""MARS as its own draft model: what masks predict in one pass is checked in the next, so the text is autoregressive."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, knob
from decodebench.methods.mars import find_mask
from decodebench.models import LoadedModel

LAYOUTS = ("full", "linear")


@dataclass
class MARSVerified(Decoder):
    """MARS that checks itself: mask predictions are the next pass's draft, so the text is exactly AR's.

    A pass of MARS (arXiv 2604.07023) predicts B tokens after the committed text, the first from its last token and
    B−1 from masks. Here only the first is taken at once. The others are fed in the next pass as a draft of k = B−1
    tokens; those that equal what the model then predicts after the tokens before them are committed, with their keys
    and values, as in speculative decoding (arXiv 2211.17192). For that pass to leave a draft behind, it carries masks
    as well.

    ``full``: k masks after the committed text and after every draft token, each run of masks seeing the text up to
    its place and itself (a tree mask): k + (k+1)k slots. Whatever prefix of the draft is right, the masks that follow
    it have made the next draft.

    ``linear``: k masks after the last draft token only: 2k slots under plain causal attention. A wrong token spoils
    what comes after it; still, the predictions behind it, of draft tokens and masks alike, are the next draft, as in
    Jacobi decoding.

    Sampled text is autoregressive, too: a position meets the same random draw in every pass.
    """

    lossless = True
    needs = "a checkpoint trained for MARS"

    block_size: int | None = knob(
        None, "tokens predicted per pass (B); default: what the checkpoint was trained with, else 4", low=2, high=64
    )
    layout: str = knob("full", "masks after every draft token, or after the last alone", choices=LAYOUTS)
    mask_token: str | None = knob(None, "the mask, as text or id; default: the checkpoint's or tokenizer's own")

    mask_id: int = field(init=False, default=-1, repr=False)

    def bind(self, model: LoadedModel) -> None:
        self.mask_id = find_mask(model, self.mask_token)
        self.mask_token = str(model.tokenizer.convert_ids_to_tokens(self.mask_id))
        self.block_size = self.block_size or int(model.card.get("block_size", 4))
        k = self.state_size = self.block_size - 1
        if self.layout == "full":
            self.max_draft = k + (k + 1) * k
            self.sees, self.offset = (part.to(model.device) for part in tree(k))
        else:
            self.max_draft = 2 * k

    def draft(self, batch: Batch) -> Draft:
        # a request that has no draft yet is given masks to check, and what follows them is its first draft
        guesses = torch.where(batch.state < 0, self.mask_id, batch.state)
        tokens = torch.cat([guesses, batch.repeat(self.mask_id, self.max_draft - self.state_size)], 1)
        if self.layout == "full":
            return Draft(tokens, mask=self.sees, offset=self.offset)
        return Draft(tokens)

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        assert draft is not None
        k = self.state_size
        ahead = torch.arange(k, device=out.logits.device)
        if self.layout == "full":
            predicted = batch.choose(out.logits[:, : k + 1]).tokens
            right = _right(draft.tokens, predicted, k)
            run = (1 + k + right * k)[:, None] + ahead  # the masks after the last right token
            rows = torch.arange(batch.rows, device=run.device)[:, None]
            guesses = batch.choose(out.logits[rows, run], ahead=right[:, None] + 1 + ahead).tokens
        else:
            predicted = batch.choose(out.logits).tokens
            right = _right(draft.tokens, predicted, k)
            guesses = predicted.gather(1, right[:, None] + 1 + ahead)
            predicted = predicted[:, : k + 1]
        return Commit(predicted, right + 1, kept=right, state=guesses)


def _right(tokens: Tensor, predicted: Tensor, k: int) -> Tensor:
    """``[rows]`` how many of the first k drafted tokens are predicted after those before them."""
    return (tokens[:, :k] == predicted[:, :k]).long().cumprod(1).sum(1)


def tree(k: int) -> tuple[Tensor, Tensor]:
    """k draft tokens in a line, then k+1 runs of k masks; run i follows the first i draft tokens.

    Returns:
        Who sees whom, bool ``[1, k + (k+1)k, …]``, query by key; and positions counted from the first draft token's,
        ``[1, k + (k+1)k]``.
    """
    steps = torch.arange(k)
    # of each slot: how many draft tokens its run follows (−1: it is one itself), and its place in its line
    follows = torch.cat([torch.full((k,), -1), torch.arange(k + 1).repeat_interleave(k)])
    place = torch.cat([steps, steps.repeat(k + 1)])
    same_line = (follows[:, None] == follows) & (place[:, None] >= place)
    prefix = (follows == -1) & (place < follows[:, None])
    return (same_line | prefix)[None], (follows.clamp(min=0) + place)[None]
