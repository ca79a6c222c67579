//! The listings of docs/engine-example.md are what the oracle computes.

#[path = "../examples/worked_example.rs"]
mod worked_example;

#[test]
fn the_page_has_what_the_oracle_computes() {
    let page = include_str!("../../docs/engine-example.md");
    let listings: Vec<&str> =
        page.split("```text\n").skip(1).map(|block| block.split_once("```").expect("it ends").0).collect();
    assert_eq!(listings.len(), 2, "listings of docs/engine-example.md");
    for (is_gemma, listing) in [false, true].into_iter().zip(listings) {
        let text = worked_example::text(is_gemma);
        let mut name = "";
        for (number, (computed, printed)) in text.lines().zip(listing.lines()).enumerate() {
            if !computed.starts_with(' ') {
                name = computed;
            }
            assert_eq!(
                computed,
                printed,
                "line {} of listing {}, {name}: `cargo run -p doorbell-lm --example worked_example{}` prints the listing",
                number + 1,
                u8::from(is_gemma) + 1,
                if is_gemma { " -- gemma" } else { "" }
            );
        }
        assert_eq!(
            text.lines().count(),
            listing.lines().count(),
            "lines of listing {}",
            u8::from(is_gemma) + 1
        );
    }
}
