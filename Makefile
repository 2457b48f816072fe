# The one list of tasks. `make help` prints it.
#
# Two of them do all set-up on a fresh Debian 12 machine (root, Go and Rust
# present): `make lab` and `make test`.

SHELL := /bin/bash
CARGO ?= cargo
LAB := target/debug/lab
# Clusters of different tasks stand side by side.
E2E_LAB ?= e2e
# What of the end-to-end tests `make test` has time for; `make conformance` runs all.
E2E_FILES ?= churn faults networks node restart security traffic
export CARGO_TERM_COLOR ?= never

.PHONY: help lab lab-down test lint unit e2e conformance bench bench-ovsdb soak soak-e2e fuzz tools shim shim-arm64 generate clean bootstrap shim shim-arm64

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

bootstrap:
	@scripts/bootstrap.sh

$(LAB): bootstrap
	@echo "== building the lab program"
	@$(CARGO) build -q -p lab

lab: $(LAB) ## A real two-node cluster with Weir, and a table that shows what works
	@$(LAB) demo --nodes 2

lab-down: $(LAB) ## End what `make lab` started
	@$(LAB) down

tools: $(LAB) ## Install and build what tests need (cached for all clones)
	@$(LAB) tools

test: lint unit shim-arm64 e2e ## All tests: lints, unit, integration, end to end

lint: bootstrap ## Format, clippy, dependency policy, generated files
	@echo "== format"
	@$(CARGO) fmt --all --check
	@echo "== clippy"
	@$(CARGO) clippy -q --workspace --all-targets -- -D warnings
	@echo "== documentation of the OVSDB client"
	@RUSTDOCFLAGS=-Dwarnings $(CARGO) doc -q -p ovsdb --no-deps
	@echo "== dependency policy"
	@scripts/check-deps.sh

unit: $(LAB) tools ## Unit, property, golden and integration tests (real daemons, real namespaces)
	@echo "== unit and integration tests"
	@WEIR_OVS_ROOT="$$($(LAB) ovs-root)" WEIR_CNI_TOOLS="$$($(LAB) cni-tools)" $(CARGO) test --workspace --exclude e2e --no-fail-fast

e2e: $(LAB) tools ## End-to-end tests on a lab of their own
	@echo "== end-to-end tests"
	@scripts/e2e.sh $(LAB) $(E2E_LAB) dual $(E2E_FILES)

conformance: $(LAB) tools ## All end-to-end tests, on clusters of IPv4, of IPv6 and of both
	@for family in dual ipv4 ipv6; do \
	  echo "== end-to-end tests, $$family"; scripts/e2e.sh $(LAB) $(E2E_LAB)-$$family $$family || exit 1; done

bench: bench-ovsdb bench-cni bench-controller ## All benches; figures are in docs/performance.md and docs/ovsdb.md

bench-ovsdb: $(LAB) tools ## The OVSDB client side by side with ovn-nbctl and Python (docs/ovsdb.md)
	@scripts/bench-ovsdb.sh

bench-cni: $(LAB) tools shim ## ADD and DEL measured from exec to exit, on a node with the real OVS and OVN
	@WEIR_OVS_ROOT="$$($(LAB) ovs-root)" WEIR_BENCH_PLUGIN="$(CURDIR)/target/dist/kube-ovn" $(CARGO) bench -q -p daemon --bench add

bench-controller: $(LAB) tools ## The controller at scale: 150,000 pods (WEIR_BENCH_PODS, _NODES, _SUBNETS); IPAM alone
	@$(CARGO) bench -p controller --bench ipam
	@WEIR_OVS_ROOT="$$($(LAB) ovs-root)" $(CARGO) bench -p controller --bench scale

soak: soak-ovsdb soak-cni soak-controller soak-e2e ## Long runs of everything that can be run for long

soak-ovsdb: $(LAB) tools ## The OVSDB client on real clusters (WEIR_LEADER_CHANGES=200, WEIR_CUTS=40, ...)
	@WEIR_OVS_ROOT="$$($(LAB) ovs-root)" $(CARGO) test -p ovsdb --tests --no-fail-fast -- --ignored --nocapture --test-threads=1 soak_

soak-cni: $(LAB) tools ## A thousand ADDs and DELs, five hundred pods at once
	@WEIR_OVS_ROOT="$$($(LAB) ovs-root)" $(CARGO) test -q -p daemon --test plug_endurance --test ovn -- --ignored --nocapture soak_

soak-e2e: export WEIR_OUTAGE_SECONDS ?= 600
soak-e2e: export WEIR_RECREATIONS ?= 1000
soak-e2e: export WEIR_BURST ?= 500
soak-e2e: $(LAB) tools ## In a cluster: ten minutes without databases, 1,000 pods made anew, 500 at once
	@scripts/e2e.sh $(LAB) $(E2E_LAB)-soak dual outage scale

# The simulator optimised, or a thousand seeds would take a day.
soak-controller: export WEIR_SIM_SEEDS ?= 1000
# Others each time; WEIR_SIM_FIRST=N runs them again.
soak-controller: export WEIR_SIM_FIRST ?= $(shell date +%s)
soak-controller: bootstrap ## The simulator with many seeds (WEIR_SIM_SEEDS=1000, from WEIR_SIM_FIRST)
	@echo "== seeds $$WEIR_SIM_FIRST and the $$WEIR_SIM_SEEDS after it"
	@$(CARGO) test --release -p controller --lib sim:: -- --skip real

# Needs a nightly toolchain and a C++ compiler.
fuzz: export FUZZ_SECONDS ?= 3600
fuzz: ## Fuzzers of the OVSDB client, FUZZ_SECONDS=3600 each (nightly toolchain)
	@scripts/fuzz.sh

shim: ## The CNI executable, linked statically
	@$(CARGO) rustc -q -p cni --bin kube-ovn --profile dist -- -C target-feature=+crt-static -C relocation-model=static

shim-arm64: bootstrap ## The same for aarch64, cross-built and tried under emulation
	@cni/build-arm64.sh

generate: ## Write the generated files again (CRDs)
	@$(CARGO) run -q -p crds --bin crds-gen

clean: ## Remove build output (not the cache that clones share)
	@$(CARGO) clean
