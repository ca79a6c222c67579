//! What is submitted: descriptors of every kind, good and bad, drawn one after the other.

use std::collections::VecDeque;

use doorbell_contract::{DescFlags, HwDesc, MEMBER_NONE, PREFIX_NONE, PolicyMode};

use super::draw::Draw;
use super::layout::{self, AREA_WORDS, CORPUS, CORPUS_WORDS, HEADER, HEADERS, MOST_TOKENS, TOKEN_BYTES};
use super::session::{Session, Tenant};

/// Rollouts of a queue pair that are under way together.
const ROLLOUTS: u32 = 12;
/// Groups that are open together, at most.
const GROUPS: usize = 3;

/// What is to be published next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub desc: HwDesc,
    pub sealed: bool,
    /// Whether it writes tokens into an area.
    pub writes: bool,
    /// Whether it scores what the DECODE before it in its rollout writes.
    pub scores_area: bool,
}

impl Draft {
    fn plain(desc: HwDesc) -> Self {
        Self { desc, sealed: true, writes: false, scores_area: false }
    }
}

/// What a queue pair sends.
#[derive(Debug, Default)]
pub(super) struct Plan {
    next_rollout: u32,
    next_prefix: u32,
    next_header: u64,
    waiting: VecDeque<Draft>,
}

impl Plan {
    /// A new life: what was drawn and not sent belongs to none.
    pub fn restart(&mut self) {
        self.waiting.clear();
    }

    /// The next draft; it stays the next one until it is [sent](Self::sent).
    pub fn next(&mut self, draw: &mut Draw, session: &Session, tenant: &Tenant, store: Store<'_>) -> Draft {
        if self.waiting.is_empty() {
            self.draw(draw, session, tenant, store);
        }
        self.waiting[0]
    }

    pub fn sent(&mut self) {
        self.waiting.pop_front();
    }

    /// One of the rollouts that are under way, the oldest of which now and then ends.
    fn rollout(&mut self, draw: &mut Draw) -> u32 {
        self.next_rollout = self.next_rollout.wrapping_add(u32::from(draw.once_in(4)));
        self.next_rollout.wrapping_add(draw.below(ROLLOUTS))
    }

    fn draw(&mut self, draw: &mut Draw, session: &Session, tenant: &Tenant, store: Store<'_>) {
        let rollout = self.rollout(draw);
        match draw.below(100) {
            0..45 => self.decode(draw, tenant, rollout),
            45..53 => {
                let flags = [DescFlags::empty(), DescFlags::FENCE, DescFlags::INTERRUPT];
                let desc = HwDesc { rollout_id: rollout, ..HwDesc::nop() }.with_flags(draw.pick(&flags));
                self.waiting.push_back(Draft::plain(HwDesc { seq_len: draw.bits(), ..desc }));
            }
            53..61 => {
                let fence = if draw.once_in(6) { DescFlags::FENCE } else { DescFlags::empty() };
                self.waiting.push_back(Draft::plain(HwDesc::stop(rollout).with_flags(fence)));
            }
            61..66 => {
                let prefix = self.prefix(tenant);
                let desc = HwDesc { rollout_id: rollout, ..HwDesc::prefill(prefix, draw.below(1000)) };
                self.waiting.push_back(Draft::plain(desc.with_version(tenant.current)));
            }
            66..71 => self.group(draw, session, tenant),
            71..79 => {
                let most = if draw.once_in(4) { 400 } else { 40 };
                let tokens = 1 + draw.below(most);
                let start = draw.below(CORPUS_WORDS as u32 - tokens);
                let model = draw.pick(&[0, 1]);
                let desc =
                    HwDesc::reward(rollout, model, tokens).with_delta_offset(CORPUS + 4 * u64::from(start));
                self.waiting.push_back(Draft::plain(desc));
            }
            79..83 if !tenant.publishing && tenant.next < 0x4000 => self.policy(draw, tenant, store),
            79..91 => self.malformed(draw, tenant, rollout),
            91..95 => {
                // Words at random, and a slot as it was left.
                let words: [u64; 8] = std::array::from_fn(|_| draw.wide());
                let desc =
                    if draw.once_in(2) { bytemuck::cast(words) } else { HwDesc::decode(rollout, 0, 8) };
                self.waiting.push_back(Draft { sealed: false, ..Draft::plain(desc) });
            }
            _ => {
                // A DECODE, and what scores it right behind.
                self.decode(draw, tenant, rollout);
                if let Some(&Draft { desc, .. }) = self.waiting.back() {
                    let reward = HwDesc::reward(desc.rollout_id, 0, desc.max_tokens);
                    self.waiting.push_back(Draft { scores_area: true, ..Draft::plain(reward) });
                }
            }
        }
    }

    fn prefix(&mut self, tenant: &Tenant) -> u32 {
        self.next_prefix += 1;
        // Others of the function have prefixes of the same numbers.
        self.next_prefix ^ u32::from(tenant.function) << 30
    }

    fn decode(&mut self, draw: &mut Draw, tenant: &Tenant, rollout: u32) {
        let mut flags = DescFlags::empty();
        for (flag, times) in [
            (DescFlags::FENCE, 16),
            (DescFlags::EOS_STOPS, 3),
            (DescFlags::INTERRUPT, 8),
            (DescFlags::RESIDENT, 5),
            (DescFlags::LOGP, 4),
        ] {
            flags.set(flag, draw.once_in(times));
        }
        let most = if draw.once_in(3) { MOST_TOKENS } else { 12 };
        let tokens = 1 + draw.below(most);
        let checkpoint = if draw.once_in(3) { 1 + draw.below(10) } else { draw.pick(&[0, u32::MAX]) };
        // Now and then a version that is not the one in use.
        let version = match draw.below(40) {
            0 => tenant.current.saturating_sub(1),
            _ => tenant.current,
        };
        let desc = HwDesc::decode(rollout, draw.below(2000), tokens)
            .with_flags(flags)
            .with_checkpoint(checkpoint)
            .with_seed(draw.below(4))
            .with_version(version);
        self.waiting.push_back(Draft { writes: true, ..Draft::plain(desc) });
    }

