"""The interface of a draft source."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from decodebench.decoding import Batch, Draft
from decodebench.decoding.forward import WindowModel
from decodebench.models import LoadedModel

DRAW_DRAFT, DRAW_ACCEPT = 1, 2
"""Streams of uniform draws; the target's own tokens come from stream 0, as they do without a draft."""


@dataclass
class Proposal(Draft):
    """A draft and how it was drawn.

    Attributes:
        probability: ``[rows, d, vocab]`` float32, what each token was drawn from; ``None`` where tokens are certain
            (a copy, or the most probable one).
    """

    probability: Tensor | None = None


class Outlook(NamedTuple):
    """What a source can already say of the next draft.

    Attributes:
        found: ``[rows]`` how many tokens it will be able to propose.
        state: ``[rows, state_size]`` ids that it wants to find in ``batch.state`` then.
    """

    found: Tensor
    state: Tensor


class DraftSource(ABC):
    """Proposes tokens for positions that are not decided yet. What it proposes changes speed, never the result."""

    state_size: int = 0
    """Ids that it carries per row, the first columns of ``batch.state``; set in ``bind``."""

    drafter: WindowModel | None = None
    """A model that the engine is to run for it, by ``batch.draft_pass``; set in ``bind``."""

    reads_prompts: bool = False
    """Whether it proposes in the pass that reads the prompt, too."""

    @abstractmethod
    def bind(self, model: LoadedModel, k: int) -> None:
        """Look up what is needed of the target.

        Args:
            k: the most tokens that will be asked for.

        Raises:
            UserError: when the source does not fit the target.
        """

    def read(self, batch: Batch, tokens: Tensor, slots: Tensor) -> None:  # noqa: B027 - most need not know
        """See :meth:`Decoder.read`."""

    @abstractmethod
    def propose(self, batch: Batch, k: int) -> Proposal:
        """k tokens for every row, however few each has asked for, so that shapes are the same for all."""

    def look_ahead(self, batch: Batch, tokens: Tensor, count: Tensor) -> Outlook | None:
        """What the next draft will be, for sources that know it already; ``None`` for others.

        Args:
            tokens: ``[rows, n]`` of which the first ``count`` (``[rows]``) of each row are committed in this pass.
        """
        return None
