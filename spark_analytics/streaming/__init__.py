"""The stream: folds arriving records into the live tables (:mod:`billing.lake.live`), and sends budget alerts.

Records arrive in files of the lake, or in the topic to which the service publishes them
(:mod:`spark_analytics.streaming.sources`).  Two rules classify an arriving record:

* It is *late* if it arrived (the time of its file, or of its publication) more than ``late_after`` past its minute, or
  if its minute is in the future.  Late records are counted only by account and day, in a table of their own: the batch,
  which reads all of a day's files, adds them to the other tables.
* A record that is not late counts once.  Spark keeps the ids of records that arrived within a watermark longer than
  ``late_after``: a repeat of a counted record arrived in that time, or is late itself.  So the state is bounded by the
  records of some hours, whatever the size of the month, and no repeat is ever counted.

Spark's checkpoint assigns files or offsets to batches, and a repeated batch has the same records; the live tables
accept each batch once.  So ``kill -9`` at any moment does not change the numbers.
"""
