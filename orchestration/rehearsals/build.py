"""A build in a process of its own: `python -m penstock.orchestration.rehearsals.build IN OUT [CODE]`, two file descriptors, and the folder
from which the build's modules are imported before others.

It answers the requests of `messages.py`, one per line, until there are no more. Output of the user's code goes to the process's own
stdout and stderr, a log.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from penstock.orchestration.rehearsals import messages
from penstock.orchestration.rehearsals.outputs import OutputWriter
from penstock.orchestration.rehearsals.texts import sink_texts, store_texts
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.columns import RawColumns
from penstock.runtime.model import logs
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition, changelog_topic
from penstock.runtime.seeds.entries import changelog_records
from penstock.runtime.seeds.plan import store_misfits
from penstock.runtime.snapshots.catalogue import find
from penstock.runtime.snapshots.manifest import GLOBAL
from penstock.runtime.stage.local_application import LocalApplication
from penstock.runtime.stage.spool import spooled
from penstock.runtime.stage.task import TaskStart
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.shape import shape_of
from penstock.runtime.topology.topology import Topology

MOST_REJECTED = 100
_PROGRESS_SECONDS = 0.5

Send = Callable[[messages.Answer], None]


class Build:
    """The answers to one rehearsal's requests."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._topology: Topology | None = None
        self._config: StreamsConfig | None = None

    def answer(self, request: messages.Request) -> messages.Answer:
        """Return the answer. Raises StreamsError."""
        match request:
            case messages.Describe():
                return self._describe(request)
            case messages.CheckState():
                return messages.Misfits(list(self._misfits(request.snapshot)))
            case messages.Run():
                return _Runner(self.topology, self.config, request, self._send).run()
            case messages.Show(store=str() as store):
                return messages.Shown(
                    store_texts(self.topology, store, changelog_topic(self.config.application_id, store), request.entries)
                )
            case messages.Show():
                return messages.Shown(sink_texts(self.topology, request.topic or "", request.entries))

    @property
    def topology(self) -> Topology:
        assert self._topology is not None  # described first
        return self._topology

    @property
    def config(self) -> StreamsConfig:
        assert self._config is not None  # described first
        return self._config

    def _describe(self, request: messages.Describe) -> messages.Description:
        self._config = config = StreamsConfig({**request.config, "application.id": request.application})
        self._topology = topology = build_topology(request.factory).resolved(config).matched(request.topics)
        parts, internal = topology.sub_topologies(), topology.internal_topics()
        repartitions = {topic.name for topic in internal if topic.kind == "repartition"}
        sinks = {sink.topic for part in parts for sink in part.sinks if isinstance(sink.topic, str)} - repartitions
        stores = {
            builder.name: messages.Store(
                sub_topology=part.id,
                in_memory=isinstance(builder, Builder) and not builder.settings.persistent,
                own=not isinstance(builder, Builder),
                of_source=builder.name in part.source_changelogs,
            )
            for part in parts
            for builder in part.stores
        }
        return messages.Description(
            sources=sorted({topic for part in parts for topic in part.source_topics} - repartitions),
            reads={part.id: list(part.source_topics) for part in parts},
            global_topics=sorted(topology.global_topics),
            repartitions=sorted(repartitions),
            sinks=sorted(sinks),
            stores=stores,
            shape=shape_of(topology, config.application_id),
        )

    def _misfits(self, snapshot: str) -> Iterator[str]:
        found = find(snapshot)
        seen: set[str] = set()
        stores = {builder.name: build_store(builder) for part in self.topology.sub_topologies() for builder in part.stores}
        for task in found.tasks:
            if task == GLOBAL:
                continue
            for manifest in found.task(task).stores:
                store = stores.get(manifest.name)
                if store is None or manifest.name in seen:
                    continue
                seen.add(manifest.name)
                for text in store_misfits(store, manifest, found.manifest.formats.get(manifest.name)):
                    yield f"store {manifest.name}: {text}"


