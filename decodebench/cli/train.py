"""`decodebench train`: checkpoints for MARS, and what the other methods need."""

import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from decodebench.cli.options import DataDir, Device

if TYPE_CHECKING:
    from decodebench.training.recipe import Objective

train_app = typer.Typer(help="Train a checkpoint, or what a method needs beside it.", no_args_is_help=True)

Model = Annotated[str, typer.Option(help="What to start from: a built-in name, a folder, or a hub id.")]
Data = Annotated[
    str,
    typer.Option(help="A comma list of JSONL files (messages, or prompt and response), built-in sources with a count "
                      "(stepmath:4000, gsm8k-train, mbpp-train), and hub data sets."),
]  # fmt: skip
Out = Annotated[Path, typer.Option(help="Folder for the result; the same command goes on in it after a kill.")]
SelfDistill = Annotated[
    str | None, typer.Option(help="Prompts (named like --data) to which the model itself writes the responses first.")
]
DistillTokens = Annotated[int, typer.Option(help="Most tokens of such a response.")]
BlockSize = Annotated[int, typer.Option(help="Tokens to learn to predict per pass (B).")]
ArWeight = Annotated[float, typer.Option(help="Weight α of the autoregressive loss beside the masked one.")]
MaskToken = Annotated[str | None, typer.Option(help="The mask, as text or id; default: the tokenizer's own.")]
Gated = Annotated[
    bool, typer.Option("--gated", help="The adapter acts on masks only: one token per pass stays the model's, exactly.")
]
Full = Annotated[bool, typer.Option("--full", help="Train all weights instead of a LoRA adapter.")]
Merge = Annotated[bool, typer.Option("--merge", help="Write a whole checkpoint instead of an adapter.")]
Heads = Annotated[int, typer.Option(help="Tokens to predict, beside the next one.")]
Layers = Annotated[int, typer.Option(help="Residual blocks of each head.")]
ExitLayer = Annotated[int, typer.Option(help="How many of the model's first layers write the drafts.")]
DiffusionBlock = Annotated[int, typer.Option(help="Positions that are filled together (B).")]
Context = Annotated[
    Literal["causal", "block"],
    typer.Option(help="How finished text sees itself: backwards, or all of its own block (as in BD3LM)."),
]
LoraRank = Annotated[int, typer.Option(help="Rank of the adapter.")]
LearningRate = Annotated[
    float | None, typer.Option(help="Peak; it falls along a cosine.", show_default="5e-4, with --full 5e-6")
]
HeadsRate = Annotated[float, typer.Option(help="Peak; it falls along a cosine.")]
Epochs = Annotated[float, typer.Option(help="Passes over the data.")]
MaxSteps = Annotated[int, typer.Option(help="Optimizer steps, instead of --epochs.", show_default=False)]
BatchSize = Annotated[int, typer.Option(help="Packed rows per optimizer step, over all processes.")]
MicroBatch = Annotated[int, typer.Option(help="Packed rows per forward pass; the rest is accumulated.")]
MaxLength = Annotated[int, typer.Option(help="Most tokens of a sample.")]
RowLength = Annotated[int, typer.Option(help="Slots of a packed row, at least.")]
OverLong = Annotated[Literal["drop", "cut"], typer.Option(help="What happens to longer samples.")]
EvalSamples = Annotated[int, typer.Option(help="Samples held out to measure the result on.")]
WarmUp = Annotated[float, typer.Option(help="Share of the steps in which the learning rate rises.")]
WeightDecay = Annotated[float, typer.Option(help="Of AdamW.")]
Seed = Annotated[int, typer.Option(help="Of adapter, packing and order.")]
Dtype = Annotated[str, typer.Option(help="auto, float32 or bfloat16.")]
Checkpointing = Annotated[
    bool, typer.Option("--gradient-checkpointing", help="Less memory, a third more time: activations computed twice.")
]
SaveSteps = Annotated[int, typer.Option(help="Steps between two saves.")]
LogSteps = Annotated[int, typer.Option(help="Steps between two lines of progress.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what the run would take, and train nothing.")]


