"""What users may rely on is listed here; adding a name is a decision, removing one is a break."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import penstock
import penstock.testing
from penstock import errors


def test_the_package_exports_these_names_and_no_others() -> None:
    assert sorted(penstock.__all__) == [
        "Message",
        "PenstockError",
        "Priority",
        "Ring",
        "__version__",
        "aio",
        "connect",
        "errors",
        "open",
    ]
    assert all(hasattr(penstock, name) for name in penstock.__all__)
    assert dir(penstock) == sorted(penstock.__all__)


def test_the_package_is_described_by_an_example_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert penstock.__doc__
    example = penstock.__doc__.split("\n\n", 1)[1].partition("\n\n`help")[0]
    exec(textwrap.dedent(example), {})
    with penstock.open("data") as q:
        assert q.lag("billing") == {"orders": [0] * 6}


def test_the_testing_package_exports_these_names_and_no_others() -> None:
    assert sorted(penstock.testing.__all__) == [
        "FakeEtcd",
        "Fault",
        "FaultyFiles",
        "ManualClock",
        "ManualTime",
        "ManualTimers",
        "MemoryDisk",
        "MemoryFiles",
        "MemorySyncs",
        "Operation",
        "VirtualClock",
        "VirtualQueue",
    ]


def all_errors(root: type[errors.PenstockError] = errors.PenstockError) -> list[type[errors.PenstockError]]:
    return [root, *(error for child in root.__subclasses__() for error in all_errors(child))]


def test_error_codes_never_change() -> None:
    assert {error.__name__: error.code for error in all_errors()} == {
        "PenstockError": "error",
        "InvalidInput": "invalid_input",
        "InvalidMessage": "invalid_message",
        "BatchTooLarge": "batch_too_large",
        "InvalidFrame": "invalid_frame",
        "UnknownMagic": "unknown_magic",
        "UnsupportedVersion": "unsupported_version",
        "FrameTooLarge": "frame_too_large",
        "FrameTruncated": "frame_truncated",
        "ChecksumMismatch": "checksum_mismatch",
        "CountMismatch": "count_mismatch",
        "UnknownColumn": "unknown_column",
        "InvalidColumn": "invalid_column",
        "DecompressionRefused": "decompression_refused",
        "OffsetOutOfRange": "offset_out_of_range",
        "InvalidName": "invalid_name",
        "InvalidSetting": "invalid_setting",
        "NotFound": "not_found",
        "TooManyOpenFiles": "too_many_open_files",
        "TooManyPartitions": "too_many_partitions",
        "LimitReached": "limit_reached",
        "TopicNotFound": "topic_not_found",
        "GroupNotFound": "group_not_found",
        "PartitionNotFound": "partition_not_found",
        "Unsupported": "unsupported",
        "Overloaded": "overloaded",
        "QuotaExceeded": "quota_exceeded",
        "RingFull": "ring_full",
        "RingClosed": "ring_closed",
        "WorkerFailed": "worker_failed",
        "ProtocolError": "protocol_error",
        "PacketTooLarge": "packet_too_large",
        "VersionMismatch": "version_mismatch",
        "Unauthenticated": "unauthenticated",
        "Forbidden": "forbidden",
        "ConnectionLost": "connection_lost",
        "InternalError": "internal_error",
        "BrokerError": "broker_error",
        "MemberNotFound": "member_not_found",
        "MessageNotFound": "message_not_found",
        "NotScheduled": "not_scheduled",
        "MessagesMissing": "messages_missing",
        "ArchiveNotFound": "archive_not_found",
        "NodeNotFound": "node_not_found",
        "DataLost": "data_lost",
        "SettingsConflict": "settings_conflict",
        "ArchiveConflict": "archive_conflict",
        "MirrorConflict": "mirror_conflict",
        "PipelineFailed": "pipeline_failed",
        "PipelineInvalid": "pipeline_invalid",
        "PipelineRunning": "pipeline_running",
        "SparkMissing": "spark_missing",
        "AlreadyExists": "already_exists",
        "LeaseError": "lease_error",
        "LeaseNotFound": "lease_not_found",
        "NotLeased": "not_leased",
        "ProducerError": "producer_error",
        "ProducerFenced": "producer_fenced",
        "SequenceGap": "sequence_gap",
        "AttemptDiffers": "attempt_differs",
        "SequenceTooOld": "sequence_too_old",
        "ClusterError": "cluster_error",
        "NotLeader": "not_leader",
        "LeadershipLost": "leadership_lost",
        "NotCoordinator": "not_coordinator",
        "NotEnoughReplicas": "not_enough_replicas",
        "NotCommitted": "not_committed",
        "StaleMetadata": "stale_metadata",
        "LogTruncated": "log_truncated",
        "EtcdRequestTooLarge": "etcd_request_too_large",
        "EtcdError": "etcd_error",
        "EtcdUnavailable": "etcd_unavailable",
        "OutcomeUnknown": "outcome_unknown",
        "WatchBehind": "watch_behind",
        "SessionLost": "session_lost",
        "EtcdRefused": "etcd_refused",
        "EtcdVersionRefused": "etcd_version_refused",
        "EtcdReplaced": "etcd_replaced",
        "EtcdNotStarted": "etcd_not_started",
        "EtcdMissing": "etcd_missing",
        "StorageError": "storage_error",
        "DiskFull": "disk_full",
        "StorageReadOnly": "storage_read_only",
        "DirectoryLocked": "directory_locked",
        "LogClosed": "log_closed",
        "ClientForked": "client_forked",
        "LogFollows": "log_follows",
        "LogDiverged": "log_diverged",
        "UnknownFormat": "unknown_format",
        "LogCorrupt": "log_corrupt",
        "ArchiveCorrupt": "archive_corrupt",
        "Fatal": "fatal",
        "SyncFailed": "sync_failed",
        "DeviceFailed": "device_failed",
    }


def test_the_tree_at_the_top_of_the_errors_names_every_error() -> None:
    assert errors.__doc__
    assert all(error.__name__ in errors.__doc__ for error in all_errors())


def test_an_error_is_a_code_a_sentence_and_details() -> None:
    error = errors.OffsetOutOfRange("offset 9 is not within 0 to 3", offset=9)
    assert str(error) == "offset 9 is not within 0 to 3"
    assert error.as_dict() == {
        "code": "offset_out_of_range",
        "message": "offset 9 is not within 0 to 3",
        "details": {"offset": 9},
    }
