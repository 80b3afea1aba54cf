"""Requests of Kafka's clients: the call that a handler answers, and the services that its handlers share."""
