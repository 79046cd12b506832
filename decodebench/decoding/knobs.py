"""Knobs: the parameters of a method, declared once for the library, the command line and its help."""

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decodebench.errors import UserError, unknown

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Knob:
    """One parameter of a method.

    Attributes:
        name: of the method's field, as the literature writes it.
        type: int, float, str or bool.
        default: ``None`` where it depends on the model; the help says how.
        help: one line, with the unit.
        low, high: allowed range of a number, ends included.
        choices: allowed values of a name.
        only: another knob and the value of it without which this one changes nothing.
    """

    name: str
    type: type
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None
    own_flag: str | None = None
    only: tuple[str, str] | None = None

    @property
    def flag(self) -> str:
        """On the command line: ``--name`` with dashes, unless the knob was given one of its own."""
        return self.own_flag or "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"between {self.low:g} and {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return KINDS[self.type] if self.high is None else f"at most {self.high:g}"

    def check(self, value: Any) -> None:
        """Raise a UserError unless the value is allowed."""
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices:
            raise unknown(f"value of {self.flag}", str(value), self.choices)
        if self.type in (int, float):
            allowed = int if self.type is int else int | float
            if isinstance(value, bool) or not isinstance(value, allowed) or math.isnan(value):
                raise UserError(f"{self.flag} {value}: must be {KINDS[self.type]}")
            if not (self.low is None or self.low <= value) or not (self.high is None or value <= self.high):
                raise UserError(f"{self.flag} {value}: must be {self.allowed}")

    def parse(self, text: str) -> Any:
        """The value a user wrote on the command line.

        Raises:
            UserError: when it is not of the knob's type or not allowed.
        """
        value: Any
        try:
            value = {"true": True, "false": False}[text.lower()] if self.type is bool else self.type(text)
        except (ValueError, KeyError):
            raise UserError(f"{self.flag} {text}: must be {KINDS[self.type]}") from None
        self.check(value)
        return value


def knob(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    flag: str | None = None,
    only: tuple[str, str] | None = None,
) -> Any:
    """A dataclass field of a method that is one of its knobs; see :class:`Knob`.

    Args:
        flag: where the field cannot have the flag's name, because a method of the class has it.
    """
    limits = tuple(choices) if choices else None
    declared = {"help": help, "low": low, "high": high, "choices": limits, "own_flag": flag, "only": only}
    return dataclasses.field(default=default, metadata={"knob": declared})


def knobs_of(method: Any) -> dict[str, Knob]:
    """The knobs of a method (a class or an instance) by name, in the order of their declaration."""
    cls = method if isinstance(method, type) else type(method)
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if "knob" in field.metadata:
            hint = hints[field.name]
            if typing.get_origin(hint) in (
                types.UnionType,
                typing.Union,
            ):  # "int | None": the default is looked up in the model
                hint = next(t for t in typing.get_args(hint) if t is not type(None))
            found[field.name] = Knob(field.name, hint, field.default, **field.metadata["knob"])
    return found


def check_knobs(method: Any) -> None:
    """Raise a UserError for the first knob of a method instance whose value is not allowed."""
    for name, declared in knobs_of(method).items():
        declared.check(getattr(method, name))
