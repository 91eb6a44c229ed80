"""The border to Kafka: every use of the client library, its settings and its errors."""
