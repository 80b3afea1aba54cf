# The developer's loop.  `make serve` and `make test` are each the whole set-up.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SEEDS ?= 1000
WORKERS ?= 3
IMAGE ?= localhost/holdfast:try
JOBS_IMAGE ?= localhost/holdfast-jobs:try
ARGS ?=

.PHONY: help serve cluster demo test lint format lock bench simulate fuzz faults scale scale-billing image image-jobs kube kube-node clean

help:
	@echo "make serve             run the service on http://127.0.0.1:9324 with its data in ./data (ARGS: more options)"
	@echo "make cluster           run the service as on many machines: Cassandra, Redis, all roles (ARGS: --cassandra 1)"
	@echo "make demo              take such a cluster from 3 backends to 12 and back, under load (ARGS: --cassandra 1)"
	@echo "make test              install what the tests need and run them all (ARGS: pytest's options)"
	@echo "make lint              ruff, mypy --strict and the arrows between the packages"
	@echo "make format            let ruff format and fix"
	@echo "make bench             measure, beside ElasticMQ (needs Java and Maven), and print the table"
	@echo "make simulate SEEDS=n  run the simulator with n seeds"
	@echo "make fuzz              feed the parsers and the door with bad input"
	@echo "make faults            end and break whole clusters and a real server in every way (ARGS: --minutes 60 --forms ...)"
	@echo "make scale             the ring and the placement with 1,000 nodes and 10,000,000 queues, a minute of computing"
	@echo "make scale-billing     a month of 5, 15 and 50 million usage records through the batch and the rating (ARGS: --millions 5)"
	@echo "make image             build the image IMAGE, and try it as Kubernetes runs it (STAND_IN=1: where no registry of images is reached)"
	@echo "make image-jobs        the same with the image of Spark's jobs, JOBS_IMAGE (700 MB more)"
	@echo "make kube              install, test, upgrade and remove the chart on a real control plane of Kubernetes (needs Go the first time);"
	@echo "                       as root also on a real node, under load (STAND_IN=1: where no registry of images is reached)"
	@echo "make kube-node         only the latter (ARGS: --forms one-pod)"
	@echo "make lock              make requirements/*.txt anew from requirements/*.in (ARGS=--upgrade: with newer versions)"

serve: $(VENV)/.runtime
	@exec $(BIN)/holdfast serve --data ./data $(ARGS)

cluster: $(VENV)/.dev
	@scripts/need redis-server java mvn
	@exec $(BIN)/python -m bench.terminal $(ARGS)

demo: $(VENV)/.dev
	@scripts/need redis-server java mvn
	@exec $(BIN)/python -m bench.demo $(ARGS)

test: $(VENV)/.dev
	@scripts/need redis-server java mvn chromium chromedriver pango prometheus promtool
	@scripts/install-test-clients
	@scripts/install-helm
	@$(BIN)/python -m bench.servers.cassandra_server
	$(BIN)/python -m tests.runner -n $(WORKERS) --dist loadfile $(ARGS)

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

simulate: $(VENV)/.dev
	$(BIN)/python -m tests.simulator --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m tests.simulator --cluster --seeds $(SEEDS) $(ARGS)

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(ARGS)

faults: $(VENV)/.dev
	$(BIN)/python -m tests.faults $(ARGS)

scale: $(VENV)/.dev
	$(BIN)/python -m tests.scale $(ARGS)

scale-billing: $(VENV)/.dev
	@scripts/need java
	$(BIN)/python -m bench.billing $(ARGS)

# As --stand-in says: the base is made of Debian's packages, and buildah builds, as root.
image: $(VENV)/.dev
	scripts/build-image --tag $(IMAGE) $(if $(STAND_IN),--stand-in)
	$(if $(STAND_IN),eval "$$(scripts/build-image --shell)"; )$(BIN)/python -m tests.image $(IMAGE)

image-jobs: $(VENV)/.dev
	scripts/build-image --target jobs --tag $(JOBS_IMAGE) $(if $(STAND_IN),--stand-in)
	$(if $(STAND_IN),eval "$$(scripts/build-image --shell)"; )$(BIN)/python -m tests.image.jobs $(JOBS_IMAGE)

# Ten minutes the first time, in which Kubernetes is built.
kube: $(VENV)/.dev
	@scripts/need openssl java
	@scripts/install-helm
	$(BIN)/python -m tests.kube $(ARGS)
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) kube-node; else echo "a real node was not tried, for it needs root: make kube-node"; fi

kube-node: $(VENV)/.dev
	@scripts/need openssl ip containerd runc cni iptables conntrack redis-server java mvn
	@scripts/install-helm
	$(BIN)/python -m tests.kube --node $(if $(STAND_IN),--stand-in) $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache

# Stamps: the environment is made, or brought up to date, when a lock file is newer.
# pip checks each file against the hash in the lock; the project itself is installed as a link to this folder.

$(VENV)/.runtime: requirements/build.txt requirements/base.txt pyproject.toml scripts/make-venv
	@scripts/make-venv $(VENV)
	@echo "installing what Holdfast runs on"
	@$(PIP) install --require-hashes -r requirements/build.txt -r requirements/base.txt
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@echo "installing what the tests need"
	@$(PIP) install --no-build-isolation --require-hashes -r requirements/dev.txt
	@touch $@
