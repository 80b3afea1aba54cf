"""Benchmarks of Holdfast: throughput, latency and cost, with ElasticMQ on the same machine for comparison.

``python -m bench`` starts the servers as separate processes, loads them over loopback with signed calls, prints a table
and writes ``bench/results/*.json``.  ``docs/benchmarks.md`` explains the results.

- :mod:`tests.servers.signing`, :mod:`bench.load`, :mod:`bench.jobs`: the load generator
- :mod:`bench.servers.servers`, :mod:`tests.servers.proc`: the servers, and their resource usage according to the kernel
- :mod:`bench.scenarios`: the measurements
- :mod:`bench.report`: measurements, targets, table, JSON
"""
