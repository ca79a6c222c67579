#include "bridge.h"

#include <stdexcept>
#include <string>

#include "doorbell-cosim/src/bridge.rs.h"

namespace doorbell {
namespace {

const Variant& variant(const Built& built) {
    for (const Variant& candidate : variants()) {
        if (candidate.workers == built.workers && candidate.queues == built.queues && candidate.functions == built.functions &&
            candidate.engines == built.engines) {
            return candidate;
        }
    }
    throw std::invalid_argument{"no RTL with " + std::to_string(built.workers) + " workers, " + std::to_string(built.queues) +
                                " queue pairs, " + std::to_string(built.functions) + " functions and " + std::to_string(built.engines) +
                                " engines was built"};
}

}  // namespace

rust::Vec<Built> built_variants() {
    rust::Vec<Built> built;
    for (const Variant& variant : variants()) {
        built.push_back({variant.workers, variant.queues, variant.functions, variant.engines});
    }
    return built;
}

std::unique_ptr<Simulator> make_simulator(const Built& built, const SimulatorConfig& config) {
    return variant(built).make(config);
}

#ifdef DOORBELL_BARE
BareRun bare_loop(uint32_t workers, rust::Slice<const RegisterWrite> registers, rust::Slice<const uint8_t> descriptors,
                  uint64_t token_bytes) {
    return variant({workers, 1, 1, 1}).bare_loop(registers, descriptors, token_bytes);
}
#endif

}  // namespace doorbell
