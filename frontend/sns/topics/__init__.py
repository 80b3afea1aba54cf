"""Topics and subscriptions as actions see them: their attributes and policies, and the deliveries of a message."""
