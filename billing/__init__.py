"""Usage metering and billing: counts each answered call once, records stored bytes per minute, uploads both to the
lake.

* :mod:`billing.usage`: the counted quantities and the usage record.
* :mod:`billing.buffers`: counters in a memory-mapped file, which survive the process that counts.
* :mod:`billing.storage`: records of the bytes that queues store.
* :mod:`billing.storage_file`: spool files of those records.
* :mod:`billing.meter`: the counters of one process, one buffer for each minute.
* :mod:`billing.where`: the lake's URL, passed to processes in their environment.
* :mod:`billing.lake`: the usage lake: Parquet files under ``date=/hour=``, in a folder or an object store.
* :mod:`billing.seal`: upload of finished spool files to the lake.
* :mod:`billing.tables`: hourly tables that the batch (``spark_analytics.batch``) computes from the records.
* :mod:`billing.analysis`: stored analysis of a month's usage.
* :mod:`billing.forecast`: forecast of a month's totals.
* :mod:`billing.estimate`: cost of a month's sums.
* :mod:`billing.live`: the month to date and the last minutes, maintained by the streaming job.
* :mod:`billing.budgets`: budgets of tenants, and the alerts sent when one is exceeded.
* :mod:`billing.plans`: price plans and their assignment to accounts, parsed strictly (:mod:`billing.strict_yaml`).
* :mod:`billing.months`: billed months; :mod:`billing.money`: amounts and their rounding.
* :mod:`billing.rated`: results of the rating (``spark_analytics.rating``).
* :mod:`billing.charges`: the lines of a month, with the lines that an invoice adds.
* :mod:`billing.invoices`: closed months, their invoices, and corrections of them.
* :mod:`billing.invoice_pages`: an invoice as page, PDF, text and e-mail; :mod:`billing.focus`: in FOCUS's columns.
* :mod:`billing.documents`: HTML pages from templates, and their PDF.

Imports none of the service's layers.
"""
