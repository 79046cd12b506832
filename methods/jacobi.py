"""Jacobi decoding (arXiv 2305.10427): guess the next tokens, check all of them at once, keep the fixed points."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, knob
from decodebench.models import LoadedModel

INITS = ("prompt", "random", "last")
NOISE = 4096  # random guesses repeat after so many positions


@dataclass
class Jacobi(Decoder):
    """Guesses that the model itself confirms are kept; the others become what it said instead. No training.

    Decoding n tokens greedily solves n equations, "token i is the most probable one after those before it". One causal
    pass over n guesses is a Jacobi step on all of them (arXiv 2305.10427, section 3). Guesses that agree with the
    predictions up to there are fixed points, hence autoregressive tokens, and are committed with their keys and
    values, together with the first prediction that differs. The predictions after that are the next pass's guesses,
    and the window's open end is filled anew.

    Sampled text is autoregressive, too: a position meets the same random draw in every pass, so that "the token drawn
    after those before it" is as well defined as the most probable one.
    """

    lossless = True

    window: int = knob(4, "guesses per pass (n)", low=1, high=256)
    init: str = knob(
        "prompt",
        "new guesses: what followed the last two tokens in the text so far, random tokens, or the last token",
        choices=INITS,
    )

    noise: Tensor = field(init=False, default_factory=lambda: torch.empty(0), repr=False, compare=False)

    def bind(self, model: LoadedModel) -> None:
        self.max_draft = self.state_size = self.window
        vocabulary = model.model.get_output_embeddings().weight.shape[0]
        random = torch.Generator().manual_seed(0)
        self.noise = torch.randint(vocabulary, (NOISE,), generator=random).to(model.device)

    def draft(self, batch: Batch) -> Draft | None:
        guesses = batch.state
        if batch.fresh:
            last_two = (batch.total[:, None] + torch.arange(-2, 0, device=guesses.device)).clamp(min=0)
            fresh = self._guess(batch, batch.tokens.gather(1, last_two))
            guesses = torch.where(guesses < 0, fresh, guesses)
        return Draft(guesses)

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        assert draft is not None
        predicted = batch.choose(out.logits).tokens
        right = (draft.tokens == predicted[:, :-1]).long().cumprod(1).sum(1)
        ahead = torch.cat([predicted, self._guess(batch, predicted[:, -2:])], 1)
        index = torch.arange(self.window, device=ahead.device)
        guesses = ahead.gather(1, right[:, None] + 1 + index)
        return Commit(predicted, right + 1, kept=right, state=guesses)

    def _guess(self, batch: Batch, last_two: Tensor) -> Tensor:
        """``[rows, window]`` tokens to follow a text that ends with ``last_two``, ``[rows, 2]``."""
        index = torch.arange(self.window, device=last_two.device)
        if self.init == "last":
            return last_two[:, 1:].expand(-1, self.window)
        if self.init == "random":
            return self.noise[(batch.total[:, None] + index) % NOISE]
        return follow(batch.tokens, batch.total, last_two, self.window)


def follow(tokens: Tensor, total: Tensor, last_two: Tensor, n: int) -> Tensor:
    """What followed the latest occurrence of two tokens, or else of the second of them, in each row's text.

    Args:
        tokens: ``[rows, capacity]`` ids.
        total: ``[rows]`` how many of them are text.
        last_two: ``[rows, 2]`` ids to look for.
        n: tokens wanted.

    Returns:
        ``[rows, n]`` ids. Where the text ends before n tokens, or the second of the two is not in it, the last token of
        the text, or that token, is repeated.
    """
    capacity = tokens.shape[1]
    place = torch.arange(capacity, device=tokens.device)
    second = (tokens == last_two[:, 1:]) & (place < total[:, None] - 1)
    first = torch.zeros_like(second)
    first[:, 1:] = tokens[:, :-1] == last_two[:, :1]
    # both tokens before one of them, then the latest
    rank = torch.where(second, place + 1 + capacity * first, 0).amax(1, keepdim=True)
    start = (rank - 1) % capacity + 1
    found = tokens.gather(1, torch.minimum(start + torch.arange(n, device=tokens.device), total[:, None] - 1))
    return torch.where(rank > 0, found, last_two[:, 1:])
