"""Load: arrivals as planned, latency from when requests were due, policies that hold what they promise."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from decodebench.analysis.load import load_runs
from decodebench.analysis.plot_load import latency_against_load, load_over_time
from decodebench.analysis.service import block_resamples, service_frame
from decodebench.analysis.service_table import service_cells
from decodebench.decoding import Generation
from decodebench.decoding.live import Live
from decodebench.errors import UserError
from decodebench.evaluation.catalog import load_task
from decodebench.evaluation.grid import expand_grid
from decodebench.evaluation.runner import RunOptions
from decodebench.load import arrivals as when
from decodebench.load.drive import Departure, Outcome, offer
from decodebench.load.grid import LoadOptions, LoadOutcome, load_cells
from decodebench.load.ledger import Ledger
from decodebench.load.policies import Plain, Policy, Queue, Settings, Target, policy, policy_names
from decodebench.load.report import measure
from decodebench.load.requests import Deck
from decodebench.load.run import run_loads
from decodebench.load.slo import Slo, percentile_95
from decodebench.methods.ar import AR
from decodebench.records import read_run, read_samples
from decodebench.records.passes import read_passes

# Arrivals


def test_poisson_arrivals_are_poisson_and_repeat_by_seed() -> None:
    plan = when.plan("poisson", "20", 500)
    times = plan.times(seed=3)
    gaps = np.diff(times)
    assert (times == plan.times(3)).all()
    assert len(times) != len(plan.times(4)) or (times != plan.times(4)).any()
    assert times[0] > 0
    assert times[-1] < 500
    assert abs(len(times) - 10_000) < 4 * 100  # four standard deviations
    assert abs(gaps.mean() - 0.05) < 0.002
    assert abs(gaps.std() / gaps.mean() - 1) < 0.05  # of the exponential distribution
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.04  # without memory


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_the_rate_may_change_in_steps_and_rest(kind: str) -> None:
    plan = when.plan(kind, "2:100/0:50/20:100", 7.0)
    times = plan.times(0)
    assert plan.duration == 250
    assert plan.mean_rate == pytest.approx(2200 / 250)
    counts = [((times >= low) & (times < high)).sum() for low, high in ((0, 100), (100, 150), (150, 250))]
    expected = [200, 0, 2000]
    assert all(abs(n - m) <= (4 * m**0.5 if kind == "poisson" else 0) for n, m in zip(counts, expected, strict=True))


@given(rate=st.floats(0.1, 50), duration=st.floats(0.5, 40))
def test_constant_arrivals_are_evenly_spaced(rate: float, duration: float) -> None:
    times = when.plan("constant", repr(rate), duration).times(0)
    assert np.allclose(times, np.arange(len(times)) / rate)
    assert len(times) == pytest.approx(rate * duration, abs=1)


def test_a_trace_is_replayed_from_its_first_timestamp(tmp_path: Path) -> None:
    path = tmp_path / "stamps"
    path.write_text("1700000000.5\n1700000001\n\n1700000001\n1700000009.25\n")
    plan = when.trace(path)
    assert plan.times(0).tolist() == [0, 0.5, 0.5, 8.75]
    assert plan.kind.startswith("trace:")
    assert str(tmp_path) not in repr(plan)
    assert when.trace(path, 2).times(0).tolist() == [0, 0.5, 0.5]
    for content in ("", "1\ntwo\n", "2\n1\n", "nan\n", "\x00\xff"):
        path.write_text(content)
        with pytest.raises(UserError, match="stamps"):
            when.trace(path)


@pytest.mark.parametrize("rate", ["", "x", "-1", "0", "nan", "inf", "1:0", "1:60/2", "1:-3", "1:inf", "1e12"])
def test_rates_that_make_no_sense_are_refused(rate: str) -> None:
    with pytest.raises(UserError, match="--rate"):
        when.plan("poisson", rate, 10)


def test_every_request_of_a_task_comes_before_any_comes_again() -> None:
    keys = [("a", 0, 0), ("a", 0, 1), ("a", 5, 0), ("b", 0, 0)]
    deck = Deck(keys)
    drawn = deck.draw(11, seed=1)
    assert len(set(drawn)) == 11
    assert sorted(drawn[:4]) == sorted(keys)
    asked = [deck.asked(key) for key in drawn]
    assert [turn for turn, _ in asked] == [0] * 4 + [1] * 4 + [2] * 3
    assert {key for _, key in asked} == set(keys)
    assert drawn == deck.draw(11, seed=1) != deck.draw(11, seed=2)


# The open loop, on a simulated clock


class Simulated:
    """A clock that jumps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


