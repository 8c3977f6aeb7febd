"""A broker behind a connection, or a cluster of them behind some.

address      where it is: penstock://host:port
connection   one TCP connection: requests under way, heartbeats, the end
link         a connection that is made again when it is lost
remote       the client's port over a link
routing      the client's port to a cluster: over a remote to each of its nodes
connecting   a client for a broker or a cluster somewhere else
"""

from penstock.net.connecting import connect, connect_async

__all__ = ["connect", "connect_async"]
