"""Configuration and environment of every run: what all share once, and what differs in a table."""

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from decodebench.analysis.load import Run

# Options of `decodebench run` that a configuration holds under the same name.
OPTIONS = (
    *("batch_size", "model", "dtype", "device", "limit", "limit_seed", "batching", "max_new_tokens"),
    *("temperature", "top_p", "top_k", "seed"),
)


def settings_section(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """The section as HTML.

    Args:
        runs: in the order of the comparison.
        labels: of these runs, in the same order.
    """
    facts = [_facts(run) for run in runs]
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    shared = [name for name in names if len({fact.get(name, "–") for fact in facts}) == 1]
    varied = [name for name in names if name not in shared]
    common = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(facts[0][name])}</dd></div>" for name in shared)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ["run", *varied])
    body = "".join(
        f'<tr><th scope="row">{escape(run.name)}</th>'
        + "".join(f"<td>{escape(fact.get(name, '–'))}</td>" for name in varied)
        + "</tr>"
        for run, fact in zip(runs, facts, strict=True)
    )
    commands = "".join(
        f"<li><p>{escape(label)}</p><pre><code>{escape(command(run))}</code></pre></li>"
        for run, label in zip(runs, labels, strict=False)
    )
    return (
        f"<h3>What all runs share</h3><dl class='facts'>{common}</dl>"
        f"<h3>What differs</h3><div class='scroll' tabindex='0'><table class='plain'><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
        f"<details><summary>The command for each run</summary><ol class='commands'>{commands}</ol></details>"
    )


def command(run: Run) -> str:
    """The `decodebench run` that makes this run again (where data come from outside, name them as before)."""
    config = run.config
    words = ["decodebench", "run", "--method", config["method"]]
    for name, value in [*run.knobs.items(), ("tasks", config["task"]), *((name, config.get(name)) for name in OPTIONS)]:
        if value is not None:
            words += ["--" + name.replace("_", "-"), f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, "--repeats", str(run.record["repeats"])])


def _facts(run: Run) -> dict[str, str]:
    """Everything that the record says of how the run was made, by name."""
    record = run.record
    config = {name: value for name, value in run.config.items() if name != "knobs"}
    environment = dict(record.get("environment") or {})
    packages = environment.pop("packages", None) or {}
    times = {name: record.get(name) for name in ("created", "finished", "repeats")}
    found: dict[str, str] = {}
    for part in (config, run.knobs, record.get("task") or {}, environment, packages, times):
        for name, value in _flat(part).items():
            found.setdefault(name.replace("_", " "), value)
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat
