"""Self-distillation: the model writes the responses that it then learns from, and so keeps its own distribution."""

import json
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from decodebench.decoding import Generation, Request, Sampling
from decodebench.decoding.registry import method
from decodebench.errors import UserError
from decodebench.evaluation.environment import fingerprint
from decodebench.models import LoadedModel
from decodebench.records.files import append_line, to_line
from decodebench.records.lock import acquire
from decodebench.training.conversations import Conversation, read_file
from decodebench.training.samples import prompt_ids

Prompt = tuple[dict[str, str], ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Distilled:
    """How far it is.

    Attributes:
        done: prompts that are dealt with, those of earlier sessions included.
        total: prompts, each counted once.
        empty: prompts of this session to which the model said nothing, or which are too long for it; they are in no
            file, and asked again in the next session.
        tokens: written in this session.
    """

    done: int
    total: int
    empty: int
    tokens: int


def self_distill(
    model: LoadedModel,
    conversations: list[Conversation],
    out: Path,
    *,
    batch_size: int,
    max_new_tokens: int,
    sampling: Sampling,
    on_progress: Callable[[Distilled], None],
) -> Path:
    """Let a model answer prompts autoregressively, and write the answers down as conversations.

    Every answer is a line of `out` as soon as it is finished. The order is that of finishing; the set is the same for
    the same prompts and settings (in bfloat16 up to ties, which depend on the batch). A response that the length limit
    cut off is marked (``"finish": "length"``). What is in the file already is not asked again, so that a killed
    session goes on where it stopped. Beside the file stands ``<out>.settings.json``, which says what it was made with.

    Args:
        conversations: what they hold of responses is not used; the same prompt is asked once.
        out: a JSON Lines file, new or of an earlier session with the same model and settings.
        batch_size: the most prompts that run at a time; it does not matter for what is written.
        max_new_tokens: per response.
        sampling: each prompt gets a random stream of its own, drawn from the seed.
        on_progress: called at the start and after every response.

    Returns:
        `out`.

    Raises:
        UserError: the file is not ours, was made with another model or other settings, is being written by another
            process, or cannot be written; or no prompt got an answer.
    """
    settings = {
        "model": model.name,
        "weights": fingerprint(model.model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_new_tokens": max_new_tokens,
        **asdict(sampling),
    }
    wanted = {_key(one.prompt): one for one in conversations}
    with _claimed(out, settings):
        known = {_key(one.prompt) for one in _written(out)}
        missing = [one for key, one in wanted.items() if key not in known]
        state = Distilled(len(wanted) - len(missing), len(wanted), 0, 0)
        on_progress(state)

        def record(index: int, generation: Generation) -> None:
            nonlocal state
            empty = not generation.text.strip()
            if not empty:
                append_line(out, to_line(_row(missing[index].prompt, generation)))
            state = replace(
                state,
                done=state.done + 1,
                empty=state.empty + empty,
                tokens=state.tokens + len(generation.tokens),
            )
            on_progress(state)

        requests = [
            Request(prompt, max_new_tokens, sampling=replace(sampling, seed=_stream(sampling.seed, one.prompt)))
            for one, prompt in zip(missing, prompt_ids(missing, model.tokenizer), strict=True)
        ]
        if requests:
            method("ar")().generator(model, batch_size).generate(requests, on_finish=record)
        if not out.exists():
            raise UserError(f"{model.name} has no answer to any of the {len(wanted)} prompts: nothing to learn")
    return out


def _key(prompt: Prompt) -> str:
    return json.dumps([[message["role"], message["content"]] for message in prompt])


def _stream(seed: int, prompt: Prompt) -> int:
    return (seed << 32) + zlib.crc32(_key(prompt).encode())


def _row(prompt: Prompt, generation: Generation) -> dict[str, Any]:
    answer = {"role": "assistant", "content": generation.text}
    cut = {"finish": "length"} if generation.finish == "length" else {}
    return {"messages": [*prompt, answer], **cut}


def _claimed(out: Path, settings: dict[str, Any]) -> IO[str]:
    """The file of settings beside `out`, locked until it is closed, after it was found to say the same."""
    path = out.with_name(f"{out.name}.settings.json")
    written = out.exists() and out.stat().st_size > 0
    if written and not path.exists():
        raise UserError(f"{out} was not written by self-distillation: name another file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = open(acquire(path), "r+", encoding="utf-8")  # noqa: SIM115
    except BlockingIOError:
        raise UserError(f"{out} is being written by another process: wait for it, or name another file") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    try:
        _agree(file, out, settings, written)
    except BaseException:
        file.close()
        raise
    return file


def _agree(file: IO[str], out: Path, settings: dict[str, Any], written: bool) -> None:
    if not written:  # whatever the settings were, nothing was made with them
        file.truncate(0)
        json.dump(settings, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
        return
    try:
        before = json.load(file)
    except ValueError:
        before = {}
    for name, value in settings.items():
        if before.get(name) != value:
            raise UserError(
                f"{out} was made with {name} {before.get(name)}, not {value}: name another file, or delete it"
            )


def _written(out: Path) -> list[Conversation]:
    """What is in the file, after a last line that a killed session left unfinished was taken off."""
    content = out.read_bytes() if out.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        log.warning("%s: the last line was cut short and is dropped; its prompt will be asked again", out)
        os.truncate(out, whole)
    return read_file(out) if whole else []
