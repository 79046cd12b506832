"""Labels beside points: written where they cover least, instead of in a legend."""

from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

# Where a label may stand: the direction from its point, the preferred ones first.
DIRECTIONS = [(0, 1), (1, 0), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1), (-1, 0)]
DISTANCES = (5, 9, 14, 20, 28, 38)  # points
COVERED = 1000  # what it costs to cover another label: more than anything else
SAME = 10  # pixels between points that are one place to the eye


@dataclass(frozen=True)
class Label:
    """A text that belongs to a point.

    Attributes:
        x, y: the point, in data coordinates.
        text: what is written.
        style: matplotlib's text properties.
        name: whether it names a line. Names stand to the right of their point if they can and are always written;
            other labels keep close to their point and are left out where there is no room.
    """

    x: float
    y: float
    text: str
    style: dict[str, Any] = field(default_factory=dict)
    name: bool = False


def place_labels(axes: "Axes", labels: list[Label], lines: list[list[tuple[float, float]]]) -> None:
    """Write each label beside its point, where it covers least of the lines and of the labels before it.

    Call this when nothing else will change the layout any more: what is covered is measured in pixels.

    Args:
        axes: where the points are.
        labels: in the order of their importance; one that says the same at the same place as another is left out.
        lines: what else should stay visible, as corner points in data coordinates.
    """
    from matplotlib.patheffects import withStroke

    corners = [axes.transData.transform(point) for line in lines for point in line]
    inked = [point for line in lines for point in _along(axes, line)]
    taken: list[Bbox] = []
    written: list[tuple[str, float, float]] = []
    for label in labels:
        x, y = axes.transData.transform((label.x, label.y))
        if any(text == label.text and hypot(x - left, y - low) < SAME for text, left, low in written):
            continue
        written.append((label.text, x, y))
        directions = [(1, 0), (1, 1), (1, -1), *DIRECTIONS] if label.name else DIRECTIONS
        choices = [
            (number + 3 * DISTANCES.index(distance), across * distance, up * distance)
            for distance in (DISTANCES if label.name else DISTANCES[:3])
            for number, (across, up) in enumerate(directions)
        ]
        annotation = axes.annotate(label.text, (label.x, label.y), (0, 0), textcoords="offset points", **label.style)
        annotation.set_in_layout(False)
        annotation.set_path_effects([withStroke(linewidth=2, foreground="white")])
        best: tuple[float, float, float] | None = None
        for cost, across, up in choices:
            _move(annotation, across, up)
            box = annotation.get_window_extent()
            cost += COVERED * sum(box.overlaps(other) for other in taken) + 12 * box.count_contains(inked)
            cost += 80 * box.padded(5).count_contains(corners)
            cost += 0 if axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1) else 200
            if best is None or cost < best[0]:
                best = (cost, across, up)
        assert best is not None
        if best[0] >= COVERED and not label.name:
            annotation.remove()
            continue
        _move(annotation, *best[1:])
        taken.append(annotation.get_window_extent().padded(4, 0))


def end_labels(axes: "Axes", labels: list[tuple[float, float, str, Any]], size: float = 8) -> None:
    """Write the names of lines in the margin to the right of the panel, level with their ends or near to it.

    Call this when the layout is settled, as for `place_labels`; room for the names is taken from the panel.

    Args:
        axes: where the lines are.
        labels: for each line the point where it ends, in data coordinates, its name and its colour.
        size: of the letters, in points.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    step = 1.25 * size * figure.dpi / 72
    pixels = [float(axes.transData.transform((x, y))[1]) for x, y, _, _ in labels]
    order = sorted(range(len(labels)), key=lambda place: pixels[place])
    level = [pixels[place] for place in order]
    for _ in range(200):  # neighbours that are too close push each other apart
        for low in range(len(level) - 1):
            if (lack := step - (level[low + 1] - level[low])) > 0.01:
                level[low] -= lack / 2
                level[low + 1] += lack / 2
    shift = max(0.0, axes.bbox.y0 - level[0]) if level else 0.0
    for place, height in zip(order, level, strict=True):
        x, y, text, color = labels[place]
        axes.annotate(
            text,
            (x, y),
            (1.02, axes.transAxes.inverted().transform((0, height + shift))[1]),
            textcoords="axes fraction",
            color=color,
            size=size,
            weight="bold",
            va="center",
            arrowprops={"arrowstyle": "-", "color": color, "alpha": 0.4, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
            | {"relpos": (0, 0.5)},
        )


def _move(annotation: Any, across: float, up: float) -> None:
    annotation.set_position((across, up))
    annotation.set_horizontalalignment("left" if across > 0 else "right" if across < 0 else "center")
    annotation.set_verticalalignment("bottom" if up > 0 else "top" if up < 0 else "center")


def _along(axes: "Axes", line: list[tuple[float, float]], step: float = 4.0) -> list[tuple[float, float]]:
    """Pixels along a line, about `step` apart, its corners included."""
    corners = [tuple(axes.transData.transform(point)) for point in line]
    pixels = corners[:1]
    for (x0, y0), (x1, y1) in pairwise(corners):
        count = max(1, round(hypot(x1 - x0, y1 - y0) / step))
        pixels += [(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count) for i in range(1, count + 1)]
    return pixels
