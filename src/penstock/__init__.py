"""Penstock: a durable, replayable log and a per-message queue in one broker.

message batch columns body codec frame    what is stored, from row to bytes
errors limits clock                 nouns every layer shares
storage    bytes on disk
broker     what a queue means
testing    stand-ins for disk and time, for tests
cli        the `penstock` command
"""

from importlib.metadata import version

from penstock.errors import PenstockError
from penstock.message import Message, Priority

__version__ = version("penstock")
__all__ = ["Message", "PenstockError", "Priority", "__version__"]
