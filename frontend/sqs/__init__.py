"""Amazon SQS's interface: both of its protocols over one table of actions."""
