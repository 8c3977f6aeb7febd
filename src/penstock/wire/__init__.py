"""The native protocol without a socket: bytes in, packets out, and the other way round.

packets      what goes over the wire: a prefix, a header, a payload; a decoder that takes bytes as they come
words        the headers: what either side can say
runs         sets of offsets, in a form that any language can read and nobody can do harm with
failures     errors on their way to the other side
conversation both ends of a connection as state machines

docs/reference/wire-protocol.md tells the same to whoever writes a client in another language.
"""