    /// A group with its members, and what ends some of them.
    fn group(&mut self, draw: &mut Draw, session: &Session, tenant: &Tenant) {
        if session.open_groups().is_none_or(|open| open >= GROUPS) {
            return self.waiting.push_back(Draft::plain(HwDesc::nop()));
        }
        let (prefix, members) = (self.prefix(tenant), 1 + draw.below(6));
        let open = HwDesc::open_group(prefix, 100, members).with_version(tenant.current);
        self.next_rollout = self.next_rollout.wrapping_add(members + ROLLOUTS);
        let first = self.next_rollout;
        self.waiting.push_back(Draft::plain(HwDesc { rollout_id: first + members, ..open }));
        for member in 0..members {
            let desc = HwDesc::decode(first + member, 100, 1 + draw.below(20))
                .with_seed(draw.bits())
                .with_version(tenant.current)
                .with_member(prefix, member as u16);
            self.waiting.push_back(Draft { writes: true, ..Draft::plain(desc) });
            if draw.once_in(5) {
                let stop = HwDesc { rollout_id: first + member, ..HwDesc::stop(first + member) };
                self.waiting.push_back(Draft::plain(stop.with_member(prefix, member as u16)));
            }
        }
        if draw.once_in(3) {
            let stop = HwDesc::stop_group(prefix);
            self.waiting.push_back(Draft::plain(HwDesc { rollout_id: first + members, ..stop }));
        }
    }

    /// The next version, or one that is to be refused.
    fn policy(&mut self, draw: &mut Draw, tenant: &Tenant, store: Store<'_>) {
        let mode = draw.pick(&[PolicyMode::Wait, PolicyMode::Keep, PolicyMode::Abort]);
        let at = HEADER + 64 * (self.next_header % HEADERS);
        self.next_header += 1;
        let mut desc = HwDesc::policy(tenant.next, mode).with_delta_offset(at);
        desc.rollout_id = self.rollout(draw);
        let mut header = tenant.header(tenant.next);
        match draw.below(8) {
            0 => header.check ^= 1 << draw.below(32),
            1 => header = tenant.header(tenant.next + 1),
            2 => desc.checkpoint = 3 + draw.below(100),
            _ => {}
        }
        store(at, bytemuck::cast(header));
        self.waiting.push_back(Draft::plain(desc));
    }

    /// One that every device rejects, for a reason that the descriptor alone gives.
    fn malformed(&mut self, draw: &mut Draw, tenant: &Tenant, rollout: u32) {
        let good =
            HwDesc::decode(rollout, 5, 6).with_version(tenant.current).with_delta_offset(layout::area(0));
        let region = TOKEN_BYTES;
        let bad = match draw.below(16) {
            0 => HwDesc { opcode: draw.pick(&[5, 0x7F, 0xFE]), ..good },
            1 => HwDesc { flags: 1 << (6 + draw.below(2)), ..good },
            2 => HwDesc { model_id: 1 + draw.below(0xFFFE) as u16, ..good },
            3 => HwDesc { max_tokens: 0, ..good },
            4 => HwDesc { max_tokens: draw.pick(&[u32::MAX, 1 << 31, 0x0100_0000]), ..good },
            5 => HwDesc { seq_len: u32::MAX, ..good },
            6 => good.with_delta_offset(good.delta_offset + u64::from(1 + draw.below(3))),
            7 => good.with_delta_offset(draw.pick(&[region - 20, region, 1 << 32, 1 << 63, u64::MAX - 3])),
            8 => HwDesc { kv_offset: draw.pick(&[layout::KV_BYTES, 1 << 40, u64::MAX]), ..good },
            9 => HwDesc { flags: DescFlags::COW_PREFIX.bits(), prefix_id: PREFIX_NONE, ..good },
            10 => HwDesc { rollout_id: rollout, ..HwDesc::prefill(PREFIX_NONE, 5) },
            11 => HwDesc { rollout_id: rollout, max_tokens: 65, ..HwDesc::prefill(0x0BAD_0000, 5) },
            12 => HwDesc { reward_model_id: 2, ..HwDesc::reward(rollout, 2, 5) },
            13 => HwDesc { flags: DescFlags::RESIDENT.bits(), reward_model_id: 1, ..good },
            14 => good.with_version(0x8000 | draw.below(0x7FFF) as u16),
            _ => HwDesc { rollout_id: rollout, ..HwDesc::policy(tenant.next, PolicyMode::Keep) }
                .with_delta_offset(draw.pick(&[32, region - 32, u64::MAX - 63])),
        };
        let stop =
            HwDesc { flags: DescFlags::COW_PREFIX.bits(), member: MEMBER_NONE, ..HwDesc::stop(rollout) };
        let desc = if draw.once_in(16) { HwDesc { prefix_id: PREFIX_NONE, ..stop } } else { bad };
        self.waiting.push_back(Draft::plain(desc));
    }
}

/// Writes a header into the token region.
pub(super) type Store<'a> = &'a mut dyn FnMut(u64, [u32; 4]);

/// Where in its area a DECODE begins.
pub(super) fn jitter(draw: &mut Draw) -> u64 {
    4 * u64::from(draw.below(AREA_WORDS as u32 - MOST_TOKENS))
}
