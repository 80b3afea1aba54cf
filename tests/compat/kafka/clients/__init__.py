"""A program for each client of Kafka, which performs the steps of scenarios and prints their results."""
