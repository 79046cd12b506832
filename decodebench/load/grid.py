"""What loads are run: methods, arrivals and policies, and what holds for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decodebench.decoding import knobs_of
from decodebench.errors import UserError
from decodebench.evaluation.grid import Cell, expand_grid
from decodebench.load.arrivals import Arrivals
from decodebench.load.policies import Policy, Settings, Target, policy

SERVED = "url"  # in the place of a method, where a server does not say how it decodes


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


def remote_cells(
    methods: Sequence[str], tasks: Sequence[str], rows: int, knobs: Mapping[str, Sequence[str]],
    arrivals: Sequence[Arrivals],
) -> list[LoadCell]:  # fmt: skip
    """Every combination of what can be asked of a server: methods, if it has several, and τ.

    Args:
        methods: to ask for; none leaves it to the server.
        rows: that it is said to run at a time.
        knobs: by name, the values as the user wrote them.

    Raises:
        UserError: a knob is one that a server is started with, or a value is not allowed.
    """
    if fixed := [name for name in knobs if name != "tau"]:
        flag = "--" + fixed[0].replace("_", "-")
        raise UserError(f"{flag}: only --tau can be asked of a server; the other knobs are those it was started with")
    if methods:
        cells = expand_grid(methods, tasks, [rows], knobs)
    else:
        taus = [_tau(text) for text in knobs.get("tau", ())]
        choices: list[dict[str, Any]] = [{"tau": tau} for tau in taus] or [{}]
        cells = [Cell(task, SERVED, rows, choice) for task in tasks for choice in choices]
    return [LoadCell(cell, plan, None) for plan in arrivals for cell in cells]


def _tau(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--tau {text}: must be a number") from None


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
