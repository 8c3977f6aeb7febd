"""How Spark finds `format("penstock")` by itself: it looks into modules whose names begin with `pyspark_`."""

from penstock.spark import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
