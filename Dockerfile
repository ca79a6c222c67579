# Everything that builds and tests need, on Debian 12. A GPU is not used.
#
#   docker build -t doorbell .
#   docker run --rm -it doorbell                 # make demo
#   docker run --rm -it doorbell make test       # every test; takes tens of minutes
#   docker run --rm -it doorbell bash
#
# `run --strict` counts system calls by a seccomp filter that answers to a supervisor. Docker's own profile allows it since
# version 20.10; older ones need `--security-opt seccomp=unconfined`.

FROM debian:12-slim AS tools
ENV DEBIAN_FRONTEND=noninteractive
# What `make setup` would install. A build then needs the network only for crates; `make test` also fetches tools from PyPI.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      ca-certificates curl git g++ iverilog libpython3-dev make perl python3 python3-venv valgrind verilator zlib1g-dev \
 && rm -rf /var/lib/apt/lists/*
# The version that rust-toolchain.toml names; rustup reads the file.
ENV PATH=/root/.cargo/bin:$PATH
COPY rust-toolchain.toml /tmp/rust/
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain none \
 && cd /tmp/rust && rustup toolchain install

FROM tools
WORKDIR /doorbell
COPY . .
RUN cargo fetch --locked
CMD ["make", "demo"]
