"""Drafts from a model: another one, or part of the target."""

from abc import abstractmethod
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from decodebench.decoding import Batch
from decodebench.decoding.forward import WindowModel, window_width
from decodebench.decoding.sampling import distribution, invert
from decodebench.errors import UserError
from decodebench.methods.drafts.source import DRAW_DRAFT, DraftSource, Proposal
from decodebench.models import LoadedModel, load_model


class ModelSource(DraftSource):
    """Decodes k tokens, one pass each, as the target would: greedily, or drawn as each row's sampling says."""

    drafter: WindowModel
    vocabulary: int
    """Of the target."""

    @abstractmethod
    def cached(self, batch: Batch) -> tuple[Tensor, np.ndarray]:
        """``[rows]`` leading tokens whose keys and values the drafter has, on the device and on the host."""

    def propose(self, batch: Batch, k: int) -> Proposal:
        cached, host_cached = self.cached(batch)
        last = batch.tokens.shape[1] - 1
        width = window_width(batch.host_total - host_cached, 0)
        slots = (cached[:, None] + torch.arange(width, device=cached.device)).clamp(max=last)
        select = (batch.total - cached - 1)[:, None]
        longest = int(host_cached.max())
        window = batch.tokens.gather(1, slots)
        tokens: list[Tensor] = []
        probabilities: list[Tensor] = []
        for step in range(k):
            if step:
                slots = (batch.total[:, None] + step - 1).clamp(max=last)
                select, longest, window = torch.zeros_like(slots), int(batch.host_total.max()) + step - 1, tokens[-1]
            logits = batch.draft_pass(self._known(window), slots, select, longest)[..., : self.vocabulary]
            if batch.sampling is None:
                tokens.append(logits.max(-1).indices)
            else:
                probability = distribution(logits, batch.sampling)
                draw = batch.sampling.draws(batch.generated[:, None] + step, DRAW_DRAFT)
                tokens.append(invert(probability, draw))
                probabilities.append(pad(probability, (0, self.vocabulary - probability.shape[-1])))
        return Proposal(torch.cat(tokens, 1), probability=torch.cat(probabilities, 1) if probabilities else None)

    def _known(self, tokens: Tensor) -> Tensor:
        """The tokens, where the drafter may lack some of the target's."""
        return tokens


class DraftModel(ModelSource):
    """Another model with the same vocabulary, with a ragged cache of its own.

    Args:
        name: as :func:`decodebench.models.load_model` takes it.
    """

    reads_prompts = True

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, model: LoadedModel, k: int) -> None:
        draft = load_draft(self.name, model, "--draft-model")
        self.drafter = WindowModel(draft.model)
        self.vocabulary = model.model.get_output_embeddings().weight.shape[0]
        self.words = draft.model.get_input_embeddings().weight.shape[0]

    def cached(self, batch: Batch) -> tuple[Tensor, np.ndarray]:
        # Of k drafted tokens the last was never fed, and where all were accepted it is the last but one of the text.
        # So the last two tokens are always fed, the first of them perhaps again: one shape, and nothing to remember.
        if batch.fresh:  # what the target has read of a prompt, this has
            return batch.cached, batch.host_cached
        return batch.total - 2, batch.host_total - 2

    def read(self, batch: Batch, tokens: Tensor, slots: Tensor) -> None:
        batch.draft_pass(self._known(tokens), slots, slots[:, :0], int(batch.host_cached.max()))

    def _known(self, tokens: Tensor) -> Tensor:
        # Models of one family pad the same vocabulary to different sizes; what is in the padding has no meaning.
        return tokens if self.words >= self.vocabulary else tokens.clamp(max=self.words - 1)


def load_draft(name: str, target: LoadedModel, flag: str) -> LoadedModel:
    """A model that drafts for the target, in its dtype and on its device.

    Args:
        name: as :func:`decodebench.models.load_model` takes it.
        flag: that named it, for messages.

    Raises:
        UserError: where it cannot be loaded, or has another vocabulary.
    """
    try:
        draft = _load(name, str(target.dtype).removeprefix("torch."), str(target.device))
    except UserError as error:
        raise UserError(f"{flag}: {error}") from error
    # tokens must mean the same to both; one may have more of them
    small, large = sorted((draft.tokenizer.get_vocab(), target.tokenizer.get_vocab()), key=len)
    other = next((token for token, index in small.items() if large.get(token) != index), None)
    if other is not None:
        raise UserError(
            f"{flag} {name}: its vocabulary is not that of {target.name} (they differ in {other!r}): "
            "take a draft model with the same tokenizer"
        )
    return draft


_load = lru_cache(maxsize=4)(load_model)  # every repeat of a run binds its method anew
