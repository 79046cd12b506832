"""`stepmath`: generated word problems in several steps of arithmetic, with worked solutions.

A problem is a chain: a quantity, what happens to it, and a question. The words come from `stepmath_scenes`, the numbers
are small non-negative integers. Which of training and test a problem belongs to is decided by a hash of its worked
equations alone, so no sequence of equations of one occurs in the other, however much is drawn and whatever the names
and words. Nothing but `random.Random.random` and SHA-256 decides a draw, both of which are the same on every machine.
"""

import functools
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from decodebench.tasks.stepmath_scenes import COLLECTIONS, HELD_OUT, TRAINED

Split = Literal["train", "test", "held_out"]
Item = TypeVar("Item")

STEPS = {2: 0.35, 3: 0.33, 4: 0.20, 5: 0.08, 6: 0.04}
# The arithmetic is easy, for small models to have a chance: what is asked of them is to follow the text.
LIMIT, LARGEST_PRODUCT, LARGEST = 60, 50, 99  # of quantities; where one is multiplied; of totals and aims
ROUND, ROUNDS = 0.2, (10, 20)  # how often a quantity changes by a round number, and which; else by one digit
TRIES = 4
ONE_IN = 8  # of all chains of equations, the share that is for testing
PLAIN_QUESTION, DISTRACTED = 0.4, 0.25

SHE = "Mia Anna Ella Lucy Sara Nora Emma Zoe Lena Ruby Clara Alice Maya Julia Rosa Ivy Amy Kate Grace Eva Leah Hannah"
HE = "Tom Ben Leo Max Noah Sam Jack Oscar Adam Paul Eric Luke Finn David Omar Hugo Ryan Peter Mark Ian Jacob Daniel"
PEOPLE = [(name, "she", "her", "her") for name in SHE.split()] + [(name, "he", "him", "his") for name in HE.split()]

TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}
GROWS, GREW = {2: "doubles", 3: "triples"}, {2: "doubled", 3: "tripled"}
PART = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
CONNECTORS = ("", "", "", "then ", "later, ", "after that, ", "next, ")  # for what somebody does


@dataclass(frozen=True)
class Problem:
    """A word problem.

    Args:
        question: plain text.
        solution: a line for each step, operands before results; ends in "The answer is N."
        answer: N, not negative.
        steps: changes and comparisons to be worked out, 2 to 6.
        template: the scene it plays in.
    """

    question: str
    solution: str
    answer: int
    steps: int
    template: str


@dataclass(frozen=True)
class Line:
    """Something that can happen in a scene; `kind` and words as `stepmath_scenes` explains."""

    kind: str
    words: str
    phrasings: tuple[str, ...]
    unit: tuple[str, str]


@dataclass(frozen=True)
class Scene:
    """A scene's lines, by what part of a problem they can be."""

    name: str
    openings: tuple[Line, ...]
    changes: tuple[Line, ...]
    endings: tuple[Line, ...]
    asides: tuple[Line, ...]


@dataclass(frozen=True)
class Event:
    """A line with its numbers, and what they come to: the equations of each step, and the result."""

    line: Line
    numbers: dict[str, int]
    equations: tuple[str, ...]
    value: int


def problems(split: Split, n: int, seed: int = 0) -> list[Problem]:
    """Draw problems, all different.

    Args:
        split: "train" and "test" share scenes but no sequence of equations; "held_out" has other scenes, and no
            sequence of equations of "train" either.
        n: how many; a longer draw begins with the shorter one.
        seed: another one gives other problems.
    """
    rng = random.Random(int.from_bytes(hashlib.sha256(f"stepmath {split} {seed}".encode()).digest()[:8], "big"))
    places = scenes(held_out=split == "held_out")
    drawn: dict[str, Problem] = {}
    while len(drawn) < n:
        steps, problem = _choose_steps(rng), None
        while problem is None or problem.question in drawn:  # the number of steps stays: long chains fail more often
            problem = _draw(rng, _pick(rng, places), steps, split != "train")
        drawn[problem.question] = problem
    return list(drawn.values())


