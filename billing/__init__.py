"""Usage metering and billing: counts each answered call once, records stored bytes per minute, uploads both to the
lake.

* :mod:`billing.metering.usage`: the counted quantities and the usage record.
* :mod:`billing.metering.buffers`: counters in a memory-mapped file, which survive the process that counts.
* :mod:`billing.metering.storage`: records of the bytes that queues store.
* :mod:`billing.metering.storage_file`: spool files of those records.
* :mod:`billing.metering.meter`: the counters of one process, one buffer for each minute.
* :mod:`billing.metering.lake_variable`: the lake's URL, passed to processes in their environment.
* :mod:`billing.lake.lake`: the usage lake: Parquet files under ``date=/hour=``, in a folder or an object store.
* :mod:`billing.lake.upload`: upload of finished spool files to the lake.
* :mod:`billing.lake.tables`: hourly tables that the batch (``spark_analytics.batch``) computes from the records.
* :mod:`billing.reports.analysis`: stored analysis of a month's usage.
* :mod:`billing.pricing.forecast`: forecast of a month's totals.
* :mod:`billing.pricing.estimate`: cost of a month's sums.
* :mod:`billing.lake.live`: the month to date and the last minutes, maintained by the streaming job.
* :mod:`billing.pricing.budgets`: budgets of tenants, and the alerts sent when one is exceeded.
* :mod:`billing.pricing.plans`: price plans and their assignment to accounts, parsed strictly
(:mod:`billing.pricing.strict_yaml`).
* :mod:`billing.lake.months`: billed months; :mod:`billing.pricing.money`: amounts and their rounding.
* :mod:`billing.pricing.rated`: results of the rating (``spark_analytics.rating``).
* :mod:`billing.pricing.charges`: the lines of a month, with the lines that an invoice adds.
* :mod:`billing.pricing.invoices`: closed months, their invoices, and corrections of them.
* :mod:`billing.reports.invoice_pages`: an invoice as page, PDF, text and e-mail; :mod:`billing.reports.focus`: in
FOCUS's columns.
* :mod:`billing.reports.documents`: HTML pages from templates, and their PDF.

Imports none of the service's layers.
"""
