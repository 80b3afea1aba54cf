"""How fast Holdfast is, what that costs, and how ElasticMQ does on the same machine.

``python -m bench`` starts the servers as processes of their own, loads them over loopback with signed calls,
prints a table and writes ``bench/results/*.json``.  ``docs/benchmarks.md`` says how to read it.

- :mod:`bench.signing`, :mod:`bench.load`, :mod:`bench.jobs`: the load generator
- :mod:`bench.servers`, :mod:`bench.proc`: the servers, and what the kernel says about them
- :mod:`bench.scenarios`: what is measured
- :mod:`bench.report`: measurements, targets, table, JSON
"""
