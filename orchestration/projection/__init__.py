"""Projection of an application's topics to SQL: `feed` reads and commits, `writer` maps a record to changes of rows."""
