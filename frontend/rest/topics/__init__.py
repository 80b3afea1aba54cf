"""Topics, subscriptions and publications over REST.  (Kafka's topics are streams.)"""
