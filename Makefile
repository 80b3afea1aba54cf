# Developer commands.  `make serve` and `make test` each install everything that they need.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SEEDS ?= 1000
WORKERS ?= 3
IMAGE ?= localhost/holdfast:try
JOBS_IMAGE ?= localhost/holdfast-jobs:try
ARGS ?=
COMPILED := .cache/compiled
COMPILED_TESTS := $(addprefix tests/,telemetry/test_build.py auth/signatures auth/test_cache.py auth/test_guessing.py auth/test_lookup.py holdfast/http holdfast/test_tls.py behaviour faults/processes/test_kill.py)

.PHONY: help serve compiled test-compiled cluster demo test test-all lint format lock bench bench-compiled simulate fuzz faults scale scale-billing image image-jobs kube kube-node clean

help:
	@echo "make serve             run the service on http://127.0.0.1:9324 with its data in ./data (ARGS: more options)"
	@echo "make compiled          build a wheel whose hot modules are compiled (needs a C compiler); COMPILED has it, installed"
	@echo "make test-compiled     run the tests of the compiled modules on that build"
	@echo "make cluster           run a cluster on this machine: Cassandra, Redis, all roles (ARGS: --cassandra 1)"
	@echo "make demo              scale such a cluster from 3 backends to 12 and back, under load (ARGS: --cassandra 1)"
	@echo "make test              install the tests' dependencies and run the tests, without the long campaigns (ARGS: pytest's options)"
	@echo "make test-all          run all tests (RECORD=1: record the seconds of each file, which order the files)"
	@echo "make lint              ruff, mypy --strict and the import rules between the packages"
	@echo "make format            format and fix with ruff"
	@echo "make bench             run the benchmarks, also of ElasticMQ (needs Java and Maven), and print the table"
	@echo "make bench-compiled    the same, of the compiled build"
	@echo "make simulate SEEDS=n  run the simulator with n seeds"
	@echo "make fuzz              test the parsers and the HTTP server with bad input"
	@echo "make faults            inject faults into whole clusters and a real server (ARGS: --minutes 60 --forms ...)"
	@echo "make scale             simulate the ring and the placement with 1,000 nodes and 10,000,000 queues (a minute)"
	@echo "make scale-billing     run the batch and the rating on a month of 5, 15 and 50 million usage records (ARGS: --millions 5)"
	@echo "make image             build the image IMAGE, and test it as Kubernetes runs it (STAND_IN=1: if no image registry can be reached)"
	@echo "make image-jobs        the same with the image of Spark's jobs, JOBS_IMAGE (700 MB more)"
	@echo "make kube              install, test, upgrade and remove the chart on a real Kubernetes control plane (needs Go the first time);"
	@echo "                       as root also on a real node, under load (STAND_IN=1: if no image registry can be reached)"
	@echo "make kube-node         only the latter (ARGS: --forms one-pod)"
	@echo "make lock              update requirements/*.txt from requirements/*.in (ARGS=--upgrade: with newer versions)"

serve: $(VENV)/.runtime
	@exec $(BIN)/holdfast serve --data ./data $(ARGS)

