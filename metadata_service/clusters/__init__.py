"""Backend clusters: directory, election of their manager, placement of shards, maps of partitions."""
