"""What makes two runs the same run, and the folder name that says so."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from decodebench.records.files import plain


def identity(config: Mapping[str, Any]) -> str:
    """The SHA-256 of a configuration in canonical JSON: two runs are the same run if theirs are equal."""
    canonical = json.dumps(plain(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def run_name(config: Mapping[str, Any]) -> str:
    """The folder name of a run: readable, and made unique by the first digits of its identity."""
    tau = config["knobs"].get("tau")
    parts = [config["task"], config["method"], *([] if tau is None else [f"tau{tau}"]), f"bs{config['batch_size']}"]
    if "rate" in config:  # of requests that arrive, and what moves τ
        parts += [f"rate{config['rate']}", *([config["policy"]] if config["policy"] else [])]
    readable = "-".join(re.sub(r"[^\w.+]+", "_", str(part)) for part in parts)
    return f"{readable}-{identity(config)[:8]}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted names under which two nested mappings differ."""
    names: list[str] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            names += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            names.append(prefix + name)
    return names
