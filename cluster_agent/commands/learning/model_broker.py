"""What ``clusterctl models run --mqtt`` does with a broker: ended jobs come from it, results go to it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Final

from cluster_agent.model_service.job_records import JobWords
from cluster_agent.model_service.job_ring import JobRing
from cluster_agent.model_service.model_run import ModelState
from cluster_agent.model_service.mqtt_jobs import METRIC, JobsOfTopic, results
from foundation.mqtt.examon_topics import Source
from foundation.mqtt.fetching import MOST, fetch
from foundation.mqtt.mqtt_settings import MqttSettings
from foundation.mqtt.publisher import publish_once
from foundation.shell.plain_text import say

PATIENCE_S: Final = 20.0
"""Ours: the broker has so long to take the results; the next run sends them again."""

ANY_PLUGIN: Final = "+"


def take_jobs(settings: MqttSettings, ring: JobRing, words: JobWords) -> int:
    """Jobs that the broker has, into the ring; how many. What was left out or went wrong is said."""
    topic = Source(settings.org, settings.cluster, ANY_PLUGIN).filter(METRIC)
    jobs = JobsOfTopic(ring, words)
    fetched = fetch(settings, _client("jobs"), topic, jobs.keep, MOST)
    if fetched.trouble:
        say(f"{fetched.trouble}; the next run fetches what is there")
    elif not fetched.is_all:
        say(f"the broker at {settings.broker} has more than {fetched.messages} jobs: the next run fetches the rest")
    if left_out := jobs.in_words():
        say(f"the broker at {settings.broker}: of {fetched.messages} jobs were left out: {left_out}")
    return jobs.new


def publish_results(settings: MqttSettings, models: Sequence[ModelState]) -> None:
    """Have the broker keep what this run has found; what went wrong is said."""
    found = list(results(models, Source(settings.org, settings.cluster, "clusterctl_models_pub")))
    if trouble := publish_once(settings, _client("results"), found, PATIENCE_S):
        say(f"the results are not at the broker: {trouble}; the next run sends them again")


def _client(what: str) -> str:
    return f"clusterctl-models-{what}-{platform.node()}"
