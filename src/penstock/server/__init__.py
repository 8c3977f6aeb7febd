"""A broker that others reach: one process, one data directory, several doors.

native       the native protocol over TCP
session      one connection of it
parcels      messages on their way to a consumer: whole frames, or only what is wanted of them
gate         who may come in, and what they may do
"""
