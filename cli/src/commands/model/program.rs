//! `doorbell model program`.

use std::fmt::Write;

use doorbell_lm::image;
use doorbell_npu::compile;
use doorbell_npu::text::listing;
use serde_json::json;

use crate::failure::Failure;
use crate::models;
use crate::output;

/// Prints the program of a model's step, as text or JSON.
pub fn run(model: &str, as_json: bool) -> Result<(), Failure> {
    let bytes = models::image(model)?.to_bytes();
    let header = image::header(&bytes).map_err(Failure::input)?;
    let entries = image::entries(&bytes).map_err(Failure::input)?;
    let program = compile(&header.shape, header.epsilon, &entries, bytes.len() as u64)
        .map_err(|error| Failure::input(format!("{model}: {error}")))?;
    let hex = |words: &[u64]| -> Vec<String> { words.iter().map(|word| format!("{word:016x}")).collect() };
    if as_json {
        let map: Vec<_> = program
            .map
            .iter()
            .map(|part| json!({"name": part.name, "word": part.start * 4, "words": part.lines * 4}))
            .collect();
        let layers: Vec<_> = program.layers.iter().map(|words| hex(words)).collect();
        let value = json!({
            "words": hex(&program.words), "layers": layers, "map": map, "table_byte": program.table,
            "program_byte": program.start, "block_bytes": program.block,
        });
        return output::print_raw(&output::json(&value));
    }
    let mut text = String::new();
    for part in &program.map {
        let (first, words) = (part.start * 4, part.lines * 4);
        let _ = writeln!(text, "; words {first:5} to {:5}  {}", first + words - 1, part.name);
    }
    let _ = writeln!(text, "; {} bytes of keys and values for 32 tokens\n", program.block);
    text += &listing(&program.words);
    let (layers, table) = (program.layers.len(), program.table);
    let _ =
        writeln!(text, "\n; layer 0 of {layers}, whose words stand at byte {table:#x} of the model's memory");
    text += &listing(&program.layers[0]);
    output::print(&text)
}
