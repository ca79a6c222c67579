//! Faults that the model can be given on purpose.

use std::str::FromStr;

use doorbell_contract::{Field, HwCompletion, HwEvent};
use doorbell_host::queue::COMPLETION_WORDS;

/// One fault of the model, counted over its whole life. In text: `token:NTH`, `completion:NTH:FIELD`, `hang:AFTER`,
/// `policy:FAULT`, `language:FAULT`, `event:NTH:FIELD`, `event:full`.
#[derive(Clone, Copy, Debug)]
pub enum Mutation {
    /// The `nth` token (from 0) has its lowest bit flipped in memory; the digest is that of the right one.
    Token {
        /// Which token.
        nth: u64,
    },
    /// The `nth` completion (from 0) has the lowest bit of a field flipped; of `phase`, its one bit.
    Completion {
        /// Which completion.
        nth: u64,
        /// Which field.
        field: Field<HwCompletion>,
    },
    /// What goes wrong with versions of the policy.
    Policy(PolicyFault),
    /// What goes wrong with sequences of engine 1.
    Language(LanguageFault),
    /// The `nth` LIFE event (from 0) has a bit of a field flipped: the lowest, of the stamp and the deltas bit 30.
    Event {
        /// Which event.
        nth: u64,
        /// Which field.
        field: Field<HwEvent>,
    },
    /// LIFE events take the whole ring.
    FullRing,
    /// No answer after this many completions.
    Hang {
        /// Completions before.
        after: u64,
    },
}

/// What a device may get wrong about versions of the policy (R18 to R21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyFault {
    /// `late-load`: the first DECODE of a version finds what its slot held before.
    LateLoad,
    /// `swapped-slot`: a DECODE takes the salt of the other slot.
    SwappedSlot,
    /// `stale-prefix`: a group is taken for one of whatever version its members name.
    StalePrefix,
    /// `late-stop`: a DECODE begins though its version is retired.
    LateStop,
}

impl PolicyFault {
    /// Every one, with its name.
    pub const ALL: [(&str, Self); 4] = [
        ("late-load", Self::LateLoad),
        ("swapped-slot", Self::SwappedSlot),
        ("stale-prefix", Self::StalePrefix),
        ("late-stop", Self::LateStop),
    ];
}

/// What a device may get wrong about sequences of engine 1 (R25 to R27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanguageFault {
    /// `swapped-blocks`: the first two entries of a block table are taken for each other.
    SwappedBlocks,
    /// `short-copy`: of a partial block that is shared one position is not copied.
    ShortCopy,
    /// `stale-prefix`: the keys and values of a prefix that was there before are taken for those of the new one.
    StalePrefix,
    /// `mid-step`: the step in which a version is retired goes on with the new one's weights from the middle layer on.
    MidStep,
}

impl LanguageFault {
    /// Every one, with its name.
    pub const ALL: [(&str, Self); 4] = [
        ("swapped-blocks", Self::SwappedBlocks),
        ("short-copy", Self::ShortCopy),
        ("stale-prefix", Self::StalePrefix),
        ("mid-step", Self::MidStep),
    ];
}

/// A text that is no [`Mutation`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is no fault of the model: expected token:NTH, completion:NTH:FIELD, hang:AFTER, policy:FAULT, language:FAULT, \
     event:NTH:FIELD or event:full, with FIELD one of {} (of an event: {}) and FAULT one of {} (of a language: {})",
    HwCompletion::FIELDS.map(|field| field.name).join(", "), HwEvent::FIELDS.map(|field| field.name).join(", "), PolicyFault::ALL.map(|(name, _)| name).join(", "), LanguageFault::ALL.map(|(name, _)| name).join(", ")
)]
pub struct BadMutation {
    text: String,
}

impl FromStr for Mutation {
    type Err = BadMutation;

