//! What a model asks of a machine, and whether a machine's claims bear its own arithmetic: `doorbell model audit`.

use doorbell_lm::Shape;
use serde::Deserialize;
use thiserror::Error;

/// What a machine is built with.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is called.
    pub name: String,
    /// Ports through which weights, keys and values come.
    pub ports: u32,
    /// Bits that one takes in a cycle.
    pub port_bits: u32,
    /// Its cycles, in millions a second.
    pub port_mhz: u32,
    /// Lanes of multipliers.
    pub lanes: u32,
    /// Multipliers of a lane.
    pub macs: u32,
    /// Their cycles, in millions a second.
    pub mhz: u32,
    /// Bits of a weight.
    pub weight_bits: u32,
    /// Bits of a key's or a value's channel.
    pub kv_bits: u32,
    /// Bytes of the buffer that weights pass through.
    pub weight_buffer: u64,
    /// Bytes of on-chip memory.
    pub on_chip: u64,
    /// What is said of it.
    pub claims: Option<Claims>,
}

/// What is said of a machine, to be held to its arithmetic.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Tokens that one sequence makes in a second.
    pub tokens_per_second: u32,
    /// Positions before each of them.
    pub context: u32,
    /// Bytes of weights that are said to suffice, in millions a second.
    pub weight_megabytes: u32,
    /// Multiplications that a lane is said to do in a cycle.
    pub macs: u32,
    /// Bytes of keys and values that are said to pass, in millions a second.
    pub kv_megabytes: u32,
    /// Tokens that are accepted for each pass over the weights.
    pub accepted: u32,
}

/// Why a machine cannot be audited.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineError {
    /// A number that nothing can be divided by, or that has no meaning.
    #[error("{field} is {value}; it must be 1 to {most}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it may be at most.
        most: u64,
    },
}

/// Most of anything that is multiplied by others, so that no product leaves 128 bits.
const MOST: u32 = 1 << 20;

impl Machine {
    /// Whether its numbers can be computed with.
    ///
    /// # Errors
    /// `Field`, the first that is 0 or too large.
    pub fn check(&self) -> Result<(), MachineError> {
        let claims = self.claims.iter().flat_map(|claims| {
            [
                ("claims.tokens_per_second", claims.tokens_per_second),
                ("claims.context", claims.context),
                ("claims.weight_megabytes", claims.weight_megabytes),
                ("claims.macs", claims.macs),
                ("claims.kv_megabytes", claims.kv_megabytes),
                ("claims.accepted", claims.accepted),
            ]
        });
        let own = [
            ("ports", self.ports, MOST),
            ("port_bits", self.port_bits, MOST),
            ("port_mhz", self.port_mhz, MOST),
            ("lanes", self.lanes, MOST),
            ("macs", self.macs, MOST),
            ("mhz", self.mhz, MOST),
            ("weight_bits", self.weight_bits, 64),
            ("kv_bits", self.kv_bits, 64),
        ];
        let claims = claims.map(|(field, value)| (field, value, MOST));
        match own.into_iter().chain(claims).find(|&(_, value, most)| value == 0 || value > most) {
            None => Ok(()),
            Some((field, value, most)) => {
                Err(MachineError::Field { field, value: value.into(), most: most.into() })
            }
        }
    }

    /// Bits that all ports take in a second.
    fn port_rate(&self) -> u128 {
        u128::from(self.ports) * u128::from(self.port_bits) * u128::from(self.port_mhz) * 1_000_000
    }
}

/// What a token of a model moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Weights that are multiplied by, each once.
    pub weights: u64,
    /// Of the largest matrix of a layer.
    pub largest: u64,
    /// Of the last matrix.
    pub last: u64,
    /// Channels of keys and values that are kept for each position.
    pub kept: u64,
    /// Channels of keys and values that layers read for a token, of a layer that reads another's again.
    pub read: u64,
    /// The same if no layer had a window.
    pub read_whole: u64,
}

