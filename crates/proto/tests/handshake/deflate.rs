//! Server side of the permessage-deflate negotiation (RFC 7692 section 7.1).

use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::handshake::{Accepted, ServerOptions};

use crate::Lines;

fn dedicated() -> DeflateConfig {
    DeflateConfig::new().with_mode(DeflateMode::Dedicated)
}

fn accept(lines: &[&str], config: Option<DeflateConfig>) -> Result<Accepted, u16> {
    let request = lines
        .iter()
        .fold(Lines::new(), |request, line| request.with(&format!("Sec-WebSocket-Extensions: {line}")));
    let options = match config {
        Some(config) => ServerOptions::new().with_deflate(config),
        None => ServerOptions::new(),
    };
    request.accept(&options).map_err(|refusal| refusal.status())
}

/// The answer and the agreed parameters: server takeover, client takeover, server bits, client bits.
fn agreed(lines: &[&str], config: DeflateConfig) -> Option<(String, (bool, bool, u8, u8))> {
    let accepted = accept(lines, Some(config)).expect("an offer never fails the handshake");
    let params = accepted.negotiated().deflate().map(|params| {
        (
            !params.server_no_context_takeover(),
            !params.client_no_context_takeover(),
            params.server_max_window_bits(),
            params.client_max_window_bits(),
        )
    });
    assert_eq!(accepted.extensions().is_some(), params.is_some());
    accepted.extensions().map(str::to_owned).zip(params)
}

#[test]
fn offers_are_answered_within_their_limits() {
    for (offer, answer, params) in [
        ("permessage-deflate", "", (true, true, 15, 15)),
        // The offer of browsers.
        ("permessage-deflate; client_max_window_bits", "", (true, true, 15, 15)),
        ("permessage-deflate; client_max_window_bits=15", "", (true, true, 15, 15)),
        (
            "permessage-deflate; client_max_window_bits=10",
            "; client_max_window_bits=10",
            (true, true, 15, 10),
        ),
        (
            "permessage-deflate; client_max_window_bits=\"9\"",
            "; client_max_window_bits=9",
            (true, true, 15, 9),
        ),
        // A client that limits itself to 8 is accepted and gets no limit.
        ("permessage-deflate; client_max_window_bits=8", "", (true, true, 15, 15)),
        (
            "permessage-deflate; server_max_window_bits=15",
            "; server_max_window_bits=15",
            (true, true, 15, 15),
        ),
        ("permessage-deflate; server_max_window_bits=9", "; server_max_window_bits=9", (true, true, 9, 15)),
        (
            "permessage-deflate; server_no_context_takeover",
            "; server_no_context_takeover",
            (false, true, 15, 15),
        ),
        (
            "permessage-deflate; client_no_context_takeover",
            "; client_no_context_takeover",
            (true, false, 15, 15),
        ),
        (
            "permessage-deflate; client_max_window_bits; server_max_window_bits=10; \
             server_no_context_takeover; client_no_context_takeover",
            "; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=10",
            (false, false, 10, 15),
        ),
    ] {
        let expected = Some((format!("permessage-deflate{answer}"), params));
        assert_eq!(agreed(&[offer], dedicated()), expected, "{offer}");
    }
}

#[test]
fn invalid_offers_are_declined_without_failing_the_handshake() {
    for parameters in [
        "server_max_window_bits=8",
        "server_max_window_bits=7",
        "server_max_window_bits=16",
        "server_max_window_bits=010",
        "server_max_window_bits=09",
        "server_max_window_bits=1",
        "server_max_window_bits=100",
        "server_max_window_bits=-9",
        "server_max_window_bits=x",
        "server_max_window_bits",
        "client_max_window_bits=16",
        "client_max_window_bits=7",
        "client_max_window_bits=08",
        "client_max_window_bits=1x",
        "server_no_context_takeover=1",
        "client_no_context_takeover=\"true\"",
        "unknown",
        "unknown=1",
        "Server_No_Context_Takeover",
        "server_no_context_takeover; server_no_context_takeover",
        "client_no_context_takeover; client_no_context_takeover",
        "server_max_window_bits=10; server_max_window_bits=10",
        "client_max_window_bits; client_max_window_bits=10",
        "client_max_window_bits; client_max_window_bits",
    ] {
        let offer = format!("permessage-deflate; {parameters}");
        assert_eq!(agreed(&[&offer], dedicated()), None, "{offer}");
        // The next offer is chosen, on the same line or another line.
        let good = "permessage-deflate; server_max_window_bits=11";
        let expected = Some((good.to_owned(), (true, true, 11, 15)));
        assert_eq!(agreed(&[&format!("{offer}, {good}")], dedicated()), expected, "{offer}");
        assert_eq!(agreed(&[&offer, good], dedicated()), expected, "{offer}");
    }
}

#[test]
fn first_acceptable_offer_is_chosen() {
    let offers = "permessage-deflate; server_max_window_bits=12, permessage-deflate";
    assert_eq!(agreed(&[offers], dedicated()).map(|agreed| agreed.1), Some((true, true, 12, 15)));
}

