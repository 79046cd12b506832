"""Methods are found by name, from any package, and their knobs are read and checked in one place."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest
from tiny import run, tiny

from decodebench.cli.listing import methods
from decodebench.decoding import Decoder, Request, knob, knobs_of
from decodebench.decoding.registry import method, method_names
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS

PLUGIN = '''
"""A method in a package of its own."""

from dataclasses import dataclass

from decodebench.decoding import knob
from decodebench.methods.ar import AR


@dataclass
class Echo(AR):
    """Autoregressive decoding under another name."""

    strength: int = knob(3, "does nothing", low=1, high=9)
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Installs a package with one method: its name, the entry point's value, and the module's text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def package(name: str, value: str, code: str) -> None:
        (tmp_path / f"{value.split(':')[0]}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[decodebench.methods]\n{name} = {value}\n", encoding="utf-8")

    return package


def test_the_built_in_methods_are_there() -> None:
    assert {"ar", "mars", "hf-generate", "jacobi", "mars-verified", "block-diffusion"} <= set(method_names())
    assert method("ar") is AR
    assert method("mars") is MARS
    assert AR.lossless
    assert not MARS.lossless


def test_a_package_adds_a_method(install: Callable[[str, str, str], None]) -> None:
    install("echo", "echo_method:Echo", PLUGIN)
    assert "echo" in method_names()
    echo: Any = method("echo")
    assert knobs_of(echo)["strength"].help == "does nothing"
    request = Request([5, 6, 7], 6)
    assert run(tiny(), echo(strength=4), [request])[0].tokens == run(tiny(), AR(), [request])[0].tokens
    with pytest.raises(UserError, match=r"^--strength 12: must be between 1 and 9$"):
        echo(strength=12)


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ("broken_import:Echo", "import no_such_module", "No module named 'no_such_module'"),
        ("broken_name:Echo", "", "has no attribute 'Echo'"),
        ("broken_syntax:Echo", "def (", "invalid syntax"),
        ("broken_code:Echo", "1 / 0", "division by zero"),
        ("no_method:Echo", "class Echo: ...", "is not a subclass of decodebench.decoding.Method"),
        ("no_class:Echo", "Echo = 3", "is not a subclass of decodebench.decoding.Method"),
    ],
)
def test_a_broken_package_gives_one_line(
    install: Callable[[str, str, str], None], value: str, code: str, message: str
) -> None:
    install("broken", value, code)
    with pytest.raises(UserError, match=r"^method 'broken' ") as caught:
        method("broken")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert method("ar") is AR  # the others are unharmed


def test_an_unknown_method_gets_the_nearest_match() -> None:
    with pytest.raises(UserError, match=r"^unknown method 'marz': did you mean 'mars'[?]$"):
        method("marz")


@dataclass
class Knobs(AR):
    """Every kind of knob."""

    count: int = knob(3, "how many", low=1)
    share: float = knob(0.5, "how much", low=0, high=1)
    ceiling: float = knob(0.0, "no more than nothing", high=0)
    name: str = knob("a", "which", choices=("a", "bee", "cedar"))
    flag: bool = knob(False, "whether")
    maybe: int | None = knob(None, "how many; default: the model's", low=2)
    older: Optional[float] = knob(None, "written the old way")  # noqa: UP045
    silent: int = 7


def test_knobs_are_listed_in_order_with_type_default_and_flag() -> None:
    found = knobs_of(Knobs)
    assert list(found) == ["count", "share", "ceiling", "name", "flag", "maybe", "older"]
    assert [k.type for k in found.values()] == [int, float, float, str, bool, int, float]
    assert found["maybe"].default is None
    assert knobs_of(MARS)["block_size"].flag == "--block-size"
    assert knobs_of(AR) == {}


def test_knobs_say_what_is_allowed() -> None:
    assert {name: knob.allowed for name, knob in knobs_of(Knobs).items()} == {
        "count": "at least 1",
        "share": "between 0 and 1",
        "ceiling": "at most 0",
        "name": "a, bee, cedar",
        "flag": "true or false",
        "maybe": "at least 2",
        "older": "a number",
    }


def test_methods_are_listed_with_what_they_need_and_their_knobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    methods()
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "ar yes – One token per pass with a key-value cache." in rows
    assert any(row.startswith("mars no a checkpoint trained for MARS Several masked tokens per pass") for row in rows)
    assert "jacobi --window 4 between 1 and 256 guesses per pass (n)" in rows
    for name in method_names():
        assert any(row.startswith(f"{name} {'yes' if method(name).lossless else 'no'} ") for row in rows)
        assert all(any(row.startswith(f"{name} {k.flag} ") for row in rows) for k in knobs_of(method(name)).values())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "12", 12),
        ("share", "0.25", 0.25),
        ("share", "1", 1.0),
        ("name", "bee", "bee"),
        ("flag", "True", True),
        ("maybe", "2", 2),
        ("older", "2.5", 2.5),
    ],
)
def test_values_are_parsed(name: str, text: str, value: Any) -> None:
    parsed = knobs_of(Knobs)[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(value)
    assert getattr(Knobs(**{name: parsed}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "2.5", "--count 2.5: must be a whole number"),
        ("count", "0", "--count 0: must be at least 1"),
        ("share", "1.01", "--share 1.01: must be between 0 and 1"),
        ("share", "nan", "--share nan: must be a number"),
        ("share", "much", "--share much: must be a number"),
        ("ceiling", "1", "--ceiling 1.0: must be at most 0"),
        ("name", "ceder", "unknown value of --name 'ceder': did you mean 'cedar'?"),
        ("flag", "yes", "--flag yes: must be true or false"),
        ("maybe", "1", "--maybe 1: must be at least 2"),
    ],
)
def test_values_that_do_not_fit_are_named(name: str, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        knobs_of(Knobs)[name].parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("wrong", [{"count": 2.5}, {"count": True}, {"count": None}, {"share": "0.5"}, {"maybe": 1}])
def test_values_given_in_python_are_checked_like_those_on_the_command_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^--{next(iter(wrong))} "):
        Knobs(**wrong)


def test_a_method_needs_only_the_two_questions() -> None:
    assert {"draft", "accept"} == Decoder.__abstractmethods__
