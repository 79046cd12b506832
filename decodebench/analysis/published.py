"""Numbers that others have published, to stand beside ours and be told from them."""

from dataclasses import dataclass

SOURCE = "MARS paper, arXiv 2604.07023, Table 5: Qwen2.5-7B, 256 questions of GSM8K, τ = 0.95, their hardware"


@dataclass(frozen=True)
class Published:
    """Speed-ups over AR with a key-value cache.

    Attributes:
        label: whose they are, and of what.
        series: as `compare_runs` names it.
        task: the benchmark.
        speedups: by batch size.
    """

    label: str
    series: str
    task: str
    speedups: dict[int, float]


# The paper quotes the best of its block sizes: 32 at batch 4, 16 at batch 16.
SPEEDUPS = [
    Published("paper: mars block (best)", "block", "gsm8k", {4: 1.71, 8: 1.60, 16: 1.34}),
    Published("paper: mars none", "none", "gsm8k", {4: 0.90, 8: 0.49, 16: 0.23}),
]


def published_beside(task: str, methods: set[str]) -> list[Published]:
    """What has been published on a task for one of these methods."""
    return [numbers for numbers in SPEEDUPS if numbers.task == task and "mars" in methods]
