// What Rust calls; see bridge.rs.
#pragma once

#include <cstdint>
#include <memory>

#include "rust/cxx.h"
#include "simulator.h"

namespace doorbell {

rust::Vec<Built> built_variants();
std::unique_ptr<Simulator> make_simulator(const Built& built, const SimulatorConfig& config);
#ifdef DOORBELL_BARE
BareRun bare_loop(uint32_t workers, rust::Slice<const RegisterWrite> registers, rust::Slice<const uint8_t> descriptors,
                  uint64_t token_bytes);
#endif

rust::Vec<uint64_t> c_descriptor_fields(rust::Slice<const uint8_t> bytes);
rust::Vec<uint64_t> c_completion_fields(rust::Slice<const uint8_t> bytes);
rust::Vec<uint64_t> rtl_descriptor_fields(rust::Slice<const uint8_t> bytes);
rust::Vec<uint64_t> rtl_completion_fields(rust::Slice<const uint8_t> bytes);

}  // namespace doorbell
