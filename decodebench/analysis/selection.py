"""Which runs are looked at, in which order, and which of them one would choose."""

import json
import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodebench.analysis.load import Run
from decodebench.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

COMPARE = {
    "=": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
LESS_IS_BETTER = ("latency", "ttft", "peak_memory", "p_value", "failed")


def select_where(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """The runs that meet all conditions on their settings.

    Args:
        runs: what to choose from.
        conditions: such as "cache=block,ragged" (any of these), "batch_size>=4" or "tau!=1". A run whose method has no
            such setting stays: what is said of τ is not said of the baseline.

    Raises:
        UserError: a condition cannot be read, no run has the setting, or no run is left.
    """
    kept = list(runs)
    known = {name for run in runs for name in _settings(run)}
    for condition in conditions:
        if not (parts := re.fullmatch(r"\s*([\w-]+)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*", condition)):
            raise UserError(f"--where '{condition}': write NAME=VALUE, or != >= <= > < in place of =")
        name, sign, text = parts[1].replace("-", "_"), parts[2], parts[3]
        if name not in known:
            raise unknown("setting", name, known)
        values = [_value(part) for part in text.split(",")]
        kept = [run for run in kept if name not in _settings(run) or _meets(_settings(run)[name], sign, values)]
    if not kept:
        raise UserError(f"no run with {' and '.join(conditions)}")
    return kept


def _settings(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.config.items() if name != "knobs"} | run.knobs


def _value(text: str) -> Any:
    try:
        return json.loads(text.strip().lower())
    except ValueError:
        return text.strip()


def _meets(value: Any, sign: str, wanted: Sequence[Any]) -> bool:
    if sign == "!=":
        return not _meets(value, "=", wanted)
    try:
        return any(COMPARE[sign](value, one) for one in wanted)
    except TypeError:  # a number beside a word
        return False


def sort_rows(frame: "pd.DataFrame", column: str) -> "pd.DataFrame":
    """The comparison with the rows of each task and batch size ordered by a column, the best first.

    Raises:
        UserError: there is no such column.
    """
    import pandas as pd

    name = column.replace("-", "_")
    if name not in frame.columns:
        raise unknown("column", name, frame.columns)
    groups = frame[["task", "batch_size"]].apply(tuple, axis=1)
    place = groups.map({group: number for number, group in enumerate(dict.fromkeys(groups))})
    rising = not pd.api.types.is_numeric_dtype(frame[name]) or name.startswith(LESS_IS_BETTER)
    ordered = frame.assign(_place=place).sort_values(["_place", name], ascending=[True, rising], kind="stable")
    return ordered.drop(columns="_place").reset_index(drop=True)


def pareto(frame: "pd.DataFrame", speed: str = "tokens_per_second", quality: str = "score") -> "pd.Series[bool]":
    """For each row whether it is in the Pareto set of its task and batch size.

    It is unless another one is at least as good in both speed and quality, and better in one. Rows that lack either
    are not.
    """
    import pandas as pd

    chosen = pd.Series(False, index=frame.index, dtype=bool)
    known = frame[frame[speed].notna() & frame[quality].notna()]
    for _, group in known.groupby(["task", "batch_size"]):
        fast, good = (group[name].to_numpy(dtype=float) for name in (speed, quality))
        for index, x, y in zip(group.index, fast, good, strict=True):
            chosen[index] = not ((fast >= x) & (good >= y) & ((fast > x) | (good > y))).any()
    return chosen


def choose_best(frame: "pd.DataFrame", most_loss: float) -> "tuple[pd.DataFrame, list[str]]":
    """Per task and batch size the fastest setting that loses little of the baseline's score, and the Pareto set.

    Args:
        frame: from `compare_runs`, with differences.
        most_loss: how many points (percent) of the baseline's score may be lost.

    Returns:
        The rows of the baselines, of the Pareto sets and of the choices; and a sentence for each task and batch size.

    Raises:
        UserError: no run has a score.
    """
    if frame["score"].isna().all():
        raise UserError("--best: no run has a score to choose by")
    kept, sentences = set(frame.index[frame["pareto"] | frame["is_baseline"].astype(bool)]), []
    for (task, batch_size), group in frame.groupby(["task", "batch_size"], sort=False):
        lost = group["difference"].astype(float).where(~group["is_baseline"].astype(bool), 0.0)
        fit = group[(lost >= -most_loss / 100 - 1e-9) & group["tokens_per_second"].notna()]
        if fit.empty:
            sentences.append(f"{task} · batch {batch_size}: no setting is known to lose at most {most_loss:g} points")
            continue
        fastest = fit["tokens_per_second"].astype(float).to_numpy().argmax()
        best = fit.iloc[int(fastest)]
        kept.add(best.name)
        sentences.append(f"{task} · batch {batch_size}: {best['label']}{_why(best, most_loss)}")
    return frame.loc[sorted(kept)], sentences


def _why(best: "pd.Series[Any]", most_loss: float) -> str:
    if best["is_baseline"]:
        return f": nothing faster loses at most {most_loss:g} points"
    low, high = 100 * best["difference_low"], 100 * best["difference_high"]
    text = f", {best['speedup']:.2f}×, {100 * best['difference']:+.1f} points [{low:+.1f}, {high:+.1f}]"
    if low < -most_loss:
        text += f"; the data do not rule out that it loses more than {most_loss:g}"
    return text.replace("-", "−")
