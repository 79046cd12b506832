"""Hugging Face's ``Trainer`` with the two-stream pass and its loss."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from peft.helpers import disable_input_dtype_casting
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from decodebench.training import diffusion
from decodebench.training.attention import PACKED, pieces
from decodebench.training.layout import IGNORE, Layout, Slots, block_mask, lay_out, look_ahead
from decodebench.training.learner import Learner
from decodebench.training.loss import Losses, likeliest, unembedding_loss
from decodebench.training.recipe import Recipe
from decodebench.training.samples import Sample, end_token

MEASURED = -1  # the epoch whose masks the result is measured with
HEAD_DECAY = 0.8  # weight of a head's loss, relative to the head before it (arXiv 2401.10774, section 2.2.1)
NAMES = {
    "mars": ("clean", "noisy"),
    "ar-sft": ("clean", ""),
    "medusa": ("", "heads"),
    "draft": ("draft", ""),
    "block-diffusion": ("first", "further"),
}
"""What the figures at offset 1 are called, and those further ahead."""


class PackedRows(Dataset[list[Sample]]):
    """Samples, row by row."""

    def __init__(self, samples: Sequence[Sample], rows: Sequence[Sequence[int]]) -> None:
        self.samples, self.rows = samples, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[Sample]:
        return [self.samples[i] for i in self.rows[index]]


class Outcome(NamedTuple):
    """What a forward pass says of a batch: losses per labelled slot, and how far ahead each slot looked."""

    losses: Losses
    offset: Tensor


class TwoStreamTrainer(Trainer):
    """Loss = Σ weight · cross-entropy ÷ response tokens.

    Weights are 1 in the noisy stream and α in the clean one for MARS, 0.8ⁱ for head i of Medusa, and for block
    diffusion positions to fill ÷ masked ones, per block. The head of an early exit learns what the whole model says
    next rather than what the data say: that is what its drafts are compared with, and where the two differ, learning
    from the data would cost drafts. It takes a forward pass of the other layers, too, but no backward pass.

    The response tokens are counted over the whole global batch: gradient accumulation and more processes change nothing
    but the speed.
    """

    def __init__(self, learner: Learner, recipe: Recipe, row_length: int, **options: Any) -> None:
        self.learner, self.recipe, self.row_length = learner, recipe, row_length
        # FlexAttention needs CUDA for its backward pass
        learner.model.set_attn_implementation("flex_attention" if learner.model.device.type == "cuda" else PACKED)
        options["args"]._n_gpu = min(1, options["args"].n_gpu)  # one process, one device: no DataParallel
        self.end_of_answer, self.epoch = end_token(learner.tokenizer), 0
        super().__init__(learner.model, data_collator=self.collate, **options)
        self.add_callback(_Epochs(self))
        self.model_accepts_loss_kwargs = True  # ours is normalised over the batch, whatever the model's own would do
        self._tally: dict[int, Tensor] = {}

    def train_from(self, save: str | None) -> None:
        """Train to the end, from a save on where there is one.

        ``train`` would add a step to a save that was made at the last one.
        """
        state = TrainerState.load_from_json(os.path.join(save, TRAINER_STATE_NAME)) if save else None
        if save and state and state.global_step >= self.args.max_steps:
            self._load_from_checkpoint(save)
            self.state = state
        else:
            self.train(resume_from_checkpoint=save)

    def collate(self, rows: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        layout = self.lay_out(rows)
        # `labels` and `shift_labels` are what Trainer counts, one in place of each response token; one slot less in the
        # first, as it leaves out the first
        responses = torch.tensor([[sum(len(sample.response) for sample in row)] for row in rows])
        counted = torch.where(torch.arange(self.row_length) < responses, 0, IGNORE)
        labels = torch.cat([torch.full_like(counted[:, :1], IGNORE), counted[:, :-1]], 1)
        return {"labels": labels, "shift_labels": counted, **layout.slots._asdict(), **_plain(layout)}

    def lay_out(self, rows: Sequence[Sequence[Sample]]) -> Layout:
        """The rows as the recipe's objective has them."""
        recipe, mask_id = self.recipe, self.learner.mask_id
        if recipe.objective == "block-diffusion":
            noise = partial(diffusion.drawn, recipe.seed, self.epoch)
            return diffusion.lay_out(
                rows, self.row_length, recipe.block_size, mask_id, recipe.context, self.end_of_answer, noise
            )
        alpha = recipe.ar_weight if recipe.noisy_block else 1.0
        layout = lay_out(rows, self.row_length, recipe.noisy_block, mask_id, alpha)
        if recipe.objective == "medusa":
            return look_ahead(layout, range(1, recipe.heads + 1), HEAD_DECAY)
        return look_ahead(layout, [0], 1.0) if recipe.objective == "draft" else layout

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        outcome = self.outcome(model, inputs)
        items = num_items_in_batch if num_items_in_batch is not None else (inputs["shift_labels"] != IGNORE).sum()
        # the gradients of the processes are averaged, and each has divided by the items of all
        loss = outcome.losses.total / items * self.accelerator.num_processes
        self._count(outcome)
        return (loss, outcome) if return_outputs else loss

    def outcome(self, model: Any, inputs: dict[str, Any]) -> Outcome:
        """One forward pass of packed rows, and the loss of every labelled slot."""
        slots = Slots(*(inputs[name] for name in Slots._fields))
        dtype = torch.bfloat16 if self.learner.low_precision else torch.float32
        if self.learner.model.config._attn_implementation == PACKED:
            attention: dict[str, Any] = {"pieces": pieces(slots, dtype)}
        else:
            attention = {"attention_mask": block_mask(slots)}
        head = self.learner.model.get_output_embeddings()
        with _without_unembedding(head), disable_input_dtype_casting(model, self.learner.low_precision):
            out = model(input_ids=inputs["tokens"], position_ids=slots.position, use_cache=False, **attention)
        chosen = inputs["targets"] != IGNORE
        targets = inputs["targets"][chosen]
        weight, bias = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
        if self.recipe.objective == "draft":
            targets = likeliest(out.whole[chosen[..., 0]].to(dtype), weight, bias)
        losses = unembedding_loss(out.logits[chosen].to(dtype), weight, bias, targets, inputs["weight"][chosen])
        return Outcome(losses, inputs["offset"][chosen])

    def _count(self, outcome: Outcome) -> None:
        """Add a pass to the figures of the next log line; ``{offset: [slots, Σ loss, correct]}``."""
        for offset in range(1, self.recipe.furthest + 1):
            there = outcome.offset == offset
            row = torch.stack([
                there.sum().float(), outcome.losses.each[there].sum(), outcome.losses.correct[there].sum().float()
            ])  # fmt: skip
            self._tally[offset] = self._tally.get(offset, torch.zeros_like(row)) + row

    def figures(self) -> dict[str, float]:
        """Losses and accuracies since the last call, over all processes."""
        if not self._tally:
            return {}
        table = torch.stack([self._tally[offset] for offset in sorted(self._tally)])
        self._tally = {}
        return summary(self.accelerator.reduce(table, "sum").double().cpu(), *NAMES[self.recipe.objective])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs | self.figures() if "loss" in logs else logs, start_time)

    @torch.no_grad()
    def measure(self, rows: PackedRows) -> dict[str, float]:
        """Losses and accuracies on rows that were not trained on."""
        if not len(rows):
            return {}
        self._tally, self.epoch = {}, MEASURED
        model = self.accelerator.unwrap_model(self.model)
        model.eval()
        step = self.recipe.micro_batch
        for begin in range(0, len(rows), step):
            inputs = self.collate([rows[i] for i in range(begin, min(begin + step, len(rows)))])
            with self.accelerator.autocast():
                self._count(self.outcome(model, self._prepare_inputs(inputs)))
        table = torch.stack([self._tally[offset] for offset in sorted(self._tally)])
        self._tally = {}
        return summary(table.double().cpu(), *NAMES[self.recipe.objective])


