"""Every error a caller can meet, in one tree.

    PenstockError
    ├── InvalidInput                    the caller's data is at fault; nothing was changed
    │   ├── InvalidMessage              a field of a message is out of its range
    │   ├── BatchTooLarge               more messages, or larger ones, than the limits allow
    │   ├── InvalidFrame                bytes that are not a frame of ours
    │   │   ├── UnknownMagic
    │   │   ├── UnsupportedVersion
    │   │   ├── FrameTooLarge
    │   │   ├── FrameTruncated
    │   │   ├── ChecksumMismatch
    │   │   ├── CountMismatch
    │   │   ├── UnknownColumn
    │   │   ├── InvalidColumn           offsets that run backwards or out of the data, wrong flags …
    │   │   └── DecompressionRefused    a bomb, an unknown codec, or a body that does not decompress
    │   ├── OffsetOutOfRange
    │   ├── InvalidName                 a name of a topic or group that can't be one
    │   ├── InvalidSetting              a setting that does not exist or is out of its range
    │   ├── PipelineInvalid             the file of a pipeline has mistakes: `details` have each, with its line
    │   └── EtcdRequestTooLarge         more at once than etcd takes; it was not sent, or not taken
    ├── NotFound
    │   ├── TopicNotFound
    │   ├── GroupNotFound
    │   ├── PartitionNotFound
    │   ├── MemberNotFound              a consumer that never joined its group, or was taken for dead
    │   ├── MessageNotFound             no message of that id: not yet, or no longer
    │   ├── MessagesMissing             neither the log nor the archive has what lies between two offsets
    │   ├── ArchiveNotFound             there is no archive in that place, or nobody said where it is
    │   ├── NotScheduled                the message is not waiting for its time (any more)
    │   ├── NodeNotFound                no node of that name is alive, or known at all
    │   └── DataLost                    what was to be read, and had not been yet, is not there any more
    ├── ProtocolError                   bytes on a connection that are not the native protocol, or come out of turn
    │   ├── PacketTooLarge
    │   └── VersionMismatch             client and broker have no version of the protocol in common
    ├── Unauthenticated                 no key, or one that nobody has
    ├── Forbidden                       the key is known, and may not do that
    ├── ConnectionLost                  retriable: whether the last requests were carried out is not known
    ├── InternalError                   a bug of ours
    ├── BrokerError                     of a kind that this version does not know; `details` has the broker's code
    ├── Unsupported                     not built yet
    ├── Overloaded                      retriable: more is waiting than may wait
    │   ├── QuotaExceeded               the principal has used up a quota; `details` say which, and how long to wait
    │   └── RingFull                    there is no room for another job, and the ring was told not to wait for it
    ├── RingClosed                      a ring takes and gives no jobs any more
    ├── WorkerFailed                    a process for a ring's handler can't be started, or can't load the handler
    ├── AlreadyExists                   a topic, or a live consumer, of that name is there
    ├── TooManyPartitions               more than a broker has with the files that it may open
    ├── LimitReached                    one more topic, group, member or schedule than the limits allow; none was made
    ├── SettingsConflict                a group of that name is there, with other settings
    ├── ArchiveConflict                 a commit to an archive, or what is told of one, does not go with what is there
    ├── MirrorConflict                  going on would double messages, leave some out, or copy them in a circle
    ├── PipelineRunning                 a pipeline of that name is running already
    ├── PipelineFailed                  it ran, and ended by an error: the message is its cause
    ├── SparkMissing                    PySpark, Java or a package that a pipeline needs; the message says how to get it
    ├── LeaseError                      an answer for a message that the consumer does not hold (any more)
    │   ├── LeaseNotFound               the lease is over: expired, or answered for
    │   └── NotLeased                   the lease does not hold that message, or it was answered for already
    ├── ProducerError                   an idempotent producer is not where the broker knows it to be
    │   ├── ProducerFenced              a newer epoch of the same producer has taken over
    │   ├── SequenceGap                 batches before this one are missing
    │   ├── AttemptDiffers              work that is done again has other messages than those that are stored of it
    │   └── SequenceTooOld              a repetition of a batch too long ago to say where it went
    ├── ClusterError                    of a cluster of brokers
    │   ├── NotLeader                   retriable: another node leads the partition, or nobody does yet; not carried out
    │   ├── LeadershipLost              retriable: while it was under way; whether it was carried out is not known
    │   ├── NotCoordinator              retriable: another node looks after the members of the group
    │   ├── NotEnoughReplicas           retriable: fewer in sync than the topic demands; not carried out
    │   ├── NotCommitted                retriable: not on all disks that it has to be on; whether it will is not known
    │   ├── StaleMetadata               retriable: this node does not know yet what the other one does
    │   └── LogTruncated                a leader was elected that did not have everything: what was read is not there
    ├── EtcdError                       of the etcd that holds a cluster's metadata
    │   ├── EtcdUnavailable             retriable: none of its members answers; nothing was changed
    │   ├── OutcomeUnknown              a change was sent and its answer lost: read again, never assume
    │   ├── WatchBehind                 a watch can't go on where it was: read everything again
    │   ├── SessionLost                 the lease of a session has run out, and what was bound to it is gone
    │   ├── EtcdRefused                 it answered, and said no; nothing was changed
    │   │   └── EtcdVersionRefused      a version that loses data, or is too old
    │   ├── EtcdReplaced                another etcd, or one set back to a backup; the process must stop
    │   └── EtcdNotStarted              a local etcd did not start
    │       └── EtcdMissing             it is not installed; the message says how to get it
    └── StorageError                    the disk, or what is on it
        ├── DiskFull                    retriable: nothing was written
        │   └── TooManyOpenFiles        a file can't be opened, of this process or of any
        ├── StorageReadOnly
        ├── DirectoryLocked             another process has the directory open
        ├── LogClosed
        │   └── ClientForked            a client of the process from which this one was forked: open another one here
        ├── LogFollows                  retriable: the log is a copy of another, and takes messages only once it leads
        ├── LogDiverged                 what a leader's log has does not go on where its copy ends
        ├── UnknownFormat               written by a later version
        ├── LogCorrupt                  damage in what had been synced; says where; never repaired by itself
        ├── ArchiveCorrupt              a file of an archive is damaged or missing; says which
        └── Fatal                       the process must stop; going on would be guessing
            ├── SyncFailed
            └── DeviceFailed

`code` is for machines and never changes; the sentence is for people and may. `OSError` is translated once, in
`storage/files.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class PenstockError(Exception):
    """The root. `details` holds what a program may want to read, as plain JSON values."""

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def in_doubt(self) -> bool:
        """Nobody knows whether what was asked for was carried out, or will be."""
        return False

    def without_paths(self) -> Self:
        """Return a copy without paths of the server, for clients."""
        file = self.details.get("file")
        if not isinstance(file, str) or "/" not in file:
            return self
        name = file.rstrip("/").rpartition("/")[2]
        return type(self)(self.message.replace(file, name), **{**self.details, "file": name})

    def again(self) -> Self:
        """The same error, to be raised once more: an exception that is raised twice drags its first traceback along."""
        copy = type(self)(self.message, **self.details)
        copy.__cause__ = self.__cause__
        return copy

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "details": self.details}


class InvalidInput(PenstockError):
    code = "invalid_input"


class InvalidMessage(InvalidInput):
    code = "invalid_message"


class BatchTooLarge(InvalidInput):
    code = "batch_too_large"


class InvalidFrame(InvalidInput):
    code = "invalid_frame"


class UnknownMagic(InvalidFrame):
    code = "unknown_magic"


class UnsupportedVersion(InvalidFrame):
    code = "unsupported_version"


class FrameTooLarge(InvalidFrame):
    code = "frame_too_large"


class FrameTruncated(InvalidFrame):
    code = "frame_truncated"


class ChecksumMismatch(InvalidFrame):
    code = "checksum_mismatch"


class CountMismatch(InvalidFrame):
    code = "count_mismatch"


class UnknownColumn(InvalidFrame):
    code = "unknown_column"


class InvalidColumn(InvalidFrame):
    code = "invalid_column"


class DecompressionRefused(InvalidFrame):
    code = "decompression_refused"


class OffsetOutOfRange(InvalidInput):
    code = "offset_out_of_range"


class InvalidName(InvalidInput):
    code = "invalid_name"


class InvalidSetting(InvalidInput):
    code = "invalid_setting"


class NotFound(PenstockError):
    code = "not_found"


class TopicNotFound(NotFound):
    code = "topic_not_found"

    @classmethod
    def named(cls, name: str) -> Self:
        if name.endswith(".dlq"):
            text = f'topic "{name}" does not exist. The broker creates it with the first dead letter'
        else:
            text = f'topic "{name}" does not exist. Create it: penstock topic create {name}'
        return cls(text, topic=name)


class GroupNotFound(NotFound):
    code = "group_not_found"

    @classmethod
    def named(cls, name: str) -> Self:
        text = f'group "{name}" does not exist. Its first consumer creates it; so does: penstock group create {name}'
        return cls(text, group=name)


class PartitionNotFound(NotFound):
    code = "partition_not_found"


class MemberNotFound(NotFound):
    code = "member_not_found"


class MessageNotFound(NotFound):
    code = "message_not_found"


class MessagesMissing(NotFound):
    """`details` has the partition, and `first` and `end`: the offsets that nobody has, the last one not included."""

    code = "messages_missing"


class ArchiveNotFound(NotFound):
    code = "archive_not_found"


class NotScheduled(NotFound):
    code = "not_scheduled"


class NodeNotFound(NotFound):
    code = "node_not_found"


class DataLost(NotFound):
    code = "data_lost"


class ProtocolError(PenstockError):
    code = "protocol_error"


class PacketTooLarge(ProtocolError):
    code = "packet_too_large"


class VersionMismatch(ProtocolError):
    code = "version_mismatch"


class Unauthenticated(PenstockError):
    code = "unauthenticated"


class Forbidden(PenstockError):
    code = "forbidden"


class ConnectionLost(PenstockError):
    code = "connection_lost"
    retriable = True

    @property
    def in_doubt(self) -> bool:
        return self.details.get("was_sent") is not False


class InternalError(PenstockError):
    code = "internal_error"


class BrokerError(PenstockError):
    code = "broker_error"


class Unsupported(PenstockError):
    code = "unsupported"


class Overloaded(PenstockError):
    code = "overloaded"
    retriable = True


class QuotaExceeded(Overloaded):
    """Nothing was carried out. `details`: the `principal`, the `quota`, and `retry_after`: seconds until the next
    attempt."""

    code = "quota_exceeded"

    @property
    def retry_after_s(self) -> float:
        given = self.details.get("retry_after")
        return float(given) if isinstance(given, int | float) and 0 <= given < 1e9 else 1.0


class RingFull(Overloaded):
    """`details`: how many jobs of those given were `put` all the same, and the `capacity`."""

    code = "ring_full"


class RingClosed(PenstockError):
    code = "ring_closed"


class WorkerFailed(PenstockError):
    code = "worker_failed"


class AlreadyExists(PenstockError):
    code = "already_exists"


class TooManyPartitions(PenstockError):
    """`details`: `partitions`, how many there would be, and `partitions_max`."""

    code = "too_many_partitions"


class LimitReached(PenstockError):
    """`details`: the `limit`, and its `maximum`."""

    code = "limit_reached"


class SettingsConflict(PenstockError):
    code = "settings_conflict"


class PipelineInvalid(InvalidInput):
    code = "pipeline_invalid"


class PipelineRunning(PenstockError):
    code = "pipeline_running"


class PipelineFailed(PenstockError):
    code = "pipeline_failed"


class SparkMissing(PenstockError):
    code = "spark_missing"


class MirrorConflict(PenstockError):
    code = "mirror_conflict"


class ArchiveConflict(PenstockError):
    code = "archive_conflict"


class LeaseError(PenstockError):
    code = "lease_error"


class LeaseNotFound(LeaseError):
    code = "lease_not_found"


class NotLeased(LeaseError):
    code = "not_leased"


class ProducerError(PenstockError):
    code = "producer_error"


class ProducerFenced(ProducerError):
    code = "producer_fenced"


class SequenceGap(ProducerError):
    code = "sequence_gap"


class AttemptDiffers(ProducerError):
    """`details` has the topic, the partition, and the `number` of the message among those of the work; if it is known,
    also the offset of the one that is stored in its place, and the column in which they differ."""

    code = "attempt_differs"


class SequenceTooOld(ProducerError):
    code = "sequence_too_old"


class EtcdRequestTooLarge(InvalidInput):
    code = "etcd_request_too_large"


class ClusterError(PenstockError):
    code = "cluster_error"


class NotLeader(ClusterError):
    """`details` have topic and partition, and the `leader` if one is known."""

    code = "not_leader"
    retriable = True


class LeadershipLost(ClusterError):
    code = "leadership_lost"
    retriable = True

    @property
    def in_doubt(self) -> bool:
        return True


class NotCoordinator(ClusterError):
    """`details` have the `coordinator` if one is known."""

    code = "not_coordinator"
    retriable = True


class NotEnoughReplicas(ClusterError):
    code = "not_enough_replicas"
    retriable = True


class NotCommitted(ClusterError):
    code = "not_committed"
    retriable = True

    @property
    def in_doubt(self) -> bool:
        return True


class StaleMetadata(ClusterError):
    code = "stale_metadata"
    retriable = True


class LogTruncated(ClusterError):
    code = "log_truncated"


class EtcdError(PenstockError):
    code = "etcd_error"


class EtcdUnavailable(EtcdError):
    code = "etcd_unavailable"
    retriable = True


class OutcomeUnknown(EtcdError):
    """Not retriable as it is: whoever meets it reads what is there now, and decides anew."""

    code = "outcome_unknown"


class WatchBehind(EtcdError):
    """`details` may have `compacted`: the revision from which on etcd still knows what happened."""

    code = "watch_behind"


class SessionLost(EtcdError):
    code = "session_lost"


class EtcdRefused(EtcdError):
    """`details` has etcd's own words, and its gRPC code."""

    code = "etcd_refused"


