"""Penstock: a durable, replayable log and a per-message queue in one broker."""
