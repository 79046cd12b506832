"""MARS, Mask AutoRegreSsion (arXiv 2604.07023): one checkpoint predicts several masked tokens per pass."""

import logging
import math
from dataclasses import dataclass, field

import torch

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, Request, knob
from decodebench.decoding.sampling import CONFIDENCE
from decodebench.errors import UserError
from decodebench.models import LoadedModel

CACHE_MODES = ("ragged", "block", "none")
log = logging.getLogger(__name__)


@dataclass
class MARS(Decoder):
    """Several masked tokens per pass; those the model is sure of, left to right, are kept.

    Each pass feeds the committed tokens and B−1 masks under plain causal attention. Prediction 1, from the last real
    token, is the autoregressive one and always taken; prediction k+1, from mask k, is taken while all before it are
    and its confidence passes τ (arXiv 2604.07023, section on inference). Keys and values of masks are never kept.

    With τ at the end of the metric's range (1, or 0 for entropy) a pass takes exactly one token; masks could change
    nothing then, so none are fed and the pass costs what an autoregressive one does.

    Cache modes: ``ragged`` keeps the keys and values of every row's own committed tokens. ``block`` is the paper's
    batch mode: ``cache_block`` positions are filled over several passes, each feeding the whole block again against
    the cached prefix; when every row has filled its block, it is fed once more to extend the cache, so fast rows wait
    for slow ones. ``none`` feeds the whole sequence in every pass.
    """

    lossless = False
    needs = "a checkpoint trained for MARS"

    block_size: int | None = knob(
        None, "tokens predicted per pass (B); default: what the checkpoint was trained with, else 4", low=2, high=64
    )
    tau: float = knob(0.95, "confidence threshold; 1 takes one token per pass (for entropy, in nats: 0)", low=0)
    metric: str = knob("probability", "confidence metric", choices=CONFIDENCE)
    max_commit: int | None = knob(None, "take at most this many tokens per pass; default: block-size", low=1)
    cache: str = knob("ragged", "what is cached: per row, per block (the paper's) or nothing", choices=CACHE_MODES)
    cache_block: int = knob(
        16, "positions per cached block (B_cache); for --cache block", low=2, high=512, only=("cache", "block")
    )
    mask_token: str | None = knob(None, "the mask, as text or id; default: the checkpoint's or tokenizer's own")

    mask_id: int = field(init=False, default=-1, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tau(self.tau)

    def _check_tau(self, tau: float) -> None:
        high = math.inf if self.metric == "entropy" else 1.0
        if not 0 <= tau <= high:
            bounds = "at least 0 nats" if self.metric == "entropy" else "between 0 and 1"
            raise UserError(f"--tau {tau:g}: must be {bounds} for the {self.metric} metric")

    @property
    def default_tau(self) -> float:
        return self.tau

    def check_request(self, request: Request) -> None:
        if isinstance(request.tau, float | int):
            self._check_tau(request.tau)

    def bind(self, model: LoadedModel) -> None:
        self.mask_id = find_mask(model, self.mask_token)
        self.mask_token = str(model.tokenizer.convert_ids_to_tokens(self.mask_id))
        self.block_size = self.block_size or int(model.card.get("block_size", 4))
        self.max_draft = self.block_size - 1
        self.max_pending = {"ragged": self.block_size, "block": self.cache_block, "none": None}[self.cache]
        if "block_size" not in model.card:
            _warn_untrained(model.name)

    def draft(self, batch: Batch) -> Draft | None:
        if self.cache == "block":
            if self._extends(batch):
                return None
            return Draft(batch.repeat(self.mask_id, self.max_draft), width=self.cache_block)
        if self._one_by_one(batch):
            return None
        return Draft(batch.repeat(self.mask_id, self.max_draft))

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        if draft is None:
            # block: this pass extends the cache, and its one prediction begins the next block
            tokens, count = batch.choose(out.logits).tokens, torch.ones_like(batch.total)
            return Commit(tokens, count, cache_pending=self.cache != "none")
        choice = batch.choose(out.logits, self.metric)
        count = self._sure(choice.confidence, batch).cumprod(1).sum(1)
        if self.max_commit:
            count = count.clamp(max=self.max_commit)
        if self.cache == "block":
            count = torch.minimum(count, self.cache_block - (batch.total - batch.cached))  # 0: the row waits
        return Commit(choice.tokens, count, cache_pending=self.cache == "ragged", confidence=choice.confidence)

    def _sure(self, confidence: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        """``[rows, n]`` 1 where a prediction may be taken; the first always may."""
        assert confidence is not None
        tau = batch.tau[:, None]
        # strict at the end of the range: rounding may give a confidence of exactly 1, and τ = 1 promises one token
        sure = (confidence <= tau) & (tau > 0) if self.metric == "entropy" else (confidence >= tau) & (tau < 1)
        sure[:, 0] = True
        return sure.long()

    def _one_by_one(self, batch: Batch) -> bool:
        end = batch.host_tau <= 0 if self.metric == "entropy" else batch.host_tau >= 1
        return bool(end.all())

    def _extends(self, batch: Batch) -> bool:
        """Whether every row has filled its block (or has just been given its prompt)."""
        return batch.fresh or bool((batch.pending >= self.cache_block).all())


def find_mask(model: LoadedModel, asked: str | None) -> int:
    """The id of a model's mask token: the one asked for, else the checkpoint's own, else the tokenizer's.

    Raises:
        UserError: when there is none, or the one asked for is not in the vocabulary.
    """
    for token, whose in ((asked, "--mask-token"), (model.card.get("mask_token"), "the checkpoint's mask token")):
        if token is not None:
            found = model.token_id(str(token))
            if found is None:
                raise UserError(f"{whose} '{token}' is not in the vocabulary of {model.name}")
            return found
    for token in (model.tokenizer.mask_token, "<|mask|>"):
        if token is not None and (found := model.token_id(token)) is not None:
            return found
    raise UserError(
        f"{model.name} has no mask token, which mars needs: name an unused special token of its tokenizer with "
        "--mask-token, or take a checkpoint trained for MARS"
    )


_warned: set[str] = set()


def _warn_untrained(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        log.warning("%s was not trained for MARS (its card names no block size): expect about 1 token per pass", name)