    fn from_str(text: &str) -> Result<Self, BadMutation> {
        let parts: Vec<&str> = text.split(':').collect();
        let parsed = match parts[..] {
            ["token", nth] => nth.parse().ok().map(|nth| Self::Token { nth }),
            ["policy", fault] => PolicyFault::ALL
                .into_iter()
                .find(|(name, _)| *name == fault)
                .map(|(_, fault)| Self::Policy(fault)),
            ["language", fault] => LanguageFault::ALL
                .into_iter()
                .find(|(name, _)| *name == fault)
                .map(|(_, fault)| Self::Language(fault)),
            ["hang", after] => after.parse().ok().map(|after| Self::Hang { after }),
            ["completion", nth, name] => nth.parse().ok().and_then(|nth| {
                let field = HwCompletion::FIELDS.into_iter().find(|field| field.name == name)?;
                Some(Self::Completion { nth, field })
            }),
            ["event", "full"] => Some(Self::FullRing),
            ["event", nth, name] => nth.parse().ok().and_then(|nth| {
                let field = HwEvent::FIELDS.into_iter().find(|field| field.name == name)?;
                Some(Self::Event { nth, field })
            }),
            _ => None,
        };
        parsed.ok_or_else(|| BadMutation { text: text.to_owned() })
    }
}

/// A mutation at work.
#[derive(Debug)]
pub(super) struct Mutator {
    mutation: Mutation,
    tokens: u64,
    completions: u64,
    events: u64,
    /// A version that was published, and what its slot held before: of LateLoad.
    late: Option<(u16, u32)>,
    /// Prefixes that engine 1 has made: of StalePrefix.
    prefixes: Vec<u32>,
}

impl Mutator {
    pub fn new(mutation: Mutation) -> Self {
        Self { mutation, tokens: 0, completions: 0, events: 0, late: None, prefixes: vec![] }
    }

    pub fn hangs(&self) -> bool {
        matches!(self.mutation, Mutation::Hang { after } if self.completions >= after)
    }

    pub fn has(&self, fault: PolicyFault) -> bool {
        matches!(self.mutation, Mutation::Policy(own) if own == fault)
    }

    pub fn language(&self) -> Option<LanguageFault> {
        match self.mutation {
            Mutation::Language(fault) => Some(fault),
            _ => None,
        }
    }

    /// Whether a PREFILL of this prefix makes nothing, as there was one before.
    pub fn skips(&mut self, prefix_id: u32) -> bool {
        if self.language() != Some(LanguageFault::StalePrefix) {
            return false;
        }
        let seen = self.prefixes.contains(&prefix_id);
        self.prefixes.push(prefix_id);
        seen
    }

    /// Notes a publish into a slot that held `before`.
    pub fn published(&mut self, version: u16, before: u32) {
        self.late = self.has(PolicyFault::LateLoad).then_some((version, before));
    }

    /// The salt that a DECODE of `version` takes, instead of `own`; `other` is that of the other slot.
    pub fn salt(&mut self, version: u16, own: u32, other: u32) -> u32 {
        if self.has(PolicyFault::SwappedSlot) {
            return other;
        }
        self.late.take_if(|late| late.0 == version).map_or(own, |late| late.1)
    }

    pub fn token(&mut self, token: u32) -> u32 {
        let hit = matches!(self.mutation, Mutation::Token { nth } if nth == self.tokens);
        self.tokens += 1;
        token ^ u32::from(hit)
    }

    pub fn event(&mut self, mut event: HwEvent) -> HwEvent {
        if let Mutation::Event { nth, field } = self.mutation
            && nth == self.events
        {
            let (byte, bit) = if field.offset >= 8 { (field.offset + 3, 0x40) } else { (field.offset, 1) };
            bytemuck::bytes_of_mut(&mut event)[byte] ^= bit;
        }
        self.events += 1;
        event
    }

    pub fn fills_rings(&self) -> bool {
        matches!(self.mutation, Mutation::FullRing)
    }

    #[cold]
    pub fn completion(&mut self, mut words: [u64; COMPLETION_WORDS]) -> [u64; COMPLETION_WORDS] {
        if let Mutation::Completion { nth, field } = self.mutation
            && nth == self.completions
        {
            bytemuck::bytes_of_mut(&mut words)[field.offset] ^= if field.name == "phase" { 0x80 } else { 1 };
        }
        self.completions += 1;
        words
    }
}
