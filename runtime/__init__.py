"""Penstock's engine: stateful Kafka streams in Python, under Kafka Streams' names.

Everything public is here, in `runtime.serdes` and in `runtime.testing`; all other modules are the engine's own and may change.
"""

from confluent_kafka import TopicPartition

from runtime import serdes
from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason
from runtime.client import KafkaStreams, StreamThreadExceptionResponse
from runtime.config import StreamsConfig
from runtime.dsl.branched import Branched, BranchedKStream
from runtime.dsl.builder import StreamsBuilder
from runtime.dsl.cogrouped import CogroupedKStream, SessionWindowedCogroupedKStream, TimeWindowedCogroupedKStream
from runtime.dsl.grouped import KGroupedStream, KGroupedTable
from runtime.dsl.join_options import JoinWindows, StreamJoined, TableJoined
from runtime.dsl.kstream import KStream
from runtime.dsl.ktable import GlobalKTable, KTable
from runtime.dsl.options import Consumed, Grouped, Joined, Materialized, Named, Produced, Repartitioned
from runtime.dsl.printed import Printed
from runtime.dsl.session import SessionWindowedKStream
from runtime.dsl.suppressed import Suppressed
from runtime.dsl.windowed import TimeWindowedKStream
from runtime.dsl.windows import EmitStrategy, SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, Windows
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
from runtime.metadata import LagInfo, TaskMetadata, ThreadMetadata
from runtime.offset_reset import AutoOffsetReset
from runtime.operators.processor import (
    Cancellable,
    ConnectedStoreProvider,
    ContextualFixedKeyProcessor,
    ContextualProcessor,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyProcessorSupplier,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    PunctuationType,
    Punctuator,
    RecordMetadata,
)
from runtime.operators.transform_values import TransformerContext, ValueTransformerWithKey, ValueTransformerWithKeySupplier
from runtime.record import FixedKeyRecord, Record, RecordContext, SessionWindow, ValueAndTimestamp, VersionedRecord, Window, Windowed
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
    "Branched",
    "BranchedKStream",
    "BrokerUnavailableError",
    "Cancellable",
    "CogroupedKStream",
    "ConnectedStoreProvider",
    "Consumed",
    "ConsumerRecord",
    "ContextualFixedKeyProcessor",
    "ContextualProcessor",
    "DefaultProductionExceptionHandler",
    "DeserializationError",
    "DeserializationExceptionHandler",
    "DeserializationHandlerResponse",
    "EmitStrategy",
    "ErrorHandlerContext",
    "FailOnInvalidTimestamp",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyProcessorSupplier",
    "FixedKeyRecord",
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
    "Printed",
    "ProcessingError",
    "ProcessingExceptionHandler",
    "ProcessingHandlerResponse",
    "Processor",
    "ProcessorContext",
    "ProcessorSupplier",
    "Produced",
    "ProductionError",
    "ProductionExceptionHandler",
    "ProductionExceptionHandlerResponse",
    "PunctuationType",
    "Punctuator",
    "QueryableStoreTypes",
    "Record",
    "RecordContext",
    "RecordMetadata",
    "Repartitioned",
    "SerializationError",
    "SerializationExceptionOrigin",
    "SessionStore",
    "SessionWindow",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
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
    "Suppressed",
    "SuspendReason",
    "TableJoined",
    "TaskId",
    "TaskKind",
    "TaskMetadata",
    "TaskState",
    "ThreadMetadata",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TopicPartition",
    "Topology",
    "TopologyError",
    "TransformerContext",
    "UnlimitedWindows",
    "UsePartitionTimeOnInvalidTimestamp",
    "ValueAndTimestamp",
    "ValueTransformerWithKey",
    "ValueTransformerWithKeySupplier",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "WallclockTimestampExtractor",
    "Window",
    "WindowStore",
    "Windowed",
    "Windows",
    "WrongPartitionsError",
    "serdes",
]
