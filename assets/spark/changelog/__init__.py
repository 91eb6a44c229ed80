"""Tables from changelog topics: read and folded by Spark, incrementally, and compared with snapshots."""
