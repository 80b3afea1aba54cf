"""Spark jobs over the usage lake, which compute usage and invoices.

``python -m spark_analytics JOB --lake URL …`` runs one, with Spark on this machine; ``spark-submit`` runs the same on a
cluster.  See :mod:`spark_analytics.__main__` for what a job is.

* :mod:`spark_analytics.session`: Spark, as the jobs need it.
* :mod:`spark_analytics.s3_jars`: what Spark needs for ``s3://``.
* :mod:`spark_analytics.records`: the records of a period, one for each id.
* :mod:`spark_analytics.batch`: makes the tables of :mod:`billing.lake.tables`, which :mod:`spark_analytics.usage`
defines.
* :mod:`spark_analytics.streaming`: folds records, as they arrive in the lake or in a topic, into the tables of
:mod:`billing.lake.live`.
* :mod:`spark_analytics.analytics`: makes the months of :mod:`billing.reports.analysis`.
* :mod:`spark_analytics.quality`: compares what a month comes to at each stage.
* :mod:`spark_analytics.generator`: a month of records that is made up, for measuring.
* :mod:`spark_analytics.rating`: what the hours of a month cost, by the price plans of :mod:`billing.pricing.plans`.

Everything is computed by Spark itself, in DataFrames: no row is ever handled by Python.
May import :mod:`billing`, and nothing else of the service.
"""
