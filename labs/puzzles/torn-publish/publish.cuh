// A slot for a version of the policy. One warp publishes versions in it; front ends look at it whenever they admit a descriptor.
//
// A word of the slot is read and written by the functions of `order`: load_relaxed_gpu, load_acquire_gpu, store_relaxed_gpu, store_release_gpu. fence_gpu() orders
// what stands before it against what stands after it.

struct Slot {
  order::Word generation;               // changes with each publish; 0 at first
  order::Word version;
  order::Word salt;
  order::Word offset;                   // where the model lies
};

// A version, as its reader has it.
struct Version {
  uint32_t version;
  uint32_t salt;
  uint32_t offset;
};

// Makes `version` resident in the slot. Nobody else publishes at the same time.
__device__ void publish(Slot* slot, const Version& version) {
  const uint32_t generation = order::load_relaxed_gpu(&slot->generation);
  order::store_relaxed_gpu(&slot->version, version.version);
  order::store_relaxed_gpu(&slot->salt, version.salt);
  order::store_relaxed_gpu(&slot->offset, version.offset);
  order::store_release_gpu(&slot->generation, generation + 1);
}

// Reads the version that is resident. False if a publish was under way: then `version` means nothing, and the caller looks again.
__device__ bool look(const Slot* slot, Version* version) {
  const uint32_t before = order::load_acquire_gpu(&slot->generation);
  version->version = order::load_relaxed_gpu(&slot->version);
  version->salt = order::load_relaxed_gpu(&slot->salt);
  version->offset = order::load_relaxed_gpu(&slot->offset);
  const uint32_t after = order::load_relaxed_gpu(&slot->generation);
  return before == after;
}