class _Runner:
    """One run of a build."""

    def __init__(self, topology: Topology, config: StreamsConfig, request: messages.Run, send: Send) -> None:
        self._request = request
        self._send = send
        self._folder = Path(request.folder)
        builders = (builder for part in topology.sub_topologies() for builder in part.stores)
        self._layouts = {builder.name: builder.settings.layout() for builder in builders if isinstance(builder, Builder)}
        self._rejected: list[messages.Rejected] = []
        self._rejections = 0
        self._sent_at = time.monotonic()
        self._read = 0
        self._outputs = OutputWriter(self._folder / "outputs.db")
        self._application = LocalApplication(
            config,
            topology,
            self._folder / "state",
            partitions=request.partitions,
            outputs=self._outputs.add,
            rejected=self._reject,
            tasks=[TaskId.parse(task) for task in request.tasks] or None,
        )

    def run(self) -> messages.Report:
        """Process all steps. Raises StreamsError."""
        application, began, cpu_began = self._application, time.monotonic(), time.process_time()
        parts: dict[str, dict[str, str]] = {}
        written: dict[str, int] = {}
        try:
            for beginning in self._request.beginnings:
                self._begin(beginning)
            for records in self._request.global_records:
                partition = TopicPartition(records.topic, records.partition)
                for run in spooled(Path(records.file), partition):
                    application.fill_globals(partition, run)
            for step in self._request.steps:
                sources = {
                    (partition := TopicPartition(records.topic, records.partition)): self._counted(Path(records.file), partition)
                    for records in step.records
                }
                application.run(sources)
                folders = application.write_snapshots(self._folder / "parts", step.name, 0)
                written[step.name] = self._outputs.number
                parts[step.name] = {str(task): str(folder) for task, folder in folders.items()}
            seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
            dropped = application.dropped()  # closed tasks have no metrics
            application.close(clean=True)
        except BaseException:
            application.close()
            raise
        finally:
            self._outputs.close()
        return messages.Report(
            records=self._read,
            dropped=dropped,
            rejections=self._rejections,
            rejected=self._rejected,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            parts=parts,
            written=written,
            outputs=str(self._folder / "outputs.db"),
        )

    def _begin(self, beginning: messages.Beginning) -> None:
        task = TaskId.parse(beginning.task)
        in_memory = {}
        for kept in beginning.in_memory:
            in_memory[kept.store] = changelog_records(Path(kept.folder), self._layouts[kept.store], kept.at_ms)
        self._application.begin(
            task,
            TaskStart(
                {TopicPartition(at.topic, at.partition): NextOffset(at.next_offset) for at in beginning.offsets},
                {TopicPartition(at.topic, at.partition): at.time_ms for at in beginning.times},
                in_memory,
            ),
        )

    def _counted(self, path: Path, partition: TopicPartition) -> Iterator[RawColumns]:
        for run in spooled(path, partition):
            yield run
            self._read += len(run)
            if time.monotonic() - self._sent_at > _PROGRESS_SECONDS:
                self._sent_at = time.monotonic()
                self._send(messages.Progress(self._read))

    def _reject(self, task: TaskId, point: PausePoint) -> None:
        self._rejections += 1
        if len(self._rejected) < MOST_REJECTED:
            place = "" if point.details is None else point.details.location or ""
            self._rejected.append(
                messages.Rejected(
                    task=str(task),
                    topic=point.partition.topic,
                    partition=point.partition.partition,
                    offset=point.offset,
                    reason=point.reason,
                    error=f"{point.error_type}: {point.error}",
                    where=place,
                )
            )


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until their end."""

    def send(answer: messages.Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    build, decoder = Build(send), msgspec.json.Decoder(messages.Request)
    for line in requests:
        try:
            send(build.answer(decoder.decode(line)))
        except StreamsError as error:
            send(messages.Refused(str(error)))


def main() -> None:
    """Serve the two file descriptors of the command line."""
    logs.configure(None, fields={})
    into, out = int(sys.argv[1]), int(sys.argv[2])
    sys.path[:0] = sys.argv[3:]  # before the project's folder, in which the process runs
    with suppress(KeyboardInterrupt, BrokenPipeError), os.fdopen(into, "rb") as requests, os.fdopen(out, "wb") as answers:
        serve(requests, answers)


if __name__ == "__main__":
    main()
