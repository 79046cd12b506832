"""Training in miniature: tiny models that learn, samples, and what a training pass says of them."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny import tokenizer
from torch import Tensor

from decodebench.decoding import Batch, Commit, Draft, PassOutput, Request
from decodebench.methods.mars import MARS
from decodebench.models import LoadedModel
from decodebench.training.attention import PACKED, pieces
from decodebench.training.layout import Layout
from decodebench.training.learner import Learner
from decodebench.training.recipe import Recipe
from decodebench.training.run import train
from decodebench.training.samples import Sample
from decodebench.training.trainer import TwoStreamTrainer
from decodebench.training.work import Options

MASK = int(tokenizer().mask_token_id)


def learner_of(model: LoadedModel, full: bool = True) -> Learner:
    """A copy of a tiny model, all of whose weights can be trained."""
    own = copy.deepcopy(model.model).requires_grad_(full)
    return Learner(own, model.tokenizer, model.name, MASK, added_mask=False, low_precision=False)


def trainer_of(learner: Learner, folder: Path, row_length: int, **recipe: Any) -> TwoStreamTrainer:
    """A trainer for single passes; ``recipe`` changes what a recipe has by default."""
    settings = Recipe(**{"objective": "mars", "model": "tiny", "data": "none", "full": True, **recipe})
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, report_to="none", disable_tqdm=True)
    return TwoStreamTrainer(learner, settings, row_length, args=arguments)


def training_logits(model: Any, layout: Layout, **inputs: Any) -> Tensor:
    """``[rows, row_length, vocab]`` what the training forward pass predicts at every slot."""
    model.set_attn_implementation(PACKED)
    inputs = inputs or {"input_ids": layout.tokens}
    out = model(
        **inputs, position_ids=layout.slots.position, use_cache=False, pieces=pieces(layout.slots, torch.float32)
    )
    return out.logits


def mars_passes(model: LoadedModel, prompt: list[int], passes: int, block_size: int) -> tuple[Sample, list[Tensor]]:
    """Decode whole blocks, sure or not; the sample that this writes, and each pass's logits ``[block_size, vocab]``."""
    seen: list[Tensor] = []

    class Watched(MARS):
        def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
            seen.append(out.logits[0].clone())
            return super().accept(batch, draft, out)

    mars = Watched(block_size=block_size, tau=0.0)
    (generation,) = mars.generator(model, 1).generate([Request(prompt, passes * block_size)])
    assert generation.committed == [block_size] * passes
    return Sample(tuple(prompt), tuple(generation.tokens)), seen


def conversations(count: int = 24) -> list[dict[str, str]]:
    """Questions of different lengths, and their answers."""
    return [
        {"prompt": f"Ann has {n} apples" + " and buys 4 more" * (n % 4) + "?",
         "response": f"{n} + {4 * (n % 4)} = {n + 4 * (n % 4)}. So the answer is {n + 4 * (n % 4)}!"}
        for n in range(count)
    ]  # fmt: skip


def write_data(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class Killed(Exception):
    pass


def fit(out: Path, kill_at: str | None = None, save_steps: int = 2, **recipe: Any) -> tuple[dict[str, Any], list[str]]:
    """Train on CPU with a line of progress per step: card and lines. Killed when a line begins so."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if kill_at and line.startswith(kill_at):
            raise Killed

    options = Options(out, device="cpu", save_steps=save_steps, log_steps=1)
    settings = {"batch_size": 4, "micro_batch": 2, "row_length": 128, "eval_samples": 6, "lora_rank": 4}
    return train(Recipe(**(settings | recipe)), options, say), lines


def curve(out: Path, name: str) -> list[float]:
    """A figure of every step."""
    state = json.loads((out / "trainer_state.json").read_text())
    return [entry[name] for entry in state["log_history"] if "loss" in entry]
