"""The two files of a run on disk: how they are written so that a crash cannot tear them, and how they are read."""

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

from decodebench.errors import UserError

SCHEMA = 1
RUN = "run.json"
SAMPLES = "samples.jsonl"
MARKER = ".decodebench"

log = logging.getLogger(__name__)


def plain(value: Any) -> Any:
    """`value` as strict JSON can hold it: arrays and tensors as lists, NaN and infinities as null.

    Raises:
        TypeError: for what has no JSON form.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and torch, scalars included
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in a record")


def to_line(value: Any) -> str:
    """One line of JSON, with its newline."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def replace_file(path: Path, text: str) -> None:
    """Give `path` the content `text` in one step: after a crash it holds either the old content or the new."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to the file and make it durable.

    Raises:
        OSError: the line could not be written whole; the file is as before.
    """
    data = line.encode()
    created = not path.exists()
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
    if created:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where the system lets a folder be synchronised."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def prepare_results(results_dir: Path) -> None:
    """Create the results folder or make sure that it is one of ours, and mark it as such.

    Raises:
        UserError: it cannot be written, or it is somebody else's: not empty, with neither our mark nor a run in it.
    """
    if results_dir.exists() and not results_dir.is_dir():
        raise UserError(f"results folder '{results_dir}' is a file: name a folder")
    try:
        results_dir.mkdir(parents=True, exist_ok=True)
        marked = (results_dir / MARKER).exists()
        if not marked and not _is_ours(results_dir):
            raise UserError(
                f"'{results_dir}' holds other files and no decodebench runs: choose an empty or a new results folder"
            )
        if not marked:
            (results_dir / MARKER).touch()
    except OSError as error:
        raise UserError(f"cannot write to results folder '{results_dir}': {error.strerror}") from None
    if not os.access(results_dir, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to results folder '{results_dir}': Permission denied")


def _is_ours(folder: Path) -> bool:
    runs = [*folder.glob(f"*/{RUN}"), *folder.glob(f"*/*/{RUN}")]
    return bool(runs) or all(path.name.startswith(".") for path in folder.iterdir())


def read_run(folder: Path) -> dict[str, Any]:
    """The content of a run's `run.json`.

    Raises:
        UserError: the folder holds no run, the file is broken, or it comes from a newer decodebench.
    """
    path = folder / RUN
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"'{folder}' is not a run: it has no {RUN}") from None
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from None
    except ValueError:
        raise UserError(f"'{path}' is not valid JSON: delete the run's folder and run it again") from None
    schema = run.get("schema") if isinstance(run, dict) else None
    if not isinstance(schema, int) or not isinstance(run.get("config"), dict):
        raise UserError(f"'{path}' is not a decodebench run")
    if schema > SCHEMA:
        raise UserError(f"'{path}' has schema version {schema}, this decodebench reads up to {SCHEMA}: upgrade it")
    return run


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The samples of a run, in the order of the file; nothing on disk is changed.

    Raises:
        UserError: the file cannot be read, or a line other than the last is broken.
    """
    return parse_samples(folder)[0]


def parse_samples(folder: Path) -> tuple[list[dict[str, Any]], bool]:
    """The samples of a run, and whether its file ends as it should. Raises what `read_samples` does.

    A process that is killed while it appends leaves a last line that was cut short. It is left out with a warning:
    its request counts as not recorded.
    """
    path = folder / SAMPLES
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], True
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from None
    last = lines.pop()
    samples = []
    for number, line in enumerate(lines, 1):
        try:
            samples.append(_parse(line))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"'{path}', line {number} is broken: delete the run's folder and run it again") from None
    if last:
        try:  # nothing but the newline is missing: no beginning of a JSON object is valid JSON by itself
            samples.append(_parse(last))
        except (ValueError, KeyError, TypeError):
            log.warning("%s: the last line was cut short and is dropped; its request will be run again", path)
    return samples, not last


def _parse(line: bytes) -> dict[str, Any]:
    sample: dict[str, Any] = json.loads(line)
    sample_key(sample)
    return sample


def sample_key(sample: dict[str, Any]) -> tuple[int, str, int, int]:
    """What makes a sample unique in its run, and the order in which samples are stored.

    `idx` tells apart several requests for one document; most tasks have one and leave it out.
    """
    return sample["repeat"], sample["task"], sample["doc_id"], sample.get("idx", 0)
