//! Pieces of the input: any split gives the same events and the same signals.

use sinews_http::h3::Config;
use sinews_testkit::Rng;

use super::support::*;

/// Joins pieces of content.
fn joined(seen: Vec<SeenEvent>) -> Vec<SeenEvent> {
    let mut joined: Vec<SeenEvent> = Vec::new();
    for event in seen {
        if let (Some(SeenEvent::Data(last, bytes)), SeenEvent::Data(stream, more)) =
            (joined.last_mut(), &event)
            && last == stream
        {
            bytes.extend_from_slice(more);
            continue;
        }
        joined.push(event);
    }
    joined
}

/// Bytes of a stream, and whether it ends after them.
type Step = (u64, Vec<u8>, bool);

/// Result of a conversation: events, error, signals.
fn run(steps: &[Step], mut cut: impl FnMut(usize) -> usize) -> (Vec<SeenEvent>, Option<String>, Vec<Signal>) {
    let mut server = Side::fresh(Config::new().with_max_sessions(2).with_max_streams(6));
    let mut seen = Vec::new();
    for (stream, bytes, ends) in steps {
        let mut rest = &bytes[..];
        loop {
            let (piece, behind) = rest.split_at(cut(rest.len()).clamp(1, rest.len().max(1)).min(rest.len()));
            rest = behind;
            let is_last = *ends && rest.is_empty();
            match server.receive_into(*stream, piece, is_last, &mut seen) {
                Err(error) => return (joined(seen), Some(error.to_string()), server.signals()),
                // A driver stops here until the stream is resumed.
                Ok(left) if left > 0 => break,
                Ok(_) if rest.is_empty() => break,
                Ok(_) => {}
            }
        }
        let requests: Vec<u64> = seen
            .iter()
            .filter_map(|seen| if let SeenEvent::Request(stream, ..) = seen { Some(*stream) } else { None })
            .collect();
        for stream in requests {
            let _ = server.connection.send_head(id(stream), 200, [], false, &mut server.out);
        }
    }
    (joined(seen), None, server.signals())
}

/// Some streams, mostly valid.
fn conversation(random: &mut Rng) -> Vec<Step> {
    let mut steps = vec![(2, control(&[(0x33, 1), (0x21, 5)]), false)];
    let mut next = 0;
    for _ in 0..random.below(12) {
        let known = if next == 0 { 0 } else { 4 * random.below(next as usize / 4) as u64 };
        let ends = random.below(3) == 0;
        let long = "~".repeat(random.below(300));
        let mut bytes = match random.below(12) {
            0..3 => headers(&[&POST[..], &[("cookie", "a=b"), ("x-long", &long)]].concat()),
            3 => headers(&GET),
            4 => connect(if random.below(2) == 0 { "webtransport" } else { "websocket" }),
            5 => [varint(0x41), varint(known), b"bytes of a session".to_vec()].concat(),
            6 => headers(&[(":method", "GET")]),
            7 => {
                [headers(&[&POST[..], &[("content-length", "30")]].concat()), frame(DATA, &[7; 30])].concat()
            }
            8 => frame(random.below(16) as u64, &vec![3; random.below(12)]),
            9 => vec![random.next_u64() as u8; random.below(20)],
            10 => {
                let stream = 4 * random.below(20) as u64 + 6;
                let stream_type = [0, 2, 3, 0x54, 0x21][random.below(5)];
                let payload: Vec<u8> =
                    (0..random.below(12)).map(|_| random.next_u64() as u8 & 0x2f).collect();
                steps.push((stream, [varint(stream_type), payload].concat(), ends));
                continue;
            }
            _ => {
                let control = [frame(13, &[random.below(9) as u8]), frame(0x21, &vec![1; random.below(70)])];
                steps.push((2, control.concat(), false));
                continue;
            }
        };
        for _ in 0..random.below(4) {
            bytes.extend_from_slice(&match random.below(4) {
                0 => frame(DATA, &vec![1; random.below(2000)]),
                1 => frame(0x21, &vec![1; random.below(80)]),
                2 => frame(DATA, b"\x68\x43\x07\0\0\0\x01bye"),
                _ => headers(&[("trailer", "x")]),
            });
        }
        if random.below(4) > 0 {
            steps.push((next, bytes, ends));
            next += 4;
        } else {
            steps.push((known, bytes, ends));
        }
    }
    steps
}

#[test]
fn any_split_of_the_input_gives_the_same_events() {
    let (mut errors, mut events, mut signals) = (0, 0, 0);
    for seed in 0..600 {
        let steps = conversation(&mut Rng::new(seed));
        let whole = run(&steps, |rest| rest);
        assert_eq!(run(&steps, |_| 1), whole, "seed {seed}");
        let mut random = Rng::new(seed ^ 0xffff);
        assert_eq!(run(&steps, |_| 1 + random.below(40)), whole, "seed {seed}");
        errors += usize::from(whole.1.is_some());
        events += whole.0.len();
        signals += whole.2.len();
    }
    assert!((100..500).contains(&errors) && events > 1500 && signals > 100, "{errors} {events} {signals}");
}
