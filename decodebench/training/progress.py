"""One line of progress per few steps."""

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from decodebench.training.plan import Plan


class Lines(TrainerCallback):
    """Says, at every log line of the trainer, how far it is, how well it does and how long it will take.

    Args:
        say: takes a line.
        plan: of the run.
    """

    def __init__(self, say: Callable[[str], None], plan: Plan) -> None:
        self.say, self.plan = say, plan
        self.begun, self.first = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begun, self.first = time.monotonic(), state.global_step
        if self.first and state.is_world_process_zero:
            self.say(f"going on from step {self.first}")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        done, seconds = state.global_step - self.first, time.monotonic() - self.begun
        left = (state.max_steps - state.global_step) * seconds / max(done, 1)
        per_step = self.plan.response_tokens / max(self.plan.rows, 1) * (
            args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        )  # fmt: skip
        losses = {name.removesuffix("_loss"): value for name, value in logs.items() if name.endswith("_loss")}
        rates = [f"{logs[f'{name}_accuracy']:.2f}" for name in losses]
        if ahead := [f"{logs[name]:.2f}" for name in sorted(logs, key=_offset) if _offset(name)]:
            rates[-1] = " ".join(ahead)
        shown = [f"{name}{'' if i else ' loss'} {value:.3f}" for i, (name, value) in enumerate(losses.items())]
        parts = [
            f"step {state.global_step}/{state.max_steps}", *shown, f"accuracy {' → '.join(rates)}",
            f"{per_step * done / seconds:.0f} tokens/s", f"{duration(left)} left",
        ]  # fmt: skip
        self.say(" · ".join(parts))


def _offset(name: str) -> int:
    """2 for ``accuracy_2`` (the second token ahead), 0 for what is no such figure."""
    head, _, tail = name.partition("_")
    return int(tail) if head == "accuracy" and tail.isdecimal() else 0


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
