"""`KafkaStreams`: the client that an application starts and closes."""
