"""An archive of topics: Parquet files and a manifest, in a directory that is no broker's.

    layout      names and columns of the files, and what the manifest says of them
    place       where it is: a directory, or a URI of pyarrow
    ledger      what it holds: the sum of its commits, and what may be added to it
    archive     opened, read, committed to
    reading     one file, as columns
    writing     messages of a partition to files
    compaction  small files made to large ones; `vacuum`

It knows of no broker and of no Spark. What is written here is read by `penstock.client.replay`.
"""

from penstock.archive.archive import Archive
from penstock.archive.compaction import compact, vacuum
from penstock.archive.layout import COLUMNS, FileEntry
from penstock.archive.writing import PartitionWriter, write_files

__all__ = ["COLUMNS", "Archive", "FileEntry", "PartitionWriter", "compact", "vacuum", "write_files"]
