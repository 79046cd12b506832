"""Grids: which cells a command line means."""

import pytest

from decodebench.errors import UserError
from decodebench.evaluation.grid import expand_grid


def cells(methods: str = "ar,mars", batch_sizes: tuple[int, ...] = (1,), **knobs: str) -> list[str]:
    given = {name: value.split(",") for name, value in knobs.items()}
    return [str(cell) for cell in expand_grid(methods.split(","), ["gsm8k"], batch_sizes, given)]


def test_knobs_multiply_the_methods_that_have_them_and_no_others() -> None:
    assert cells(tau="1.0,0.9", block_size="4,8") == [
        "gsm8k ar batch 1",
        "gsm8k mars block_size=4 tau=1.0 batch 1",
        "gsm8k mars block_size=4 tau=0.9 batch 1",
        "gsm8k mars block_size=8 tau=1.0 batch 1",
        "gsm8k mars block_size=8 tau=0.9 batch 1",
    ]


def test_batch_sizes_are_the_outer_loop_so_that_what_is_compared_runs_close_together() -> None:
    assert cells(batch_sizes=(1, 4)) == [
        "gsm8k ar batch 1", "gsm8k mars batch 1", "gsm8k ar batch 4", "gsm8k mars batch 4",
    ]  # fmt: skip


def test_a_knob_that_changes_nothing_beside_another_does_not_multiply_cells() -> None:
    knobs = {"cache": ["ragged", "block"], "cache_block": ["4", "16"]}
    cells = expand_grid(["mars"], ["gsm8k"], [1], knobs)
    assert [cell.knobs for cell in cells] == [
        {"cache": "ragged"}, {"cache": "block", "cache_block": 4}, {"cache": "block", "cache_block": 16}
    ]  # fmt: skip
    assert len(expand_grid(["mars"], ["gsm8k"], [1], {"cache_block": ["4", "16"]})) == 1
    with pytest.raises(UserError, match="cache-block 1:"):
        expand_grid(["mars"], ["gsm8k"], [1], {"cache_block": ["4", "1"]})


def test_what_is_named_twice_runs_once() -> None:
    assert cells("mars,mars", tau="0.9,0.90") == ["gsm8k mars tau=0.9 batch 1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": "masr"}, "unknown method 'masr': did you mean 'mars'?"),
        ({"tau": "1.5"}, "--tau 1.5: must be between 0 and 1 for the probability metric"),
        ({"tau": "-1", "metric": "entropy"}, "--tau -1.0: must be at least 0"),
        ({"tau": "nan"}, "--tau nan: must be a number"),
        ({"tau": "high"}, "--tau high: must be a number"),
        ({"block_size": "1"}, "--block-size 1: must be between 2 and 64"),
        ({"block_size": "4.5"}, "--block-size 4.5: must be a whole number"),
        ({"metric": "margn"}, "unknown value of --metric 'margn': did you mean 'margin'?"),
        ({"methods": "ar", "tau": "0.9"}, "--tau belongs to method mars, which is not among --method ar"),
        ({"taw": "0.9"}, "unknown knob '--taw': did you mean '--tau'?"),
        ({"batch_sizes": (0,)}, "--batch-size 0: must be at least 1"),
    ],
)
def test_what_cannot_work_is_named_before_anything_runs(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match="^" + "".join("\\" + c if c in "?.+()" else c for c in message)):
        cells(**arguments)
