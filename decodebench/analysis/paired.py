"""What two runs say of each other, request by request: speed-up, difference in score, likeness of the outputs."""

import logging
from collections.abc import Sequence
from functools import reduce
from statistics import median
from typing import TYPE_CHECKING, Any

from decodebench.analysis.load import Run
from decodebench.analysis.statistics import Noise, bootstrap_speedup, paired_difference, pooled_noise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = tuple[NDArray[np.int64], NDArray[np.int64]]  # positions in the samples of a run, and in its baseline's

log = logging.getLogger(__name__)


def speedup(run: Run, base: Run) -> dict[str, Any]:
    """The speed-up in the repeats that count, from what the runs recorded of them; nothing where they lack times."""
    counted = _counted(run, base)
    if not counted:
        return {}
    for one in dict.fromkeys((run, base)):
        if any(one.aggregates["repeats"][repeat]["interrupted"] for repeat in counted):
            log.warning("'%s' was interrupted while it was timed: its speed is approximate", one.name)
    ratios = _ratios(run, base)
    return {"speedup": median(ratios), "speedup_min": min(ratios), "speedup_max": max(ratios)}


def machine(run: Run) -> str:
    """What speeds vary with from repeat to repeat, in one line."""
    environment = run.record.get("environment") or {}
    return " ".join(str(environment.get(name)) for name in ("cpu", "gpu", "threads"))


def noise_by_machine(runs: Sequence[Run], bases: Sequence[Run | None]) -> dict[str, Noise | None]:
    """The noise between repeats on each machine, from all runs that were made there and their baselines."""
    found: dict[str, dict[Run, list[list[float]]]] = {}
    for run, base in zip(runs, bases, strict=True):
        if base is not None and base is not run:
            found.setdefault(machine(run), {}).setdefault(base, []).append(_ratios(run, base))
    return {name: pooled_noise(list(groups.values())) for name, groups in found.items()}


def _ratios(run: Run, base: Run) -> list[float]:
    """Speed ÷ baseline's speed, in each of the interleaved repeats that count."""
    speeds = [[repeat["tokens_per_second"] for repeat in one.aggregates["repeats"]] for one in (run, base)]
    return [speeds[0][repeat] / speeds[1][repeat] for repeat in _counted(run, base)]


def compare_requests(run: Run, base: Run, noise: Noise | None) -> dict[str, Any]:
    """What comes from comparing two runs request by request; nothing where they have none in common."""
    common = _in_common(run, base)
    mine = common[0][0] if common else ()
    if not len(mine):
        log.warning("'%s' and its baseline '%s' have no request in common", run.name, base.name)
        return {}
    if len(mine) < max(int((one.samples["repeat"] == 0).sum()) for one in (run, base)):
        log.warning("'%s' and its baseline '%s' have only %d requests in common", run.name, base.name, len(mine))
    return {
        **_likeness(run, base, common[0]),
        **_difference(run, base, common[0]),
        **_ar_difference(run, base, common[0]),
        **_speedup_interval(run, base, common, noise),
    }


def agreement(outputs: Sequence[Any], others: Sequence[Any]) -> tuple[int, int, list[int]]:
    """How far pairs of outputs are the same.

    Args:
        outputs, others: the tokens of each output, as arrays, in the same order.

    Returns:
        Tokens that are equal at the same position; tokens of the longer output of each pair, in sum; and for each pair
        that differs the position (from 1) of its first difference, where an output that ends early differs, too.
    """
    import numpy as np

    lengths = np.array([[len(output) for output in side] for side in (outputs, others)])
    shared = lengths.min(0)
    mine, theirs = (
        np.concatenate([one[:n] for one, n in zip(side, shared, strict=True)]) for side in (outputs, others)
    )
    ends = shared.cumsum()
    starts = ends - shared
    unequal = np.append(np.flatnonzero(mine != theirs), len(mine))  # all outputs in one row, and an end
    places = unequal[np.searchsorted(unequal, starts)]
    first = np.where(places < ends, places - starts, shared) + 1
    differ = (places < ends) | (lengths[0] != lengths[1])
    return int(shared.sum()) - (len(unequal) - 1), int(lengths.max(0).sum()), first[differ].tolist()


