# Start with `make demo` or `make test`; both set up and build first.
BUILD := build
JOBS ?= $(shell nproc)

.PHONY: demo test test-asan test-tsan test-fuzz build configure setup lint format bench performance data clean

demo: configure
	@cmake --build --preset release -j $(JOBS) --target hopmix
	@scripts/demo.sh

test: build
	@ctest --test-dir $(BUILD) --output-on-failure --progress -j $(JOBS)
	@.venv/bin/python -m pytest -q tests

test-asan: setup
	@scripts/sanitize.sh asan

test-tsan: setup
	@scripts/sanitize.sh tsan

test-fuzz: build
	@scripts/fuzz.sh

build: configure
	@cmake --build --preset release -j $(JOBS)

configure: setup
	@cmake --preset release $(CMAKE_FLAGS) > $(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
	@mkdir -p $(BUILD) && mv $(BUILD)-configure.log $(BUILD)/configure.log

setup:
	@scripts/setup.sh

lint:
	@scripts/format.sh --check

format:
	@scripts/format.sh

bench: build
	@$(BUILD)/bin/hopmix bench

# Measures everything in docs/performance.md and writes the page. Takes about twenty minutes on an idle machine.
performance: build data
	@$(BUILD)/bin/hopmix bench gemm --json results/performance-gemm.json
	@.venv/bin/python scripts/train_peers.py configs/text-attention.toml --set model.token_shift=false --json results/performance-peers-attention.json
	@.venv/bin/python scripts/train_peers.py configs/text-glr.toml --set model.token_shift=false --no-compile --json results/performance-peers-glr.json
	@.venv/bin/python scripts/table1_peers.py --json results/performance-table1.json
	@$(BUILD)/bin/hopmix bench --json results/performance.json
	@$(BUILD)/bin/hopmix bench linear_attention ssd gla delta_rule gated_delta_rule kda log_linear_attention \
	  log_linear_delta_rule selective_scan sdpa eager_linear_attention eager_ssd eager_gla eager_delta_rule \
	  eager_gated_delta_rule eager_log_linear_attention selective_scan_steps \
	  --heads 4 --length 1024,4096 --json results/performance-recurrent.json
	@$(BUILD)/bin/hopmix bench linear_attention ssd gla delta_rule gated_delta_rule sdpa --dtype bfloat16 \
	  --heads 4 --length 1024,4096 --json results/performance-recurrent-bfloat16.json
	@$(BUILD)/bin/hopmix bench attention_topk gather_attention mura_attention retrieved_recurrence retrieved_glr topk_by_scores sdpa \
	  --json results/performance-retrieval.json
	@$(BUILD)/bin/hopmix bench --crossover --json results/performance-crossover.json --plot results/performance-crossover.svg
	@$(BUILD)/bin/hopmix bench dense_recurrence chacal block_chacal sdpa --dtype bfloat16 --length 1024,4096 --json results/performance-bfloat16.json
	@$(BUILD)/bin/hopmix bench long --forward --json results/performance-long.json --plot results/performance-long.svg
	@$(BUILD)/bin/hopmix bench train --json results/performance-train.json
	@scripts/performance_page.py

data: setup
	@scripts/data.sh

clean:
	@rm -rf $(BUILD) build-debug build-asan build-tsan
