"""Pipelines that come with Penstock.

archive   topics to Parquet files, for good. `archive` is what the driver does, `archive_places` says where it goes on,
          `archive_source` is how Spark gets there, `archive_task` writes the files, and `archive_tidying` merges them
report    how messages fared: latencies, retries, dead letters, hot keys and partitions. `report` makes one; of its
          parts, `report_scope` says what is looked at, `report_frames` and `report_figures` ask Spark, `report_tables`
          says what comes out, and `report_page` draws it
mirror    topics of one cluster in another. `mirror` is what the driver does; of its parts, `mirror_topics` says what
          goes where, `mirror_task` writes it, `mirror_runs` and `mirror_table` know which offset became which, and
          `mirror_groups` moves groups by that
"""
