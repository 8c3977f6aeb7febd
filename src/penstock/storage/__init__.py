"""Bytes on disk. Synchronous, but for `kernel_syncs`; knows offsets, not topics.

files       the disk: with the next two, the only module that touches `os`
descriptors  a bounded number of open files: what rests is closed, and opened again when it is used
kernel_syncs  files synced by the kernel, while an event loop goes on
manifest    who a log is and where it starts
mark        how far it is known to be on disk
segment     one file of frames: append, read, scan
index       sparse offset and time index of a segment
cache       sealed segments open for reading, a bounded number
log         append, sync, read, roll, truncate, delete a prefix, rewrite
recovery    from files to state after a crash; tells a torn tail from damage
rewrite     replacing sealed segments safely
merge       small frames to large ones
compaction  the last message of every key
epochs      at which offset each leader's epoch begins
reset       a log that begins anew at another offset
replicated  frames of a leader's log, copied to a follower's
retention   which segments have had their time
commit      many appends, one sync
walk        a segment frame by frame, also over damage
inspect     what is in a directory, and where it is damaged
report      the nouns an inspection answers with
"""
