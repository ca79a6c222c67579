//! The messages: any bytes decode or are refused, and what is sent decodes to what was meant. The corpus are messages that clients sent, and
//! some that were once of interest; `DOORBELL_FUZZ` is how many more are drawn from them.

use doorbell_vfio::Refusal;
use doorbell_vfio::protocol::{self, HEADER, Header, MAX_MESSAGE, Request, command};
use proptest::prelude::*;

/// The messages of the corpus, a line of hexadecimal digits each; what stands behind `#` is a comment.
fn corpus() -> Vec<Vec<u8>> {
    let lines = include_str!("corpus.hex").lines().map(|line| line.split('#').next().unwrap_or_default());
    let digits = lines.map(|line| line.chars().filter(|digit| !digit.is_whitespace()).collect::<String>());
    let bytes = |digits: String| -> Vec<u8> {
        (0..digits.len() / 2).map(|k| u8::from_str_radix(&digits[2 * k..2 * k + 2], 16).unwrap()).collect()
    };
    digits.filter(|digits| !digits.is_empty()).map(bytes).collect()
}

/// A message as the server takes it.
fn decode(message: &[u8]) -> Result<(), Refusal> {
    let Some(header) = message.first_chunk::<HEADER>().map(Header::decode) else { return Ok(()) };
    let size = header.length()?;
    assert!((HEADER..=MAX_MESSAGE).contains(&size));
    let Some(body) = message.get(HEADER..size) else { return Ok(()) };
    let request = Request::decode(header.command, body)?;
    // Nothing is taken that is not in the message.
    match request {
        Request::RegionWrite { data, .. } => assert!(data.len() <= body.len() - 16),
        Request::Version { capabilities, .. } => assert!(capabilities.len() + 4 <= body.len().max(4)),
        _ => {}
    }
    for outcome in [Ok(()), Err(Refusal::Malformed)] {
        let reply = protocol::reply(&header, outcome, &body[..body.len().min(64)]);
        let answer = Header::decode(reply.first_chunk().unwrap());
        assert_eq!(
            (answer.id, answer.command, answer.size as usize),
            (header.id, header.command, reply.len())
        );
        assert_eq!(answer.failure().is_some(), outcome.is_err());
        // A reply is never taken for a command.
        assert_eq!(answer.length(), Err(Refusal::NotACommand));
    }
    Ok(())
}

#[test]
fn the_corpus_decodes_as_its_clients_meant() {
    let corpus = corpus();
    assert!(corpus.len() >= 20, "{}", corpus.len());
    let taken = corpus.iter().filter(|message| decode(message).is_ok()).count();
    assert!(taken >= 12 && taken < corpus.len(), "{taken} of {}", corpus.len());
    // Each command that is served is in it.
    for command in [1u16, 2, 3, 4, 5, 7, 8, 9, 10, 13] {
        assert!(
            corpus.iter().any(|message| message[2..4] == command.to_le_bytes() && decode(message).is_ok()),
            "command {command}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("DOORBELL_FUZZ").map_or(20_000, |text| text.parse().expect("a number")),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A message of the corpus with bytes changed, cut off and put in.
    #[test]
    fn any_bytes_decode_or_are_refused(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        tail in prop::collection::vec(any::<u8>(), 0..40),
        cuts in any::<bool>(),
    ) {
        let corpus = corpus();
        let mut message = which.get(&corpus).clone();
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        if cuts {
            message.truncate(cut.index(message.len()));
            message.extend(tail);
        }
        let _ = decode(&message);
        // The body alone, of any command.
        for command in 0..20 {
            let _ = Request::decode(command, &message);
        }
    }

    /// What this end sends is what the other end reads.
    #[test]
    fn what_is_sent_is_what_is_read(flags: u32, offset: u64, address: u64, size: u64, data in prop::collection::vec(any::<u8>(), 0..300)) {
        let longs = [offset, address, size].map(u64::to_le_bytes).concat();
        let map = [&protocol::words(&[32, flags])[..], &longs].concat();
        prop_assert_eq!(Request::decode(command::DMA_MAP, &map), Ok(Request::DmaMap { flags, offset, address, size }));
        prop_assert_eq!(Request::decode(command::DMA_UNMAP, &map[..24]), Ok(Request::DmaUnmap { flags, address: offset, size: address }));
        let region = flags;
        let write = [&offset.to_le_bytes()[..], &protocol::words(&[region, data.len() as u32]), &data].concat();
        prop_assert_eq!(Request::decode(command::REGION_WRITE, &write), Ok(Request::RegionWrite { region, offset, data: &data }));
        let header = Header::command(9, command::REGION_WRITE, write.len());
        prop_assert_eq!(Header::decode(&header.encode()), header);
        prop_assert_eq!(header.length(), Ok(HEADER + write.len()));
    }
}
