"""A training run from recipe to checkpoint: read, pack, train, measure, save; resumable at every save."""

import itertools
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from decodebench.errors import UserError
from decodebench.memory import available_memory
from decodebench.models.devices import resolve_device
from decodebench.records.files import replace_file
from decodebench.training import diffusion
from decodebench.training.conversations import read_conversations
from decodebench.training.layout import laid_out_length
from decodebench.training.learner import Learner, prepare, save
from decodebench.training.packing import pack
from decodebench.training.plan import Plan, accumulation, memory_estimate, steps_in
from decodebench.training.progress import Lines, duration
from decodebench.training.recipe import Recipe, changed
from decodebench.training.samples import Tokenized, tokenize

RECIPE = "recipe.json"
CARD = "card.json"
STATE = "state"  # Trainer's own checkpoints, kept until the run is done
TRAINER_STATE = "trainer_state.json"  # its name for the last file of each
DISTIL_BATCH = 16
DISTILLED = "distilled.jsonl"
DRY_STEPS = 3
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


def train(recipe: Recipe, options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a recipe to its end, from the last save on where there is one.

    Returns:
        The card: recipe, data, versions, hardware, final figures.

    Raises:
        UserError: for mistakes in recipe, data or output folder; nothing is written then.
    """
    check(recipe, options)
    distil(recipe, options, say)
    work = _Work.of(recipe, options)
    work.plan.check_memory(not recipe.trains_heads)
    _check_data(options.out, work.data.digest)
    here = processes(options.device)
    main = here.is_main_process
    if main:
        begin_folder(options.out, recipe.as_dict() | {"data_sha256": work.data.digest})
        # what `accelerate launch --cpu` sets where it was asked for several; without MPI it starts one all the same
        if here.num_processes == 1 and {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys():
            say("accelerate has started one process; several on CPU are started by torchrun --nproc_per_node N")
        for line in describe(work.plan):
            say(line)
    trainer = work.trainer(say)
    begun = time.monotonic()
    trainer.train_from(_last_save(options.out))
    seconds = time.monotonic() - begun
    if not main:
        return {}
    figures = trainer.measure(work.held_out)
    trainer.state.save_to_json(str(options.out / TRAINER_STATE))
    save(work.learner, recipe, options.out, options.merge)
    card = _card(work, figures, seconds, trainer)
    write_json(options.out / CARD, card)
    shutil.rmtree(options.out / STATE, ignore_errors=True)
    return card


def dry(recipe: Recipe, options: Options) -> list[str]:
    """The plan of a run, with a time estimate from a few real steps; nothing is written.

    Raises:
        UserError: like :func:`train`; prompts for self-distillation are not answered, and cannot be planned for.
    """
    check(recipe, options)
    if recipe.self_distill is not None:
        raise UserError("--dry-run: the responses of --self-distill are not written yet: leave it away")
    work = _Work.of(recipe, options)
    lines = describe(work.plan)
    work.plan.check_memory(not recipe.trains_heads)
    with tempfile.TemporaryDirectory() as folder:
        probe = replace(work, options=replace(options, out=Path(folder), log_steps=1))
        times = [time.monotonic()]
        trainer = probe.trainer(lambda line: times.append(time.monotonic()), steps=DRY_STEPS)
        trainer.train()
    step = statistics.median(b - a for a, b in itertools.pairwise(times[1:]))  # the first one warms up
    return [*lines, f"{step:.1f} s per step, {duration(step * work.plan.steps)} in all"]


def distil(recipe: Recipe, options: Options, say: Callable[[str], None]) -> None:
    """Let the model answer the recipe's prompts, as far as it has not yet; the first process does it for all."""
    if recipe.self_distill is None:
        return
    from decodebench.decoding import GREEDY
    from decodebench.models import load_model
    from decodebench.training.distill import Distilled, self_distill

    prompts = read_conversations(recipe.self_distill, options.data_dir, recipe.seed, responses=False)
    here = processes(options.device)
    # mistakes are to be found now, not after hours of answers
    read_conversations(recipe.data, options.data_dir, recipe.seed)
    accumulation(recipe, here.num_processes)
    with here.main_process_first():
        if here.is_main_process:
            if not (options.out / RECIPE).is_file():
                begin_folder(options.out, recipe.as_dict())
            begun = time.monotonic()

            def tell(so_far: Distilled) -> None:
                if so_far.done % DISTIL_BATCH == 0 or so_far.done == so_far.total:
                    speed = so_far.tokens / (time.monotonic() - begun)
                    say(f"self-distillation: {so_far.done}/{so_far.total} responses · {speed:.0f} tokens/s")

            model = load_model(recipe.model, dtype=options.dtype, device=options.device)
            self_distill(
                model, prompts, options.out / DISTILLED, batch_size=DISTIL_BATCH,
                max_new_tokens=recipe.distill_tokens, sampling=GREEDY, on_progress=tell,
            )  # fmt: skip


def processes(device: str) -> Any:
    """The processes of this run, as accelerate's ``PartialState``: one, or what ``torchrun`` started."""
    from accelerate import PartialState

    # the others wait while the first writes responses: longer than the half hour after which they would give up
    return PartialState(cpu=resolve_device(device).type == "cpu", timeout=timedelta(days=7))


def check(recipe: Recipe, options: Options) -> None:
    """
    Raises:
        UserError: when the folder holds another run, a finished one, or anything else, or options contradict.
    """
    if recipe.gated and options.merge:
        raise UserError("--gated trains an adapter that acts on masks only, and cannot be merged: leave --merge away")
    out = options.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / RECIPE).is_file():
        raise UserError(f"--out {out}: it exists and holds no training run: choose another folder")
    try:
        before = json.loads((out / RECIPE).read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise UserError(f"{out / RECIPE} is not valid JSON ({error}): choose another --out") from error
    if differing := changed(before, recipe.as_dict()):
        raise UserError(f"--out {out}: it holds a run with other options ({', '.join(differing)}): choose another")
    if (out / CARD).is_file():
        raise UserError(f"--out {out}: this run is done: choose another folder to train again")


def _check_data(out: Path, digest: str) -> None:
    path = out / RECIPE
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if before.get("data_sha256", digest) != digest:
        raise UserError(f"--out {out}: the data have changed since the run in it began: choose another folder")


def begin_folder(out: Path, content: dict[str, Any]) -> None:
    """Make the folder and say in it what it holds.

    Raises:
        UserError: when it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / RECIPE, content)
    except OSError as error:
        raise UserError(f"cannot write to --out {out}: {error.strerror}") from None


@dataclass
class _Work:
    """Everything a run needs, ready."""

    recipe: Recipe
    options: Options
    learner: Learner
    data: Tokenized
    train_rows: Any
    held_out: Any
    plan: Plan

    @classmethod
    def of(cls, recipe: Recipe, options: Options) -> "_Work":
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


def describe(plan: Plan) -> list[str]:
    """The plan in a few lines."""
    left_out = "".join(f", {n} {what}" for n, what in ((plan.dropped, "dropped"), (plan.cut, "cut")) if n)
    gib = 1 << 30
    return [
        f"{plan.samples} samples, {plan.held_out} held out{left_out}; {plan.response_tokens} response tokens",
        f"{plan.rows} rows of {plan.row_length} slots ({plan.padding:.0%} padding), {plan.steps} steps of "
        f"{plan.accumulation} passes",
        f"{plan.trainable / 1e6:.1f}M trained weights, about {plan.memory_bytes / gib:.1f} GiB of memory "
        f"({plan.available_bytes / gib:.1f} free)",
    ]


def _card(work: _Work, figures: dict[str, float], seconds: float, trainer: Any) -> dict[str, Any]:
    from decodebench.evaluation.environment import environment

    recipe, learner = work.recipe, work.learner
    plan = {k: v for k, v in asdict(work.plan).items() if k not in ("memory_bytes", "available_bytes")}
    own: dict[str, Any] = {}  # what decoding has to know
    if learner.mask_id >= 0:
        own["mask_token"] = str(learner.tokenizer.convert_ids_to_tokens(learner.mask_id))
    match recipe.objective:
        case "mars":
            own |= {"block_size": recipe.block_size, "gated": recipe.gated}
        case "block-diffusion":
            own |= {"diffusion_block_size": recipe.block_size, "diffusion_context": recipe.context}
        case "draft":
            own |= {"exit_layer": recipe.exit_layer}
    return {
        "base": learner.base,
        "recipe": recipe.as_dict(),
        **own,
        "data": {"sha256": work.data.digest, "samples": work.plan.samples},
        "plan": plan,
        "held_out": {name: round(value, 4) for name, value in figures.items()},
        "steps": trainer.state.global_step,
        "seconds": round(seconds),
        "environment": environment(learner.model.device),
    }


def _last_save(out: Path) -> str | None:
    """The newest complete save: the trainer's state is what is written last, so one that a kill cut short has none."""
    saves = {int(path.name.rpartition("-")[2]): path for path in (out / STATE).glob("checkpoint-*")}
    whole = [step for step, path in saves.items() if _is_json(path / TRAINER_STATE)]
    return str(saves[max(whole)]) if whole else None


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    replace_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
