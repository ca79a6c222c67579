#include "bridge.h"

#include <stdexcept>
#include <string>

#include "doorbell-cosim/src/bridge.rs.h"

namespace doorbell {
namespace {

const Variant& variant(uint32_t workers) {
    for (const Variant& candidate : variants()) {
        if (candidate.workers == workers) return candidate;
    }
    throw std::invalid_argument{"no RTL with " + std::to_string(workers) + " workers was built"};
}

}  // namespace

rust::Vec<uint32_t> built_variants() {
    rust::Vec<uint32_t> workers;
    for (const Variant& variant : variants()) workers.push_back(variant.workers);
    return workers;
}

std::unique_ptr<Simulator> make_simulator(uint32_t workers, const SimulatorConfig& config) {
    return variant(workers).make(config);
}

#ifdef DOORBELL_BARE
BareRun bare_loop(uint32_t workers, rust::Slice<const RegisterWrite> registers, rust::Slice<const uint8_t> descriptors,
                  uint64_t token_bytes) {
    return variant(workers).bare_loop(registers, descriptors, token_bytes);
}
#endif

}  // namespace doorbell
