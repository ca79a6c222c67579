# Thin names for `cargo xtask` and `cargo`; arguments go in ARGS, as in
#   make compare ARGS="--trace requests.jsonl --workers 4"
# On Debian and Ubuntu, `setup` installs what is missing; it is silent when nothing is.

# rust-toolchain.toml names a version. Where the toolchain `stable` is that version already, nothing is downloaded.
PINNED := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
ifeq ($(RUSTUP_TOOLCHAIN),)
ifneq (,$(findstring rustc $(PINNED) ,$(shell rustup run stable rustc --version 2>/dev/null)))
export RUSTUP_TOOLCHAIN := stable
endif
endif

XTASK := cargo xtask
SETUP := cargo run --quiet --package doorbell-setup --
RELEASE := cargo run --release --package doorbell --
# With the benches of the RTL, which compile for minutes.
RELEASE_FULL := cargo run --release --package doorbell --features full --
# Of the program only what `compare` needs; xtask says the same.
# With several queue pairs in ARGS, the RTL that has them too.
COMPARE = cargo run --release --package doorbell --no-default-features --features \
  "rtl gpu$(if $(findstring queues,$(ARGS)), variants)" -- compare

# And what `demo` needs: a language model, and of the RTL only the device that runs one. `cargo build` verilates the same device, and takes this one.
DEMO = cargo run --release --package doorbell --no-default-features --features "lm rtl gpu" -- demo
# And what `run` needs: the devices that ARGS name.
RUN = cargo run --release --package doorbell --no-default-features --features \
  "runtime$(if $(findstring rtl,$(ARGS)), rtl variants)$(if $(findstring gpu,$(ARGS)), gpu)" -- run

.PHONY: demo compare run smoke test lint setup contract verilate sim-rtl cosim test-rtl-bridge rtl-test cocotb bench-rtl \
  bench-pipeline bench-cow bench-tax bench-hw-fastpath bench-all labs lab-run \
  gpu-check wave doc

demo: export DOORBELL_RTL_WORKERS ?= 8npu
demo: ## One story from every device of this machine, side by side; installs what is missing while it builds
	@$(SETUP) -- $(DEMO) $(ARGS)

compare: ## One trace through all devices: identical, or the first divergence; installs what is missing while it builds
	@$(SETUP) -- $(COMPARE) $(ARGS)

run: ## A trace through its whole life on one device, to trajectories; installs what is missing while it builds
	@$(SETUP) -- $(RUN) $(ARGS)

smoke: setup ## A short run of the whole runtime, watched, and what it stored read back
	rm -rf target/smoke
	$(RELEASE) run --strict --group 4 --checkpoint 16 --store target/smoke $(ARGS)
	$(RELEASE) trajectories verify target/smoke

# Kernels for one architecture, where no GPU asks for another; `cargo xtask gpu-check` compiles them for all.
ifeq (,$(wildcard /dev/nvidiactl))
test: export DOORBELL_CUDA_ARCHITECTURES ?= 90a
endif
test: ## Every test, set-up included
	$(XTASK) test

lint: setup ## Format, lints, RTL lints, generated files
	$(XTASK) lint

setup: ## Install what is missing
	@$(SETUP)

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

cocotb: ## Tests of the device in Python, under Icarus Verilog and Verilator; installs cocotb first
	$(XTASK) cocotb $(ARGS)

bench-rtl: setup ## Cycles, tokens per cycle and simulation speed of the device
	$(RELEASE_FULL) bench rtl $(ARGS)

bench-all: setup ## All benches
	$(RELEASE_FULL) bench all $(ARGS)

bench-pipeline bench-cow bench-tax bench-hw-fastpath: setup ## One bench
	$(RELEASE) bench $(@:bench-%=%) $(ARGS)

labs: ## The labs, one after another
	$(XTASK) lab all $(ARGS)

lab-run: ## One lab, as in make lab-run LAB=2
	$(XTASK) lab $(LAB) $(ARGS)

gpu-check: ## The GPU's kernels, compiled for every architecture; needs no GPU
	@$(SETUP) --gpu
	$(XTASK) gpu-check

wave: ## Waveform of a co-simulation case in GTKWave
	$(XTASK) wave $(ARGS)

doc: ## API documentation and the book
	$(XTASK) doc
