// The wire records as C++ and as RTL see them, each field as a number, in the order of the contract.
#include <cstring>
#include <stdexcept>

#include "Vdecode_probe.h"
#include "bridge.h"
#include "doorbell_contract.h"
#include "failure.h"
#include "verilated.h"

namespace doorbell {
namespace {

template <class Record>
Record record_of(rust::Slice<const uint8_t> bytes) {
    if (bytes.size() != sizeof(Record)) throw std::invalid_argument{"wrong number of bytes for the record"};
    Record record;
    std::memcpy(&record, bytes.data(), sizeof record);
    return record;
}

// The probe is combinational: one evaluation, then every output is a field.
template <class Read>
rust::Vec<uint64_t> probe(rust::Slice<const uint8_t> bytes, Read&& read) {
    ModelLog log;
    const ActiveLog active{log};
    VerilatedContext context;
    Vdecode_probe top{&context};
    return read(top, bytes);
}

}  // namespace

rust::Vec<uint64_t> c_descriptor_fields(rust::Slice<const uint8_t> bytes) {
    const auto d = record_of<doorbell_hw_desc>(bytes);
    return {d.opcode,    d.flags,        d.model_id, d.rollout_id, d.kv_arena_id, d.member,          d.prefix_id,
            d.kv_offset, d.delta_offset, d.seq_len,  d.max_tokens, d.checkpoint,  d.reward_model_id, d.policy_version,
            d.user_data, d.seed,         d.check};
}

rust::Vec<uint64_t> c_completion_fields(rust::Slice<const uint8_t> bytes) {
    const auto c = record_of<doorbell_hw_completion>(bytes);
    return {c.user_data, c.rollout_id, c.final_seq_len, c.result, c.sq_head, c.reward_model_id,
            c.worker_id, c.error,      c.flags,         c.status, c.phase};
}

rust::Vec<uint64_t> rtl_descriptor_fields(rust::Slice<const uint8_t> bytes) {
    return probe(bytes, [](Vdecode_probe& t, rust::Slice<const uint8_t> bytes) {
        const auto record = record_of<doorbell_hw_desc>(bytes);
        std::memcpy(&t.desc_i[0], &record, sizeof record);
        t.eval();
        return rust::Vec<uint64_t>{
            t.desc_opcode,     t.desc_flags,           t.desc_model_id,       t.desc_rollout_id, t.desc_kv_arena_id,
            t.desc_member,     t.desc_prefix_id,       t.desc_kv_offset,      t.desc_delta_offset, t.desc_seq_len,
            t.desc_max_tokens, t.desc_checkpoint,      t.desc_reward_model_id, t.desc_policy_version,
            t.desc_user_data,  t.desc_seed,            t.desc_check};
    });
}

rust::Vec<uint64_t> rtl_completion_fields(rust::Slice<const uint8_t> bytes) {
    return probe(bytes, [](Vdecode_probe& t, rust::Slice<const uint8_t> bytes) {
        const auto record = record_of<doorbell_hw_completion>(bytes);
        std::memcpy(&t.completion_i[0], &record, sizeof record);
        t.eval();
        return rust::Vec<uint64_t>{
            t.completion_user_data, t.completion_rollout_id,      t.completion_final_seq_len, t.completion_result,
            t.completion_sq_head,   t.completion_reward_model_id, t.completion_worker_id,     t.completion_error,
            t.completion_flags,     t.completion_status,          t.completion_phase};
    });
}

}  // namespace doorbell
