"""The output folder of a training run: what it may hold before, and what is in it until the run is done."""

import json
from pathlib import Path
from typing import Any

from decodebench.errors import UserError
from decodebench.records.files import replace_file
from decodebench.training.recipe import Recipe, changed

RECIPE = "recipe.json"
CARD = "card.json"
STATE = "state"  # Trainer's own checkpoints, kept until the run is done
TRAINER_STATE = "trainer_state.json"  # its name for the last file of each
DISTILLED = "distilled.jsonl"


def check_folder(out: Path, recipe: Recipe) -> None:
    """
    Raises:
        UserError: when the folder holds another run, a finished one, or anything else.
    """
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


def check_data(out: Path, digest: str) -> None:
    """
    Raises:
        UserError: when the run in the folder began with other data.
    """
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


def last_save(out: Path) -> str | None:
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