def answer(tokens: int, service: float) -> Generation:
    return Generation("", [7] * tokens, "length", [1] * tokens, [], ttft=service / tokens, latency=service)


def single_server(times: Sequence[float], service: float) -> list[Outcome]:
    """Requests that are served one after the other, in the same time each."""
    clock, outcomes, free = Simulated(), [], 0.0

    def send(place: int, due: float) -> None:
        nonlocal free
        free = max(due, free) + service
        outcomes.append(Outcome(place, due, clock.now(), free, answer(4, service)))

    offer(times, {}, send, lambda place: None, clock, clock.now())
    return outcomes


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_latencies_are_those_of_an_m_d_1_queue(load: float) -> None:
    """Pollaczek and Khinchine: with constant service S and load ρ the mean wait is ρ S / 2 (1 − ρ)."""
    means = []
    for seed in range(12):
        outcomes = single_server(when.plan("poisson", repr(load), 4000).times(seed).tolist(), 1.0)
        means.append(float(np.mean([outcome.latency or 0.0 for outcome in outcomes])))
        assert [outcome.ttft for outcome in outcomes] == pytest.approx([o.ended - 0.75 - o.due for o in outcomes])
        assert {round(outcome.per_token or 0, 6) for outcome in outcomes} == {0.25}
    spread = 3.5 * np.std(means, ddof=1) / len(means) ** 0.5
    assert abs(np.mean(means) - (1 + load / (2 * (1 - load)))) < spread


def test_a_sender_that_is_held_up_does_not_move_the_schedule() -> None:
    """No coordinated omission: each send takes a second, two are due in each, and nobody's due moment moves."""
    clock, due = Simulated(), []

    def send(place: int, moment: float) -> None:
        due.append(moment)
        clock.time += 1

    begun = clock.now()
    offer([n / 2 for n in range(20)], {}, send, lambda place: None, clock, begun)
    assert [moment - begun for moment in due] == [n / 2 for n in range(20)]
    assert clock.time - begun == 20


def test_clients_leave_when_they_said_they_would() -> None:
    times = [n / 10 for n in range(1000)]
    moments = Departure(0.3, 2.0, seed=1).moments(times)
    assert 240 < len(moments) < 360
    assert all(0 <= moments[place] - times[place] <= 2 for place in moments)
    clock, events = Simulated(), []
    offer(
        times,
        moments,
        lambda place, due: events.append((clock.now(), place, "sent")),
        lambda place: events.append((clock.now(), place, "left")),
        clock,
        clock.now(),
    )
    assert [moment for moment, *_ in events] == sorted(moment for moment, *_ in events)
    assert sum(what == "left" for *_, what in events) == len(moments)