# The wheel is installed in a folder of its own, which PYTHONPATH puts before this one.
compiled: $(VENV)/.dev
	@scripts/need gcc
	@rm -rf $(COMPILED)/wheel $(COMPILED)/site
	HOLDFAST_COMPILED=1 $(PIP) wheel --no-build-isolation --no-deps --wheel-dir $(COMPILED)/wheel .
	@$(PIP) install --no-deps --target $(COMPILED)/site $(COMPILED)/wheel/*.whl

# Neither Python nor pytest may put this folder first, whose sources would run instead.
ON_COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(COMPILED)/site:$(CURDIR)

test-compiled: compiled
	HOLDFAST_COMPILED=1 $(ON_COMPILED) \
	$(BIN)/python -m pytest --import-mode=append -p no:cacheprovider -q $(COMPILED_TESTS) $(ARGS)

cluster: $(VENV)/.dev
	@scripts/need redis-server java mvn
	@exec $(BIN)/python -m bench.terminal $(ARGS)

demo: $(VENV)/.dev
	@scripts/need redis-server java mvn
	@exec $(BIN)/python -m bench.demo $(ARGS)

test test-all: $(VENV)/.dev
	@scripts/need redis-server java mvn go chromium chromedriver pango prometheus promtool
	@scripts/install-test-clients
	@scripts/install-helm
	@$(BIN)/python -m tests.servers.cassandra_server
	@$(BIN)/python -m tests.servers.java.kafka_client
	@$(BIN)/python -m tests.servers.java.kafka_broker
	@$(BIN)/python -m tests.servers.java.spark_connector
	@$(BIN)/python -m tests.compat.java
	@$(BIN)/python -m tests.compat.kafka.java
	@$(BIN)/python -m tests.compat.kafka.go
	@$(BIN)/python -m tests.compat.kafka.suites.source
	$(BIN)/python -m tests.runner $(if $(filter test-all,$@),--all $(if $(RECORD),--record)) -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/.dev
	requirements/compile $(ARGS)

bench: $(VENV)/.dev
	-@scripts/need java mvn redis-server
	$(BIN)/python -m bench $(ARGS)

bench-compiled: compiled
	-@scripts/need java mvn redis-server
	$(ON_COMPILED) $(BIN)/python -m bench $(ARGS)

simulate: $(VENV)/.dev
	$(BIN)/python -m tests.simulator --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m tests.simulator --cluster --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m tests.simulator --streams --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m tests.simulator --streams --cluster --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m tests.simulator --publications --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m tests.simulator --publications --cluster --seeds $(SEEDS) $(ARGS)

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(ARGS)

faults: $(VENV)/.dev
	@scripts/install-test-clients
	$(BIN)/python -m tests.faults $(ARGS)

scale: $(VENV)/.dev
	$(BIN)/python -m tests.scale $(ARGS)

scale-billing: $(VENV)/.dev
	@scripts/need java
	$(BIN)/python -m bench.billing $(ARGS)

# STAND_IN: the base image is made of Debian packages, and buildah builds as root.
image: $(VENV)/.dev
	scripts/build-image --tag $(IMAGE) $(if $(STAND_IN),--stand-in)
	$(if $(STAND_IN),eval "$$(scripts/build-image --shell)"; )$(BIN)/python -m tests.image $(IMAGE)

image-jobs: $(VENV)/.dev
	scripts/build-image --target jobs --tag $(JOBS_IMAGE) $(if $(STAND_IN),--stand-in)
	$(if $(STAND_IN),eval "$$(scripts/build-image --shell)"; )$(BIN)/python -m tests.image.jobs $(JOBS_IMAGE)

# The first run takes ten minutes, because it builds Kubernetes.
kube: $(VENV)/.dev
	@scripts/need openssl java
	@scripts/install-helm
	$(BIN)/python -m helm.trials $(ARGS)
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) kube-node; else echo "skipped the real node, which needs root: make kube-node"; fi

kube-node: $(VENV)/.dev
	@scripts/need openssl ip containerd runc cni iptables conntrack redis-server java mvn
	@scripts/install-helm
	$(BIN)/python -m helm.trials --node $(if $(STAND_IN),--stand-in) $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache

# Stamps: the environment is created or updated when a lock file is newer.
# pip checks each file against the hash in the lock; the project itself is installed as a link to this folder.

$(VENV)/.runtime: requirements/build.txt requirements/base.txt pyproject.toml scripts/make-venv
	@scripts/make-venv $(VENV)
	@echo "installing Holdfast's dependencies"
	@$(PIP) install --require-hashes -r requirements/build.txt -r requirements/base.txt
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@echo "installing the tests' dependencies"
	@$(PIP) install --no-build-isolation --require-hashes -r requirements/dev.txt
	@touch $@
