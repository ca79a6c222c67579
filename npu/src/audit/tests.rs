use rstest::rstest;

use super::*;

fn reference() -> (Machine, Claims) {
    let claims = Claims {
        tokens_per_second: 20,
        context: 8192,
        weight_megabytes: 3000,
        macs: 1024,
        kv_megabytes: 6000,
        accepted: 1,
    };
    let machine = Machine {
        name: "reference".into(),
        ports: 2,
        port_bits: 128,
        port_mhz: 250,
        lanes: 4,
        macs: 32,
        mhz: 400,
        weight_bits: 4,
        kv_bits: 4,
        weight_buffer: 65_536,
        on_chip: 1_835_008,
        claims: Some(claims.clone()),
    };
    (machine, claims)
}

/// By hand: 4.486 G weights, 20,480 channels for a position, 268.7 MB of the last matrix.
#[test]
fn gemma_3n_e4b_is_what_its_configuration_says() {
    let token = Token::of(&Shape::GEMMA_3N_E4B, 8192);
    assert_eq!(token.weights / 1_000_000, 4486);
    assert_eq!(token.largest, 2048 * 16_384);
    assert_eq!(token.last, 2048 * 262_400);
    assert_eq!(token.kept, 20 * 1024);
    assert_eq!(token.read_whole, 35 * 1024 * 8192);
    assert_eq!(token.read, (28 * 512 + 7 * 8192) * 1024);
    assert_eq!(Token::of(&Shape::GEMMA_3N_E4B, 512).read, 35 * 1024 * 512);
    assert_eq!(Token::of(&Shape::GEMMA_3N_E4B, 513).read, (28 * 512 + 7 * 513) * 1024);
}

#[test]
fn nothing_that_is_claimed_of_the_reference_holds() {
    let (machine, claims) = reference();
    for (number, check) in (1..).zip(checks(&Shape::GEMMA_3N_E4B, &machine, &claims)) {
        assert!(!check.holds, "{number}: {check:?}");
    }
}

/// Each claim, one step to either side of where it holds; nothing but what it speaks of is changed.
#[rstest]
// 4,486,141,824 weights of 4 bits: 2,243.07 MB a pass. Two ports of 128 bits move 32 MB/s for each MHz.
#[case::weights(1, |machine: &mut Machine, claims: &mut Claims, more: bool| { claims.tokens_per_second = 1; machine.port_mhz = 1000; claims.weight_megabytes = 2243 + u32::from(more) })]
#[case::ports(1, |machine: &mut Machine, claims: &mut Claims, more: bool| { claims.tokens_per_second = 1; claims.weight_megabytes = 3000; machine.port_mhz = 70 + u32::from(more) })]
#[case::multipliers_built(2, |machine: &mut Machine, claims: &mut Claims, more: bool| { machine.port_mhz = 4000; claims.macs = 33 - u32::from(more) })]
// 4 x 16 x 4 bits x 400 MHz is 2 x 128 bits x 400 MHz, exactly.
#[case::multipliers_fed(2, |machine: &mut Machine, claims: &mut Claims, more: bool| { claims.macs = 16; machine.macs = 16; machine.port_mhz = 399; machine.ports = 1; machine.port_bits = 256 + u32::from(more) })]
// 20 tokens read 20 x 8,192 x 35 x 512 bytes: 2,936.01 MB/s, or 734.00 within windows.
#[case::kv_most(3, |_: &mut Machine, claims: &mut Claims, more: bool| claims.kv_megabytes = 2937 - u32::from(more))]
#[case::kv_least(3, |_: &mut Machine, claims: &mut Claims, more: bool| claims.kv_megabytes = 734 + u32::from(more))]
#[case::buffer(4, |machine: &mut Machine, _: &mut Claims, more: bool| machine.weight_buffer = 2048 * 16_384 / 2 - u64::from(!more))]
#[case::last_matrix(5, |machine: &mut Machine, _: &mut Claims, more: bool| machine.on_chip = 2048 * 262_400 / 2 - u64::from(!more))]
// 44.859 and 2.936 GB/s together: 1,493.6 MHz.
#[case::beside(6, |machine: &mut Machine, _: &mut Claims, more: bool| machine.port_mhz = 1493 + u32::from(more))]
#[case::kept(7, |machine: &mut Machine, _: &mut Claims, more: bool| machine.on_chip = 20_480 / 2 * 8192 - u64::from(!more))]
// 44.859 / (8 - 2.936) is 8.86.
#[case::accepted(8, |_: &mut Machine, claims: &mut Claims, more: bool| claims.accepted = 8 + u32::from(more))]
fn a_claim_holds_from_where_its_arithmetic_does(
    #[case] number: usize,
    #[case] change: fn(&mut Machine, &mut Claims, bool),
) {
    for more in [false, true] {
        let (mut machine, mut claims) = reference();
        change(&mut machine, &mut claims, more);
        assert_eq!(machine.check(), Ok(()));
        let check = &checks(&Shape::GEMMA_3N_E4B, &machine, &claims)[number - 1];
        assert_eq!(check.holds, more, "{check:?}");
    }
}