class EtcdVersionRefused(EtcdRefused):
    code = "etcd_version_refused"


class EtcdReplaced(EtcdError):
    """Compare-and-swap rests on revisions that never come twice. Here they may have."""

    code = "etcd_replaced"


class EtcdNotStarted(EtcdError):
    code = "etcd_not_started"


class EtcdMissing(EtcdNotStarted):
    code = "etcd_missing"


class StorageError(PenstockError):
    code = "storage_error"


class DiskFull(StorageError):
    code = "disk_full"
    retriable = True


class TooManyOpenFiles(DiskFull):
    """To callers the same as a full disk: nothing was written, and it passes."""

    code = "too_many_open_files"


class StorageReadOnly(StorageError):
    code = "storage_read_only"


class DirectoryLocked(StorageError):
    code = "directory_locked"


class LogClosed(StorageError):
    code = "log_closed"


class ClientForked(LogClosed):
    code = "client_forked"


class LogFollows(StorageError):
    code = "log_follows"
    retriable = True


class LogDiverged(StorageError):
    """`details` has the offset, and by what: `epoch` or `append_time`. Nothing was written."""

    code = "log_diverged"


class UnknownFormat(StorageError):
    code = "unknown_format"


class LogCorrupt(StorageError):
    """Damage in bytes that had been synced.

    `details` names the file, the position in it, and the offset at which the damage starts, as far as known.
    """

    code = "log_corrupt"


class ArchiveCorrupt(StorageError):
    """`details` names the file."""

    code = "archive_corrupt"


class Fatal(StorageError):
    """The process must exit: what is on disk is no longer known. Recovery at the next start reads the truth."""

    code = "fatal"


class SyncFailed(Fatal):
    code = "sync_failed"


class DeviceFailed(Fatal):
    code = "device_failed"