impl Token {
    /// Of a token with so many positions up to its own, which is the last.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(shape: &Shape, positions: u64) -> Self {
        let position = positions.checked_sub(1).expect("a position");
        let channels = (2 * shape.kv_heads * shape.head_width) as u64;
        let (weights, last) = shape.weight_macs();
        let position = position as usize;
        let seen = |layer: usize| shape.seen(layer, position).count(position) as u64;
        let read = (0..shape.layers).map(seen).sum::<u64>() * channels;
        let largest = shape.width * shape.hidden.max(shape.heads * shape.head_width);
        Self {
            weights,
            largest: largest as u64,
            last,
            kept: shape.kv_layers() as u64 * channels,
            read,
            read_whole: shape.layers as u64 * channels * positions,
        }
    }
}

/// What a machine takes for a token at least, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floors {
    /// For weights, keys and values to pass the ports.
    pub port: u128,
    /// For the products of the weights.
    pub multipliers: u128,
}

const PICOSECONDS: u128 = 1_000_000_000_000;

impl Floors {
    /// Of a token of this kind, where one pass over the weights serves so many.
    ///
    /// # Panics
    /// If `gang` is 0, or for a machine that [`Machine::check`] refuses.
    pub fn of(token: &Token, machine: &Machine, gang: u64) -> Self {
        let gang = u128::from(gang);
        let weights = u128::from(token.weights) * u128::from(machine.weight_bits);
        let kv = u128::from(token.read) * u128::from(machine.kv_bits);
        let macs = u128::from(machine.lanes) * u128::from(machine.macs) * u128::from(machine.mhz) * 1_000_000;
        Self {
            port: ((weights + kv * gang) * PICOSECONDS).div_ceil(machine.port_rate() * gang),
            multipliers: (u128::from(token.weights) * PICOSECONDS).div_ceil(macs),
        }
    }

    /// The longer one.
    pub fn longest(&self) -> u128 {
        self.port.max(self.multipliers)
    }

    /// Tokens a second that no machine of this kind exceeds.
    pub fn tokens_per_second(&self) -> f64 {
        PICOSECONDS as f64 / self.longest() as f64
    }
}

/// A claim, the arithmetic, and whether the claim bears it.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What is claimed.
    pub claim: String,
    /// What the numbers say.
    pub arithmetic: String,
    /// Whether they agree.
    pub holds: bool,
}

/// Gigabytes of so many bits, with three digits.
fn gigabytes(bits: u128) -> String {
    format!("{:.3} GB", bits as f64 / 8e9)
}

