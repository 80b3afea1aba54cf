"""Export of queues and import from files and from other SQS services."""
