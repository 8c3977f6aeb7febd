"""What a queue means. No sockets, no files of its own.

journal   the way into a log: commit a frame, wait until it is on disk
"""
