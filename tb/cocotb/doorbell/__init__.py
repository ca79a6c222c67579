"""A host of the Doorbell device in Python, for cocotb: what an integrator copies.

| module | what |
|---|---|
| `contract` | layouts, codes and registers, generated from `contract/contract.toml` |
| `arithmetic` | check word, tokens, digest and score, as the contract gives them |
| `memory` | the memory that host and device share, behind the AXI port |
| `registers` | the register port: a refused access is an exception |
| `queue_pair` | the driver of one queue pair |
| `scoreboard` | what each completion and each byte must be |
| `bench` | clock, resets and the two AXI ports of the device under test |
"""