def test_the_report_counts_everyone_and_keeps_to_the_duration() -> None:
    def ended(place: int, latency: float, finish: Any, tokens: int = 11) -> Outcome:
        generation = Generation("", [1] * tokens, finish, [1] * tokens, [], ttft=0.5, latency=latency)
        return Outcome(place, 10.0 + place, 10.0 + place, 10.0 + place + latency, generation)

    outcomes = [
        ended(0, 1.5, "length"),
        ended(1, 3.0, "stop_token"),
        ended(2, 1.0, "cancelled"),
        ended(3, 9.0, "deadline"),
        Outcome(4, 14.0, 14.2, 14.2, None),
    ]
    passes: list[dict[str, Any]] = [
        {"t": 1.0, "rows": 1, "tokens": 3, "waiting": 0, "tau": 1.0},
        {"t": 4.0, "rows": 3, "tokens": 7, "waiting": 2, "tau": [0.6, 0.6, 0.9]},
        {"t": 6.0, "rows": 1, "tokens": 90, "waiting": 0, "tau": 0.0},
    ]
    numbers = measure(outcomes, passes, 10.0, 5.0, Target(latency=2.0))
    assert [numbers[name] for name in ("offered", "finished", "good", "cancelled", "deadline", "refused")] == [
        5, 2, 1, 1, 1, 1,
    ]  # fmt: skip
    assert (numbers["goodput"], numbers["attainment"], numbers["tokens_per_second"]) == (0.2, 0.25, 2.0)
    assert numbers["latency"]["p50"] == pytest.approx(2.25)
    assert numbers["per_token"]["p50"] == pytest.approx((0.1 + 0.25) / 2)
    assert numbers["tau"] == pytest.approx((1.0 + 2.1) / 4)
    assert numbers["late"] == pytest.approx(0.2)
    assert measure(outcomes, passes, 10.0, 5.0, Target(per_token=0.2))["good"] == 1
    assert measure([], [], 0.0, 5.0, Target())["latency"]["p95"] is None


# Policies, on a simulated service


def simulate(
    chosen: Policy, rates: Sequence[tuple[float, float]], seed: int = 0
) -> tuple[list[list[float]], list[float]]:
    """A service with 4 rows whose passes take 50 ms and commit 1 token per row at τ = 1 and 3 at τ = 0.5.

    Returns the latencies of each piece of the load, and the mean τ in the second half of each.
    """
    plan = when.plan("poisson", "/".join(f"{rate}:{seconds}" for rate, seconds in rates), 0)
    due = plan.times(seed).tolist()
    clock, rng = Simulated(), np.random.default_rng(seed)
    begun = clock.time
    ledger = Ledger(4, clock.now)
    ends = np.cumsum([seconds for _, seconds in rates])
    lengths = rng.integers(20, 60, len(due))
    waiting: list[int] = []
    running: dict[int, list[float]] = {}  # tokens and admission
    latencies: list[list[float]] = [[] for _ in rates]
    taus: list[list[float]] = [[] for _ in rates]
    sent = 0
    while sent < len(due) or waiting or running:
        if not (waiting or running):
            clock.sleep_until(begun + due[sent])
        while sent < len(due) and begun + due[sent] <= clock.time:
            ledger.arrive(sent, begun + due[sent])
            waiting.append(sent)
            sent += 1
        while waiting and len(running) < 4:
            running[waiting.pop(0)] = [0.0, clock.time]
        tau = chosen.tau(None)  # type: ignore[arg-type]
        clock.time += 0.05
        speed = 1 + 4 * (1 - tau)
        for place, state in list(running.items()):
            state[0] += speed
            ledger.progress(place, int(state[0]))
        ledger.passed(0.05, speed)
        for place, (tokens, admitted) in list(running.items()):
            if tokens >= lengths[place]:
                del running[place]
                piece = int(np.searchsorted(ends, due[place], side="right"))
                latencies[piece].append(clock.time - begun - due[place])
                ledger.end(place, clock.time - admitted)
        chosen.observe(ledger)
        piece = min(int(np.searchsorted(ends, clock.time - begun, side="right")), len(rates) - 1)
        if ends[piece] - (clock.time - begun) < rates[piece][1] / 2:
            taus[piece].append(tau)
    return latencies, [float(np.mean(values)) for values in taus]


CALM, BUSY = 0.4, 3.2  # requests per second: at τ = 1 the service can do 2, at τ = 0.5 it can do 6


