# `make help` lists the targets. docs/testing.md says what each of them proves.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
# Tools are pinned in tools/go.mod and built from the module cache.
TOOL     := $(GO) tool -modfile=tools/go.mod
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
PACKAGES ?= ./...

# Packages that start goroutines, and those that drive them.
RACE_PACKAGES ?= ./raftnode/... ./kv/... ./client/... ./server/... ./internal/testcluster/...
COUNT         ?= 1
SEEDS         ?= 200
SEED          ?=
FUZZTIME      ?= 10s
BENCH         ?= .
MUTANT        ?= .
DEMO_FLAGS    ?=

# -race needs cgo; the tag keeps zstd the Go one, so that the same code is tested.
RACE_TEST := CGO_ENABLED=1 $(GO) test -race -tags pebblegozstd

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/streamraft
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/streamraft ./cmd/streamraft

.PHONY: test
test: ## run the tests of all packages (PACKAGES=./kv/... for some)
	$(GO) test $(PACKAGES)

.PHONY: race
race: ## run the tests of concurrent packages under the race detector (COUNT=n, RACE_PACKAGES=...)
	@for pattern in $(RACE_PACKAGES); do [ -n "$$($(GO) list $$pattern 2>/dev/null)" ] \
		|| { echo "race: no package matches $$pattern" >&2; exit 1; }; done
	STREAMRAFT_SIM_SEEDS="$${STREAMRAFT_SIM_SEEDS:-2}" $(RACE_TEST) -count=$(COUNT) -timeout 30m $(RACE_PACKAGES)

# A test name that matches nothing passes, so its presence is checked first.
.PHONY: sim
sim: ## simulate whole clusters with faults (SEEDS=200; SEED=n repeats one fault plan)
	@$(GO) test -list '^TestSimulation$$' ./internal/testcluster | grep -x TestSimulation >/dev/null \
		|| { echo 'sim: ./internal/testcluster has no TestSimulation, or does not build' >&2; exit 1; }
	STREAMRAFT_SIM_SEEDS=$(SEEDS) STREAMRAFT_SIM_SEED=$(SEED) \
		$(GO) test ./internal/testcluster -run '^TestSimulation$$' -count=1 -timeout 30m -v

.PHONY: long
long: ## everything that takes hours: many seeds, fuzzing, repeated race tests, mutants
	$(MAKE) sim SEEDS=2000
	$(MAKE) fuzz FUZZTIME=5m
	$(MAKE) race COUNT=5
	$(MAKE) mutants
	@echo "long: passed at $$(git describe --tags --always --dirty --abbrev=12)"

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, buf lint
	@unformatted=$$(find . -name '*.go' -not -name '*.pb.go' -not -path './.git/*' -print0 | xargs -0 gofmt -l); \
		if [ -n "$$unformatted" ]; then printf 'gofmt -w these files:\n%s\n' "$$unformatted" >&2; exit 1; fi
	$(GO) vet $(PACKAGES)
	$(TOOL) staticcheck $(PACKAGES)
	cd proto && $(GO) tool -modfile=../tools/go.mod buf lint

.PHONY: generate
generate: ## generate the Go code of proto/
	cd proto && $(GO) tool -modfile=../tools/go.mod buf generate

.PHONY: checkgenerate
checkgenerate: ## fail if generated code is not what proto/ says
	tools/checkgenerate

.PHONY: bench
bench: ## run the Go benchmarks (COUNT=n, BENCH=regexp); compare two outputs with benchstat
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count=$(COUNT) -timeout 60m $(PACKAGES)

.PHONY: benchcheck
benchcheck: ## run every Go benchmark once, to see that it works
	$(GO) test -run '^$$' -bench . -benchtime 1x $(PACKAGES)

.PHONY: fuzz
fuzz: ## fuzz every target in turn (FUZZTIME=10s each)
	GO=$(GO) tools/fuzz $(FUZZTIME)

.PHONY: mutants
mutants: ## break the code in known ways and see a test fail for each (MUTANT=regexp)
	$(GO) run ./internal/mutants -run '$(MUTANT)'

.PHONY: demo
demo: build ## run the demonstration (DEMO_FLAGS=...)
	bin/streamraft demo $(DEMO_FLAGS)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