def mars(
    *,
    data: Data,
    out: Out,
    model: Model = "smollm2-135m",
    self_distill: SelfDistill = None,
    distill_tokens: DistillTokens = 256,
    block_size: BlockSize = 4,
    ar_weight: ArWeight = 1.0,
    mask_token: MaskToken = None,
    gated: Gated = False,
    full: Full = False,
    merge: Merge = False,
    lora_rank: LoraRank = 16,
    learning_rate: LearningRate = None,
    epochs: Epochs = 1.0,
    max_steps: MaxSteps = 0,
    batch_size: BatchSize = 4,
    micro_batch: MicroBatch = 1,
    max_length: MaxLength = 512,
    row_length: RowLength = 2048,
    over_long: OverLong = "drop",
    eval_samples: EvalSamples = 64,
    warmup: WarmUp = 0.03,
    weight_decay: WeightDecay = 0.0,
    seed: Seed = 0,
    data_dir: DataDir = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    gradient_checkpointing: Checkpointing = False,
    save_steps: SaveSteps = 50,
    log_steps: LogSteps = 10,
    dry_run: DryRun = False,
) -> None:
    """Teach a model to predict several masked tokens per pass (arXiv 2604.07023)."""
    _train("mars", **locals())


def ar_sft(**values: Any) -> None:
    """Fine-tune a model as it is: stage 1 of MARS, and its control."""
    _train("ar-sft", **values)


def medusa(**values: Any) -> None:
    """Train heads that predict further tokens; the model stays as it is (Medusa-1, arXiv 2401.10774)."""
    _train("medusa", **values)


def draft(**values: Any) -> None:
    """Train a head with which a model's first layers draft for all of it; the model stays as it is."""
    _train("draft", **values)


def block_diffusion(**values: Any) -> None:
    """Teach a model to fill in blocks of masks in any order (BD3LM, arXiv 2503.09573)."""
    _train("block-diffusion", **values)


def _like_mars(without: set[str], **own: tuple[Any, Any]) -> inspect.Signature:
    """The options of ``mars`` less some, and a command's own, each with its type and default."""
    kept = [p for p in inspect.signature(mars).parameters.values() if p.name not in without | own.keys()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in own.items()
    ]
    place = [parameter.name for parameter in kept].index("distill_tokens") + 1
    return inspect.Signature([*kept[:place], *added, *kept[place:]])


MASKS = {"block_size", "ar_weight", "mask_token", "gated"}
WEIGHTS = {"full", "merge", "lora_rank", "gradient_checkpointing"}
SIGNATURES: dict[Callable[..., None], inspect.Signature] = {
    mars: inspect.signature(mars),
    ar_sft: _like_mars(MASKS),
    medusa: _like_mars(MASKS | WEIGHTS, heads=(Heads, 4), layers=(Layers, 1), learning_rate=(HeadsRate, 1e-3)),
    draft: _like_mars(MASKS | WEIGHTS, exit_layer=(ExitLayer, 6), learning_rate=(HeadsRate, 1e-3)),
    block_diffusion: _like_mars({"ar_weight", "gated"}, block_size=(DiffusionBlock, 4), context=(Context, "causal")),
}
for command, signature in SIGNATURES.items():
    command.__signature__ = signature  # type: ignore[attr-defined]
    train_app.command(command.__name__.replace("_", "-"))(command)


def _train(objective: "Objective", dry_run: bool, **values: Any) -> None:
    from decodebench.training.recipe import Recipe
    from decodebench.training.run import dry, train
    from decodebench.training.work import Options

    # what libraries say of each other's deprecated names is nothing that the user could change
    warnings.simplefilter("ignore", FutureWarning)
    if values["learning_rate"] is None:
        values["learning_rate"] = 5e-6 if values["full"] else 5e-4
    options = {name: values.pop(name) for name in Options.__dataclass_fields__ if name in values}
    recipe = Recipe(objective, **values)
    if dry_run:
        for line in dry(recipe, Options(**options)):
            print(line)
        return
    card = train(recipe, Options(**options), lambda line: print(line, file=sys.stderr, flush=True))
    for name, value in card.get("held_out", {}).items():
        print(f"{name} {value}")
