"""What figures for a broker cost, and what a flood from it does. A real mosquitto on this machine, without TLS.

*Publishing*: so many points of different topics, with quality of service 1, until the broker has acknowledged all.
*No broker*: a million points are offered to a queue of 20,000 that nobody empties. *Flood*: a client that may write
sends messages that are no jobs, on the topic of ended jobs; then runs of ``clusterctl models run --mqtt`` fetch them, a
million or 60 s at a time. The broker keeps as many as were sent (``max_queued_messages``). *Control*: a cluster agent
with two emulated nodes, next to a busy process for each processor, and then during a flood of a tenth: how long answers
to people take, the longest that anything waited in its loop, and whether a node has lost its lease. Elapsed times
depend on what else the machine does; processor times do not.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.experiment import save
from cluster_agent.model_service.job_records import JobWords, open_ring
from cluster_agent.model_service.mqtt_jobs import JobsOfTopic
from cluster_agent.serve.people_protocol import ShowBudget
from foundation.mqtt.examon_topics import Message, Source, payload
from foundation.mqtt.fetching import fetch
from foundation.mqtt.mqtt_settings import MqttSettings
from foundation.mqtt.publisher import Publisher
from foundation.shell.text_table import render
from lab.cluster_demo.emulated_partition import EmulatedPartition, free_port
from tests.mosquitto import broker

POINTS: Final = 50_000
FLOOD: Final = 1_000_000
LONGEST_S: Final = 1200.0
WATCHED_S: Final = 60.0
SOURCE: Final = Source("site", "test", "nodectl_pub")


def points(count: int) -> Iterator[Message]:
    """Of a thousand nodes."""
    for at in range(count):
        yield Message(SOURCE.topic(f"m{at // 1000}", {"node": f"n{at % 1000:04}"}), payload(at, time.time()))


def sent(publisher: Publisher, count: int) -> tuple[float, float]:
    """Elapsed and processor seconds until the broker has so many."""
    begin_s, begin_cpu_s = time.monotonic(), time.process_time()
    while publisher.counts[0] < count and time.monotonic() < begin_s + LONGEST_S:
        publisher.turn(0.1)
    return time.monotonic() - begin_s, time.process_time() - begin_cpu_s


def publishing(folder: Path, count: int) -> dict[str, float]:
    """Points that arrive."""
    with broker(folder / "publishing") as one:
        publisher = Publisher(one.settings(queue=count), "benchmark")
        made_s = time.process_time()
        publisher.offer(points(count))
        made_s = time.process_time() - made_s
        elapsed_s, cpu_s = sent(publisher, count)
        publisher.close()
    return {"points": count, "made_us": made_s / count * 1e6, "sent_us": cpu_s / count * 1e6, "elapsed_s": elapsed_s}


def without_broker(count: int) -> dict[str, float]:
    """Points that nobody takes."""
    publisher = Publisher(MqttSettings(f"127.0.0.1:{free_port()}", "site", "test"), "benchmark")
    begin_s = time.process_time()
    publisher.offer(points(count))
    cpu_s = time.process_time() - begin_s
    publisher.turn(0.1)
    publisher.close()
    return {"points": count, "dropped": publisher.dropped, "cpu_s": cpu_s, "mb": memory_mb()}


def flood(folder: Path, count: int) -> dict[str, float]:
    """Messages that are no jobs, until the broker has none left."""
    folder.mkdir(exist_ok=True)
    topic = Source("site", "test", "clusterctl_pub").topic("ended_job")
    words = JobWords(folder, is_made=True)
    ring = open_ring(folder, 1000)
    lines = ("allow_anonymous true", f"max_queued_messages {count + 1000}")
    try:
        with broker(folder / "flood", *lines) as one:
            fetch(one.settings(), "models", topic, lambda received: None)
            publisher = Publisher(one.settings(queue=count), "flood")
            publisher.offer(Message(topic, "x") for _ in range(count))
            sent(publisher, count)
            publisher.close()
            jobs, runs, fetched, longest_s, cpu_s = JobsOfTopic(ring, words), 0, 0, 0.0, time.process_time()
            while fetched < count and runs < 100:
                begin_s = time.monotonic()
                fetched += fetch(one.settings(), "models", topic, jobs.keep).messages
                longest_s, runs = max(longest_s, time.monotonic() - begin_s), runs + 1
    finally:
        ring.close()
    return {"messages": count, "fetched": fetched, "runs": runs, "longest_run_s": longest_s,
            "cpu_us": (time.process_time() - cpu_s) / max(fetched, 1) * 1e6, "new_jobs": jobs.new,
            "mb": memory_mb()}  # fmt: skip


class Watched:
    """A thread that looks at a cluster agent until it is closed."""

    def __init__(self, partition: EmulatedPartition) -> None:
        self.answers_s, self.lag_s, self.silent = list[float](), 0.0, 0
        self._partition, self._is_over = partition, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_over.wait(0.2):
            begin_s = time.monotonic()
            view = self._partition.ask(ShowBudget())
            self.answers_s.append(time.monotonic() - begin_s)
            self.lag_s = max(self.lag_s, view.loop_lag_s)
            self.silent = max(self.silent, view.silent)

    def close(self) -> dict[str, float]:
        """What was seen."""
        self._is_over.set()
        self._thread.join()
        p50_s, p99_s = np.quantile(self.answers_s, [0.5, 0.99])
        return {"answers": len(self.answers_s), "p50_ms": float(p50_s) * 1e3, "p99_ms": float(p99_s) * 1e3,
                "loop_lag_ms": self.lag_s * 1e3, "silent": self.silent}  # fmt: skip


def control(folder: Path, count: int, watched_s: float) -> dict[str, dict[str, float]]:
    """A cluster agent next to as many busy processes as there are processors, then during a flood."""
    with EmulatedPartition(folder / "site", ["n0", "n1"], "curie", 360.0, 600.0, "fspc") as partition:
        time.sleep(watched_s)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        watched = Watched(partition)
        time.sleep(watched_s)
        next_to = watched.close()
        for one in busy:
            one.kill()
            one.wait()
        time.sleep(watched_s)  # what the agent says of its loop is of the last 30 to 60 s
        watched = Watched(partition)
        flood(folder / "control", count)
        return {"control, busy processors": next_to, "control, flood": watched.close()}


def memory_mb() -> float:
    """The most that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth")
    parser.add_argument("--control", action="store_true", help="the last part alone")
    options = parser.parse_args(arguments)
    scale = 20 if options.quick else 1
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        found = {} if options.control else {
            "without a broker": without_broker(FLOOD // scale),
            "publishing": publishing(folder, POINTS // scale),
            "flood": flood(folder, FLOOD // scale),
        }  # fmt: skip
        found |= control(folder, FLOOD // scale // 10, WATCHED_S / scale)
    for name, row in found.items():
        print(name)
        print(render(tuple(row), [tuple(f"{value:.4g}" for value in row.values())]))
    save("mqtt_broker", found)
    flooded = found.get("flood", {"fetched": 0, "messages": 0, "new_jobs": 0})
    has_waited = found["control, flood"]["silent"] > 0
    return int(flooded["fetched"] < flooded["messages"] or flooded["new_jobs"] > 0 or has_waited)


if __name__ == "__main__":
    raise SystemExit(main())
