"""Declared pipelines: topics → SQL or a function → a topic or a table, from a YAML file.

spec             what a pipeline is
document         a YAML file whose values know their lines; problems are collected
reading          from a file to a pipeline; reading_sources, schemas, ddl and functions are its parts
topics           whether the broker has its topics
session          Spark, started with what a pipeline needs; its noise goes to a file
decode, encode   messages to rows, and rows to messages
avro             the same for Avro, in Python: avro_schema reads a file, avro_types and avro_default are what it has,
                 avro_decoder (with avro_size) and avro_encoder (with avro_columns) do the bytes
queries          the pipeline as queries of Spark
running          queries run to their end; `Job` is what the built-in pipelines hand over, too
progress         rows, rates and lag, from what Spark reports
failures         why a query failed, in one sentence
state            what is known of pipelines that ran here

Reading and state need no pyspark, so that files can be checked, and status shown, where it is not installed.
"""
