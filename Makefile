# gpupack: `make demo` shows the product on this machine, `make test` proves it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PACKAGES := allocator kubeapi deviceplugin scheduler_plugin standins gpupack benchmarks

# Bytecode lies below .venv, also where the environment asks for none: each worker would compile all tests anew.
PYTEST = PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(abspath $(VENV))/pycache $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo docs dist test lint test-unit test-in-process test-processes test-random mutants test-cluster test-hardware kube-bundle kube-version lock proto reference clean python

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "gpupack needs Python 3.11 or later as $(PYTHON): apt-get install python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 2; }

$(BIN)/python: | python
	@$(PYTHON) -m venv $(VENV)

# The virtual environment, first with what gpupack needs to run, then with what its tests need.
$(VENV)/.runtime: requirements.lock pyproject.toml | $(BIN)/python
	@$(BIN)/python .ci/install.py requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@$(BIN)/python .ci/install.py requirements-dev.lock
	@touch $@

$(VENV)/.docs: requirements-docs.lock $(VENV)/.runtime
	@$(BIN)/python .ci/install.py requirements-docs.lock
	@touch $@

demo: $(VENV)/.runtime ## Show gpupack at work on embedded stand-ins: 3 nodes, 20 pods, no GPU, no cluster
	@$(BIN)/gpupack demo

lint: $(VENV)/.dev ## Format check, lint, types, import rules, modules that nothing imports, long lines of pages
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.scripts.unimported
	@$(BIN)/python -m tests.scripts.prose

test-unit: ## Unit, property and integration tests
	@$(MAKE) --no-print-directory -j 2 test-in-process test-processes

# For two cores. Each worker imports and collects all tests of its run, which takes it several seconds of processor
# time. Integration tests mostly wait for processes, so they fill the time that the others leave. No test trusts the
# machine's own certificates, which each process that imports aiohttp would read. Tests of a real card are skipped
# here, but that they can be collected is seen.
test-in-process: $(VENV)/.bytecode
	@SSL_CERT_FILE=/dev/null $(PYTEST) tests/unit tests/property tests/hardware -n 2 --dist worksteal -q

test-processes: $(VENV)/.bytecode
	@SSL_CERT_FILE=/dev/null $(PYTEST) tests/integration -n 3 --dist worksteal -q

# Else each worker would rewrite the assertions of all its tests.
$(VENV)/.bytecode: $(VENV)/.dev $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py)
	@$(PYTEST) tests/unit tests/property tests/integration --collect-only -qq >/dev/null || true
	@touch $@

test: ## Everything that needs no root and no cluster (4 minutes on two cores)
	@$(MAKE) --no-print-directory -j 3 lint test-in-process test-processes

# Examples and histories that nobody has seen; SEED=N runs those of an earlier run again.
test-random: HAVE_RANDOM = $(shell grep -rlE 'hypothesis|mark\.histories' --include='test_*.py' tests/unit tests/property)
test-random: SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
test-random: $(VENV)/.dev ## Property tests with examples and histories of a random seed, or of SEED=N
	@echo "seed $(SEED): make test-random SEED=$(SEED) runs this again"
	@GPUPACK_RANDOM_EXAMPLES=1 GPUPACK_UNDERCOUNT_FIRST_SEED=$(SEED) \
	  GPUPACK_UNDERCOUNT_STEPS=$${GPUPACK_UNDERCOUNT_STEPS:-25000} \
	  GPUPACK_QUEUE_FIRST_SEED=$(SEED) GPUPACK_QUEUE_STEPS=$${GPUPACK_QUEUE_STEPS:-7000} \
	  GPUPACK_QUEUE_HISTORIES=$${GPUPACK_QUEUE_HISTORIES:-3} \
	  GPUPACK_AUTOSCALE_FIRST_SEED=$(SEED) GPUPACK_AUTOSCALE_CLUSTERS=$${GPUPACK_AUTOSCALE_CLUSTERS:-5} \
	  GPUPACK_GROUPS_FIRST_SEED=$(SEED) \
	  GPUPACK_CLAIMS_FIRST_SEED=$(SEED) GPUPACK_CLAIMS_STEPS=$${GPUPACK_CLAIMS_STEPS:-14000} \
	  $(PYTEST) $(HAVE_RANDOM) -m 'hypothesis or histories' --hypothesis-seed=$(SEED) -n 3 --dist worksteal -q \
	  || { echo "failed with seed $(SEED): make test-random SEED=$(SEED) runs it again" >&2; exit 1; }