#[test]
fn local_limits_only_lower_offered_windows() {
    let twelve = dedicated()
        .with_server_max_window_bits(12)
        .and_then(|config| config.with_client_max_window_bits(11))
        .expect("in range");
    for (offer, answer, params) in [
        // A client gets a limit only if it announces support.
        ("", "; server_max_window_bits=12", (true, true, 12, 15)),
        (
            "; client_max_window_bits",
            "; server_max_window_bits=12; client_max_window_bits=11",
            (true, true, 12, 11),
        ),
        (
            "; client_max_window_bits=9",
            "; server_max_window_bits=12; client_max_window_bits=9",
            (true, true, 12, 9),
        ),
        (
            "; client_max_window_bits=14",
            "; server_max_window_bits=12; client_max_window_bits=11",
            (true, true, 12, 11),
        ),
        ("; server_max_window_bits=10", "; server_max_window_bits=10", (true, true, 10, 15)),
        ("; server_max_window_bits=15", "; server_max_window_bits=12", (true, true, 12, 15)),
    ] {
        let offer = format!("permessage-deflate{offer}");
        let expected = Some((format!("permessage-deflate{answer}"), params));
        assert_eq!(agreed(&[&offer], twelve.clone()), expected, "{offer}");
    }
}

#[test]
fn shared_mode_always_gives_up_takeover_on_both_sides() {
    for offer in
        ["permessage-deflate; client_max_window_bits", "permessage-deflate; client_max_window_bits=15"]
    {
        let expected = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        let expected = Some((expected.to_owned(), (false, false, 15, 15)));
        assert_eq!(agreed(&[offer], DeflateConfig::new()), expected);
    }
    let wish = dedicated().with_client_no_context_takeover(true);
    let params = agreed(&["permessage-deflate; client_max_window_bits"], wish).map(|agreed| agreed.1);
    assert_eq!(params, Some((true, false, 15, 15)));
}

/// Safari of iOS 15 offers no parameter, and keeps its window in any case.
#[test]
fn client_without_parameters_may_take_its_window_over() {
    let bare = "permessage-deflate";
    let expected = Some(("permessage-deflate; server_no_context_takeover".to_owned(), (false, true, 15, 15)));
    assert_eq!(agreed(&[bare], DeflateConfig::new()), expected);
    let wish = dedicated().with_client_no_context_takeover(true);
    assert_eq!(agreed(&[bare], wish).map(|agreed| agreed.1), Some((true, true, 15, 15)));
    for parameter in ["server_no_context_takeover", "server_max_window_bits=12", "client_no_context_takeover"]
    {
        let offer = format!("{bare}; {parameter}");
        let params = agreed(&[&offer], DeflateConfig::new()).map(|agreed| agreed.1);
        assert!(params.is_some_and(|(server, client, ..)| !server && !client), "{offer}");
    }
}

#[test]
fn unknown_extensions_are_ignored() {
    for (lines, expected) in [
        (&["x-webkit-deflate-frame"][..], None),
        (&["foo; unknown=1, permessage-deflate, bar"], Some("permessage-deflate")),
        (&["foo", "permessage-deflate"], Some("permessage-deflate")),
        (&["PERMESSAGE-DEFLATE"], None),
        (&["permessage-deflate2"], None),
    ] {
        assert_eq!(agreed(lines, dedicated()).map(|agreed| agreed.0).as_deref(), expected, "{lines:?}");
    }
}

#[test]
fn deflate_is_declined_without_the_option() {
    let accepted = accept(&["permessage-deflate"], None).expect("sound");
    assert_eq!((accepted.extensions(), accepted.negotiated().deflate()), (None, None));
}

/// RFC 6455 section 9.1: a recipient of a grammar violation must fail the connection.
#[test]
fn malformed_extensions_header_is_400_at_any_position() {
    for lines in [
        &[""][..],
        &[","],
        &[";permessage-deflate"],
        &["permessage-deflate;"],
        &["permessage-deflate; server_max_window_bits="],
        &["permessage-deflate; server_max_window_bits=\"10"],
        &["permessage-deflate; server_max_window_bits=\"1 0\""],
        &["permessage-deflate; a=\"x,y\""],
        &["permessage-deflate server_no_context_takeover"],
        &["permessage-deflate, foo;"],
        &["permessage-deflate", "foo bar"],
        &["foo bar", "permessage-deflate"],
    ] {
        assert_eq!(accept(lines, Some(dedicated())).err(), Some(400), "{lines:?}");
        assert_eq!(accept(lines, None).err(), Some(400), "{lines:?}");
    }
}

#[test]
fn empty_elements_and_lines_are_skipped() {
    for lines in [&[", permessage-deflate ,,"][..], &["", "permessage-deflate"], &["permessage-deflate", ","]]
    {
        assert_eq!(
            agreed(lines, dedicated()).map(|agreed| agreed.0).as_deref(),
            Some("permessage-deflate"),
            "{lines:?}"
        );
    }
}
