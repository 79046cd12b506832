"""Block diffusion (BD3LM, arXiv 2503.09573): masked blocks, one after the other, each filled in any order."""

import functools
import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, Request, knob
from decodebench.errors import UserError
from decodebench.methods.mars import find_mask
from decodebench.models import LoadedModel

CONTEXTS = ("block", "causal")
log = logging.getLogger(__name__)


@dataclass
class BlockDiffusion(Decoder):
    """Masked blocks, one after the other, each filled by confidence in any order.

    A block of B positions begins as masks that see each other in both directions and all text before. Each pass
    predicts all that are still masked and fills those whose probability passes τ, or at least the surest one; with
    ``steps``, the surest ones, as many as make the block full in so many passes. What is filled stays. A full block is
    committed at once, and its keys and values are computed anew, without masks, in the first pass of the next.

    As in the checkpoints published with MARS (arXiv 2604.07023), which keep the habit of the autoregressive model that
    they were trained from, the state at position i predicts the token at i+1: the first of a block is predicted by the
    last token before it.

    ``context`` says how finished text sees itself, which is as the model was trained. ``block``, as in BD3LM and the
    published checkpoint: blocks tile the whole sequence from its first token, and tokens see all of their own; the
    first block to be filled is what the prompt leaves of its last. ``causal``: blocks tile the answer, and finished
    text sees backwards only.
    """

    lossless = False
    needs = "a checkpoint trained by block diffusion"

    block_size: int | None = knob(
        None, "positions per block (B); default: what the checkpoint was trained with, else 4", low=2, high=64
    )
    tau: float | None = knob(None, "fill what is at least so probable; default: 0.95, unless --steps", low=0, high=1)
    steps: int | None = knob(None, "instead of by confidence, fill a block in so many passes", low=1)
    context: str | None = knob(
        None, "how finished text sees itself; default: the checkpoint's, else block", choices=CONTEXTS
    )
    mask_token: str | None = knob(None, "the mask, as text or id; default: the checkpoint's or tokenizer's own")

    mask_id: int = field(init=False, default=-1, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is None:
            self.tau = 0.95 if self.tau is None else self.tau
        elif self.tau is not None:
            raise UserError(f"--tau {self.tau:g} and --steps {self.steps}: fill by confidence or in steps, not both")

    @property
    def default_tau(self) -> float:
        return 1.0 if self.tau is None else self.tau

    def check_request(self, request: Request) -> None:
        if request.tau is not None and self.steps is not None:
            raise UserError(f"tau {request.tau}: with --steps {self.steps} there is no confidence threshold")
        if isinstance(request.tau, float | int) and not 0 <= request.tau <= 1:
            raise UserError(f"--tau {request.tau:g}: must be between 0 and 1")

    def bind(self, model: LoadedModel) -> None:
        self.mask_id = find_mask(model, self.mask_token)
        self.mask_token = str(model.tokenizer.convert_ids_to_tokens(self.mask_id))
        self.block_size = self.block_size or int(model.card.get("diffusion_block_size", 4))
        self.context = self.context or str(model.card.get("diffusion_context", "block"))
        self.max_draft = self.state_size = self.block_size
        self.max_pending = 2 * self.block_size
        self.block = self.block_size if self.context == "block" else None
        if "diffusion_block_size" not in model.card:
            _warn_untrained(model.name)

    def draft(self, batch: Batch) -> Draft:
        tokens = self._masked(batch.state)
        if self.context == "block":
            return Draft(tokens)
        return Draft(tokens, mask=torch.ones(1, *2 * tokens.shape[1:], dtype=torch.bool, device=tokens.device))

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        assert self.block_size is not None
        block, place = batch.state, torch.arange(self.block_size, device=batch.state.device)
        begun = batch.total % self.block_size if self.context == "block" else torch.zeros_like(batch.total)
        room = (self.block_size - begun)[:, None]  # the rest of a block is the prompt's
        choice = batch.choose(out.logits[:, :-1], "probability")
        assert choice.confidence is not None
        masked = (block < 0) & (place < room)
        filled = self._fill(choice.confidence.masked_fill(~masked, -1), batch.tau, room) & masked
        block = torch.where(filled, choice.tokens, block)
        full = ((block >= 0) | (place >= room)).all(1)
        # A prompt's part of an unfinished block is not cached: it has yet to see the rest. And the token before a block
        # is fed in all of its passes, because its state predicts the first token.
        again = begun + (~full & (begun == 0)).long()
        count = torch.where(full, room[:, 0], 0)
        return Commit(self._masked(block), count, kept=-again, state=block.masked_fill(full[:, None], -1))

    def _masked(self, block: Tensor) -> Tensor:
        """A block as it is fed: masks where there is no token yet."""
        return torch.where(block < 0, self.mask_id, block)

    def _fill(self, confidence: Tensor, tau: Tensor, room: Tensor) -> Tensor:
        """``[rows, B]`` which positions are filled in this pass; confidence is −1 where none can be."""
        rank = confidence.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        if self.steps is not None:
            return rank < -(-room // self.steps)
        # strict at 1, as rounding may give a confidence of exactly 1, and τ = 1 promises one token per pass
        return (rank == 0) | ((confidence >= tau[:, None]) & (tau[:, None] < 1))


@functools.cache
def _warn_untrained(name: str) -> None:
    log.warning("%s was not trained for block diffusion (its card names no diffusion_block_size)", name)
