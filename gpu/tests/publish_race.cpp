// Two queue pairs of one function on the kernel's text: A publishes while B, of which a rollout runs, ends its session. No model may be
// loaded over one that B's block still reads (R19). Arguments: what B does (disable, busy, after), what A publishes (same, other, wide,
// hostile), layers of the model that B reads. With `beside` B decodes while A brings a large model, with `cut` A's session ends meanwhile:
// then the model that is brought has so many layers.
#include "kernel.cpp"
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace cpu { struct Device; }
extern "C" cpu::Device* doorbell_cpu_start(const doorbell_cpu_options* options);
extern "C" bool doorbell_cpu_check(cpu::Device*, char*, size_t);
extern "C" bool doorbell_cpu_stop(cpu::Device*);

struct Shape8 { uint32_t width, layers, heads, kv_heads, head_width, hidden, vocab, context; };
static uint64_t al(uint64_t b) { return (b + 63) / 64 * 64; }
static uint64_t mat(uint64_t r, uint64_t c) { return al(r * al(c) + 2 * r); }
static uint32_t rnd() { static uint64_t s = 88172645463325252ull; s ^= s << 13; s ^= s >> 7; s ^= s << 17; return uint32_t(s >> 16); }

// An image of Llama's shape; with `hostile` the offsets of its directory point nowhere (POLICY does not look at them).
static std::vector<char> image(const Shape8& s, bool hostile, uint64_t& kv_block) {
  const uint32_t entries = 3 + 9 * s.layers + 2;
  const uint64_t turns = al(128 + 32ull * entries), rope = al(2ull * s.context * s.head_width);
  const uint32_t q = s.heads * s.head_width, k = s.kv_heads * s.head_width;
  const uint32_t dims[9][2] = {{1, s.width}, {q, s.width}, {k, s.width}, {k, s.width}, {s.width, q}, {1, s.width}, {s.hidden, s.width}, {s.hidden, s.width}, {s.width, s.hidden}};
  uint64_t layer = 0;
  for (int p = 0; p < 9; p++) layer += p == 0 || p == 5 ? al(2ull * s.width) : mat(dims[p][0], dims[p][1]);
  const uint64_t size = turns + rope + layer * s.layers + al(2ull * s.width) + mat(s.vocab, s.width);
  std::vector<char> out(size, 0);
  uint32_t* const w = reinterpret_cast<uint32_t*>(out.data());
  uint64_t magic = 0x004D4C62'726F6F44ull; std::memcpy(w, &magic, 8);
  w[2] = 2; w[3] = 0xC0FFEE00u ^ (hostile ? 1 : 0); std::memcpy(w + 4, &size, 8);
  w[6] = s.width; w[7] = s.layers; w[8] = s.heads; w[9] = s.kv_heads; w[10] = s.head_width; w[11] = s.hidden; w[12] = s.vocab; w[13] = s.context; w[14] = 10; w[15] = entries;
  for (uint32_t e = 0; e < entries; e++) {
    uint32_t* const d = w + 32 + 8 * e;
    d[1] = static_cast<uint32_t>(-14);
    if (hostile) { d[2] = 0x7FFFFFFF; d[3] = 64; d[4] = 0; d[5] = 0x00004000u; }
  }
  w[32 + 3] = 0; w[32 + 8 + 3] = 0;  // lengths of the two texts
  for (uint64_t at = turns; at + 2 <= size; at += 2) { int16_t v = static_cast<int16_t>(rnd() % 100 + 1); std::memcpy(&out[at], &v, 2); }
  kv_block = 2ull * s.layers * s.kv_heads * (64 + 32 * s.head_width);
  return out;
}

static uint32_t fold(const uint32_t* w) { uint32_t sum = DOORBELL_GOLDEN; for (int k = 0; k < 15; k++) sum = mix(sum ^ w[k]); return sum; }

static uint32_t* g_reached; static char* g_cq;
static void died(int, siginfo_t* info, void*) {
  char line[256]; doorbell_hw_completion c; std::memcpy(&c, g_cq, 32);
  const int n = std::snprintf(line, sizeof line, "fault at address %p in block %u (0, 1: front ends, 2: warps, 3: engine 1), lane %u; POLICY v3: %s (status %02x); mailbox[B].reached = %u (2 would be: over)\n", info->si_addr, cpu::block_index.x, cpu::thread_index.x, c.status ? "COMPLETED" : "not completed yet", c.status, *g_reached);
  (void)!write(1, line, n);
  const char t[] = "RESULT: SIGSEGV in a block of the kernel (on a GPU: CUDA_ERROR_ILLEGAL_ADDRESS, and the context with all functions is gone)\n"; (void)!write(1, t, sizeof t - 1); _exit(42); }

