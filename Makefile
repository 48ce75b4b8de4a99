# Everything a developer runs. Tools are pinned and installed into .bin; nothing else on the machine is touched.

GOLANGCI_LINT_VERSION      := v2.15.0
BUF_VERSION                := v1.75.0
PROTOC_GEN_GO_GRPC_VERSION := v1.6.2
VERSITYGW_VERSION          := v1.8.0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
TOOLS   := $(CURDIR)/.bin
BINARY  := bin/chancery
GOFILES  = $(shell git ls-files '*.go' | grep -v '\.pb\.go$$')

.PHONY: build run test check fmt lint layers generated race proto sim faults bench test-jvm fuzz s3-server clean

build: ## the binary
	go build -trimpath -ldflags "-X main.version=$(VERSION)" -o $(BINARY) ./services/cmd/chancery

run: build ## everything in one process, on localhost:9092
	$(BINARY) all --data ./data --kafka-listen localhost:9092

test: s3-server ## all tests; Go is all they need, and a C compiler for those with librdkafka
	go test -timeout 30m ./...

check: fmt lint layers generated race sim ## what must be clean before a commit

fmt: ## files that are not formatted fail the check
	@unformatted=$$(gofmt -l $(GOFILES)); if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w:"; echo "$$unformatted"; exit 1; fi

lint: $(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION)
	go vet ./...
	$< run ./...

layers: ## which package may import which
	go test -count=1 -run '^TestLayers' ./services/app

generated: $(TOOLS)/buf-$(BUF_VERSION) $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## generated code must be what the contracts give
	@fresh=$$(mktemp -d) && trap 'rm -rf $$fresh' EXIT && $< generate -o $$fresh && \
	for f in $$(cd $$fresh && find . -name '*.pb.go'); do \
		cmp -s $$fresh/$$f $$f || { echo "$$f is not up to date, run make proto"; exit 1; }; \
	done

race: s3-server ## all tests under the race detector, in random order
	go test -race -shuffle=on -timeout 60m ./...

proto: $(TOOLS)/buf-$(BUF_VERSION) $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## check the contracts and generate code from them
	$< lint
	$< generate

SEEDS ?= 1000
sim: ## simulated clusters with faults, from many seeds
	CHANCERY_SIM_SEEDS=$(SEEDS) go test -count=1 -v -timeout 60m -run '^TestSeeds$$' ./services/testkit/sim

ROUNDS ?= 100
faults: ## rounds of faults on real processes under load; the table is in services/e2e/FAULTS.md
	CHANCERY_E2E_ROUNDS=$(ROUNDS) go test -count=1 -v -timeout 180m -run '^TestFaults$$' ./services/e2e

bench: build ## throughput, latency, CPU and memory, in one process and split
	go run ./services/e2e/bench --binary $(BINARY)

test-jvm: build ## Kafka's own tools, Java clients, Streams and server against the binary; needs a JDK and Maven
	CHANCERY_BINARY=$(CURDIR)/$(BINARY) go test -count=1 -tags jvm -timeout 30m -v ./services/e2e/jvm

FUZZTIME ?= 10s
fuzz: ## each fuzz target for a short time
	@for package in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$package/*_test.go | cut -c6-); do \
			echo "$$package $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./$$package || exit 1; \
		done; \
	done

s3-server: $(TOOLS)/versitygw-$(VERSITYGW_VERSION) ## the S3 server that tests of tiered storage start; they are skipped when it cannot be installed

clean: ## what the build made
	rm -rf bin .bin

$(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION):
	GOBIN=$(TOOLS) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	mv $(TOOLS)/golangci-lint $@

$(TOOLS)/buf-$(BUF_VERSION):
	GOBIN=$(TOOLS) go install github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION)
	mv $(TOOLS)/buf $@

$(TOOLS)/protoc-gen-go: go.mod ## of the version that the code runs with
	GOBIN=$(TOOLS) go install google.golang.org/protobuf/cmd/protoc-gen-go

$(TOOLS)/protoc-gen-go-grpc: Makefile
	GOBIN=$(TOOLS) go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@$(PROTOC_GEN_GO_GRPC_VERSION)

$(TOOLS)/versitygw-$(VERSITYGW_VERSION):
	GOBIN=$(TOOLS) CGO_ENABLED=0 go install -trimpath -ldflags='-s -w' github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION) && \
		mv $(TOOLS)/versitygw $@ || echo "versitygw could not be installed: tests with an S3 server will be skipped"
