//! The Autobahn suite's case families in memory, against a machine in either role.

use sinews_conformance::autobahn::{self, Family};
use sinews_conformance::{Case, Setup};
use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::{Negotiated, Role};
use sinews_testkit::{Chunks, negotiate, negotiate_offer};

const ROLES: [Role; 2] = [Role::Server, Role::Client];

/// Each case in both roles, cut in all the usual ways, against a session and a bare connection.
fn run_all(cases: &[Case]) {
    cases.iter().for_each(Case::run_everywhere);
}

#[test]
fn section_1_messages() {
    let cases = autobahn::section_1();
    assert_eq!(cases.len(), 16);
    run_all(&cases);
    // 1.1.8 and 1.2.8 arrive in chunks of 997 bytes.
    for role in ROLES {
        cases[7].run(&Setup::new(role, Chunks::Fixed(997)));
        cases[15].run(&Setup::new(role, Chunks::Fixed(997)));
    }
}

/// Runs a section with this number of cases.
fn run_section(cases: &[Case], count: usize) {
    assert_eq!(cases.len(), count);
    run_all(cases);
}

sinews_testkit::tests! {
    // 2.11 is 2.10 byte by byte.
    section_2_pings_and_pongs => run_section(&autobahn::section_2(), 10);
    section_3_reserved_bits => run_section(&autobahn::section_3(), 7);
    section_4_opcodes => run_section(&autobahn::section_4(), 10);
    section_5_fragmentation => run_section(&autobahn::section_5(), 20);
    section_6_utf8 => run_section(&autobahn::section_6(), 145);
    section_7_closing => run_section(&autobahn::section_7(), 37);
    section_10_automatic_fragmentation => run_section(&autobahn::section_10(), 1);
}

#[test]
fn text_fails_at_the_first_impossible_byte_and_not_before() {
    let cases = autobahn::first_impossible_byte();
    assert!(cases.len() > 50, "{}", cases.len());
    run_all(&cases);
}

/// 16 MiB, the suite's longest and our default limit, in one chunk; up to 1 MiB in all chunkings.
#[test]
fn section_9_long_messages() {
    let cases = autobahn::section_9_whole(usize::MAX);
    assert_eq!(cases.len(), 12);
    for role in ROLES {
        for case in &cases {
            case.run(&Setup::new(role, Chunks::Fixed(64 << 10)));
        }
        for case in &autobahn::section_9_whole(1 << 20) {
            case.run(&Setup::new(role, Chunks::Whole));
            case.run_bare(&Setup::new(role, Chunks::Random(9)));
        }
    }
    // One long message byte by byte, and read byte by byte.
    let setup = Setup { takes: Chunks::OneByte, ..Setup::new(Role::Server, Chunks::OneByte) };
    autobahn::section_9_whole(256 << 10)[1].run(&setup);
}

/// The full 4 MiB in 65,536 fragments once in each role, 256 KiB in all chunkings.
#[test]
fn section_9_many_fragments() {
    let full = autobahn::section_9_fragmented(4 << 20);
    assert_eq!(full.len(), 18);
    for role in ROLES {
        full[0].run(&Setup::new(role, Chunks::Fixed(64 << 10)));
    }
    run_all(&autobahn::section_9_fragmented(64 << 10));
}

/// 9.5 and 9.6: a message of 1 MiB in chunks of 64 to 2,048 bytes.
#[test]
fn section_9_chopped() {
    let megabyte = &autobahn::section_9_whole(1 << 20);
    for role in ROLES {
        for bits in 6..=11 {
            for case in megabyte.iter().filter(|case| case.id().ends_with(".3")) {
                case.run(&Setup::new(role, Chunks::Fixed(1 << bits)));
            }
        }
    }
}

#[test]
fn section_9_round_trips() {
    let cases = autobahn::section_9_round_trips(100);
    assert_eq!(cases.len(), 12);
    for role in ROLES {
        for case in &cases {
            case.run(&Setup::new(role, Chunks::Whole));
            case.run(&Setup::new(role, Chunks::Random(3)));
        }
    }
}

/// Negotiates a family's parameters with our handshake in either role.
fn agree(family: &Family, role: Role) -> Negotiated {
    let server = DeflateConfig::new().with_mode(DeflateMode::Dedicated).with_threshold(0);
    match role {
        Role::Server => negotiate_offer(family.offers, server).expect("a sound offer").0,
        Role::Client => {
            let client = server
                .clone()
                .with_server_no_context_takeover(family.no_takeover)
                .with_server_max_window_bits(family.window_bits)
                .expect("9 to 15");
            negotiate(Some(client), Some(server)).client
        }
    }
}

/// Runs each shape once in each role; short messages in `short` rounds and byte by byte, long messages in
/// `long` rounds.
fn run_deflate(families: &[Family], short: usize, long: usize) {
    for role in ROLES {
        for family in families {
            let negotiated = agree(family, role);
            let params = negotiated.deflate().expect("compression is agreed");
            assert_eq!(params.server_no_context_takeover(), family.no_takeover, "{}", family.number);
            assert_eq!(params.server_max_window_bits(), family.window_bits, "{}", family.number);
            for (index, shape) in autobahn::SHAPES.iter().enumerate() {
                let is_long = shape.message > 4 << 10;
                let case = family.case(index, if is_long { long } else { short });
                case.run(&Setup::with(negotiated, Chunks::Random(index as u64)));
                if !is_long {
                    case.run(&Setup::with(negotiated, Chunks::Whole));
                    case.run_bare(&Setup::with(negotiated, Chunks::OneByte));
                }
            }
        }
    }
}

#[test]
fn section_12_content() {
    assert_eq!(autobahn::section_12().len() * autobahn::SHAPES.len(), 90);
    run_deflate(&autobahn::section_12(), 10, 2);
}

#[test]
fn section_13_parameters() {
    assert_eq!(autobahn::section_13().len() * autobahn::SHAPES.len(), 126);
    run_deflate(&autobahn::section_13(), 10, 1);
}

/// The assumptions behind sections 12 and 13: echoes are really compressed, and context takeover makes them smaller.
#[test]
fn echoes_are_compressed_and_windows_taken_over() {
    let families = autobahn::section_13();
    for role in ROLES {
        let sent = |family: &Family| family.case(3, 20).run(&Setup::with(agree(family, role), Chunks::Whole));
        let (taken, fresh) = (sent(&families[0]), sent(&families[1]));
        assert!(taken < 20 * 1024 / 3, "{taken} bytes for 20 messages of 1 KiB");
        if role == Role::Server {
            assert!(taken < fresh * 9 / 10, "{taken} with the window, {fresh} without");
        }
    }
}