class _Epochs(TrainerCallback):
    """Tells a trainer, before an epoch's first batch is made, which one it is."""

    def __init__(self, trainer: TwoStreamTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.trainer.epoch = int(state.epoch or 0)


def summary(table: Tensor, first: str = "clean", further: str = "noisy") -> dict[str, float]:
    """Losses in nats per token and accuracies, from ``[offsets, (slots, Σ loss, correct)]``; offset 1 comes first.

    Args:
        first, further: names of the figures at offset 1 and at larger ones.
    """
    slots, loss, correct = table.unbind(1)
    result = {}
    for name, part in ((first, slice(0, 1)), (further, slice(1, None))):
        if count := float(slots[part].sum()):
            result[f"{name}_loss"] = float(loss[part].sum() / count)
            result[f"{name}_accuracy"] = float(correct[part].sum() / count)
    if slots[1:].sum():
        for i in range(1, len(table)):
            if slots[i]:
                result[f"accuracy_{i + 1}"] = float(correct[i] / slots[i])
    return result


def _plain(layout: Layout) -> dict[str, Tensor]:
    return {"tokens": layout.tokens, "targets": layout.targets, "offset": layout.offset, "weight": layout.weight}


@contextlib.contextmanager
def _without_unembedding(head: torch.nn.Module) -> Iterator[None]:
    """The model returns hidden states in place of logits, for the loss to unembed those with a label, in chunks.

    What a model does to its logits afterwards must be linear (some scale them); ``prepare`` sees to it.
    """
    head.forward = lambda hidden: hidden
    try:
        yield
    finally:
        del head.forward
