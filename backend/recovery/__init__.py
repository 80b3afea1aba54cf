"""Recovery and hand-over of shards: start, takeover, replay, checkpoints, compaction, damage."""
