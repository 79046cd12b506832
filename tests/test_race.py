"""`decodebench race`: what is shown is what happened, when it happened."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tiny
from browser import Page, needs_browser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from decodebench.cli import build_app
from decodebench.cli.race import parse_speed
from decodebench.decoding import Generation, Request
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS
from decodebench.race import Lane, picture, replay, results, run_lane, show
from decodebench.race.colours import colour, oklch
from decodebench.race.layout import layout


def lane(name: str, words: list[str], committed: list[int], pass_seconds: float = 1.0) -> Lane:
    tokens = [abs(hash(word)) % 1000 for word in words]
    times = [pass_seconds] * len(committed)
    return Lane(name, Generation("".join(words), tokens, "length", committed, times, 0.1, sum(times)), words)


SLOW = lane("ar", ["one", " two", " three", " four"], [1, 1, 1, 1])
FAST = lane("mars τ=0.7", ["one", " two", " three", " five"], [1, 3])


def test_lanes_of_real_methods() -> None:
    model = tiny.tiny(stop=True, logit_scale=2.0)
    request = Request(tiny.tokenizer().encode("Ann has 3 apples"), max_new_tokens=24)
    ar, mars = (run_lane(name, method, model, request) for name, method in (("ar", AR()), ("mars", MARS(tau=0.1))))
    assert ar.generation.tokens == tiny.reference(model, request)
    assert "".join(ar.texts) == ar.generation.text
    for one in (ar, mars):
        assert len(one.passes) == len(one.texts) == len(one.generation.tokens)
        assert one.ends == sorted(one.ends)
        assert one.ends[-1] == pytest.approx(one.seconds)
        assert one.at(math.inf) == (one.generation.passes, len(one.generation.tokens))
    assert mars.generation.passes < ar.generation.passes


def test_at_a_time() -> None:
    assert [SLOW.at(seconds) for seconds in (0, 0.9, 1, 2.5, 99)] == [(0, 0), (0, 0), (1, 1), (2, 2), (4, 4)]
    assert [FAST.at(seconds) for seconds in (0.5, 1, 2)] == [(0, 0), (1, 1), (2, 4)]
    assert FAST.passes == [0, 1, 1, 1]


def test_time_between_passes_is_shared_out() -> None:
    generation = Generation("", [1, 2], "length", [1, 1], [1.0, 2.0], 0.1, 4.0)
    assert Lane("x", generation, ["a", "b"]).ends == [1.5, 4.0]
    untimed = Generation("", [1, 2], "length", [2], [], 0.1, 4.0)
    assert Lane("x", untimed, ["a", "b"]).at(3.9) == (0, 0)
    assert Lane("x", untimed, ["a", "b"]).at(4.0) == (1, 2)


def test_results() -> None:
    assert results([SLOW, FAST]) == [
        "ar: 4 passes, 4.0 s · 1 tok/s · 1.00 tok/pass",
        "mars τ=0.7: 2 passes, 2.0 s · 2 tok/s · 2.00 tok/pass; 2.00× as fast as ar, other tokens from number 4 on",
    ]
    assert results([SLOW, SLOW])[1].endswith("1.00× as fast as ar, the same tokens")
    empty = Lane("none", Generation("", [], "stop_token", [], [], math.nan, 0.0), [])
    assert "0.00×" in results([SLOW, empty])[1]


def drawn(lanes: list[Lane], seconds: float, width: int = 80, height: int | None = None) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(show(lanes, seconds, width, height))
    return capture.get()


def test_the_screen() -> None:
    start, middle, end = (drawn([SLOW, FAST], seconds) for seconds in (0.0, 2.0, math.inf))
    assert "one" not in start
    assert "one two " in middle
    assert "one two three five" in middle
    assert "one two three four" not in middle
    assert "2.0 s · 1 tok/s · 1.00 tok/pass" in middle
    assert "4.0 s · 1 tok/s · 1.00 tok/pass" in end
    assert len(end.splitlines()) == 3
    assert max(map(cell_len, end.splitlines())) <= 80
    assert len(drawn([SLOW, FAST], math.inf, width=50).splitlines()) == 6  # below each other


def test_long_answers_show_their_end() -> None:
    long = lane("ar", [f"line {n}\n" for n in range(50)], [1] * 50)
    text = drawn([long, SLOW], math.inf, height=12)
    assert "line 49" in text
    assert "line 30" not in text
    assert len(text.splitlines()) == 12


def test_passes_have_colours() -> None:
    console = Console(width=80, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(show([SLOW, FAST], math.inf, 80))
    backgrounds = re.findall(r"48;2;(\d+;\d+;\d+)m([^\x1b]*)", capture.get())
    by_text = {text: colour for colour, text in backgrounds}
    assert " two three five" in by_text  # one pass
    assert len({by_text[text] for text in ("one", " two", " three", " four")}) == 4


def test_the_replay_is_true_to_time() -> None:
    now, frames = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now, frames
        now, frames = now + seconds, frames + 1

    console = Console(width=80, height=20, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115
    replay(console, [SLOW, FAST], 2.0, clock=lambda: now, sleep=sleep)
    assert now == pytest.approx(2.0, abs=0.05)
    assert frames == pytest.approx(60, abs=1)

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    replay(console, [SLOW], 1.0, sleep=stop)  # goes to the end, no traceback


@settings(max_examples=25)
@given(st.lists(st.text(alphabet="ab \n你🙂\t\x1b", max_size=6), max_size=12), st.integers(2, 12))
@example([" ", "a你"], 2)  # the word goes to the next line, where the wide character does not fit beside it
def test_layout_keeps_text_and_width(texts: list[str], width: int) -> None:
    lines = layout(texts, range(len(texts)), width)
    assert all(sum(cell_len(stretch.text) for stretch in line) <= width for line in lines)
    shown = "".join(stretch.text for line in lines for stretch in line)
    assert "".join(shown.split()) == "".join("".join(texts).replace("\x1b", " ").split())
    assert all(c.isprintable() for c in shown)
    for line in lines:
        assert [s.number for s in line] == sorted({s.number for s in line})


def test_layout_breaks_at_spaces_and_keeps_indents() -> None:
    def text(*args: str, width: int) -> list[str]:
        return ["".join(stretch.text for stretch in line) for line in layout(args, range(len(args)), width)]

    assert text("one two", " three", width=9) == ["one two ", "three"]
    assert text("if x:\n", "    return", " y", width=20) == ["if x:", "    return y"]
    assert text("abcdefghij", width=4) == ["abcd", "efgh", "ij"]


def test_colours() -> None:
    assert oklch(1, 0, 0) == "#ffffff"
    assert oklch(0.627955, 0.257683, 29.234) == "#ff0000"  # red's published coordinates
    assert len({colour(number, 40) for number in range(40)}) == 40


def test_the_picture(tmp_path: Path) -> None:
    svg = picture([SLOW, FAST], "What & why? <b>")
    assert svg == picture([SLOW, FAST], "What & why? <b>")
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    texts = [node.text for node in root.iter(f"{space}text")]
    assert texts[0] == "What & why? <b>"
    assert {"one", " two three five"} <= set(texts)
    assert not re.search(r"href|url\(|@import|<script", svg)
    # hidden until its pass is done: the second pass of the fast lane, after 2 of 4 + 4 seconds
    assert "@keyframes a1-1{0%,25.000%{opacity:0}" in svg


@needs_browser
def test_the_picture_plays(tmp_path: Path) -> None:
    file = tmp_path / "race.svg"
    lanes = [lane(one.name, one.texts, one.generation.committed, 0.5) for one in (SLOW, FAST)]
    file.write_text(picture(lanes, "Count!"), encoding="utf-8")
    opacity = (
        "(() => { const all = document.getAnimations(); for (const one of all) { one.pause(); one.currentTime = %d; }"
        " return [...document.querySelectorAll('g')].map((node) => getComputedStyle(node).opacity); })()"
    )
    with Page(tmp_path / "profile") as page:
        page.open(file)
        assert page.run(opacity % 200) == ["0"] * 6
        assert page.run(opacity % 700) == ["1", "0", "0", "0", "1", "0"]
        assert page.run(opacity % 1200) == ["1", "1", "0", "0", "1", "1"]
        assert page.run(opacity % 3000) == ["1"] * 6
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        assert page.run("document.getAnimations().length") == 0
        seen = "[...document.querySelectorAll('text')].filter((t) => getComputedStyle(t).opacity === '1' && %s).length"
        assert page.run(seen % "t.textContent.includes('tok/s')") == 2
        assert page.errors == []
        assert page.requests == [file.as_uri()]


@pytest.mark.parametrize(("text", "speed"), [("1x", 1.0), ("0.5x", 0.5), ("2", 2.0), ("0", 0.0)])
def test_speeds(text: str, speed: float) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["fast", "-1x", "nan", "inf", ""])
def test_speeds_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="give a speed such as 1x"):
        parse_speed(text)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = tiny.tiny(stop=True)
    folder = tmp_path / "model"
    model.model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def race(*arguments: str) -> str:
    words = ["race", *arguments]
    return CliRunner().invoke(build_app(words), words, catch_exceptions=False).stdout


def test_the_command_line(saved: Path, tmp_path: Path) -> None:
    svg = tmp_path / "new" / "race.svg"
    out = race(
        *("Ann has 3 apples.", "--model", str(saved), "--methods", "ar,mars", "--tau", "0.9,0.5"),
        *("--max-new-tokens", "8", "--svg", str(svg)),
    )
    assert re.findall(r"^--- (.+)$", out, re.M) == ["ar", "mars τ=0.9", "mars τ=0.5"]
    assert re.search(r"^mars τ=0.5: \d passes, .* as fast as ar, ", out, re.M)
    assert "\x1b" not in out
    ElementTree.parse(svg)


def test_mistakes(saved: Path) -> None:
    for arguments, message in (
        (["Hi", "--methods", "mras"], "unknown method 'mras'"),
        (["Hi", "--methods", "ar", "--tau", "0.9"], "--tau belongs to"),
        (["Hi", "--methods", ","], "name at least one"),
        (["  "], "the prompt is empty"),
        (["x" * 2000, "--model", str(saved), "--methods", "ar"], "no room to answer"),
    ):
        with pytest.raises(UserError, match=message):
            race(*arguments)
