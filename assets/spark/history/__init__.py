"""History: an application's own topology run over records of the past by Spark (docs/history.md)."""