@functools.cache
def scenes(held_out: bool = False) -> tuple[Scene, ...]:
    """The scenes of training and test, or those of neither."""
    shared = dict(_read(COLLECTIONS, {}))
    return tuple(_scene(name, lines) for name, lines in _read(HELD_OUT if held_out else TRAINED, shared))


def _read(text: str, shared: dict[str, list[Line]]) -> Iterator[tuple[str, list[Line]]]:
    for block in text.strip().split("\n\n"):
        (_, name, unit), *rows = (row.split(maxsplit=2 if row.startswith("scene") else 1) for row in block.split("\n"))
        units = _pair(unit)
        lines = []
        for kind, rest in ((row[0], row[1]) for row in rows):
            if kind == "use":
                lines += [_in_units(line, units) for part in rest.split() for line in shared[part]]
                continue
            other = re.match(r"\[(.*?)\] ", rest)
            first, *more = [part.strip() for part in rest[other.end() if other else 0 :].split("|")]
            phrasings = tuple(more) if kind.startswith(">") else (first, *more)
            lines.append(Line(kind, first, phrasings, _pair(other.group(1)) if other else units))
        yield name.rstrip(":"), lines


def _pair(units: str) -> tuple[str, str]:
    one, many = units.split(", ")
    return one, many


def _in_units(line: Line, units: tuple[str, str]) -> Line:
    phrasings = tuple(text.replace("{us}", units[1]) for text in line.phrasings)
    return Line(line.kind, line.words, phrasings, units if line.unit[0] == "thing" else line.unit)


def _scene(name: str, lines: list[Line]) -> Scene:
    parts: dict[str, list[Line]] = {part: [] for part in ("openings", "changes", "endings", "asides")}
    for line in lines:
        part = {"=": "openings", "~": "asides", "?": "endings", ">": "endings"}.get(line.kind[0], "changes")
        parts[part].append(line)
    return Scene(name, **{part: tuple(members) for part, members in parts.items()})


def _below(rng: random.Random, count: int) -> int:
    return int(rng.random() * count)  # of all that Random offers, only random() is promised never to change


def _between(rng: random.Random, low: int, high: int) -> int:
    return low + _below(rng, high - low + 1)


def _pick(rng: random.Random, items: Sequence[Item]) -> Item:
    return items[_below(rng, len(items))]


def _choose_steps(rng: random.Random) -> int:
    rest = rng.random()
    for steps, share in STEPS.items():
        rest -= share
        if rest < 0:
            return steps
    return max(STEPS)


def _draw(rng: random.Random, scene: Scene, steps: int, testing: bool) -> Problem | None:
    """A problem of so many steps, or None where the numbers do not work out or belong to the other split."""
    plain = rng.random() < PLAIN_QUESTION
    opening = _pick(rng, scene.openings)
    ending = _pick(rng, [line for line in scene.endings if (line.kind == "?") == plain])
    changes = steps - (opening.kind != "=") - (0 if plain else 2 if ending.kind.endswith("2") else 1)
    if changes < 1:
        return None
    lines = [opening, *_some(rng, scene.changes, changes), ending]
    events: list[Event] = []
    for line in lines:
        event = _event(rng, line, events[-1].value if events else 0)
        if event is None:
            return None
        events.append(event)
    equations = "; ".join(equation for event in events for equation in event.equations)
    chance = int.from_bytes(hashlib.sha256(equations.encode()).digest()[:8], "big")
    if (chance % ONE_IN == 0) != testing:
        return None
    return _write(rng, scene, events, steps)


def _some(rng: random.Random, items: Sequence[Item], count: int) -> list[Item]:
    rest = list(items)
    return [rest.pop(_below(rng, len(rest))) for _ in range(count)]


