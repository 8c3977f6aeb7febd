"""Whether the broker has what a pipeline reads and writes, asked before Spark is started."""

from __future__ import annotations

from penstock.errors import PipelineInvalid, TopicNotFound
from penstock.spark.connecting import Connecting
from penstock.spark.pipeline.document import Problem
from penstock.spark.pipeline.spec import Pipeline


def missing_topics(pipeline: Pipeline) -> list[Problem]:
    """ConnectionLost, Unauthenticated and the like if the broker can't be asked."""
    broker = pipeline.broker
    ca, cert, key = (broker.tls.get(name) for name in ("ca", "cert", "key"))
    connecting = Connecting(broker.url, broker.key, ca, cert, key)
    found = []
    with connecting.open() as q:
        for topic in pipeline.topics:
            try:
                q.topic(topic)
            except TopicNotFound:
                told = f"there is no topic {topic} at {broker.url}: penstock topic create {topic}"
                found.append(Problem(pipeline.lines.get(topic, 0), "", told))
    return sorted(found)


def check_topics(pipeline: Pipeline) -> None:
    problems = missing_topics(pipeline)
    if problems:
        told = "\n  ".join(problem.shown(str(pipeline.file)) for problem in problems)
        raise PipelineInvalid(told, problems=[problem._asdict() for problem in problems])
