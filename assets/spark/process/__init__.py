"""Spark work of a Dagster run in a separate process: the parent (`pipes`), the child (`run`) and their messages."""