def _event(rng: random.Random, line: Line, v: int) -> Event | None:
    """The line with numbers that fit the quantity v so far, or None where a few tries find none."""
    kind = line.kind.lstrip(">")
    most = 3 if "{d}" in line.words or "{D}" in line.words else 5 if "{t}" in line.words or "/" in kind else 9
    for _ in range(TRIES):
        a, b = (_pick(rng, ROUNDS) if rng.random() < ROUND else _between(rng, 2, 9) for _ in "ab")
        groups = kind in ("+*", "-*")  # small ones
        k, x = _between(rng, 2, min(most, 3) if groups else most), _between(rng, 2, 5 if groups else 9)
        a += _between(rng, 5, 25) if kind[0] == "=" else v if kind == "T" else 0
        steps = _work(kind, v, a, b, k, x)
        values = [value for _, value in steps]
        largest = LARGEST_PRODUCT if "*" in kind else LARGEST if kind[-1] == "2" else LIMIT
        if ("/" in kind and v % k) or any(not 2 <= value <= largest for value in values) or a > LARGEST:
            continue
        equations = tuple(f"{term} = {value}" if term else str(value) for term, value in steps)
        return Event(line, {"a": a, "b": b, "k": k, "x": x}, equations, values[-1] if values else v)
    return None


def _work(kind: str, v: int, a: int, b: int, k: int, x: int) -> list[tuple[str, int]]:
    """What is to be calculated in each step, and its result."""
    each = k * x
    match kind:
        case "=":
            return [("", a)]
        case "=+":
            return [(f"{a} + {b}", a + b)]
        case "=*":
            return [(f"{k} * {x}", each)]
        case "+":
            return [(f"{v} + {a}", v + a)]
        case "-":
            return [(f"{v} - {a}", v - a)]
        case "*":
            return [(f"{v} * {k}", v * k)]
        case "/":
            return [(f"{v} / {k}", v // k)]
        case "+*":
            return [(f"{k} * {x} = {each}, so {v} + {each}", v + each)]
        case "-*":
            return [(f"{k} * {x} = {each}, so {v} - {each}", v - each)]
        case "/-":
            return [(f"{v} / {k} = {v // k}, so {v} - {v // k}", v - v // k)]
        case "T":
            return [(f"{a} - {v}", a - v)]
        case "+2" | "-2" | "*2":
            ((_, other),) = first = _work(kind[0], v, a, b, k, x)
            return [*first, (f"{v} + {other}", v + other)]
        case _:
            return []


def _write(rng: random.Random, scene: Scene, events: list[Event], steps: int) -> Problem:
    name, she, her, hers = _pick(rng, PEOPLE)
    other = _pick(rng, [person for person in PEOPLE if person[0] != name])[0]
    people = {"N": name, "M": other, "s": she, "o": her, "p": hers}

    def fill(text: str, numbers: dict[str, int]) -> str:
        k = numbers.get("k", 0)
        counts = {"t": TIMES.get(k), "d": GROWS.get(k), "D": GREW.get(k), "f": PART.get(k)}
        return text.format(**people, **numbers, **counts)

    said, worked, last = [], [], ""
    for event in events:
        line, phrasing = event.line, _pick(rng, event.line.phrasings)
        acts = line in scene.changes and phrasing.startswith(("{s}", "{p}"))
        connector = _pick(rng, [each for each in CONNECTORS if each != last or not each]) if acts else ""
        last = connector or last
        said.append(fill(connector + phrasing, event.numbers))
        for words, equation in zip(line.words.split("; "), event.equations, strict=False):
            unit = line.unit[int(equation.split()[-1]) != 1]
            known = line.kind == "="
            worked.append(_sentence(fill(words, event.numbers) + ("" if known else f": {equation} {unit}")))
    if rng.random() < DISTRACTED:
        aside = fill(_pick(rng, _pick(rng, scene.asides).phrasings), {"a": _between(rng, 21, 40)})
        said.insert(_between(rng, 1, len(said) - 1), aside)
    answer = events[-1].value
    worked.append(f"The answer is {answer}.")
    return Problem(" ".join(map(_sentence, said)), "\n".join(worked), answer, steps, scene.name)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(("?", ".")) else ".")
