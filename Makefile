# Thin names for `cargo xtask` and `cargo`; arguments go in ARGS, as in
#   make compare ARGS="--trace requests.jsonl --workers 4"
# On Debian and Ubuntu, `setup` installs what is missing; it is silent when nothing is.

XTASK := cargo xtask
RELEASE := cargo run --release --package doorbell --

.PHONY: compare test lint setup contract verilate sim-rtl cosim test-rtl-bridge rtl-test bench-rtl gpu-check wave doc

compare: setup ## One trace through all devices: identical, or the first divergence
	$(XTASK) compare $(ARGS)

test: ## Every test, set-up included
	$(XTASK) test

lint: setup ## Format, lints, RTL lints, generated files
	$(XTASK) lint

setup: ## Install what is missing
	@$(XTASK) setup

contract: ## Generate from contract/contract.toml
	$(XTASK) contract

verilate: setup ## Verilate and compile the device
	cargo build --release --package doorbell-cosim

sim-rtl cosim: setup ## Co-simulation cases
	$(XTASK) cosim $(ARGS)

test-rtl-bridge: setup ## Tests of the bridge between Rust and the verilated device
	cargo test --release --package doorbell-cosim

rtl-test: setup ## Testbenches under Icarus Verilog
	$(XTASK) rtl-test $(ARGS)

bench-rtl: setup ## Cycles, tokens per cycle and simulation speed of the device
	$(RELEASE) bench rtl $(ARGS)

gpu-check: ## The GPU's kernels, compiled for every architecture; needs no GPU
	@$(XTASK) setup --gpu
	$(XTASK) gpu-check

wave: ## Waveform of a co-simulation case in GTKWave
	$(XTASK) setup --wave
	$(XTASK) wave $(ARGS)

doc: ## API documentation and the book
	$(XTASK) doc
