"""The interface of a decoding method: what shall we try, and what do we keep?"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from decodebench.decoding.forward import WindowModel
from decodebench.decoding.knobs import check_knobs, knobs_of
from decodebench.decoding.request import Generation, Progress, Request
from decodebench.errors import UserError

if TYPE_CHECKING:
    from decodebench.decoding.sampling import Choice, RowSampling
    from decodebench.models import LoadedModel

Batching = Literal["continuous", "static"]
OnCommit = Callable[[Progress, list[int]], None]
OnFinish = Callable[[int, Generation], None]


@dataclass
class DecodingPasses:
    """What the engine's decoding passes (all but prefill) did and took, summed over them.

    The four times add up to :attr:`Statistics.decode_seconds`. On CUDA the first three are times of the device, whose
    waits for the next kernel are part of them; what the host does meanwhile costs nothing and is not counted.

    Attributes:
        passes: how many.
        slots: of windows, all rows together: what the layers computed, padding included.
        unembedded: slots that logits were made of.
        keys_read: positions of the cache that attention read, rows times the longest of them, in each layer.
        scores: query-key pairs that attention computed, masked ones included, per head and layer.
        model_seconds: forward passes of the target, the making of their masks included.
        acceptance_seconds: what the method made of their output.
        draft_seconds: making drafts, wherever in a pass.
        host_seconds: everything else: layout, commit, transfer, bookkeeping.
    """

    passes: int = 0
    slots: int = 0
    unembedded: int = 0
    keys_read: int = 0
    scores: int = 0
    model_seconds: float = 0.0
    acceptance_seconds: float = 0.0
    draft_seconds: float = 0.0
    host_seconds: float = 0.0


@dataclass
class Statistics:
    """What a generator did in all its ``generate`` calls since it was made or last reset. Times in seconds.

    Attributes:
        passes: forward passes of the target model, each counted once whatever its number of rows. Every chunk of a long
            prompt is one; in :attr:`Generation.committed` the prompt has one entry all the same.
        draft_passes: forward passes of a draft model, or of part of the target.
        prefill_seconds: passes that read prompts (they commit the first tokens, too).
        decode_seconds: all other passes.
        draft_seconds: the part of both spent on making drafts.
        decoding: what decoding passes consisted of; all zero from generators other than the engine.
    """

    passes: int = 0
    draft_passes: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    decoding: DecodingPasses = field(default_factory=DecodingPasses)


class Generator(ABC):
    """Anything that turns requests into generations: our engine, or an adapter to somebody else's."""

    statistics: Statistics

    trace: bool = False
    """Whether generations also say how sure the method was of each token, where it knows."""

    room: int = 0
    """Tokens of the longest request to come, prompt included: whoever keeps what it allocates makes room for it."""

    @abstractmethod
    def generate(
        self,
        requests: Sequence[Request],
        on_commit: OnCommit | None = None,
        on_finish: OnFinish | None = None,
    ) -> list[Generation]:
        """Continue every prompt.

        Args:
            requests: in the order in which they are to be started.
            on_commit: called with a running request and the tokens just committed, for streaming.
            on_finish: called with a request's place in the list and its generation, as soon as it has ended.

        Returns:
            One generation per request, in the same order.
        """


class Method(ABC):
    """A decoding method by name, found through the entry-point group ``decodebench.methods``.

    Subclasses are dataclasses whose fields are the method's knobs, declared with
    :func:`decodebench.decoding.knobs.knob`; the first line of the docstring is what ``decodebench methods`` shows.
    """

    lossless: ClassVar[bool]
    """True where greedy output, at the default knobs, must equal plain autoregressive decoding, token for token."""

    needs: ClassVar[str] = ""
    """What must be there besides a model (training, a draft model, heads), in a few words; empty for nothing."""

    def __post_init__(self) -> None:
        check_knobs(self)

    @abstractmethod
    def generator(self, model: "LoadedModel", batch_size: int, batching: Batching = "continuous") -> Generator:
        """Make the method ready to run on a model.

        Raises:
            UserError: when the model lacks what the method needs.
        """