/// A gang shares a pass over the weights, and nothing else; what takes longest decides.
#[test]
fn floors_follow_from_bytes_and_products() {
    let (machine, _) = reference();
    let token = Token { weights: 1_000_000, largest: 0, last: 0, kept: 0, read: 3000, read_whole: 3000 };
    // 4,000,000 bits over 64 GBit/s are 62.5 µs, 12,000 bits 187.5 ns; 10^6 products, 128 of them in 2.5 ns, 19.53 µs.
    let floors = Floors::of(&token, &machine, 1);
    assert_eq!(floors, Floors { port: 62_687_500, multipliers: 19_531_250 });
    assert_eq!(Floors::of(&token, &machine, 4).port, 15_625_000 + 187_500);
    assert_eq!(floors.longest(), 62_687_500);
    assert_eq!(Floors::of(&token, &machine, 4).longest(), 19_531_250);
    assert_eq!(Floors::of(&token, &machine, 4).tokens_per_second(), 51_200.0);
}

#[rstest]
#[case("ports", |machine: &mut Machine| machine.ports = 0)]
#[case("port_bits", |machine: &mut Machine| machine.port_bits = 0)]
#[case("port_mhz", |machine: &mut Machine| machine.port_mhz = (1 << 20) + 1)]
#[case("lanes", |machine: &mut Machine| machine.lanes = 0)]
#[case("macs", |machine: &mut Machine| machine.macs = 0)]
#[case("mhz", |machine: &mut Machine| machine.mhz = 0)]
#[case("weight_bits", |machine: &mut Machine| machine.weight_bits = 65)]
#[case("kv_bits", |machine: &mut Machine| machine.kv_bits = 0)]
#[case("claims.context", |machine: &mut Machine| machine.claims.as_mut().unwrap().context = 0)]
#[case("claims.accepted", |machine: &mut Machine| machine.claims.as_mut().unwrap().accepted = u32::MAX)]
fn a_machine_that_nothing_follows_from_is_refused(#[case] name: &str, #[case] change: fn(&mut Machine)) {
    let (mut machine, _) = reference();
    change(&mut machine);
    let MachineError::Field { field, .. } = machine.check().unwrap_err();
    assert_eq!(field, name);
}

/// The largest numbers that are taken leave no product beyond its bits.
#[test]
fn the_largest_machine_is_computed_with() {
    let (mut machine, mut claims) = reference();
    for number in [
        &mut machine.ports,
        &mut machine.port_bits,
        &mut machine.port_mhz,
        &mut machine.lanes,
        &mut machine.macs,
        &mut machine.mhz,
    ] {
        *number = MOST;
    }
    (machine.weight_bits, machine.kv_bits) = (64, 64);
    (machine.weight_buffer, machine.on_chip) = (u64::MAX, u64::MAX);
    for number in [
        &mut claims.tokens_per_second,
        &mut claims.context,
        &mut claims.weight_megabytes,
        &mut claims.macs,
        &mut claims.kv_megabytes,
        &mut claims.accepted,
    ] {
        *number = MOST;
    }
    machine.claims = Some(claims.clone());
    assert_eq!(machine.check(), Ok(()));
    checks(&Shape::GEMMA_3N_E4B, &machine, &claims);
    Floors::of(&Token::of(&Shape::GEMMA_3N_E4B, u64::from(MOST)), &machine, 1 << 20);
}
