"""Usage and what it costs: every answered call is counted once, what queues store is recorded minute by minute, and
both reach the usage lake.

* :mod:`billing.usage`: what is counted, and as what it is recorded.
* :mod:`billing.buffers`: counters in a mapped file, which outlive the process that counts.
* :mod:`billing.storage`: what is recorded of what queues store.
* :mod:`billing.storage_file`: the files in which it waits.
* :mod:`billing.meter`: the counters of one process, a buffer for each minute.
* :mod:`billing.where`: how a process is told where the lake is.
* :mod:`billing.lake`: the usage lake: Parquet files under ``date=/hour=``, in a folder or an object store.
* :mod:`billing.seal`: the way from finished buffers to the lake.
* :mod:`billing.tables`: tables of hours, which the batch (``spark_analytics.batch``) makes of the records.
* :mod:`billing.analysis`: what a month's usage tells, as it is kept for whoever shows it.
* :mod:`billing.forecast`: what a month will come to.
* :mod:`billing.estimate`: what sums of a month cost.
* :mod:`billing.live`: the month so far and the last minutes, as the streaming job keeps them.
* :mod:`billing.budgets`: what tenants mean to use, and who is told when it is passed.
* :mod:`billing.plans`: price plans and who has which, read strictly (:mod:`billing.strict_yaml`).
* :mod:`billing.months`: months that are billed; :mod:`billing.money`: amounts, and where they are rounded.
* :mod:`billing.rated`: what the rating (``spark_analytics.rating``) has made of months.
* :mod:`billing.charges`: the lines of a month, with what an invoice adds to them.
* :mod:`billing.invoices`: months that are closed, their invoices, and corrections of them.
* :mod:`billing.invoice_pages`: an invoice as page, PDF, text and e-mail; :mod:`billing.focus`: in FOCUS's columns.
* :mod:`billing.documents`: pages from templates, and the same as PDF.

Imports none of the service's layers.
"""
