"""The passes of a run under load, one line each, beside its samples."""

import json
from pathlib import Path
from typing import Any


def passes_file(folder: Path, repeat: int) -> Path:
    """Where the passes of a repeat are."""
    return folder / f"passes-{repeat}.jsonl"


def read_passes(folder: Path, repeat: int) -> list[dict[str, Any]]:
    """The passes of a repeat, without a last line that was cut short; none where there is no file.

    A line has ``t`` (seconds from the beginning of the load to the end of the pass), ``seconds``, ``prefill``,
    ``rows``, ``waiting`` (requests without a row), ``tokens`` and ``tau``: a number where all rows had the same, else a
    list with one for each; null for methods that have none.
    """
    path = passes_file(folder, repeat)
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
