"""What `/metrics` tells, in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .served import Served

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
# Name, help, and the counter of a scheduler.
_COUNTERS = (
    ("gpack_prompt_tokens", "Tokens of prompts", "prompt_tokens"),
    ("gpack_prompt_tokens_reused", "Tokens of prompts that a kept state held", "reused_tokens"),
    ("gpack_prompt_tokens_read", "Tokens of prompts that were computed", "read_tokens"),
    ("gpack_tokens_generated", "Tokens that were generated", "tokens"),
    ("gpack_steps", "Steps of the engine", "steps"),
    ("gpack_step_seconds", "Seconds of these steps", "step_seconds"),
    ("gpack_tokens_drafted", "Tokens that were guessed", "drafted"),
    ("gpack_tokens_draft_accepted", "Guesses that were right", "accepted"),
    ("gpack_texts_put_back", "Texts that had to make room and were computed again", "put_back"),
)


class Metrics:
    """Counts requests; reads the rest from the schedulers when it is asked."""

    def __init__(self, models: Callable[[], Iterable[Served]]) -> None:
        """Takes what gives the models that are loaded."""
        self._models = models
        self._registry = CollectorRegistry()
        self.requests = Counter("gpack_requests", "Requests", ["path", "status"], registry=self._registry)
        self._first = Histogram(
            "gpack_time_to_first_token_seconds", "Until a first token", buckets=_FIRST, registry=self._registry
        )
        self._between = Histogram(
            "gpack_time_between_tokens_seconds", "Between two tokens", buckets=_BETWEEN, registry=self._registry
        )
        self._registry.register(self)

    def collect(self) -> Iterator[Any]:
        """What the schedulers count."""
        models = list(self._models())
        for name, text, field in _COUNTERS:
            family = CounterMetricFamily(name, text, labels=["model"])
            for served in models:
                family.add_metric([served.name], getattr(served.scheduler.counters, field))
            yield family
        gauges: tuple[tuple[str, str, Callable[[Served], int]], ...] = (
            ("gpack_requests_waiting", "Texts that wait", lambda served: served.scheduler.waiting),
            ("gpack_requests_running", "Texts that are carried on", lambda served: served.scheduler.running),
            ("gpack_state_bytes", "Bytes of the states of texts", lambda served: served.engine.pool.used),
            ("gpack_kept_prefix_bytes", "Of kept states", lambda served: served.scheduler.prefixes.nbytes),
        )
        for name, text, read in gauges:
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for served in models:
                gauge.add_metric([served.name], float(read(served)))
            yield gauge

    def text(self) -> bytes:
        """All of it."""
        for served in self._models():
            counters = served.scheduler.counters
            for times, histogram in ((counters.first_token, self._first), (counters.between, self._between)):
                while times:
                    histogram.observe(times.popleft())
        return bytes(generate_latest(self._registry))
