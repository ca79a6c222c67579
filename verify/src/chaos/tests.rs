//! The judge sees what is planted, and nothing where nothing is.

use super::*;
use crate::model::ModelPlatform;

fn chaos(seed: u64, rounds: u32, queues: u8, functions: u8) -> Result<Tally, Box<Broken>> {
    let options = Options { rounds, ..Options::new(seed) };
    run(&options, &mut |_| Ok(Box::new(ModelPlatform::with_queues(queues, functions)?)))
}

/// Devices that are drawn in turn.
const SHAPES: [(u8, u8); 4] = [(1, 1), (4, 2), (4, 4), (3, 2)];

#[test]
fn the_model_keeps_every_rule() {
    let seeds = SHAPES.iter().flat_map(|&shape| (0..400).map(move |seed| (seed, shape)));
    let broken: Vec<String> = seeds
        .filter_map(|(seed, (queues, functions))| {
            let broken = chaos(seed, 2, queues, functions).err()?;
            Some(format!("{queues} queue pairs, {functions} functions: {broken}"))
        })
        .collect();
    assert!(broken.is_empty(), "{} broke rules:\n{}", broken.len(), broken[..broken.len().min(8)].join("\n"));
}
