"""The colour of a pass: from blue for the first to orange for the last, neighbours apart in lightness."""

from math import cos, pi, sin

HUES = (245.0, 395.0)  # degrees, of the first and the last pass
LIGHTNESS = (0.87, 0.79)  # of even and odd passes
CHROMA = 0.085
INK = "#1c1b1a"  # readable on all of them


def colour(number: int, most: int) -> str:
    """The background of a pass as "#rrggbb".

    Args:
        number: of the pass, counted from 0.
        most: passes of the slowest method.
    """
    share = number / max(most - 1, 1)
    return oklch(LIGHTNESS[number % 2], CHROMA, HUES[0] + share * (HUES[1] - HUES[0]))


def oklch(lightness: float, chroma: float, hue: float) -> str:
    """A colour of the OKLCh space (hue in degrees) as "#rrggbb". Source: B. Ottosson (2020), "A perceptual color space
    for image processing", whose matrices these are."""
    a, b = chroma * cos(hue * pi / 180), chroma * sin(hue * pi / 180)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _encoded(min(max(value, 0.0), 1.0))):02x}" for value in linear)


def _encoded(value: float) -> float:
    """The sRGB transfer function."""
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