mutants: $(VENV)/.dev ## Run the mutants whose code has changed, and record that they fail
	@GPUPACK_MUTANTS=$${GPUPACK_MUTANTS:-record} $(PYTEST) tests/property -m mutants -n 4 --dist worksteal -q

# Once each version's programs are built, which takes 6 minutes on two cores. Five clusters at a time: for most of
# the time a test waits for the kubelet. A file's tests share a cluster and stay together.
test-cluster: $(VENV)/.dev ## The same product on a real Kubernetes, the newest or KUBE_VERSION=1.34; TELLING=1 for fewer tests, NIGHTLY=1 for more, ONLY=dra for those with a word in their names, KARPENTER=1 and CONTROLLERS=1 build these for their tests (root)
	@GPUPACK_KUBE_VERSION=$(KUBE_VERSION) GPUPACK_KARPENTER=$(KARPENTER) GPUPACK_CONTROLLERS=$(CONTROLLERS) $(PYTEST) tests/cluster -n 5 --dist loadfile --no-loadscope-reorder -q -m '$(if $(TELLING),telling and not nightly,$(if $(NIGHTLY),cluster,not nightly))' $(if $(ONLY),-k '$(ONLY)')

test-hardware: $(VENV)/.dev ## The node daemon and MPS on this node's first card, a real one that is idle; CLUSTER=1 gpupack in a real Kubernetes on it, SIMULATED=1 that on a simulated card (root)
	@GPUPACK_HARDWARE=$(if $(SIMULATED),0,1) $(if $(CLUSTER),GPUPACK_CLUSTER_REQUIRED=1) $(PYTEST) $(if $(CLUSTER),tests/cluster/test_card.py,tests/hardware) -q

kube-bundle: $(VENV)/.dev ## Pack what test-hardware CLUSTER=1 needs on a machine without Go and network into archives of at most 60 MB; PYTHON_THERE=3.12 is its Python
	@GPUPACK_KUBE_VERSION=$(KUBE_VERSION) $(BIN)/python -m tests.scripts.bundle out/kube-bundle $(if $(PYTHON_THERE),--python $(PYTHON_THERE))

kube-version: python ## Pin a Kubernetes that the cluster tests can pick: make kube-version KUBE_VERSION=1.37.1
	@$(PYTHON) tests/cluster/kubebin/pin.py $(KUBE_VERSION)

lock: ## Resolve the dependencies again, with hashes
	@$(BIN)/python -m pip install --quiet uv
	@echo setuptools | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links pyproject.toml - -o requirements.lock
	@echo setuptools | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --extra dev pyproject.toml - -c requirements.lock -o requirements-dev.lock
	@echo | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --extra docs pyproject.toml -c requirements-dev.lock -o requirements-docs.lock

proto: $(VENV)/.dev ## Generate the kubelet's messages from their .proto files again
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. deviceplugin/kubelet/wire/*.proto

reference: $(VENV)/.dev ## Write what the code says of itself again: tables of the reference and of docs/ask.md, the chart's schema, the dashboard of Grafana
	@$(BIN)/python -m tests.scripts.reference
	@$(BIN)/python -m tests.scripts.chart
	@$(BIN)/python -m tests.scripts.grafana

docs: $(VENV)/.docs ## Build the documents as a site in out/site, every link checked
	@$(BIN)/mkdocs build --quiet

dist: $(VENV)/.runtime ## Build wheel and sdist in out/dist
	@rm -rf build && mkdir -p out/dist  # what lies in build would be in the wheel, too
	@$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("out/dist")' >/dev/null
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w out/dist .

clean: ## Remove the virtual environment and every cache
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage out