@dataclass
class Draft:
    """What a method wants tried after the committed text.

    Attributes:
        tokens: ``[rows, d]`` ids (int64) that follow the committed text: guesses, masks or candidates.
        mask: which draft slots see which: bool ``[rows or 1, d, d]``, query by key; ``None`` is causal.
        offset: positions counted from the first uncommitted one, ``[rows or 1, d]``; ``None`` is consecutive.
        width: feed exactly this many slots, padding or cutting the draft; a method sets it where its cost is defined
            that way, and only where what is cut off cannot matter.
    """

    tokens: Tensor
    mask: Tensor | None = None
    offset: Tensor | None = None
    width: int | None = None


@dataclass
class PassOutput:
    """What the model said of one window.

    Attributes:
        logits: ``[rows, 1 + d, vocab]`` in the model's dtype. ``[:, 0]`` predicts the first uncommitted position from
            committed text alone (the autoregressive prediction); ``[:, 1 + j]`` is the prediction after draft slot j.
        hidden: ``[rows, 1 + d, hidden_size]`` what the unembedding made these logits of.
    """

    logits: Tensor
    hidden: Tensor


@dataclass
class Commit:
    """What a method keeps.

    Attributes:
        tokens: ``[rows, n]`` ids, of which the first ``count`` of each row are committed.
        count: ``[rows]``; at least 1, or 0 where a method lets a row wait.
        kept: ``[rows]`` draft slots whose keys and values stay valid, because their tokens were committed; at most
            ``count - 1``. ``None`` keeps none. Below 0 takes back keys and values of so many committed tokens, which
            are fed again in the next pass.
        path: ``[rows, n]`` which draft slots these are, in order (trees); ``None`` means the leading ones.
        cache_pending: whether the keys and values of the committed tokens that were fed in this pass stay cached. A
            method that says False has them fed again in the next pass.
        state: ``[rows, state_size]`` ids, what the method wants to find in :attr:`Batch.state` in the next pass of the
            same request; ``None`` leaves what is there.
        wanted: ``[rows]`` how many draft slots each row will want in the next pass, for methods that do not always
            want the same; the host finds it in :attr:`Batch.host_wanted` then.
        confidence: ``[rows, n]`` how sure the method was of ``tokens``, in its own metric, for traces; ``None`` where
            it did not ask.
    """

    tokens: Tensor
    count: Tensor
    kept: Tensor | None = None
    path: Tensor | None = None
    cache_pending: bool = True
    state: Tensor | None = None
    wanted: Tensor | None = None
    confidence: Tensor | None = None


class Chooser(Protocol):
    """:func:`decodebench.decoding.sampling.choose` for the rows of a batch."""

    def __call__(self, logits: Tensor, metric: str | None = None, ahead: Tensor | None = None) -> "Choice": ...


class DraftPass(Protocol):
    """A pass of the drafting model over the rows of a batch.

    Args:
        tokens: ``[rows, width]``, for the positions ``slots`` ``[rows, width]`` of each row.
        select: ``[rows, n]`` slots of the window whose logits are wanted.
        longest_cached: the most positions before the window in any row, known on the host.

    Returns:
        Logits ``[rows, n, vocab]``.
    """

    def __call__(self, tokens: Tensor, slots: Tensor, select: Tensor, longest_cached: int) -> Tensor: ...