/// The eight checks of a machine's claims for a model. Rates are of one sequence, each token of which takes a pass over the weights.
///
/// # Panics
/// For a machine that [`Machine::check`] refuses.
pub fn checks(shape: &Shape, machine: &Machine, claims: &Claims) -> [Check; 8] {
    let token = Token::of(shape, claims.context.into());
    let wanted = u128::from(claims.tokens_per_second);
    let weight_bits = u128::from(machine.weight_bits);
    let weights = u128::from(token.weights) * weight_bits;
    let rate = weights * wanted;
    let ports = machine.port_rate();
    let ported = format!(
        "{} ports x {} bits x {} MHz = {}/s",
        machine.ports,
        machine.port_bits,
        machine.port_mhz,
        gigabytes(ports)
    );
    let said = u128::from(claims.weight_megabytes) * 8_000_000;
    let fed = |macs: u32| {
        u128::from(machine.lanes) * u128::from(macs) * weight_bits * u128::from(machine.mhz) * 1_000_000
    };
    let kv_bits = u128::from(machine.kv_bits);
    let kept = u128::from(token.kept) * u128::from(claims.context) * kv_bits;
    let [kv_once, kv_whole, kv] =
        [kept, u128::from(token.read_whole) * kv_bits, u128::from(token.read) * kv_bits]
            .map(|bits| bits * wanted);
    let kv_said = u128::from(claims.kv_megabytes) * 8_000_000;
    let largest = u128::from(token.largest) * weight_bits;
    let last = u128::from(token.last) * weight_bits;
    let (buffer, on_chip) = (u128::from(machine.weight_buffer) * 8, u128::from(machine.on_chip) * 8);
    let passes = rate as f64 / ports as f64;
    let left = ports.saturating_sub(kv_whole);
    [
        Check {
            claim: format!(
                "{} tokens a second, for which {}/s of weights suffice",
                claims.tokens_per_second,
                gigabytes(said)
            ),
            arithmetic: format!(
                "{} weights x {} bits x {} = {}/s; {ported}, {:.2} tokens/s; with {}/s it is {:.2}",
                token.weights,
                machine.weight_bits,
                claims.tokens_per_second,
                gigabytes(rate),
                ports as f64 / weights as f64,
                gigabytes(said),
                said as f64 / weights as f64
            ),
            holds: rate <= ports && rate <= said,
        },
        Check {
            claim: format!("{} lanes x {} multiplications a cycle", machine.lanes, claims.macs),
            arithmetic: format!(
                "at {} MHz they take {}/s of weights; the {} x {} that are built, {}/s; {ported}",
                machine.mhz,
                gigabytes(fed(claims.macs)),
                machine.lanes,
                machine.macs,
                gigabytes(fed(machine.macs))
            ),
            holds: claims.macs <= machine.macs && fed(claims.macs) <= ports,
        },
        Check {
            claim: format!("keys and values at {} positions are {}/s", claims.context, gigabytes(kv_said)),
            arithmetic: format!(
                "{} channels a position x {} x {} bits x {} = {}/s if each is read once; {}/s if every layer reads; {}/s within windows",
                token.kept,
                claims.context,
                machine.kv_bits,
                claims.tokens_per_second,
                gigabytes(kv_once),
                gigabytes(kv_whole),
                gigabytes(kv)
            ),
            holds: (kv_once.min(kv)..=kv_whole).contains(&kv_said),
        },
        Check {
            claim: "the weight buffer holds a matrix".to_owned(),
            arithmetic: format!(
                "{} x {} bits = {} bytes; the buffer has {}",
                token.largest,
                machine.weight_bits,
                largest / 8,
                machine.weight_buffer
            ),
            holds: largest <= buffer,
        },
        Check {
            claim: "the last matrix lands on chip".to_owned(),
            arithmetic: format!(
                "{} x {} bits = {} bytes; on chip are {}",
                token.last,
                machine.weight_bits,
                last / 8,
                machine.on_chip
            ),
            holds: last <= on_chip,
        },
        Check {
            claim: "keys and values pass the ports beside the weights".to_owned(),
            arithmetic: format!(
                "{} + {} = {}/s; {ported}",
                gigabytes(rate),
                gigabytes(kv_whole),
                gigabytes(rate + kv_whole)
            ),
            holds: rate + kv_whole <= ports,
        },
        Check {
            claim: format!("keys and values of {} positions stay on chip", claims.context),
            arithmetic: format!(
                "{} bytes; on chip are {}, {} positions",
                kept / 8,
                machine.on_chip,
                on_chip / (u128::from(token.kept) * kv_bits)
            ),
            holds: kept <= on_chip,
        },
        Check {
            claim: format!(
                "{} tokens a second with {} accepted for each pass over the weights",
                claims.tokens_per_second, claims.accepted
            ),
            arithmetic: format!(
                "{} / {} = {passes:.2} are needed, {} beside the keys and values that every layer reads",
                gigabytes(rate),
                gigabytes(ports),
                if left == 0 {
                    "no number of them".to_owned()
                } else {
                    format!("{:.2}", rate as f64 / left as f64)
                }
            ),
            holds: rate <= left * u128::from(claims.accepted),
        },
    ]
}

#[cfg(test)]
mod tests;
