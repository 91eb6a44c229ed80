"""Spark types of keys and values. `shapes` defines the types: what bytes decode to, the column's type, and the conversion.

`json_schema` creates shapes from JSON Schema, `ddl` from Spark DDL; `avro` and `inference` (from the data) create JSON Schemas.
`serde_formats` decodes the output of a serde, `formats` all columns of a store; `protobuf` reads messages.
"""
