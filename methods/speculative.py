"""Speculative decoding (arXiv 2211.17192, 2302.01318): a draft proposes tokens, the model checks them in one pass."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, knob
from decodebench.decoding.sampling import RowSampling, distribution, invert
from decodebench.errors import UserError, unknown
from decodebench.methods.drafts import DraftModel, DraftSource, EarlyExit, Lookup, Proposal
from decodebench.methods.drafts.source import DRAW_ACCEPT
from decodebench.models import LoadedModel

MOST, START = 16, 5  # tokens per draft where k is adaptive
NGRAM = 3


@dataclass
class Speculative(Decoder):
    """A cheap draft source proposes k tokens; one pass of the model checks them all.

    Greedy rows keep the longest prefix of the draft that the model would have written, and the model's own next token
    after it. Sampled rows accept a token x with probability min(1, p(x) / q(x)) and, at the first rejection, draw from
    max(0, p − q) instead, normalised; so tokens are distributed exactly as the model's own (arXiv 2211.17192,
    algorithm 1 and appendix A.1). Every draw belongs to a seed, an output position and a purpose, so that a request's
    text depends neither on its neighbours nor on the run.

    With k ``auto``, every row has a k of its own: two more where its whole draft was accepted, else one less, as in
    transformers' assisted generation (schedule ``heuristic``). A pass is as wide as the longest draft in it.
    """

    lossless = True
    needs = "nothing, or a draft model with the same tokenizer"
    random_streams = 3

    draft_source: str | None = knob(
        None,
        "lookup[:N] (n-grams of the text, up to N tokens) or early-exit:N[:HEAD] (first N layers, and a head: folder, "
        "hub id or none; default: the one that the model's card names, else none)",
        flag="--draft",
    )
    draft_model: str | None = knob(None, "draft with this model: a built-in name, a folder, or a hub id")
    k: str = knob("auto", f"tokens per draft, 1 to 64, or auto (1 to {MOST}, by what is accepted)")

    source: DraftSource = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_source and self.draft_model:
            raise UserError(f"--draft {self.draft_source} and --draft-model {self.draft_model}: give one of them")
        if self.draft_model is None:
            self.draft_source = self.draft_source or f"lookup:{NGRAM}"
        self.k = str(self.k)
        if self.k != "auto" and not (self.k.isdecimal() and 1 <= int(self.k) <= 64):
            raise UserError(f"--k {self.k}: must be auto or a whole number from 1 to 64")
        self.source = DraftModel(self.draft_model) if self.draft_model else parse(str(self.draft_source))

    @property
    def start(self) -> int:
        """k of a request's first draft."""
        return START if self.k == "auto" else int(self.k)

    @property
    def first(self) -> int:
        """Tokens to draft in the pass that reads the prompt."""
        return self.start if self.source.reads_prompts else 0

    def bind(self, model: LoadedModel) -> None:
        self.max_draft = MOST if self.k == "auto" else int(self.k)
        self.source.bind(model, self.max_draft)
        self.drafter = self.source.drafter
        self.state_size = self.source.state_size + 2

    def read(self, batch: Batch, tokens: Tensor, slots: Tensor) -> None:
        self.source.read(batch, tokens, slots)

    def draft(self, batch: Batch) -> Draft | None:
        wanted = int(batch.host_wanted.max())
        if wanted < 0:  # rows that have had no pass yet; they have one of their own
            wanted = self.first
        return self.source.propose(batch, wanted) if wanted else None

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        *_, wanted, k = batch.state.unbind(1)
        k = torch.where(k < 0, self.start, k)
        wanted = torch.where(wanted < 0, self.first, wanted)
        if not isinstance(draft, Proposal):
            tokens, kept = batch.choose(out.logits).tokens, torch.zeros_like(batch.total)
        elif batch.sampling is None:
            tokens = out.logits.max(-1).indices
            kept = (draft.tokens == tokens[:, :-1]).long().cumprod(1).sum(1)
        else:
            tokens, kept = check(draft, out.logits, batch.sampling, batch.generated, wanted)
        if self.k == "auto":
            k = torch.where(kept >= wanted, k + 2, k - 1).clamp(1, MOST).where(wanted > 0, k)
        with batch.drafting():
            outlook = self.source.look_ahead(batch, tokens, kept + 1)
        if outlook is None:
            return Commit(tokens, kept + 1, kept, state=torch.stack([k, k], 1), wanted=k)
        wanted = torch.minimum(outlook.found, k)
        state = torch.cat([outlook.state, wanted[:, None], k[:, None]], 1)
        return Commit(tokens, kept + 1, kept, state=state, wanted=wanted)


def check(
    draft: Proposal, logits: Tensor, sampling: RowSampling, generated: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """The accept/resample rule, greedy rows included: theirs are distributions with one possible outcome.

    Args:
        logits: ``[rows, 1 + d, vocab]`` of the pass that checked the draft.
        generated: ``[rows]`` tokens generated so far.
        wanted: ``[rows]`` at most this many draft tokens of a row count, so that its text does not depend on how many
            its neighbours wanted.

    Returns:
        Tokens ``[rows, 1 + d]`` and how many draft tokens are kept, ``[rows]``; one token more is valid.
    """
    n = draft.tokens.shape[1]
    index = torch.arange(n, device=logits.device)
    target = distribution(logits, sampling)
    p = target[:, :-1].gather(-1, draft.tokens[..., None])[..., 0]
    q = 1.0 if draft.probability is None else draft.probability.gather(-1, draft.tokens[..., None])[..., 0]
    draw = sampling.draws(generated[:, None] + index, DRAW_ACCEPT)
    accepted = (draw * q < p) & (index < wanted[:, None])
    kept = accepted.long().cumprod(1).sum(1)

    row = torch.arange(len(kept), device=kept.device)
    slot = kept.clamp(max=n - 1)  # of the rejected token, where there is one
    if draft.probability is None:
        q_all = torch.zeros_like(target[:, 0]).scatter_(1, draft.tokens[row, slot][:, None], 1.0)
    else:
        q_all = draft.probability[row, slot]
    own = target[row, kept]
    rest = (own - q_all).clamp(min=0)
    # where p and q are equal but for rounding, a rejection may leave nothing
    usable = (kept < torch.minimum(wanted, torch.full_like(wanted, n))) & (rest.sum(1) > 0)
    rest = torch.where(usable[:, None], rest, own)
    final = invert(rest[:, None], sampling.draws((generated + kept)[:, None]))
    tokens = torch.cat([draft.tokens, final], 1).scatter(1, kept[:, None], final)
    return tokens, kept


def parse(text: str) -> DraftSource:
    """The source that ``--draft`` names.

    Raises:
        UserError: for what it does not name.
    """
    name, _, number = text.partition(":")
    head = ""
    if name == "early-exit":
        number, _, head = number.partition(":")
    if name not in ("lookup", "early-exit"):
        raise unknown("value of --draft", name, ["lookup", "early-exit"])
    if number == "" and name == "lookup":
        return Lookup(NGRAM)
    if not (number.isdecimal() and int(number) >= 1):
        what = "tokens of the longest n-gram" if name == "lookup" else "layers"
        raise UserError(f"--draft {text}: give a number of {what} from 1 on, as in {name}:{NGRAM}")
    return Lookup(int(number)) if name == "lookup" else EarlyExit(int(number), head or None)
