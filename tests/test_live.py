"""Requests that arrive one by one get what they get in a list, and nobody suffers from another's troubles."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from decodebench.decoding import Decoder, Method, Progress, Request, Sampling
from decodebench.decoding.engine import Engine
from decodebench.decoding.feed import Pass
from decodebench.decoding.live import Live, Refused
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.hf_generate import HFGenerate
from decodebench.methods.jacobi import Jacobi
from decodebench.methods.mars import MARS

LONG = 400
SECONDS = 60  # to wait at most for what takes milliseconds
MODEL = tiny.tiny(stop=False, logit_scale=3.0)
PROMPT = st.lists(st.integers(3, 299), min_size=1, max_size=50)
REQUEST = st.builds(
    Request,
    prompt=PROMPT,
    max_new_tokens=st.integers(1, 16),
    stop=st.sampled_from([(), ("e",), ("an", "7")]),
    sampling=st.builds(Sampling, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 9)),
)


def live(decoder: Method | None = None, rows: int = 2, max_queue: int | None = None, **options: object) -> Live:
    return Live((decoder or AR()).generator(MODEL, rows), 512, max_queue, **options)  # type: ignore[arg-type]


def until(condition: Callable[[], bool]) -> None:
    end = time.perf_counter() + SECONDS
    while not condition():
        assert time.perf_counter() < end
        time.sleep(0.001)


@pytest.mark.parametrize("decoder", [AR(), MARS(tau=0.3), MARS(tau=0.3, cache="block"), Jacobi()], ids=str)
@settings(max_examples=10)
@given(
    asked=st.lists(st.tuples(REQUEST, st.floats(0, 0.02), st.booleans()), min_size=1, max_size=8),
    rows=st.integers(1, 4),
)
def test_what_arrives_gets_what_it_gets_in_a_list(
    decoder: Decoder, asked: list[tuple[Request, float, bool]], rows: int
) -> None:
    if isinstance(decoder, Jacobi):  # it is greedy
        asked = [(Request(r.prompt, r.max_new_tokens, r.stop), pause, leaves) for r, pause, leaves in asked]
    expected = tiny.run(MODEL, decoder, [request for request, _, _ in asked], rows)
    streams: list[list[int]] = [[] for _ in asked]
    with live(decoder, rows) as service:
        handles = []
        for (request, pause, _), stream in zip(asked, streams, strict=True):
            handles.append(service.submit(request, on_commit=lambda _, new, stream=stream: stream.extend(new)))  # type: ignore[misc]
            time.sleep(pause)
        for handle, (_, _, leaves) in zip(handles, asked, strict=True):
            if leaves:
                handle.cancel()
        assert service.drain(SECONDS)
    for handle, alone, stream, (_, _, leaves) in zip(handles, expected, streams, asked, strict=True):
        generation = handle.result()
        assert generation.tokens == alone.tokens[: len(generation.tokens)]
        assert stream == generation.tokens
        if generation.finish == "cancelled":
            assert leaves
        else:
            assert (generation.tokens, generation.text, generation.finish) == (alone.tokens, alone.text, alone.finish)


def test_a_generator_that_only_knows_lists_serves_too() -> None:
    requests = [Request([5 + n] * (3 + n), 4 + n) for n in range(5)]
    with live(HFGenerate()) as service:
        handles = [service.submit(request) for request in requests]
        answers = [handle.result(SECONDS).tokens for handle in handles]
    assert answers == tiny.tokens(tiny.run(MODEL, AR(), requests))


def test_a_cancelled_request_gives_its_row_to_the_next() -> None:
    with live(rows=1) as service:
        first, second = service.submit(Request([5], LONG)), service.submit(Request([6], 3))
        until(lambda: service.running == 1)
        assert (service.waiting, second.future.done()) == (1, False)
        first.cancel()
        assert second.result(SECONDS).finish == "length"
        assert first.result().finish == "cancelled"
        assert len(first.result().tokens) < LONG
        first.cancel()  # late, and of no consequence


def test_who_leaves_the_queue_never_runs() -> None:
    with live(rows=1) as service:
        first, second = service.submit(Request([5], LONG)), service.submit(Request([6], 3))
        second.cancel()
        assert (second.result(SECONDS).finish, second.result().tokens) == ("cancelled", [])
        assert not first.future.done()


@pytest.mark.parametrize("busy", [False, True])
def test_a_deadline_ends_a_request_in_its_row_and_in_the_queue(busy: bool) -> None:
    with live(rows=1) as service:
        blocker = service.submit(Request([7], LONG)) if busy else None
        late = service.submit(Request([5], LONG), deadline=time.perf_counter() + 0.05)
        assert late.result(SECONDS).finish == "deadline"
        assert (late.result().tokens == []) is busy or (blocker and blocker.future.done())


def test_what_does_not_fit_is_refused_and_counted() -> None:
    with live(rows=1, max_queue=2) as service:
        for n in range(3):
            service.submit(Request([5 + n], LONG))
        for _ in range(2):
            with pytest.raises(Refused, match="2 requests are waiting"):
                service.submit(Request([9], 1))
        assert service.refused == 2


def test_who_asks_for_nonsense_hears_of_it_at_once() -> None:
    with live(MARS(tau=0.5)) as service:
        with pytest.raises(UserError, match="vocabulary"):
            service.submit(Request([5, 300], 4))
        with pytest.raises(UserError, match="between 0 and 1"):
            service.submit(Request([5], 4, tau=1.5))
        assert service.submit(Request([5] * 600, 4)).result(SECONDS).finish == "prompt_too_long"
        assert len(service.submit(Request([5] * 500, 40)).result(SECONDS).tokens) == 12


def test_a_callback_that_raises_ends_its_own_request_alone() -> None:
    requests = [Request([5 + n] * 4, 12) for n in range(3)]
    expected = tiny.tokens(tiny.run(MODEL, MARS(tau=0.3), requests))

    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    with live(MARS(tau=0.3), rows=3) as service:
        fine = [service.submit(request) for request in requests]
        deaf = service.submit(Request([8], LONG), on_commit=broken)
        unsure = service.submit(Request([8], LONG, tau=broken))
        assert [handle.result(SECONDS).tokens for handle in fine] == expected
        for handle in (deaf, unsure):
            with pytest.raises(ZeroDivisionError):
                handle.result(SECONDS)


def test_what_kills_the_engine_is_told_to_everyone() -> None:
    def broken(_: Pass) -> None:
        raise MemoryError("no room")

    with live(on_pass=broken) as service:
        handle = service.submit(Request([5], LONG))
        with pytest.raises(MemoryError):
            handle.result(SECONDS)
        until(lambda: not service._thread.is_alive())
        with pytest.raises(Refused, match="no room"):
            service.submit(Request([5], 1))


def test_tau_may_change_while_requests_run() -> None:
    passes: list[Pass] = []
    tau = 1.0
    with live(MARS(tau=0.9), on_pass=passes.append) as service:
        asked = service.submit(Request([5], 40, tau=lambda _: tau), on_commit=lambda p, _: lower(p))

        def lower(progress: Progress) -> None:
            nonlocal tau
            tau = 1.0 if len(progress.tokens) < 10 else 0.0

        generation = asked.result(SECONDS)
    assert generation.committed[:10] == [1] * 10
    assert min(generation.committed[10:-1]) > 1
    assert [done.tau.tolist() for done in passes] == [[1.0]] * 10 + [[0.0]] * (len(passes) - 10)
    assert [done.tokens for done in passes] == generation.committed
    assert [done.prefill for done in passes] == [True] + [False] * (len(passes) - 1)


def test_idle_waiting_costs_nothing_and_draining_ends_what_was_taken() -> None:
    service = live()
    service.submit(Request([5], 2)).result(SECONDS)
    begun = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begun < 0.1
    handles = [service.submit(Request([5 + n], 30)) for n in range(6)]
    assert service.drain(SECONDS)
    assert {handle.result().finish for handle in handles} == {"length"}
    with pytest.raises(Refused, match="stopping"):
        service.submit(Request([5], 2))


def test_requests_may_come_from_many_threads() -> None:
    requests = [Request([5 + n] * (1 + n % 7), 6) for n in range(24)]
    expected = tiny.tokens(tiny.run(MODEL, AR(), requests, 4))
    answers: list[list[int]] = [[] for _ in requests]
    with live(rows=4) as service:

        def ask(worker: int) -> None:
            for place in range(worker, len(requests), 6):
                answers[place] = service.submit(requests[place]).result(SECONDS).tokens

        threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == expected


def test_nothing_of_an_ended_request_is_kept() -> None:
    with live() as service:
        for n in range(20):
            handle = service.submit(Request([5 + n], 2))
            handle.cancel() if n % 3 else handle.result(SECONDS)
        until(lambda: not service._handles)
        assert (service.waiting, service.running) == (0, 0)
    assert isinstance(service.generator, Engine)


@pytest.mark.parametrize("rows", [1, 3])
def test_no_row_idles_while_requests_wait(rows: int) -> None:
    """Before rows decode, all that are free have got a request, if there is one; whoever leaves."""
    passes: list[tuple[Pass, int]] = []  # and how many had no row in it
    all_there = threading.Event()

    def wait(*_: object) -> None:
        all_there.wait(SECONDS)

    with live(MARS(tau=0.3), rows, on_pass=lambda done: passes.append((done, len(service.queue)))) as service:
        service.submit(Request([5], 1), on_commit=wait)
        handles = [service.submit(Request([5 + n] * (1 + 7 * n % 40), 1 + 5 * n % 17)) for n in range(24)]
        for handle in handles[::5]:
            handle.cancel()
        all_there.set()
        assert service.drain(SECONDS)
    crowded = [done for done, waiting in passes if waiting and not done.prefill]
    assert len(crowded) > 10
    assert {done.rows for done in crowded} == {rows}