def _in_common(run: Run, base: Run) -> "dict[int, Rows]":
    """For each repeat that both runs have, where the requests are that both have, in the same order."""
    import numpy as np

    columns = [[one.samples[name].to_numpy() for name in ("repeat", "request")] for one in (run, base)]
    common: dict[int, Rows] = {}
    for repeat in range(min(one.record["repeats"] for one in (run, base))):
        places = [np.flatnonzero(repeats == repeat) for repeats, _ in columns]
        names = [requests[place] for place, (_, requests) in zip(places, columns, strict=True)]
        _, mine, theirs = np.intersect1d(names[0], names[1], return_indices=True)
        common[repeat] = places[0][mine], places[1][theirs]
    return common


def _likeness(run: Run, base: Run, rows: "Rows") -> dict[str, Any]:
    import numpy as np

    digests = [one.samples["digest"].to_numpy()[its] for one, its in zip((run, base), rows, strict=True)]
    differ = digests[0] != digests[1]
    shares: dict[str, Any] = {"equal_outputs": 1.0 - float(differ.mean()), "equal_tokens": 1.0}
    if differ.any():
        outputs = [one.outputs[its] for one, its in zip((run, base), rows, strict=True)]
        same, longer, first = agreement(*(its[differ] for its in outputs))
        alike = sum(map(len, outputs[0][~differ]))
        shares |= {"equal_tokens": (same + alike) / (longer + alike), "first_difference": float(np.median(first))}
    return shares


def _difference(run: Run, base: Run, rows: "Rows") -> dict[str, Any]:
    import numpy as np

    _, once = np.unique(run.samples["document"].to_numpy()[rows[0]], return_index=True)
    scores = [one.samples["score"].to_numpy()[its][once] for one, its in zip((run, base), rows, strict=True)]
    known = ~np.isnan(scores).any(0)
    if not known.any():
        return {}
    difference = paired_difference(scores[0][known], scores[1][known])
    return {
        "paired": difference.n,
        "difference": difference.value,
        "difference_low": difference.low,
        "difference_high": difference.high,
        "p_value": difference.p_value,
        "significant": difference.significant,
    }


def _ar_difference(run: Run, base: Run, rows: "Rows") -> dict[str, Any]:
    import numpy as np

    values = [one.samples["ar_logprob"].to_numpy()[its] for one, its in zip((run, base), rows, strict=True)]
    known = ~np.isnan(values).any(0)
    if not known.any():
        return {}
    difference = paired_difference(values[0][known], values[1][known])
    names = ("ar_logprob_difference", "ar_logprob_difference_low", "ar_logprob_difference_high")
    return dict(zip(names, (difference.value, difference.low, difference.high), strict=True))


def _counted(run: Run, base: Run) -> list[int]:
    """The repeats in which the speeds of two runs are compared: those that neither was interrupted in, if any."""
    pairs = list(enumerate(zip(run.aggregates["repeats"], base.aggregates["repeats"], strict=False)))
    known = [(index, pair) for index, pair in pairs if all(one["tokens_per_second"] for one in pair)]
    return [index for index, pair in known if not any(one["interrupted"] for one in pair)] or [i for i, _ in known]


def _speedup_interval(run: Run, base: Run, common: "dict[int, Rows]", noise: Noise | None) -> dict[str, Any]:
    """The bootstrap interval of the speed-up, from the requests that both runs have in all repeats that count."""
    import numpy as np

    counted = [repeat for repeat in _counted(run, base) if repeat in common]
    if not counted:
        return {}
    requests = run.samples["request"].to_numpy()
    everywhere = reduce(np.intersect1d, (requests[common[repeat][0]] for repeat in counted))
    arrays = []
    for one, side in ((run, 0), (base, 1)):
        counts, latency = (one.samples[name].to_numpy(dtype=float) for name in ("tokens", "latency"))
        places = np.stack(
            [common[repeat][side][np.isin(requests[common[repeat][0]], everywhere)] for repeat in counted]
        )
        # Requests share a batch, so the engine's time has to be divided among them: each answers for it in proportion
        # to how long it was there. The sums over all requests are then the measured times.
        measured = np.array([one.aggregates["repeats"][repeat]["seconds"] for repeat in counted])
        total = np.array([np.nansum(latency[one.samples["repeat"].to_numpy() == repeat]) for repeat in counted])
        with np.errstate(divide="ignore", invalid="ignore"):
            arrays += [counts[places], latency[places] * (measured / total)[:, None]]
    known = np.isfinite(arrays).all((0, 1))
    if known.sum() < 2:  # one request tells nothing of the spread
        return {}
    tokens, seconds, base_tokens, base_seconds = (array[:, known] for array in arrays)
    interval = bootstrap_speedup(tokens, seconds, base_tokens, base_seconds, noise)
    return {"speedup_low": interval.low, "speedup_high": interval.high}
