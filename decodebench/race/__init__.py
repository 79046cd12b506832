"""One prompt, decoded by several methods one after the other, and shown as if they had run side by side."""

from decodebench.race.picture import picture
from decodebench.race.screen import replay, results, show
from decodebench.race.timeline import Lane, run_lane

__all__ = ["Lane", "picture", "replay", "results", "run_lane", "show"]
