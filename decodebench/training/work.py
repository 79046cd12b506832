"""A training run made ready: data read and packed, the model prepared, the trainer set up."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from decodebench.errors import UserError
from decodebench.memory import available_memory
from decodebench.models.devices import resolve_device
from decodebench.training import diffusion
from decodebench.training.conversations import read_conversations
from decodebench.training.folder import DISTILLED, STATE
from decodebench.training.layout import laid_out_length
from decodebench.training.learner import Learner, prepare
from decodebench.training.packing import pack
from decodebench.training.plan import Plan, accumulation, memory_estimate, steps_in
from decodebench.training.progress import Lines
from decodebench.training.recipe import Recipe
from decodebench.training.samples import Tokenized, tokenize

ROW_STEP = 64  # row lengths are a multiple of this


@dataclass(frozen=True)
class Options:
    """How a run is done, which changes nothing in what it produces.

    Attributes:
        out: the folder for the result.
        data_dir: where local data sets are.
        device: ``auto``, ``cpu``, ``cuda``, …
        dtype: ``auto``, ``float32`` or ``bfloat16``.
        gradient_checkpointing: compute activations twice instead of keeping them.
        save_steps: optimizer steps between two saves.
        log_steps: optimizer steps between two lines of progress.
        merge: write a whole checkpoint in place of an adapter.
    """

    out: Path
    data_dir: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    gradient_checkpointing: bool = False
    save_steps: int = 50
    log_steps: int = 10
    merge: bool = False


@dataclass
class Work:
    """Everything a run needs, ready."""

    recipe: Recipe
    options: Options
    learner: Learner
    data: Tokenized
    train_rows: Any
    held_out: Any
    plan: Plan

    @classmethod
    def of(cls, recipe: Recipe, options: Options) -> "Work":
        from decodebench.training.trainer import PackedRows

        sources = [recipe.data, *([str(options.out / DISTILLED)] if recipe.self_distill else [])]
        conversations = [one for spec in sources for one in read_conversations(spec, options.data_dir, recipe.seed)]
        forward_passes = accumulation(recipe, processes(options.device).num_processes)
        learner = prepare(recipe, options.device, options.dtype)
        data = tokenize(conversations, learner.tokenizer, recipe.max_length, recipe.over_long)
        order = list(range(len(data.samples)))
        random.Random(recipe.seed).shuffle(order)
        held, kept = order[: recipe.eval_samples], order[recipe.eval_samples :]
        if not kept:
            raise UserError(
                f"--data {recipe.data}: {len(order)} samples of at most {recipe.max_length} tokens are too few "
                f"with {recipe.eval_samples} held out: lower --eval-samples or raise --max-length"
            )
        if recipe.objective == "block-diffusion":
            size = partial(diffusion.laid_out_length, block_size=recipe.block_size, context=recipe.context)
        else:
            size = partial(laid_out_length, block_size=recipe.noisy_block)
        lengths = [size(sample) for sample in data.samples]
        row_length = -(-max(recipe.row_length, max(lengths)) // ROW_STEP) * ROW_STEP
        rows = [[[part[i] for i in row] for row in pack([lengths[i] for i in part], row_length, recipe.seed)]
                for part in (kept, held)]  # fmt: skip
        if len(rows[0]) > recipe.batch_size:  # whole batches: how they are divided into passes must not matter
            del rows[0][len(rows[0]) // recipe.batch_size * recipe.batch_size :]
        kept = [i for row in rows[0] for i in row]
        memory = memory_estimate(
            learner.model, recipe, row_length, options.gradient_checkpointing, learner.low_precision
        )
        plan = Plan(
            samples=len(kept), held_out=len(held), dropped=data.dropped, cut=data.cut,
            response_tokens=sum(len(data.samples[i].response) for i in kept), rows=len(rows[0]), row_length=row_length,
            padding=1 - sum(lengths[i] for i in kept) / (row_length * len(rows[0])),
            steps=steps_in(recipe, len(rows[0])), accumulation=forward_passes,
            trainable=sum(p.numel() for p in learner.model.parameters() if p.requires_grad),
            memory_bytes=memory, available_bytes=available_memory(learner.model.device),
        )  # fmt: skip
        train_rows, held_out = (PackedRows(data.samples, part) for part in rows)
        return cls(recipe, options, learner, data, train_rows, held_out, plan)

    def trainer(self, say: Callable[[str], None], steps: int | None = None) -> Any:
        from transformers import PrinterCallback, TrainingArguments

        from decodebench.training.trainer import TwoStreamTrainer

        recipe, options, plan = self.recipe, self.options, self.plan
        device = self.learner.model.device
        arguments = TrainingArguments(
            output_dir=str(options.out / STATE),
            use_cpu=device.type == "cpu",
            bf16=self.learner.low_precision,
            per_device_train_batch_size=recipe.micro_batch,
            gradient_accumulation_steps=plan.accumulation,
            max_steps=steps or plan.steps,
            learning_rate=recipe.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=int(recipe.warmup * plan.steps),
            weight_decay=recipe.weight_decay,
            max_grad_norm=1.0,
            gradient_checkpointing=options.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            seed=recipe.seed,
            save_strategy="no" if steps else "steps",
            save_steps=options.save_steps,
            save_total_limit=2,
            logging_steps=options.log_steps,
            remove_unused_columns=False,
            disable_tqdm=True,
            report_to="none",
            average_tokens_across_devices=True,
            ddp_find_unused_parameters=False,  # the unembedding is used, but outside the model's own forward pass
        )
        trainer = TwoStreamTrainer(
            self.learner, recipe, plan.row_length, args=arguments, train_dataset=self.train_rows,
            callbacks=[Lines(say, plan)],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        return trainer


def processes(device: str) -> Any:
    """The processes of this run, as accelerate's ``PartialState``: one, or what ``torchrun`` started."""
    from accelerate import PartialState

    # the others wait while the first writes responses: longer than the half hour after which they would give up
    return PartialState(cpu=resolve_device(device).type == "cpu", timeout=timedelta(days=7))
