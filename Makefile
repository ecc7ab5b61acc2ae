# lmcache-go: everything that a person or a CI does with this repository.
# `make` alone prints the targets; each is a line of shell or one script in scripts/.

SHELL := bash
.DEFAULT_GOAL := help

# What `make run` starts; `make run PORT=7000 ARGS="--l1-size-gb 20 --shm-name demo"`.
PORT ?= 6555
ARGS ?=
# Where binaries go.
BIN ?= bin
# How long `make fuzz` runs each target.
FUZZTIME ?= 30s
# What `make bench` runs, and for how long each.
BENCH ?= .
BENCHTIME ?= 1s

GO ?= go
VERSION = $(shell scripts/version.sh)
LDFLAGS = -X main.version=$(VERSION)
# Go stamps the commit by asking git, and gives up when git refuses (a checkout of another user).
VCS = $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)

##@ Use

.PHONY: help
help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: deps
deps: ## install what this machine lacks to build (a C compiler)
	@scripts/deps.sh

.PHONY: deps-dev
deps-dev: ## install what the Go tests need besides (pkg-config, the headers of libzmq)
	@scripts/deps.sh --dev

.PHONY: build
build: deps ## build bin/lmcache-go
	$(GO) build $(VCS) -ldflags '$(LDFLAGS)' -o $(BIN)/lmcache-go ./cmd/lmcache-go

.PHONY: run
run: build ## build and start the server; PORT=6555, ARGS="more flags"
	$(BIN)/lmcache-go server --port $(PORT) $(ARGS)

.PHONY: demo
demo: build ## disaggregated prefill on this machine: five processes, verified step by step; DEMO="--keep"
	@$(BIN)/lmcache-go demo pd $(DEMO)

.PHONY: dist
dist: deps ## make dist/lmcache-go-<version>-<os>-<arch>/, which needs nothing but glibc
	@scripts/dist.sh

##@ Check

.PHONY: test
test: ## everything: lint, tests (race detector, allocation counts), the real client against our server
	@scripts/deps.sh --test
	@scripts/test.sh

.PHONY: test-go
test-go: deps-dev ## the quick part: Go tests without race, lint and Python
	$(GO) test ./...

.PHONY: race
race: deps-dev ## Go tests with the race detector
	$(GO) test -race -shuffle=on ./...

.PHONY: conformance
conformance: ## the real LMCache client (Python) against our server
	@scripts/deps.sh --test
	@scripts/test.sh conformance

.PHONY: lint
lint: deps-dev ## golangci-lint, vet, builds without cgo, go.mod, shellcheck
	@scripts/lint.sh

.PHONY: fuzz
fuzz: deps-dev ## each fuzz target for FUZZTIME (30s)
	@FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

.PHONY: bench
bench: deps-dev ## Go benchmarks; BENCH=regexp BENCHTIME=1s
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) ./...

.PHONY: bench-peer
bench-peer: build ## our server and the real one in paired runs, with each driver; half an hour
	@scripts/deps.sh --test
	bench/all.sh

.PHONY: gpu-test
gpu-test: build ## on a machine with a GPU and torch: real CUDA IPC, every byte, dead workers, speed; GPUTEST="-only bytes,share"
	$(GO) build $(VCS) -o $(BIN)/gputest ./gputest
	$(BIN)/gputest -server $(BIN)/lmcache-go -json $(BIN)/gputest.json $(GPUTEST)

.PHONY: cover
cover: deps-dev ## test coverage by package, and coverage.out for go tool cover
	$(GO) test -coverpkg=./... -coverprofile=coverage.out ./...
	@$(GO) tool cover -func=coverage.out | tail -n 1

.PHONY: check
check: tidy fmt test ## what must be green before a push

.PHONY: kernels
kernels: ## compile csrc/kernels.cu anew, by nvcc or NVRTC
	csrc/build.py

##@ Tidy

.PHONY: fmt
fmt: deps-dev ## format every Go file (gofumpt, gci)
	$(GO) tool -modfile=internal/devtools/go.mod golangci-lint fmt

.PHONY: tidy
tidy: ## go mod tidy
	$(GO) mod tidy

.PHONY: golden
golden: deps-dev ## rewrite the golden files of the tests; look at the diff
	$(GO) test $$(grep -rl --include='*_test.go' 'testutil\.Golden' . | xargs -n 1 dirname | sort -u) -update

.PHONY: clean
clean: ## remove what was built (not the caches outside the tree)
	rm -rf $(BIN) dist coverage.out
