"""What a training run will take, before it starts: steps, memory, time."""

from dataclasses import dataclass
from typing import Any

from decodebench.errors import UserError
from decodebench.memory import GIB, readable
from decodebench.training.loss import CHUNK_BYTES
from decodebench.training.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """Attributes:
    samples: trained on.
    held_out: samples to measure on.
    dropped, cut: samples that were too long.
    response_tokens: in an epoch.
    rows: packed rows in an epoch.
    row_length: slots of a row.
    padding: share of the slots that hold nothing.
    steps: optimizer steps.
    accumulation: forward passes per step and process.
    trainable: weights that are trained.
    memory_bytes: estimated peak.
    available_bytes: of the device, now.
    """

    samples: int
    held_out: int
    dropped: int
    cut: int
    response_tokens: int
    rows: int
    row_length: int
    padding: float
    steps: int
    accumulation: int
    trainable: int
    memory_bytes: int
    available_bytes: int

    def check_memory(self, checkpointing: bool = True) -> None:
        """
        Args:
            checkpointing: whether the objective knows ``--gradient-checkpointing``.

        Raises:
            UserError: when the estimate exceeds what there is.
        """
        if self.memory_bytes > self.available_bytes:
            raise UserError(
                f"training would need about {readable(self.memory_bytes)} and {readable(self.available_bytes)} are "
                "free: lower --micro-batch or --max-length"
                + (", or add --gradient-checkpointing" if checkpointing else "")
            )

    def describe(self) -> list[str]:
        """The plan in a few lines."""
        left_out = "".join(f", {n} {what}" for n, what in ((self.dropped, "dropped"), (self.cut, "cut")) if n)
        return [
            f"{self.samples} samples, {self.held_out} held out{left_out}; {self.response_tokens} response tokens",
            f"{self.rows} rows of {self.row_length} slots ({self.padding:.0%} padding), {self.steps} steps of "
            f"{self.accumulation} passes",
            f"{self.trainable / 1e6:.1f}M trained weights, about {readable(self.memory_bytes)} of memory "
            f"({readable(self.available_bytes)} free)",
        ]


def accumulation(recipe: Recipe, processes: int) -> int:
    """Forward passes per optimizer step and process.

    Raises:
        UserError: when the batch does not divide.
    """
    count, rest = divmod(recipe.batch_size, recipe.micro_batch * processes)
    if rest or not count:
        raise UserError(
            f"--batch-size {recipe.batch_size} is no multiple of --micro-batch {recipe.micro_batch}"
            + (f" times {processes} processes" if processes > 1 else "")
        )
    return count


def steps_in(recipe: Recipe, rows: int) -> int:
    """Optimizer steps of a run; a last incomplete batch of an epoch is left out."""
    return recipe.max_steps or max(1, int(max(1, rows // recipe.batch_size) * recipe.epochs))


def memory_estimate(model: Any, recipe: Recipe, row_length: int, checkpointing: bool, low_precision: bool) -> int:
    """Bytes at the peak: weights, optimizer, what a forward pass keeps for its backward pass, and a chunk of logits."""
    config = model.config.get_text_config()
    models = [model, model.base] if recipe.trains_heads else [model]
    weights = sum(p.numel() * p.element_size() for each in models for p in each.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    size = 2 if low_precision else 4
    slots = recipe.micro_batch * row_length
    # per slot and layer, in units of the hidden and the intermediate width: what linear layers, norms, rotary
    # embeddings and gates keep, with the float32 copies that norms make
    layer = size * (14 * config.hidden_size + 5 * config.intermediate_size) + 8 * config.hidden_size
    if not recipe.full:
        layer += size * 2 * config.intermediate_size  # adapters keep their own inputs
    kept = slots * (config.num_hidden_layers * size * config.hidden_size + layer if checkpointing
                    else config.num_hidden_layers * layer)  # fmt: skip
    if recipe.trains_heads:  # a layer at a time of the model; of every head its inputs, inner states and outputs
        heads, blocks = model.weight.shape[:2]
        kept = slots * (layer + size * config.hidden_size * heads * (3 * blocks + 1))
    mask = recipe.micro_batch * row_length**2 * (1 + size)
    embeddings = 4 * model.get_output_embeddings().weight.numel() if recipe.full else 0
    return weights + 12 * trainable + embeddings + kept + mask + 4 * CHUNK_BYTES + GIB // 2