// Seconds that the host waits for the kernel: ThreadSanitizer on a machine that does other work as well is slow.
static const double kPatience = 600;
// The kernel's threads ran at such moments that the run shows nothing: it is to be made again.
static const int kNotJudged = 3;

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "disable", what = argc > 2 ? argv[2] : "same";
  const uint64_t kMem = 256ull << 20;
  char* const mem = static_cast<char*>(std::aligned_alloc(4096, kMem)); std::memset(mem, 0, kMem);
  doorbell_mailbox* const mb = static_cast<doorbell_mailbox*>(std::aligned_alloc(4096, 2 * 4096)); std::memset(static_cast<void*>(mb), 0, 8192);
  Shape8 shape{32, argc > 3 ? (uint32_t)atoi(argv[3]) : 2000u, 1, 1, 32, 32, 64, 64};
  Shape8 wide = shape;
  const bool brings = mode == "beside" || mode == "cut";
  if (brings) shape.layers = 2;
  else if (what != "same") wide.layers = 20;                                // another model, and a small one: its load takes little
  if (what == "wide") wide.hidden = 2048;                              // sound and honest, with wider layers than v1's
  uint64_t kv1 = 0, kv3 = 0;
  const std::vector<char> v1 = image(shape, false, kv1), v3 = image(wide, what == "hostile", kv3);
  char *const token[2] = {mem + (1 << 20), mem + (2 << 20)}, *const kv = mem + (4 << 20), *const model = mem + (16 << 20), *const arena = mem + (128 << 20);
  char *const sq[2] = {mem, mem + 65536}, *const cq[2] = {mem + 131072, mem + 196608};
  const uint64_t at1 = 0, at3 = al(v1.size()) + 65536;
  std::memcpy(model + at1, v1.data(), v1.size()); std::memcpy(model + at3, v3.data(), v3.size());
  doorbell_cpu_options o{}; o.queues = 2; o.worker_blocks = 1; o.language_blocks = 1; o.language_teams = 1; o.language_columns = 4; o.seed = 7; o.mailboxes = mb; o.memory = mem; o.memory_bytes = kMem;
  o.model_bytes = al(std::max(v1.size(), v3.size())); o.cache_bytes = 2 * std::max(kv1, kv3);
  o.fault = std::getenv("DOORBELL_FAULT");
  cpu::Device* const dev = doorbell_cpu_start(&o);
  char text[1024];
  // Gives the kernel its time, and ends the run with what it complains of: after that it makes nothing more.
  const auto look = [&] {
    if (doorbell_cpu_check(dev, text, sizeof text)) return;
    std::printf("complaint: %s\n", text);
    std::fflush(stdout);
    _exit(1);
  };
  const auto store = [](uint32_t& to, uint32_t v) { __atomic_store_n(&to, v, __ATOMIC_RELEASE); };
  const auto load = [](uint32_t& from) { return __atomic_load_n(&from, __ATOMIC_ACQUIRE); };
  uint32_t sq_tail[2] = {0, 0}, cq_head[2] = {0, 0};
  for (int q = 0; q < 2; q++) {
    doorbell_session& s = mb[q].session;
    s.sq_base = (uint64_t)sq[q]; s.cq_base = (uint64_t)cq[q]; s.token_base = (uint64_t)token[q]; s.token_size = 1 << 20; s.kv_base = (uint64_t)kv; s.kv_size = 1 << 20;
    s.sq_size = s.cq_size = 64; s.length_limit = 1 << 20; s.weight = 1; s.function = 0; s.life = 1; s.logp_base = (uint64_t)(mem + (12 << 20)); s.logp_size = 1 << 20; s.model_base = (uint64_t)model; s.model_size = 100 << 20; s.arenas[0] = (uint64_t)arena; s.arenas[1] = 100 << 20;
    store(mb[q].wanted, 1);
  }
  while (load(mb[0].reached) != 1 || load(mb[1].reached) != 1) look();
  const auto submit = [&](int q, doorbell_hw_desc d) {
    const uint32_t index = sq_tail[q]++; d.check = 0;
    Descriptor desc; std::memcpy(&desc, &d, 64); uint64_t shares = 0;
    for (uint32_t k = 0; k < 4; k++) { uint4 key{key_word(0, 4 * k), key_word(0, 4 * k + 1), key_word(0, 4 * k + 2), key_word(0, 4 * k + 3)}; if (k == 3) desc.quarter[3].w = 0; shares += check_share(desc.quarter[k], key, k); }
    d.check = check_word(shares, index); std::memcpy(sq[q] + 64 * (index % 64), &d, 64); store(mb[q].sq_tail, sq_tail[q]);
  };
  const auto completion = [&](int q, doorbell_hw_completion& c, double seconds) {
    const auto t0 = std::chrono::steady_clock::now();
    for (;;) {
      std::memcpy(&c, cq[q] + 32 * (cq_head[q] % 64), 32);
      const bool want = (cq_head[q] & 64) == 0, fresh = (c.phase >> 7 == want) && (c.final_seq_len >> 31 == want);
      if (fresh) { cq_head[q]++; store(mb[q].cq_head, cq_head[q]); return true; }
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count() > seconds) return false;
      look();
    }
  };
  const auto policy = [&](int q, uint32_t version, uint64_t offset, const std::vector<char>& bytes, const Shape8& s, uint64_t kv_block) {
    char* const at = token[q] + 65536; uint32_t h[32] = {}; h[0] = 1u << 16 | version; h[1] = 5; h[2] = 64; h[3] = mix(mix(mix(h[0] ^ DOORBELL_GOLDEN) ^ h[1]) ^ h[2]);
    uint32_t* const i = h + 16; std::memcpy(i, &offset, 8); uint64_t length = al(bytes.size()) + 64, program = al(bytes.size()); std::memcpy(i + 2, &length, 8); std::memcpy(i + 4, &program, 8);
    i[6] = 1; std::memcpy(&i[7], &bytes[12], 4); i[8] = s.vocab; i[9] = s.context; i[10] = kv_block / 64; for (int k = 11; k < 15; k++) i[k] = DOORBELL_TOKEN_NONE; i[15] = fold(i);
    std::memcpy(at, h, sizeof h);
    doorbell_hw_desc d{}; d.opcode = DOORBELL_OP_POLICY; d.model_id = 1; d.policy_version = version; d.delta_offset = 65536; d.checkpoint = DOORBELL_POLICY_WAIT; d.prefix_id = DOORBELL_PREFIX_NONE; d.rollout_id = 1000 + version; d.member = 0xFFFF; submit(q, d);
  };
  doorbell_hw_completion c{};
  policy(0, 1, at1, v1, shape, kv1); if (!completion(0, c, kPatience)) return std::printf("no completion of POLICY 1\n"), 1; std::printf("POLICY v1: status %02x error %02x\n", c.status, c.error);
  policy(0, 2, at1, v1, shape, kv1); if (!completion(0, c, kPatience)) return std::printf("no completion of POLICY 2\n"), 1; std::printf("POLICY v2: status %02x error %02x\n", c.status, c.error);
  if (brings) {
    uint32_t* const sequence = reinterpret_cast<uint32_t*>(kv); sequence[0] = DOORBELL_SHARPNESS_MAX / 64; sequence[1] = 2; sequence[16] = 0; sequence[17] = 1; sequence[15] = fold(sequence);
    uint32_t* const tokens = reinterpret_cast<uint32_t*>(token[1]); tokens[0] = 3;
    doorbell_hw_desc decode{}; decode.opcode = DOORBELL_OP_DECODE; decode.model_id = 1; decode.rollout_id = 7; decode.prefix_id = DOORBELL_PREFIX_NONE;
    decode.member = 0xFFFF; decode.delta_offset = 4; decode.seq_len = 1; decode.max_tokens = 1; decode.seed = 9; decode.flags = DOORBELL_FLAG_LOGP;
    const uint32_t* const logps = reinterpret_cast<const uint32_t*>(mem + (12 << 20));
    const auto b_decodes = [&](uint32_t version) { decode.policy_version = version; submit(1, decode); return completion(1, c, kPatience) && c.status == DOORBELL_STATUS_DONE; };
    const auto fail = [](const char* why) { std::printf("FAILED: %s\n", why); std::fflush(stdout); _exit(1); };
    const auto seconds = [](std::chrono::steady_clock::time_point from) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count(); };
    if (!b_decodes(1)) fail("B's DECODE under v1");
    // Tokens and log-probabilities: whatever changes of the weights shows.
    using Made = std::array<uint32_t, 4>;
    const auto word = [](const uint32_t& from) { return __atomic_load_n(&from, __ATOMIC_ACQUIRE); };
    const auto made = [&] { return Made{word(tokens[1]), word(tokens[2]), word(logps[1]), word(logps[2])}; };
    const Made before = made();
    // Whether A's next completion is there: a look, no wait.
    const auto is_completed = [&] { doorbell_hw_completion d; std::memcpy(&d, cq[0] + 32 * (cq_head[0] % 64), 32); const bool want = (cq_head[0] & 64) == 0; return (d.phase >> 7 == want) && (d.final_seq_len >> 31 == want); };
    auto t0 = std::chrono::steady_clock::now();
    policy(0, 3, at3, v3, wide, kv3);
    if (mode == "beside") {
      uint32_t count = 0;
      while (!is_completed()) { if (!b_decodes(2)) fail("B's DECODE under v2"); count++; }
      if (!completion(0, c, kPatience) || c.status != DOORBELL_STATUS_DONE) fail("A's POLICY");
      std::printf("B has made %u DECODEs while A brought a model for %.0f ms\n", count, 1e3 * seconds(t0));
      if (count < 4) fail("B was held");
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const auto t1 = std::chrono::steady_clock::now();
      store(mb[0].wanted, 2);
      while (load(mb[0].reached) != 2) { look(); if (seconds(t1) > kPatience) fail("A's session does not end"); }
      const double cut = seconds(t1);
      const auto not_judged = [](const char* why) { std::printf("NOT JUDGED: %s\n", why); std::fflush(stdout); _exit(kNotJudged); };
      if (is_completed()) not_judged("the model was there before A's session ended");
      // What was resident is, as it was.
      if (!b_decodes(1) || made() != before) fail("v1 is another");
      if (!b_decodes(2)) fail("B's DECODE under v2");
      std::memset(sq[0], 0, 65536); std::memset(cq[0], 0, 65536); sq_tail[0] = cq_head[0] = 0; store(mb[0].sq_tail, 0); store(mb[0].cq_head, 0);
      store(mb[0].wanted, 3);
      while (load(mb[0].reached) != 3) look();
      t0 = std::chrono::steady_clock::now();
      policy(0, 3, at3, v3, wide, kv3);
      if (!completion(0, c, kPatience) || c.status != DOORBELL_STATUS_DONE) fail("A's POLICY in its next session");
      const double whole = seconds(t0);
      if (!b_decodes(3)) fail("B's DECODE under v3");
      const Made at_once = made();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (!b_decodes(3) || made() != at_once) fail("v3 was published before it was there");
      if (b_decodes(1)) fail("v3 is not in the place of v1");
      std::printf("A's session ended %.1f ms behind the host's word, in a load of %.1f ms\n", 1e3 * cut, 1e3 * whole);
      if (cut > whole / 2) not_judged("the end of the session took as long as a load of the model");
    }
    look();
    std::fflush(stdout); _exit(0);
  }
  // A sequence for B, and a long DECODE under v1, which is in the slot that the next POLICY loads.
  uint32_t* const seq = reinterpret_cast<uint32_t*>(kv); seq[0] = 0; seq[1] = 2; for (int k = 0; k < 2; k++) seq[16 + k] = k; seq[15] = fold(seq);
  uint32_t* const tok = reinterpret_cast<uint32_t*>(token[1]); for (int k = 1; k < 1000; k++) tok[k] = ~0u; tok[0] = 3;
  doorbell_hw_desc d{}; d.opcode = DOORBELL_OP_DECODE; d.model_id = 1; d.rollout_id = 7; d.prefix_id = DOORBELL_PREFIX_NONE; d.member = 0xFFFF; d.kv_offset = 0; d.delta_offset = 4; d.seq_len = 1; d.max_tokens = 60; d.policy_version = 1; d.seed = 9; submit(1, d);
  while (__atomic_load_n(&tok[2], __ATOMIC_ACQUIRE) == ~0u) look();
  std::printf("B's DECODE under v1 runs: two tokens are there\n");
  g_reached = &mb[1].reached; g_cq = cq[0] + 64;
  struct sigaction sa{}; sa.sa_sigaction = died; sa.sa_flags = SA_SIGINFO; sigaction(SIGSEGV, &sa, nullptr); sigaction(SIGBUS, &sa, nullptr);
  if (mode != "busy") store(mb[1].wanted, 2);
  while (mode == "after" && load(mb[1].reached) != 2) look();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  policy(0, 3, at3, v3, wide, kv3);
  const bool done = completion(0, c, kPatience);
  const uint32_t reached = load(mb[1].reached);
  std::printf("POLICY v3: %s status %02x error %02x; B's session is %s\n", done ? "completed," : "no completion,", c.status, c.error, reached == 2 ? "over (reached)" : mode == "disable" ? "NOT over: its rollout is still at a block" : "running");
  if (mode == "disable") {
    const auto t0 = std::chrono::steady_clock::now();
    while (load(mb[1].reached) != 2 && std::chrono::steady_clock::now() - t0 < std::chrono::seconds(long(kPatience))) look();
    std::printf("B's session ended %.0f ms behind the POLICY's completion\n", 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count());
  }
  look();
  std::fflush(stdout); _exit(0);
}
