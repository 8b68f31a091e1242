//! Segments of the input: any split gives the same events and the same answers.

use sinews_http::h2::{Config, PREFACE};
use sinews_testkit::Rng;

use super::support::*;

/// Joins pieces of content.
fn joined(seen: Vec<Seen>) -> Vec<Seen> {
    let mut joined: Vec<Seen> = Vec::new();
    for event in seen {
        if let (Some(Seen::Data(last, bytes, end)), Seen::Data(stream, more, ends)) =
            (joined.last_mut(), &event)
            && last == stream
        {
            bytes.extend_from_slice(more);
            *end |= ends;
            continue;
        }
        joined.push(event);
    }
    joined
}

/// Result of a conversation: events, error, answers.
fn run(input: &[u8], mut cut: impl FnMut(usize) -> usize) -> (Vec<Seen>, Option<String>, Vec<Sent>) {
    let mut server = Server::fresh(Config::new().with_extended_connect(true).with_max_streams(4));
    let (mut rest, mut seen) = (input, Vec::new());
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(cut(rest.len()).clamp(1, rest.len()));
        rest = behind;
        if let Err(error) = server.receive_into(piece, &mut seen) {
            return (joined(seen), Some(error.to_string()), server.sent());
        }
    }
    (joined(seen), None, server.sent())
}

/// Some frames, mostly valid.
fn conversation(random: &mut Rng) -> Vec<u8> {
    let mut bytes = [&PREFACE[..], &frame(SETTINGS, 0, 0, &setting(4, 70_000))].concat();
    let mut next = 1;
    for _ in 0..random.below(20) {
        let stream = (2 * random.below(8) + 1) as u32;
        let known = stream.min(next.max(3) - 2);
        let padded = [&[9][..], &vec![7; random.below(300)], &[0; 9]].concat();
        let piece = match random.below(14) {
            0..4 => {
                next += 2;
                let fields = [&POST[..], &[("cookie", "a=b"), ("x-long", &"~".repeat(random.below(200)))]];
                let block = block(&fields.concat());
                let at = random.below(block.len());
                let first = frame(HEADERS, random.below(2) as u8, next - 2, &block[..at]);
                [first, frame(CONTINUATION, END_HEADERS, next - 2, &block[at..])].concat()
            }
            4 => {
                next += 2;
                get(next - 2)
            }
            5 => frame(DATA, 0, known, &vec![1; random.below(2000)]),
            6 => frame(DATA, PADDED | random.below(2) as u8, known, &padded),
            7 => window_update(known, random.below(3) as u32),
            8 => rst_stream(known),
            9 => frame(PING, 0, 0, b"12345678"),
            10 => frame(SETTINGS, 0, 0, &[setting(1, random.below(5000) as u32), setting(4, 9)].concat()),
            11 => frame(0xfa, 0, stream, &vec![0; random.below(40)]),
            12 => headers(known, END_STREAM, &[("trailer", "x")]),
            _ => frame(random.below(10) as u8, random.next_u64() as u8, stream, &vec![3; random.below(12)]),
        };
        bytes.extend_from_slice(&piece);
    }
    bytes
}

#[test]
fn any_split_of_the_input_gives_the_same_events() {
    let (mut errors, mut events) = (0, 0);
    for seed in 0..400 {
        let input = conversation(&mut Rng::new(seed));
        let whole = run(&input, |rest| rest);
        assert_eq!(run(&input, |_| 1), whole, "seed {seed}");
        let mut random = Rng::new(seed ^ 0xffff);
        assert_eq!(run(&input, |_| 1 + random.below(40)), whole, "seed {seed}");
        errors += usize::from(whole.1.is_some());
        events += whole.0.len();
    }
    assert!((50..350).contains(&errors) && events > 500, "{errors} errors, {events} events");
}