@dataclass
class Batch:
    """The rows of one pass, as a method sees them. Tensors are views: methods read them and never write.

    Attributes:
        fresh: whether these requests have had no pass yet, so that this one reads their prompts, or the ends of prompts
            that were too long for one pass. Prompts have passes of their own.
        tokens: ``[rows, capacity]`` prompt and committed text, then anything.
        total: ``[rows]`` committed tokens, the prompt's included.
        cached: ``[rows]`` leading tokens whose keys and values are in the cache.
        tau: ``[rows]`` float32 confidence thresholds.
        state: ``[rows, state_size]`` what the method's last :class:`Commit` of each request left there; −1 throughout
            for a request that has had none.
        generated: ``[rows]`` tokens generated so far.
        sampling: how tokens are drawn; ``None`` where all rows are greedy.
        host_total, host_cached, host_tau: ``total``, ``cached`` and ``tau`` on the host, where they are known without
            waiting for the device.
        host_wanted: ``[rows]`` what the last :class:`Commit` of each request wanted; −1 where there was none.
        choose: picks a token per prediction as each row's :class:`Sampling` says; see
            :func:`decodebench.decoding.sampling.choose`.
        draft_pass: a forward pass of the decoder's :attr:`Decoder.drafter`.
        drafting: what ``accept`` does inside ``with batch.drafting():`` counts as time spent on the next draft.
    """

    fresh: bool
    tokens: Tensor
    total: Tensor
    cached: Tensor
    tau: Tensor
    state: Tensor
    generated: Tensor
    sampling: "RowSampling | None"
    host_total: np.ndarray
    host_cached: np.ndarray
    host_tau: np.ndarray
    host_wanted: np.ndarray
    choose: "Chooser"
    draft_pass: "DraftPass"
    drafting: Callable[[], AbstractContextManager[None]]

    @property
    def rows(self) -> int:
        return self.total.shape[0]

    @property
    def pending(self) -> np.ndarray:
        """``[rows]`` committed tokens that this pass has to feed, on the host."""
        return self.host_total - self.host_cached

    def repeat(self, token: int, n: int) -> Tensor:
        """``[rows, n]`` ids, all of them ``token``."""
        return torch.full((self.rows, n), token, dtype=torch.long, device=self.total.device)


@dataclass
class Decoder(Method):
    """A method that runs in our engine. It answers two questions per pass; the engine does everything else."""

    max_draft: int = field(init=False, default=0, repr=False)
    """The most draft slots in any pass; set it in ``bind``."""

    max_pending: int | None = field(init=False, default=1, repr=False)
    """The most committed tokens that a decoding pass feeds; ``None`` where it feeds all of them, every time, so that
    nothing is cached; set it in ``bind``."""

    block: int | None = field(init=False, default=None, repr=False)
    """Instead of causally, tokens see all of their own block of so many positions, counted from the row's first token;
    committed tokens of an unfinished block, what is committed of it. Set it in ``bind``."""

    state_size: int = field(init=False, default=0, repr=False)
    """Ids that a request carries from pass to pass (guesses, a half-filled block); set it in ``bind``."""

    drafter: WindowModel | None = field(init=False, default=None, repr=False)
    """A model that drafts, run with :attr:`Batch.draft_pass`; set it in ``bind``. Its cache follows the rows."""

    random_streams: ClassVar[int] = 1
    """Uniform draws that sampling needs per output position."""

    @property
    def default_tau(self) -> float:
        """The confidence threshold of requests that bring none of their own; unused by methods that have none."""
        return 1.0

    def bind(self, model: "LoadedModel") -> None:
        """Look up what the method needs of the model (a mask token, heads, …) and set ``max_draft``."""

    def check_request(self, request: Request) -> None:
        """Raise a UserError for a request that the method cannot serve (a τ outside its range, say)."""
        if request.tau is not None and "tau" not in knobs_of(self):
            raise UserError(f"tau {request.tau}: {type(self).__name__} has no confidence threshold")

    def read(self, batch: Batch, tokens: Tensor, slots: Tensor) -> None:
        """The model has read a chunk of a long prompt, not its last; whoever drafts with a cache of its own follows.

        Args:
            tokens: ``[rows, width]``, for the positions ``slots`` ``[rows, width]``, which follow ``batch.cached``.
        """

    @abstractmethod
    def draft(self, batch: Batch) -> Draft | None:
        """What to try after the committed text of each row; ``None`` for nothing."""

    @abstractmethod
    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        """What to keep of it, vectorised over rows and without a device-to-host synchronisation."""

    def generator(self, model: "LoadedModel", batch_size: int, batching: Batching = "continuous") -> Generator:
        from decodebench.decoding.engine import Engine

        self.bind(model)
        return Engine(model, self, batch_size, batching)
