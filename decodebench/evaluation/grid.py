"""Grids: comma lists of methods, knobs, tasks and batch sizes, expanded to cells."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodebench.decoding import Method, knobs_of
from decodebench.decoding.knobs import Knob
from decodebench.decoding.registry import method, method_names
from decodebench.errors import UserError, unknown


@dataclass(frozen=True)
class Cell:
    """One combination: a method with its knobs, on a task, at a batch size."""

    task: str
    method: str
    batch_size: int
    knobs: dict[str, Any] = field(hash=False)

    def build(self) -> Method:
        """The method with its knobs set.

        Raises:
            UserError: for a knob whose value is not allowed.
        """
        return method(self.method)(**self.knobs)

    def __str__(self) -> str:
        knobs = "".join(f" {name}={value}" for name, value in self.knobs.items())
        return f"{self.task} {self.method}{knobs} batch {self.batch_size}"


def expand_grid(
    methods: Sequence[str], tasks: Sequence[str], batch_sizes: Sequence[int], knobs: Mapping[str, Sequence[str]]
) -> list[Cell]:
    """All cells of a grid, in the order task, batch size, method, knobs.

    Args:
        knobs: by name, the values as the user wrote them. A knob is given to every method that has it.

    Raises:
        UserError: unknown methods or knobs, values that are not allowed, a knob that none of the methods has.
    """
    for size in batch_sizes:
        if size < 1:
            raise UserError(f"--batch-size {size}: must be at least 1")
    variants = [(name, settings) for name in methods for settings in _settings(name, knobs)]
    _check_used(methods, knobs)
    cells = [Cell(task, name, size, settings) for task in tasks for size in batch_sizes for name, settings in variants]
    return [cell for i, cell in enumerate(cells) if cell not in cells[:i]]


def _settings(name: str, knobs: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The combinations of a method's own knobs, each tried once so that a bad value is found before anything runs."""
    cls = method(name)
    own = {knob: declared for knob, declared in knobs_of(cls).items() if knob in knobs}
    values = [[declared.parse(text) for text in knobs[knob]] for knob, declared in own.items()]
    settings = [dict(zip(own, combination, strict=True)) for combination in itertools.product(*values)]
    for each in settings:
        cls(**each)
    return [{knob: value for knob, value in each.items() if _matters(own[knob], cls, each)} for each in settings]


def _matters(declared: Knob, cls: type[Method], settings: Mapping[str, Any]) -> bool:
    """Whether a knob changes anything beside these: a grid that lists it runs other settings once only."""
    if declared.only is None:
        return True
    name, value = declared.only
    return bool(settings.get(name, knobs_of(cls)[name].default) == value)


def _check_used(methods: Sequence[str], knobs: Mapping[str, Sequence[str]]) -> None:
    used = {knob for name in methods for knob in knobs_of(method(name))}
    for knob in knobs:
        if knob not in used:
            everywhere = {k: name for name in method_names() for k in knobs_of(method(name))}
            flag = "--" + knob.replace("_", "-")
            if knob not in everywhere:
                raise unknown("knob", flag, ["--" + k.replace("_", "-") for k in everywhere])
            raise UserError(
                f"{flag} belongs to method {everywhere[knob]}, which is not among --method {','.join(methods)}"
            )
