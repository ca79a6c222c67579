// The waveform of a model, in FST format. A build without tracing, as for a browser, records none.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "failure.h"

#if VM_TRACE
#include "verilated_fst_c.h"
#endif

namespace doorbell {

#if VM_TRACE
class Wave {
public:
    template <class Top>
    Wave(Top& top, const std::string& path) {
        const auto require = [&](bool holds) {
            if (!holds) throw SimulationError{FailureKind::Simulator, "", "cannot write the waveform " + path};
        };
        // Later Verilators say nothing of a file that they cannot open.
        require(std::ofstream{path}.is_open());
        top.trace(&file_, 99);
        file_.open(path.c_str());
        require(file_.isOpen());
    }
    void dump(uint64_t time) { file_.dump(time); }
    void flush() { file_.flush(); }
    void close() { file_.close(); }

private:
    VerilatedFstC file_;
};
#else
class Wave {
public:
    template <class Top>
    Wave(Top&, const std::string& path) {
        throw SimulationError{FailureKind::Simulator, "", "cannot write the waveform " + path + ": this build has no tracing"};
    }
    void dump(uint64_t) {}
    void flush() {}
    void close() {}
};
#endif

}  // namespace doorbell
