//! What native runs, tests and the page's tests all take: a story, and texts to encode.

/// A beginning, how many tokens tiny adds to it without ending the story, and the seed.
pub const STORY: (&str, u64, u64) = ("Once upon a time, there was a little dog named", 64, 3);

/// A thousand texts, the same each time: words of stories, spaces of all kinds, digits, marks, letters of other scripts, combined ones and
/// those beyond 16 bits, control characters, and the texts of special tokens.
pub fn texts() -> Vec<String> {
    const PARTS: [&str; 40] = [
        "Once",
        " upon",
        " a time",
        "the",
        " The",
        " little",
        "dog",
        "'s",
        "'ll",
        " don't",
        "!",
        "?!",
        "...",
        "\"",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u{a0}",
        "\u{3000}",
        "0",
        "42",
        "3.14",
        "é",
        "e\u{301}",
        "ß",
        "Ω",
        "Ж",
        "中",
        "文字",
        "ا",
        "ן",
        "ก",
        "🐶",
        "👩\u{200d}🚀",
        "\u{0}",
        "\u{7f}",
        "<end>",
        "\\",
    ];
    let mut state = 1u64;
    let mut below = move |bound: u64| {
        // SplitMix64 of Steele, Lea and Flood.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) % bound
    };
    (0..1000).map(|_| (0..below(16)).map(|_| PARTS[below(PARTS.len() as u64) as usize]).collect()).collect()
}
