"""A broker behind a connection.

address      where it is: penstock://host:port
connection   one TCP connection: requests under way, heartbeats, the end
link         a connection that is made again when it is lost
remote       the client's port over a link
connecting   a client for a broker somewhere else
"""

from penstock.net.connecting import connect, connect_async

__all__ = ["connect", "connect_async"]
