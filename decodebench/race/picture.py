"""The race as one SVG file: it plays at true speed where animations run, and shows the end where they do not."""

from collections.abc import Sequence
from html import escape

from rich.cells import cell_len

from decodebench.race.colours import INK, colour
from decodebench.race.layout import layout
from decodebench.race.screen import counters
from decodebench.race.timeline import Lane

COLUMNS = 46  # of text in a lane
LETTER, LINE = 7.8, 20  # pixels, of 13 px monospace
PAD, GAP, HEAD, FOOT = 16, 18, 46, 34
PAUSE = 4.0  # seconds at the end before it plays again
STEPS = 10  # per second, of the counters

STYLE = """
text { font: 13px ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.sans { font-family: system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
.paper { fill: #ffffff; stroke: #dcd8d2; } .name { font-weight: 700; fill: #1c1b1a; } .soft { fill: #6b6863; }
@media (prefers-color-scheme: dark) { .paper { fill: #1c1c1f; stroke: #38383d; } .name { fill: #ecebe8; }
  .soft { fill: #aaa7a1; } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; } }
"""


def picture(lanes: Sequence[Lane], prompt: str) -> str:
    """The picture as SVG text; the same lanes give the same bytes.

    Args:
        lanes: side by side.
        prompt: that they answered.
    """
    most = max(lane.generation.passes for lane in lanes)
    longest = max(lane.seconds for lane in lanes) + PAUSE
    laid = [layout(lane.texts, lane.passes, COLUMNS) for lane in lanes]
    wide = COLUMNS * LETTER + 2 * PAD
    high = HEAD + max(len(lines) for lines in laid) * LINE + FOOT
    width, height = len(lanes) * (wide + GAP) + GAP, high + 2 * GAP + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(_alternative(lanes))}">',
        f"<style>{STYLE}{_keyframes(lanes, longest)}</style>",
        f'<text class="sans soft" x="{GAP}" y="{GAP + 4}">{escape(_short(prompt, int((width - 2 * GAP) / 7)))}</text>',
    ]
    for place, (lane, lines) in enumerate(zip(lanes, laid, strict=True)):
        left, top = GAP + place * (wide + GAP), GAP + 16
        parts.append(f'<rect class="paper" x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{high}" rx="12"/>')
        parts.append(f'<text class="sans name" x="{left + PAD:.1f}" y="{top + 28}">{escape(lane.name)}</text>')
        parts += _text(lines, place, left + PAD, top + HEAD, most)
        parts += _counters(lane, place, left + PAD, top + high - 14)
    return "\n".join([*parts, "</svg>", ""])


def _text(lines: Sequence[Sequence[tuple[str, int]]], place: int, left: float, top: float, most: int) -> list[str]:
    parts = []
    for row, line in enumerate(lines):
        x = left
        for text, number in line:
            w, y = cell_len(text) * LETTER, top + row * LINE
            box = f'<rect x="{x:.1f}" y="{y}" width="{w - 1:.1f}" height="{LINE - 3}" rx="3.5"'
            letters = "" if text.isspace() else (
                f'<text x="{x:.1f}" y="{y + 13}" fill="{INK}" textLength="{w:.1f}" lengthAdjust="spacingAndGlyphs" '
                f'xml:space="preserve">{escape(text)}</text>'
            )  # fmt: skip
            parts.append(f'<g class="p{place}-{number}">{box} fill="{colour(number, most)}"/>{letters}</g>')
            x += w
    return parts


def _counters(lane: Lane, place: int, left: float, y: float) -> list[str]:
    """One text for each tenth of a second, each shown for that long; the last one stays."""
    return [
        f'<text class="sans soft c{place}-{step}" x="{left:.1f}" y="{y:.1f}">{escape(counters(lane, time))}</text>'
        for step, time in enumerate(_times(lane))
    ]


def _times(lane: Lane) -> list[float]:
    return [*(step / STEPS for step in range(1, int(lane.seconds * STEPS))), lane.seconds]


def _keyframes(lanes: Sequence[Lane], longest: float) -> str:
    """Every pass is hidden up to its time, every counter outside its own; then all begins again."""
    rules = []
    for place, lane in enumerate(lanes):
        for number, end in enumerate(lane.ends):
            at = 100 * end / longest
            rules.append(f"@keyframes a{place}-{number}{{0%,{at:.3f}%{{opacity:0}}{at + 0.001:.3f}%{{opacity:1}}}}")
            rules.append(f".p{place}-{number}{{animation:a{place}-{number} {longest:.2f}s infinite}}")
        times = _times(lane)
        for step, end in enumerate(times):
            start, end = 100 * (times[step - 1] if step else 0) / longest, 100 * end / longest
            last = step == len(times) - 1
            hide = "" if last else f"{end + 0.001:.3f}%,100%{{opacity:0}}"
            show = f"{start + 0.001:.3f}%,{100 if last else end:.3f}%{{opacity:1}}"
            rules.append(f"@keyframes b{place}-{step}{{0%,{start:.3f}%{{opacity:0}}{show}{hide}}}")
            still = "" if last else "opacity:0;"  # where nothing moves only the last one is seen
            rules.append(f".c{place}-{step}{{{still}animation:b{place}-{step} {longest:.2f}s infinite}}")
    return "\n".join(rules)


def _alternative(lanes: Sequence[Lane]) -> str:
    return "; ".join(f"{lane.name}: {counters(lane, lane.seconds)}" for lane in lanes)


def _short(text: str, most: int) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= most else one_line[: most - 1] + "…"
