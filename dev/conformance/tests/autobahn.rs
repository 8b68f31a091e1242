//! The case families of the Autobahn suite in memory, against a machine of either role.

use sinews_conformance::{Case, Setup, autobahn};
use sinews_proto::Role;
use sinews_testkit::Chunks;

const ROLES: [Role; 2] = [Role::Server, Role::Client];

/// Each case in both roles, cut in all the usual ways, against a session and a bare connection.
fn run_all(cases: &[Case]) {
    for role in ROLES {
        for chunks in Chunks::USUAL {
            let setup = Setup::new(role, chunks);
            for case in cases {
                case.run(&setup);
                case.run_bare(&setup);
            }
        }
    }
}

#[test]
fn section_1_messages() {
    let cases = autobahn::section_1();
    assert_eq!(cases.len(), 16);
    run_all(&cases);
    // 1.1.8 and 1.2.8 come in pieces of 997 bytes.
    for role in ROLES {
        cases[7].run(&Setup::new(role, Chunks::Fixed(997)));
        cases[15].run(&Setup::new(role, Chunks::Fixed(997)));
    }
}

#[test]
fn section_2_pings_and_pongs() {
    let cases = autobahn::section_2();
    // 2.11 is 2.10 byte by byte.
    assert_eq!(cases.len(), 10);
    run_all(&cases);
}

#[test]
fn section_3_reserved_bits() {
    let cases = autobahn::section_3();
    assert_eq!(cases.len(), 7);
    run_all(&cases);
}

#[test]
fn section_4_opcodes() {
    let cases = autobahn::section_4();
    assert_eq!(cases.len(), 10);
    run_all(&cases);
}

#[test]
fn section_5_fragmentation() {
    let cases = autobahn::section_5();
    assert_eq!(cases.len(), 20);
    run_all(&cases);
}

#[test]
fn section_6_utf8() {
    let cases = autobahn::section_6();
    assert_eq!(cases.len(), 145);
    run_all(&cases);
}

#[test]
fn text_fails_at_the_first_impossible_byte_and_not_before() {
    let cases = autobahn::first_impossible_byte();
    assert!(cases.len() > 50, "{}", cases.len());
    run_all(&cases);
}

#[test]
fn section_7_closing() {
    let cases = autobahn::section_7();
    assert_eq!(cases.len(), 37);
    run_all(&cases);
}

#[test]
fn section_10_automatic_fragmentation() {
    run_all(&autobahn::section_10());
}
