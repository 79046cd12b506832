"""Everything that decides what a training run produces."""

import dataclasses
from dataclasses import dataclass, fields
from typing import Any, Literal

from decodebench.errors import UserError
from decodebench.training.diffusion import Context

Objective = Literal["mars", "ar-sft", "medusa", "draft", "block-diffusion"]

ONLY_FOR: dict[str, set[Objective]] = {
    "block_size": {"mars", "block-diffusion"},
    "ar_weight": {"mars"},
    "mask_token": {"mars", "block-diffusion"},
    "gated": {"mars"},
    "context": {"block-diffusion"},
    "heads": {"medusa"},
    "layers": {"medusa"},
    "exit_layer": {"draft"},
    "full": {"mars", "ar-sft", "block-diffusion"},
    "lora_rank": {"mars", "ar-sft", "block-diffusion"},
}
"""Fields that do not count for every objective."""


@dataclass(frozen=True)
class Recipe:
    """A training run; two runs with equal recipes on equal data give equal checkpoints.

    Attributes:
        objective: ``mars`` (arXiv 2604.07023), ``ar-sft`` (its stage 1, and the control), ``medusa`` (Medusa-1: heads
            on a frozen model, arXiv 2401.10774), ``draft`` (one head behind a frozen model's first layers, to draft
            from) or ``block-diffusion`` (arXiv 2503.09573).
        model: a built-in name, a folder or a hub id; a LoRA adapter is trained on.
        data: what to train on; see :func:`decodebench.training.conversations.read_conversations`.
        self_distill: prompts, named like ``data``, to which the model itself writes the responses before it is trained:
            they keep its own distribution.
        distill_tokens: most tokens of such a response.
        block_size: B, the tokens that are learnt to be predicted per pass, or to be filled in together.
        ar_weight: α, the weight of the clean stream's loss; ``mars`` only.
        context: how finished text sees itself in ``block-diffusion``: backwards, or all of its own block.
        heads: further tokens that ``medusa`` learns to predict.
        layers: residual blocks of each of its heads.
        exit_layer: the layers that are run for a ``draft``.
        mask_token: the token that stands for what is to be predicted; ``None`` finds one.
        gated: whether the adapter acts on masks only, so that one token per pass is the original model's, bit for bit.
        full: train all weights instead of an adapter.
        lora_rank: of a new adapter; its scale α is twice the rank.
        learning_rate: peak, after a linear warm-up; it falls to 0 along a cosine.
        epochs: passes over the data.
        max_steps: optimizer steps, instead of ``epochs`` where it is above 0.
        batch_size: packed rows per optimizer step, over all processes.
        micro_batch: rows per forward pass and process; the rest is gradient accumulation.
        max_length: tokens of a sample, prompt and response.
        row_length: slots of a packed row; 0 fits the longest sample.
        over_long: what happens to longer samples.
        eval_samples: samples that are held out of the data to measure the result on.
        warmup: share of the steps.
        weight_decay: AdamW's.
        seed: of the adapter, the packing and the order.
    """

    objective: Objective
    model: str
    data: str
    self_distill: str | None = None
    distill_tokens: int = 256
    block_size: int = 4
    ar_weight: float = 1.0
    context: Context = "causal"
    heads: int = 4
    layers: int = 1
    exit_layer: int = 6
    mask_token: str | None = None
    gated: bool = False
    full: bool = False
    lora_rank: int = 16
    learning_rate: float = 5e-4
    epochs: float = 1.0
    max_steps: int = 0
    batch_size: int = 8
    micro_batch: int = 4
    max_length: int = 512
    row_length: int = 0
    over_long: Literal["drop", "cut"] = "drop"
    eval_samples: int = 64
    warmup: float = 0.03
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        low = {
            "block_size": 2, "ar_weight": 0, "lora_rank": 1, "batch_size": 1, "micro_batch": 1, "max_length": 2,
            "row_length": 0, "distill_tokens": 1, "eval_samples": 0, "max_steps": 0, "warmup": 0, "weight_decay": 0,
            "heads": 1, "layers": 1, "exit_layer": 1,
        }  # fmt: skip
        for name, least in low.items():
            if not getattr(self, name) >= least:  # NaN, too
                raise UserError(f"{flag(name)} {getattr(self, name)}: must be at least {least}")
        for name in ("learning_rate", "epochs"):
            if not getattr(self, name) > 0:
                raise UserError(f"{flag(name)} {getattr(self, name)}: must be above 0")
        if self.warmup > 1:
            raise UserError(f"--warmup {self.warmup}: is a share of the steps, at most 1")
        if self.gated and self.full:
            raise UserError("--gated trains an adapter that acts on masks only: leave --full away")
        if self.gated and self.objective == "ar-sft":
            raise UserError("--gated acts on masks only, and ar-sft has none: leave it away")
        for name in ("gated", "full"):
            if getattr(self, name) and self.objective not in ONLY_FOR[name]:
                raise UserError(f"{flag(name)} is not for {self.objective}: leave it away")

    @property
    def noisy_block(self) -> int | None:
        """Block size of the noisy stream; ``None`` where there is none."""
        return self.block_size if self.objective == "mars" else None

    @property
    def trains_heads(self) -> bool:
        """Whether the model itself is left as it is."""
        return self.objective in ("medusa", "draft")

    @property
    def furthest(self) -> int:
        """The largest offset of a target: tokens after the last one that its slot knows."""
        ahead = {"mars": self.block_size + 1, "block-diffusion": self.block_size, "medusa": self.heads + 1}
        return ahead.get(self.objective, 1)

    def as_dict(self) -> dict[str, Any]:
        """What counts for this objective, ready for JSON."""
        left_out = {name for name, objectives in ONLY_FOR.items() if self.objective not in objectives}
        if self.full:
            left_out |= {"lora_rank"}
        if self.self_distill is None:
            left_out |= {"self_distill", "distill_tokens"}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in left_out}


def flag(name: str) -> str:
    """The option of a field."""
    return "--" + name.replace("_", "-")


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Options in which two recipes differ."""
    return [flag(f.name) for f in fields(Recipe) if before.get(f.name) != now.get(f.name)]
