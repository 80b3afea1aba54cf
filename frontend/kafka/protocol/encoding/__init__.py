"""The primitive types of Kafka's protocol, read and written, and what a served API is."""
