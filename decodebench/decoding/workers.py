"""The threads that torch computes with."""

import contextlib
import ctypes

HARD = 2  # omp_pause_hard, OpenMP 5.0, section 3.2.44


def release_workers() -> None:
    """Let go of the calling thread's workers; it gets new ones when it computes again.

    For a thread that hands its work over to another one. Each that has ever computed keeps workers of its own, and
    GNU's OpenMP lets workers wait awake only while there are no more of them than cores: beside those of a thread that
    does nothing, a decoding pass takes a third longer. Where torch uses another OpenMP, nothing happens.
    """
    with contextlib.suppress(OSError, StopIteration, AttributeError), open("/proc/self/maps", encoding="utf-8") as maps:
        library = next(line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line)
        ctypes.CDLL(library).omp_pause_resource_all(HARD)
