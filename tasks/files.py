"""Documents from the user's files, with every mistake in them named by its place."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets

from decodebench.errors import UserError


def from_file(folder: Path, file: str, columns: Mapping[str, type], key: str | None) -> datasets.Dataset:
    """The documents of a JSON Lines file, or of the "examples" of a JSON file.

    Args:
        file: the path within the folder, which is all that messages show.
        columns: those that each document must have, with their types; others are left out.
        key: column whose values must be unique, if any.

    Raises:
        UserError: no file, no documents, or a line that is no document; with its number.
    """
    path = folder / file
    if not path.is_file():
        raise UserError(f"no {file} in the data folder {folder}: put it there, or leave --data-dir out to use the hub")
    rows: list[dict[str, Any]] = []
    seen: dict[Any, str] = {}
    for place, row in _read(path, file):
        for column, kind in columns.items():
            if column not in row:
                raise UserError(f"{place}: no column '{column}' (there are: {', '.join(row) or 'none'})")
            if not isinstance(row[column], kind):
                raise UserError(f"{place}: column '{column}' is {type(row[column]).__name__}, not {kind.__name__}")
        if key:
            first = seen.setdefault(row[key], place)
            if first is not place:
                raise UserError(f"{place}: the same {key} as {first}; every document counts once")
        rows.append({column: row[column] for column in columns})
    return _table(rows, file)


def from_prompts(path: Path) -> datasets.Dataset:
    """A user's own prompts in Spec-Bench's columns.

    Args:
        path: a JSON Lines file, in which a row has a "prompt", or "turns" of which the first is used, and may have a
            "category".

    Raises:
        UserError: as `from_file`.
    """
    if not path.is_file():
        raise UserError(f"no file {path} with prompts")
    rows = []
    for number, (place, row) in enumerate(_read(path, path.name)):
        turns = [row["prompt"]] if "prompt" in row else row.get("turns")
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise UserError(f"{place}: no text under 'prompt', nor a list of texts under 'turns'")
        rows.append({"question_id": number, "category": str(row.get("category", "prompts")), "turns": turns[:1]})
    return _table(rows, path.name)


def _table(rows: list[dict[str, Any]], file: str) -> datasets.Dataset:
    if not rows:
        raise UserError(f"{file}: no documents in it")
    return datasets.Dataset.from_list(rows)


def _read(path: Path, file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a JSON Lines file, or of the "examples" of a JSON file, each with its place for messages."""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # tolerates a byte-order mark
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text (byte {error.start})") from None
    if path.suffix == ".json":
        content = _parse(text, file)
        if not isinstance(content, dict) or not isinstance(content.get("examples"), list):
            raise UserError(f"{file}: not an object with a list of 'examples'")
        numbered = ((f"{file}, example {number}", row) for number, row in enumerate(content["examples"], 1))
    else:
        # not splitlines: U+2028 and the like may stand inside a JSON string
        lines = enumerate(text.split("\n"), 1)
        numbered = ((at := f"{file}, line {number}", _parse(line, at)) for number, line in lines if line.strip())
    for place, row in numbered:
        if not isinstance(row, dict):
            raise UserError(f"{place}: not a JSON object")
        yield place, row


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{place}: broken JSON ({error})") from None
