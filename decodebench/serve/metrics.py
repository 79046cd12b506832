"""What Prometheus is told."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from decodebench.decoding import Generation
from decodebench.decoding.feed import Pass

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 300)
PASS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """Counters of one server; each may be told from any thread.

    Args:
        methods: by name, how many requests of each run and wait at the moment.
    """

    def __init__(self, methods: Mapping[str, tuple[Callable[[], int], Callable[[], int]]]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        by = ["method"]
        self.responses = self._counter("http_responses", "HTTP responses.", ["path", "status"])
        self.requests = self._counter("requests", "Requests that ended, by how.", ["method", "finish"])
        self.refused = self._counter("requests_refused", "Requests that found the queue full.", by)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts that got a row.", by)
        self.tokens = self._counter("generated_tokens", "Tokens committed.", by)
        self.passes = self._counter("passes", "Forward passes.", ["method", "prefill"])
        self.row_passes = self._counter("row_passes", "Forward passes times requests that took part.", by)
        self.tau = self._gauge("tau", "Confidence threshold in the last pass, mean over its requests.", by)
        self.running = self._gauge("rows_running", "Requests that have a row.", by)
        self.waiting = self._gauge("queue_waiting", "Requests that wait for a row.", by)
        self.latency = self._histogram("request_seconds", "From arrival to end, of answers that came to it.", SECONDS)
        self.ttft = self._histogram("first_token_seconds", "From arrival to the first token.", SECONDS)
        self.per_token = self._histogram("token_seconds", "Time per token after the first.", PASS_SECONDS)
        self.pass_seconds = self._histogram("pass_seconds", "Duration of decoding passes.", PASS_SECONDS)
        for name, (running, waiting) in methods.items():
            self.running.labels(name).set_function(running)
            self.waiting.labels(name).set_function(waiting)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"decodebench_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(f"decodebench_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"decodebench_{name}", text, ["method"], registry=self.registry, buckets=buckets)

    def passed(self, method: str, has_tau: bool, done: Pass) -> None:
        self.passes.labels(method, str(done.prefill).lower()).inc()
        self.row_passes.labels(method).inc(done.rows)
        self.tokens.labels(method).inc(done.tokens)
        if has_tau:
            self.tau.labels(method).set(float(done.tau.mean()))
        if not done.prefill:
            self.pass_seconds.labels(method).observe(done.ended - done.begun)

    def ended(self, method: str, generation: Generation, prompt_tokens: int, seconds: float) -> None:
        """A request has ended so many seconds after it arrived."""
        self.requests.labels(method, generation.finish).inc()
        if generation.tokens:
            first = seconds - generation.latency + generation.ttft
            self.prompt_tokens.labels(method).inc(prompt_tokens)
            self.ttft.labels(method).observe(first)
            if len(generation.tokens) > 1:
                self.per_token.labels(method).observe((seconds - first) / (len(generation.tokens) - 1))
        if generation.finish in ("stop_token", "stop_string", "length"):
            self.latency.labels(method).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
