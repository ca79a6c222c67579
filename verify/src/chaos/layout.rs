//! Where a queue pair's parts lie, and what stands where nobody may write.

use doorbell_host::error::DeviceError;
use doorbell_host::memory::{PAGE, SharedMemory};

/// What no token and no log-probability is.
pub(super) const POISON: u32 = 0xA5A5_A5A5;

/// Most slots of either ring.
pub(super) const MOST_SLOTS: u32 = 64;
/// Most tokens of a DECODE.
pub(super) const MOST_TOKENS: u32 = 44;
/// Words from one area of tokens to the next: no multiple of a line, so that neighbours share lines.
pub(super) const AREA_WORDS: u64 = 53;
/// Areas for tokens.
pub(super) const AREAS: u32 = 96;
/// Words of tokens that nobody writes, to be scored.
pub(super) const CORPUS_WORDS: u64 = 512;
/// Headers of policies.
pub(super) const HEADERS: u64 = 16;

/// Byte offsets in the token region.
pub(super) const CORPUS: u64 = 0;
pub(super) const HEADER: u64 = 4 * CORPUS_WORDS;
pub(super) const FIRST_AREA: u64 = HEADER + 64 * HEADERS;
/// Bytes of the token region, and of the log-probabilities': they end in the middle of a page.
pub(super) const TOKEN_BYTES: u64 = FIRST_AREA + 4 * AREA_WORDS * AREAS as u64;
/// Bytes of the KV region, which nobody accesses.
pub(super) const KV_BYTES: u64 = 128;

const fn pages(bytes: u64) -> usize {
    (bytes as usize).div_ceil(PAGE) * PAGE
}

/// Byte offsets of the parts, with a page before each that nobody may write.
pub(super) const SQ: usize = PAGE;
pub(super) const CQ: usize = SQ + pages(64 * MOST_SLOTS as u64) + PAGE;
pub(super) const TOKENS: usize = CQ + pages(32 * MOST_SLOTS as u64) + PAGE;
pub(super) const LOGPS: usize = TOKENS + pages(TOKEN_BYTES) + PAGE;
pub(super) const KV: usize = LOGPS + pages(TOKEN_BYTES) + PAGE;
/// Bytes of a queue pair's memory.
pub(super) const BYTES: usize = KV + PAGE + PAGE;

/// Offset of area number `area` in the token region.
pub(super) const fn area(area: u32) -> u64 {
    FIRST_AREA + 4 * AREA_WORDS * area as u64
}

/// Ranges of words that nobody may write, whatever happens: the pages between, what is behind the regions, the KV region, what
/// is read only.
fn guards() -> [(usize, usize); 7] {
    let tokens_end = TOKENS + TOKEN_BYTES as usize;
    let logps_end = LOGPS + TOKEN_BYTES as usize;
    [
        (0, SQ),
        (CQ - PAGE, CQ),
        (TOKENS - PAGE, TOKENS),
        (tokens_end, LOGPS),
        (LOGPS, LOGPS + FIRST_AREA as usize),
        (logps_end, KV),
        (KV, BYTES),
    ]
}

/// Fills all that may not be written, and the areas, with [`POISON`].
pub(super) fn poison(memory: &SharedMemory) -> Result<(), DeviceError> {
    for (first, end) in guards()
        .into_iter()
        .chain([(TOKENS, TOKENS + TOKEN_BYTES as usize)])
        .chain([(LOGPS + FIRST_AREA as usize, LOGPS + TOKEN_BYTES as usize)])
    {
        memory.store_u32s(first, &vec![POISON; (end - first) / 4])?;
    }
    Ok(())
}

/// The offset of a word that was written though nobody may, and what stands there.
pub(super) fn strayed(memory: &SharedMemory) -> Result<Option<(usize, u32)>, DeviceError> {
    let mut words = Vec::new();
    for (first, end) in guards() {
        words.resize((end - first) / 4, 0);
        memory.load_u32s(first, &mut words)?;
        if let Some(k) = words.iter().position(|&word| word != POISON) {
            return Ok(Some((first + 4 * k, words[k])));
        }
    }
    Ok(None)
}
