"""Usage and metrics of requests of Kafka's protocol."""
