"""What passes consist of, what the machine could do at best, and the share of it that was reached."""

from dataclasses import astuple
from types import SimpleNamespace

import pytest
import tiny
import torch

from decodebench.decoding import Generator, Request
from decodebench.decoding.clock import PassClock
from decodebench.methods.ar import AR
from decodebench.methods.jacobi import Jacobi
from decodebench.methods.speculative import Speculative

PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12], [20, 21, 22, 23]]


def decoded(generator: Generator, max_new_tokens: int = 12) -> Generator:
    generator.generate([Request(prompt, max_new_tokens) for prompt in PROMPTS])
    return generator


@pytest.mark.parametrize("decoder", [AR(), Jacobi(), Speculative(draft_source="early-exit:1")], ids=lambda d: type(d).__name__)
def test_the_parts_of_decoding_passes_sum_to_the_decode_time(decoder: AR | Jacobi | Speculative) -> None:
    statistics = decoded(decoder.generator(tiny.tiny(), 2)).statistics
    decoding = statistics.decoding
    parts = astuple(decoding)[-4:]
    assert sum(parts) == pytest.approx(statistics.decode_seconds)
    assert min(parts) > 0
    assert decoding.draft_seconds <= statistics.draft_seconds
    assert 0 < decoding.passes < statistics.passes


def test_an_inner_part_is_not_counted_in_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr("decodebench.decoding.clock.time", SimpleNamespace(perf_counter=lambda: next(moments)))
    clock = PassClock(torch.device("cpu"))
    with clock.part("acceptance"), clock.part("draft"):
        pass
    assert clock.take() == {"acceptance": 1.0 + 4.0, "draft": 2.0}
    assert clock.take() == {}


def test_events_time_the_parts_on_cuda_and_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Event] = []
    now = 0

    class Event:
        """Stands in for ``torch.cuda.Event``: every record is a millisecond after the last; to wait is an error."""

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            made.append(self)

        def record(self, stream: object) -> None:
            nonlocal now
            now += 1
            self.at = now

        def elapsed_time(self, other: "Event") -> float:
            return float(other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    clock = PassClock(torch.device("cuda"))
    for _ in range(3):
        with clock.part("model"):
            pass
        with clock.part("acceptance"), clock.part("draft"):
            pass
        assert clock.take() == pytest.approx({"model": 0.001, "acceptance": 0.002, "draft": 0.001})
    assert len(made) == 6