@pytest.mark.parametrize("seed", range(3))
def test_slo_holds_the_target_with_the_highest_tau_that_can(seed: int) -> None:
    settings = Settings(0.5, 1.0, Target(latency=6.0), 4)
    load = [(CALM, 120), (BUSY, 240), (CALM, 240)]
    latencies, taus = simulate(Slo(settings), load, seed)
    assert taus[0] > 0.999  # nothing is given away while there is room
    assert percentile_95(latencies[1][len(latencies[1]) // 4 :]) < 6.0
    assert percentile_95(latencies[1][len(latencies[1]) // 4 :]) > 2.0  # and no more than is needed is given away
    assert 0.55 < taus[1] < 0.95
    assert taus[2] > 0.99
    fixed, _ = simulate(policy("fixed")(settings), load, seed)
    assert percentile_95(fixed[1]) > 30


def test_slo_holds_seconds_per_token() -> None:
    chosen = Slo(Settings(0.5, 1.0, Target(per_token=0.03), 4))
    _, taus = simulate(chosen, [(1.0, 100)])
    assert 0.05 / (1 + 4 * (1 - taus[0])) == pytest.approx(0.85 * 0.03, rel=0.1)


def test_slo_does_not_blame_a_busy_hour_on_who_comes_after_it() -> None:
    """Seconds per token are remembered from the last passes, however long ago they were."""
    chosen, clock = Slo(Settings(0.5, 1.0, Target(per_token=0.03), 1)), Simulated()
    ledger = Ledger(1, clock.now)

    def serve(passes: int) -> None:
        ledger.arrive(0, clock.time)
        for count in range(passes):
            clock.time += 0.05
            ledger.progress(0, count + 1)
            ledger.passed(0.05, 1.0)
            chosen.observe(ledger)
        ledger.end(0, passes * 0.05)

    serve(200)
    assert chosen.tau(None) == 0.5  # type: ignore[arg-type]
    clock.time += 60
    serve(1)
    assert chosen.tau(None) > 0.98  # type: ignore[arg-type]


def test_slo_needs_a_target() -> None:
    with pytest.raises(UserError, match="--target-latency"):
        Slo(Settings(0.5, 1.0, Target(), 4))


@pytest.mark.parametrize(("waiting", "tau"), [(0, 1.0), (1, 0.9), (4, 0.6), (40, 0.6)])
def test_queue_lowers_tau_as_the_queue_fills(waiting: int, tau: float) -> None:
    chosen, ledger = Queue(Settings(0.6, 1.0, Target(), 4)), Ledger(4, time.perf_counter)
    for number in range(waiting + 4):
        ledger.arrive(number, 0.0)
        if number < 4:
            ledger.progress(number, 1)
    chosen.observe(ledger)
    assert chosen.tau(None) == pytest.approx(tau)  # type: ignore[arg-type]


def test_a_function_will_do_as_a_policy_and_is_kept_within_the_bounds() -> None:
    chosen = Plain(Settings(0.6, 0.9, Target(), 4), lambda load: load.waiting / 10)
    ledger = Ledger(4, time.perf_counter)
    assert chosen.tau(None) == 0.9  # type: ignore[arg-type]
    chosen.observe(ledger)
    assert chosen.tau(None) == 0.6  # type: ignore[arg-type]


def test_policies_are_found_by_name() -> None:
    assert {"fixed", "queue", "slo"} <= set(policy_names())
    with pytest.raises(UserError, match="queue"):
        policy("quene")


# Recorded loads


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.write_questions(tmp_path_factory.mktemp("data"))


def run(
    results: Path, data: Path, methods: str = "ar", rate: str = "30", policies: Sequence[str] = ("fixed",),
    rows: int = 4, repeats: int = 1, knobs: dict[str, list[str]] | None = None, seconds: float = 0.5, **load: Any,
) -> list[LoadOutcome]:  # fmt: skip
    tasks = {"gsm8k": load_task("gsm8k", data_dir=data)}
    options = LoadOptions(**load)
    plans = [when.plan("poisson", each, seconds) for each in rate.split(",")]
    cells = load_cells(
        expand_grid(methods.split(","), ["gsm8k"], [rows], knobs or {}), plans, policies, options.tau_high
    )
    return run_loads(cells, tiny.tiny("llama"), tasks, RunOptions(results, repeats, settings=harness.SHORT), options)


def test_a_load_is_recorded_and_its_answers_are_those_of_an_ordinary_run(tmp_path: Path, data: Path) -> None:
    (plain,) = harness.run(tmp_path / "plain", data, tiny.tiny("llama"))
    assert plain.folder is not None
    expected = {sample["doc_id"]: sample for sample in read_samples(plain.folder)}
    ar, mars, hf = run(tmp_path, data, "ar,mars,hf-generate", knobs={"tau": ["1"]}, repeats=2)
    for outcome in (ar, mars, hf):
        assert outcome.error is None
        assert outcome.folder is not None
        record, samples = read_run(outcome.folder), read_samples(outcome.folder)
        assert (record["status"], record["repeats"]) == ("done", 2)
        assert len(samples) == sum(timing["load"]["offered"] for timing in record["timings"])
        assert len(samples) > 20  # more than there are documents
        for sample in samples:
            assert sample["tokens"] == expected[sample["doc_id"]]["tokens"]
            assert sample["scores"] == expected[sample["doc_id"]]["scores"]
            assert 0 < sample["ttft"] <= sample["latency"]
            assert sample["late"] < sample["latency"]
        assert record["aggregates"]["score"]["n"] == 12 or record["timings"][0]["load"]["offered"] < 12
    assert mars.folder is not None
    passes = read_passes(mars.folder, 0)
    assert {line["tau"] for line in passes} == {1.0}
    tokens = sum(len(sample["tokens"]) for sample in read_samples(mars.folder) if sample["repeat"] == 0)
    assert sum(line["tokens"] for line in passes) == tokens
    assert hf.folder is not None
    assert read_passes(hf.folder, 0) == []


def test_a_recorded_load_is_not_run_again_and_more_repeats_extend_it(tmp_path: Path, data: Path) -> None:
    (first,) = run(tmp_path, data)
    assert first.folder is not None
    before = (first.folder / "samples.jsonl").read_bytes()
    (again,) = run(tmp_path, data)
    assert again.numbers == first.numbers
    assert (first.folder / "samples.jsonl").read_bytes() == before
    run(tmp_path, data, repeats=2)
    assert (first.folder / "samples.jsonl").read_bytes().startswith(before)
    assert read_run(first.folder)["repeats"] == 2


def test_what_does_not_fit_is_recorded_as_refused_and_what_is_given_up_as_cancelled(tmp_path: Path, data: Path) -> None:
    (outcome,) = run(tmp_path, data, rate="400", rows=1, max_queue=2, cancel=1.0, cancel_within=0.02)
    assert outcome.folder is not None
    finish = [sample["finish"] for sample in read_samples(outcome.folder)]
    assert finish.count("refused") == outcome.numbers["refused"] > 0
    assert finish.count("cancelled") == outcome.numbers["cancelled"] > 0
    assert len(finish) == outcome.numbers["offered"] == len(when.plan("poisson", "400", 0.5).times(0))
    assert outcome.numbers["max_waiting"] <= 2
    for sample in read_samples(outcome.folder):
        assert (sample["latency"] is None) == (sample["finish"] in ("refused", "cancelled")) == (not sample["scores"])


def test_a_slow_service_is_charged_for_the_requests_that_pile_up(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with one row that does nothing until all have arrived, and then takes 5 ms or more for each pass.

    A client that waited for answers would never send the second request. All bounds are such as no other load on the
    machine can break.
    """
    due = when.plan("poisson", "40", 0.5).times(0).tolist()
    pause, sent, all_sent = 0.005, [0], threading.Event()
    original, submit = AR.accept, Live.submit

    def slow(self: AR, *arguments: Any) -> Any:
        if sent[0]:  # the warm-up is over
            assert all_sent.wait(60)
        time.sleep(pause)
        return original(self, *arguments)

    def counted(self: Live, *arguments: Any) -> Any:
        sent[0] += 1
        handle = submit(self, *arguments)
        if sent[0] == len(due):
            all_sent.set()
        return handle

    monkeypatch.setattr(AR, "accept", slow)
    monkeypatch.setattr(Live, "submit", counted)
    (outcome,) = run(tmp_path, data, rate="40", rows=1)
    assert outcome.error is None
    assert outcome.folder is not None
    samples = sorted(read_samples(outcome.folder), key=lambda sample: sample["due"])
    assert [sample["due"] for sample in samples] == pytest.approx(due, abs=1e-6)
    passes = 0
    for before, sample in zip([None, *samples], samples, strict=False):
        assert sample["latency"] == pytest.approx(sample["elapsed"] - sample["due"])
        assert before is None or sample["elapsed"] > before["elapsed"]
        passes += sample["passes"]  # each waits for the last to arrive, and for all before it to be served
        assert sample["latency"] > due[-1] - sample["due"] + passes * pause
    assert passes * pause > 1


def test_deadlines_are_counted_from_when_a_request_was_due(tmp_path: Path, data: Path) -> None:
    (outcome,) = run(tmp_path, data, rate="400", rows=1, max_queue=1000, deadline=0.1)
    assert outcome.folder is not None
    late = [sample for sample in read_samples(outcome.folder) if sample["finish"] == "deadline"]
    assert len(late) == outcome.numbers["deadline"] > 0
    assert all(sample["elapsed"] - sample["due"] >= 0.1 for sample in late)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Path, list[LoadOutcome]]:
    """Loads at two rates and one in steps, with all policies."""
    results = tmp_path_factory.mktemp("grid")
    return results, run(
        results, data, "ar,mars", rate="80,160,50:0.1/200:0.1", seconds=0.2, policies=("fixed", "queue", "slo"),
        knobs={"tau": ["1"]}, rows=2, target=Target(0.05), tau_low=0.2, tau_high=0.9,
    )  # fmt: skip


def test_policies_move_tau_and_their_loads_are_told_apart(grid: tuple[Path, list[LoadOutcome]]) -> None:
    _, outcomes = grid
    assert [outcome.error for outcome in outcomes] == [None] * 12  # ar; mars fixed, queue, slo; at three loads
    folders = [outcome.folder for outcome in outcomes if outcome.folder]
    assert len(set(folders)) == 12
    for outcome in outcomes:
        assert outcome.folder is not None
        taus = {tau for line in read_passes(outcome.folder, 0) for tau in np.ravel(line["tau"])}
        if outcome.cell.policy is None:
            assert taus == {None}
        elif outcome.cell.policy == "fixed":
            assert taus == {outcome.cell.cell.knobs["tau"]}
        else:
            assert 0.2 <= min(taus) < max(taus) <= 0.9
            assert outcome.cell.cell.knobs["tau"] == 0.9


def test_loads_are_compared_with_the_baseline_under_the_same_arrivals(grid: tuple[Path, list[LoadOutcome]]) -> None:
    results, outcomes = grid
    runs = load_runs([results], under_load=True)
    frame = service_frame(runs)
    assert len(frame) == 12
    assert set(frame["label"]) == {"ar", "mars τ=1", "mars queue τ=0.2–0.9", "mars slo τ=0.2–0.9"}
    assert (frame.groupby("plan")["baseline"].nunique() == 1).all()
    numbers = {outcome.folder.name: outcome.numbers for outcome in outcomes if outcome.folder}
    for row in frame.to_dict("records"):
        own = numbers[row["run"]]
        assert row["goodput"] == pytest.approx(own["goodput"])
        assert row["latency_p95"] == pytest.approx(own["latency"]["p95"])
        assert row["latency_p95_low"] <= row["latency_p95"] <= row["latency_p95_high"]
        assert row["goodput_low"] <= row["goodput"] <= row["goodput_high"]
        if row["label"] == "mars τ=1":
            assert (row["equal_outputs"], row["difference"]) == (1.0, 0.0)
    columns, cells = service_cells(frame, wide=True)
    assert len(cells) == 12
    assert {"goodput/s", "p95 s", "mean τ", "same out %"} <= set(columns)
    with pytest.raises(UserError, match="compare --load"):
        load_runs([results])


def test_loads_are_drawn(grid: tuple[Path, list[LoadOutcome]]) -> None:
    runs = load_runs([grid[0]], under_load=True)
    knee = latency_against_load(runs, "small print")
    assert [axes.get_xlabel() for axes in knee.axes] == ["requests per second that arrive"] * 2
    assert len(knee.axes[0].containers) == 4
    course = load_over_time(runs)
    assert [axes.get_ylabel() for axes in course.axes] == ["τ", "requests that wait", "p95 latency (s)"]
    assert "50:0.1/200:0.1" in course.axes[0].get_title(loc="left")
    only_steps = [run for run in runs if "/" in str(run.config["rate"])]
    with pytest.raises(UserError, match="several rates"):
        latency_against_load(only_steps)


def test_intervals_hold_what_they_promise_where_neighbours_are_alike() -> None:
    """A walk that forgets slowly: an interval that took its steps for independent would be far too narrow."""
    inside = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = np.zeros(400)
        for place in range(1, 400):
            values[place] = 0.8 * values[place - 1] + rng.normal()
        low, high = np.percentile(values[block_resamples(400)].mean(1), (2.5, 97.5))
        inside += low <= 0 <= high
    assert inside >= 33


def test_a_policy_that_nobody_can_follow_is_refused() -> None:
    cells = expand_grid(["ar"], ["gsm8k"], [1], {})
    with pytest.raises(UserError, match="none of the methods"):
        load_cells(cells, [when.plan("poisson", "1", 1)], ["queue"], 1.0)


def test_a_load_that_fails_is_recorded_as_failed_and_stops_no_other(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from decodebench.methods.mars import MARS

    def broken(self: MARS, *arguments: Any) -> Any:
        if arguments[0].host_total.max() > 30:
            raise RuntimeError("out of luck")
        return original(self, *arguments)

    original = MARS.accept
    monkeypatch.setattr(MARS, "accept", broken)
    bad, good = run(tmp_path, data, "mars,ar")
    assert (bad.error, good.error) == ("RuntimeError: out of luck", None)
    assert bad.folder is not None
    assert read_run(bad.folder)["status"] == "failed"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_load_that_is_stopped_leaves_a_readable_record_and_begins_again(tmp_path: Path, data: Path, how: int) -> None:
    model = harness.save_tiny(tmp_path / "model")
    command = [
        sys.executable, "-m", "decodebench", "load", "--method", "ar", "--model", str(model), "--tasks", "gsm8k",
        "--data-dir", str(data), "--rate", "15", "--duration", "3", "--max-new-tokens", "8",
        "--results", str(tmp_path / "results"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        end = time.perf_counter() + 120
        while not any((tmp_path / "results").glob("*/samples.jsonl")):
            assert process.poll() is None
            assert time.perf_counter() < end
            time.sleep(0.05)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    (folder,) = (tmp_path / "results").glob("gsm8k*")
    assert read_run(folder)["status"] == ("failed" if how == signal.SIGINT else "running")
    assert len(read_samples(folder)) >= 1
    assert all("t" in line for line in read_passes(folder, 0))
    if how == signal.SIGINT:
        assert "begins again" in said
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        record = read_run(folder)
        assert record["status"] == "done"
        assert len(read_samples(folder)) == record["timings"][0]["load"]["offered"]
        assert "goodput" in done.stdout
