"""What loads are run: methods, arrivals and policies, and what holds for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decodebench.decoding import knobs_of
from decodebench.errors import UserError
from decodebench.evaluation.grid import Cell
from decodebench.load.arrivals import Arrivals
from decodebench.load.policies import Policy, Settings, Target, policy


@dataclass(frozen=True)
class LoadOptions:
    """What holds for every load of a grid, besides what holds for every run.

    Attributes:
        max_queue: most requests that wait for a row; the others are refused.
        deadline: seconds after its arrival at which a request ends with what it has.
        cancel, cancel_within: see :class:`Departure`.
        target: what a good request meets.
        tau_low, tau_high: bounds of τ for policies that move it.
        seed: of arrivals, departures and the order of requests; every repeat has its own.
    """

    max_queue: int = 64
    deadline: float | None = None
    cancel: float = 0.0
    cancel_within: float = 10.0
    target: Target = Target()  # noqa: RUF009 - it is frozen
    tau_low: float = 0.6
    tau_high: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class LoadCell:
    """A method, with its most rows as batch size, under a load, with a policy for τ if it has one."""

    cell: Cell
    arrivals: Arrivals
    policy: str | None

    def __str__(self) -> str:
        return f"{self.cell} rate {self.arrivals.rate}" + (f" {self.policy}" if self.policy else "")


@dataclass(frozen=True)
class LoadOutcome:
    """How a load ended: its folder and the numbers of its last repeat, or the error."""

    cell: LoadCell
    folder: Path | None
    numbers: dict[str, Any]
    score: float | None
    error: str | None = None


def load_cells(
    cells: Sequence[Cell], arrivals: Sequence[Arrivals], policies: Sequence[str], tau_high: float
) -> list[LoadCell]:
    """Every combination that differs: policies that move τ begin at its upper bound, whatever τ the cell has.

    Raises:
        UserError: there is no such policy, or none of the methods has a τ for one that moves it.
    """
    for each in policies:
        policy(each)
    found: list[LoadCell] = []
    for plan in arrivals:
        for cell in cells:
            has_tau = "tau" in knobs_of(cell.build())
            own_policies: Sequence[str | None] = policies if has_tau else [None]
            for name in own_policies:
                moved = name not in (None, "fixed")
                own = replace(cell, knobs=cell.knobs | {"tau": tau_high}) if moved else cell
                found.append(LoadCell(own, plan, name))
    if all(cell.policy is None for cell in found) and list(policies) != ["fixed"]:
        raise UserError(f"--policy {','.join(policies)}: none of the methods has a confidence threshold (tau)")
    return [cell for place, cell in enumerate(found) if cell not in found[:place]]


def cell_policy(cell: LoadCell, load: LoadOptions, tau: float) -> Policy | None:
    """The cell's policy; one that is fixed holds the method's own τ."""
    if cell.policy is None:
        return None
    low, high = (tau, tau) if cell.policy == "fixed" else (load.tau_low, load.tau_high)
    return policy(cell.policy)(Settings(low, high, load.target, cell.cell.batch_size))


def load_config(cell: LoadCell, load: LoadOptions) -> dict[str, Any]:
    rate = cell.arrivals.rate
    moved = cell.policy not in (None, "fixed")
    return {
        "arrivals": cell.arrivals.kind,
        "rate": float(rate) if "/" not in rate and ":" not in rate else rate,
        "duration": cell.arrivals.duration,
        "policy": cell.policy,
        "tau_low": load.tau_low if moved else None,
        "max_queue": load.max_queue,
        "deadline": load.deadline,
        "cancel": load.cancel,
        "cancel_within": load.cancel_within if load.cancel else None,
        "target_latency": load.target.latency,
        "target_per_token": load.target.per_token,
    }
