"""A broker behind a connection.

address      where it is: penstock://host:port
connection   one TCP connection: requests under way, heartbeats, the end
link         a connection that is made again when it is lost
subscription messages that come without being asked for
remote       the client's port over a link
"""
