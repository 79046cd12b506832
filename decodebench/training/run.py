"""A training run from recipe to checkpoint: read, pack, train, measure, save; resumable at every save."""

import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from decodebench.errors import UserError
from decodebench.training.conversations import read_conversations
from decodebench.training.folder import (
    CARD,
    DISTILLED,
    RECIPE,
    STATE,
    TRAINER_STATE,
    begin_folder,
    check_data,
    check_folder,
    last_save,
    write_json,
)
from decodebench.training.learner import save
from decodebench.training.plan import accumulation
from decodebench.training.progress import duration
from decodebench.training.recipe import Recipe
from decodebench.training.work import Options, Work, processes

DISTIL_BATCH = 16
DRY_STEPS = 3


def train(recipe: Recipe, options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a recipe to its end, from the last save on where there is one.

    Returns:
        The card: recipe, data, versions, hardware, final figures.

    Raises:
        UserError: for mistakes in recipe, data or output folder; nothing is written then.
    """
    check(recipe, options)
    distil(recipe, options, say)
    work = Work.of(recipe, options)
    work.plan.check_memory(not recipe.trains_heads)
    check_data(options.out, work.data.digest)
    here = processes(options.device)
    main = here.is_main_process
    if main:
        begin_folder(options.out, recipe.as_dict() | {"data_sha256": work.data.digest})
        # what `accelerate launch --cpu` sets where it was asked for several; without MPI it starts one all the same
        if here.num_processes == 1 and {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys():
            say("accelerate has started one process; several on CPU are started by torchrun --nproc_per_node N")
        for line in work.plan.describe():
            say(line)
    trainer = work.trainer(say)
    begun = time.monotonic()
    trainer.train_from(last_save(options.out))
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
    work = Work.of(recipe, options)
    lines = work.plan.describe()
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


def check(recipe: Recipe, options: Options) -> None:
    """
    Raises:
        UserError: when the folder holds another run, a finished one, or anything else, or options contradict.
    """
    if recipe.gated and options.merge:
        raise UserError("--gated trains an adapter that acts on masks only, and cannot be merged: leave --merge away")
    check_folder(options.out, recipe)


def _card(work: Work, figures: dict[str, float], seconds: float, trainer: Any) -> dict[str, Any]:
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
