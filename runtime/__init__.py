"""Penstock's engine: stateful Kafka streams in Python, under Kafka Streams' names.

Everything public is here, in `runtime.serdes` and in `runtime.testing`; all other modules are the engine's own and may change.
"""

from confluent_kafka import TopicPartition

from runtime import serdes
from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason
from runtime.client import KafkaStreams, LagInfo, StreamThreadExceptionResponse, TaskMetadata, ThreadMetadata
from runtime.config import StreamsConfig
from runtime.dsl.builder import StreamsBuilder
from runtime.dsl.grouped import KGroupedStream, KGroupedTable, TimeWindowedKStream
from runtime.dsl.join_options import JoinWindows, StreamJoined
from runtime.dsl.kstream import KStream
from runtime.dsl.ktable import GlobalKTable, KTable
from runtime.dsl.options import Consumed, Grouped, Joined, Materialized, Named, Produced, Repartitioned
from runtime.dsl.windows import TimeWindows
from runtime.errors import (
    BrokerUnavailableError,
    DeserializationError,
    InvalidStateStoreError,
    MissingSinkTopicError,
    MissingSourceTopicError,
    ProcessingError,
    ProductionError,
    SerializationError,
    StateDirectoryError,
    StateDirectoryLockedError,
    StateLostError,
    StoreChangedError,
    StreamsConfigError,
    StreamsError,
    TopologyError,
    WrongPartitionsError,
)
from runtime.fleet import KeyQueryMetadata, StreamsMetadata
from runtime.handlers import (
    DefaultProductionExceptionHandler,
    DeserializationExceptionHandler,
    DeserializationHandlerResponse,
    ErrorHandlerContext,
    LogAndContinueExceptionHandler,
    LogAndContinueProcessingExceptionHandler,
    LogAndFailExceptionHandler,
    LogAndFailProcessingExceptionHandler,
    LogAndPauseExceptionHandler,
    LogAndPauseProcessingExceptionHandler,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
    ProductionExceptionHandler,
    ProductionExceptionHandlerResponse,
    SerializationExceptionOrigin,
)
from runtime.hosts import HostInfo
from runtime.ids import TaskId
from runtime.offset_reset import AutoOffsetReset
from runtime.operators.processor import Processor, ProcessorContext, PunctuationType, Punctuator, RecordMetadata
from runtime.record import Record, SessionWindow, ValueAndTimestamp, VersionedRecord, Window, Windowed
from runtime.states import TaskKind, TaskState
from runtime.stores import (
    KeyValueStore,
    SessionStore,
    StateStore,
    StoreBuilder,
    StoreContext,
    Stores,
    VersionedKeyValueStore,
    WindowStore,
)
from runtime.timestamps import (
    ConsumerRecord,
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from runtime.topology.topology import Topology
from runtime.worker.queries import QueryableStoreTypes, StoreQueryParameters

__all__ = [
    "AutoOffsetReset",
    "BrokerUnavailableError",
    "Consumed",
    "ConsumerRecord",
    "DefaultProductionExceptionHandler",
    "DeserializationError",
    "DeserializationExceptionHandler",
    "DeserializationHandlerResponse",
    "ErrorHandlerContext",
    "FailOnInvalidTimestamp",
    "GlobalKTable",
    "Grouped",
    "HostInfo",
    "InvalidStateStoreError",
    "JoinWindows",
    "Joined",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KafkaStreams",
    "KeyQueryMetadata",
    "KeyValueStore",
    "LagInfo",
    "LogAndContinueExceptionHandler",
    "LogAndContinueProcessingExceptionHandler",
    "LogAndFailExceptionHandler",
    "LogAndFailProcessingExceptionHandler",
    "LogAndPauseExceptionHandler",
    "LogAndPauseProcessingExceptionHandler",
    "LogAndSkipOnInvalidTimestamp",
    "Materialized",
    "MissingSinkTopicError",
    "MissingSourceTopicError",
    "Named",
    "ProcessingError",
    "ProcessingExceptionHandler",
    "ProcessingHandlerResponse",
    "Processor",
    "ProcessorContext",
    "Produced",
    "ProductionError",
    "ProductionExceptionHandler",
    "ProductionExceptionHandlerResponse",
    "PunctuationType",
    "Punctuator",
    "QueryableStoreTypes",
    "Record",
    "RecordMetadata",
    "Repartitioned",
    "SerializationError",
    "SerializationExceptionOrigin",
    "SessionStore",
    "SessionWindow",
    "StandbyUpdateListener",
    "StateDirectoryError",
    "StateDirectoryLockedError",
    "StateLostError",
    "StateRestoreListener",
    "StateStore",
    "StoreBuilder",
    "StoreChangedError",
    "StoreContext",
    "StoreQueryParameters",
    "Stores",
    "StreamJoined",
    "StreamThreadExceptionResponse",
    "StreamsBuilder",
    "StreamsConfig",
    "StreamsConfigError",
    "StreamsError",
    "StreamsMetadata",
    "SuspendReason",
    "TaskId",
    "TaskKind",
    "TaskMetadata",
    "TaskState",
    "ThreadMetadata",
    "TimeWindowedKStream",
    "TimeWindows",
    "TopicPartition",
    "Topology",
    "TopologyError",
    "UsePartitionTimeOnInvalidTimestamp",
    "ValueAndTimestamp",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "WallclockTimestampExtractor",
    "Window",
    "WindowStore",
    "Windowed",
    "WrongPartitionsError",
    "serdes",
]
