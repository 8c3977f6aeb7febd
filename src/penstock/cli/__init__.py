"""The command line: one file per command group.

app          the commands together, and the way in
broker       where the broker is, for every command that needs one
options      options and arguments that several commands have; bundles of them, which are one argument of a command
given        what people type, understood
output       tables, JSON, errors and progress, shared by all commands
shown        how bytes, times, sizes and messages look
stream       messages one after the other, as consume and read print them

serve        penstock serve, penstock config …
topic        penstock topic …
publish      penstock publish
consume      penstock consume
read         penstock read
group        penstock group …
scheduled    penstock scheduled …
schedule     penstock schedule …
dlq          penstock dlq …
trace        penstock trace, penstock why
top          penstock top
bench        penstock bench
cluster      penstock cluster …: how one is; cluster_changes moves partitions and leaders, cluster_dev starts one to try
             out, cluster_site is where it is, cluster_view and cluster_waiting how it looks
ping         penstock ping
pipeline     penstock pipeline …; pipeline_view shows how one does while it runs; pipeline_archive and
             pipeline_mirror are built-in ones
demo         penstock demo: a package, with the shop it shows
log          penstock log …; log_inspect does the work, log_view draws it

What is heavy (numpy, pyarrow, the client) is imported by the command that needs it, so that `--help` is quick.
"""

from penstock.cli.app import main

__all__ = ["main"]
