//! The loads, and their bytes.

use sinews_proto::Role;
use sinews_testkit::Frame;

use crate::target::Target;

/// A load: connections that each keep some messages in flight, in a closed loop.
#[derive(Debug)]
pub(crate) struct Load {
    /// Connections × bytes × messages in flight.
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    /// Payload bytes of a message.
    pub(crate) size: usize,
    /// Messages of one write; the next write follows when all their echoes have arrived.
    pub(crate) in_flight: usize,
    /// Text or binary.
    text: bool,
    /// Maximum costs of `sinews`.
    bars: &'static [Bar],
}

/// Maximum cost of a message on `sinews`, as a multiple of its cost on another target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    beside: Beside,
    pub(crate) most: f64,
}

/// Targets that a bar compares with.
#[derive(Clone, Copy, Debug)]
enum Beside {
    /// The plain echo with the same kind of wait as `sinews`: on mio, or on io_uring.
    Plain,
    /// The plain echo on the engine, with the same backend.
    Engine,
    /// Each of the other libraries.
    Peers,
    /// Each of the other libraries that sends message by message.
    Sends,
}

/// The loads of `docs/book/src/internals/performance.md`. The bars are from the design.
pub(crate) const LOADS: [Load; 8] = [
    Load::new("64x64", 64, 64, 1).bars(&[Bar::plain(1.05), Bar::peers(1.)]),
    Load::new("64x64x16", 64, 64, 16).bars(&[Bar::engine(1.3), Bar::peers(1.), Bar::sends(1. / 8.)]),
    Load::new("512x512", 512, 512, 1),
    Load::new("4096x64", 4096, 64, 1),
    Load::new("500x1k-text", 500, 1 << 10, 1).text().bars(&[Bar::peers(1.)]),
    Load::new("32x16k", 32, 16 << 10, 1),
    Load::new("4x1m", 4, 1 << 20, 1),
    Load::new("1x16m", 1, 16 << 20, 1).bars(&[Bar::engine(1.2), Bar::peers(1.)]),
];

impl Load {
    pub(crate) const fn new(name: &'static str, connections: usize, size: usize, in_flight: usize) -> Self {
        Self { name, connections, size, in_flight, text: false, bars: &[] }
    }

    const fn text(mut self) -> Self {
        self.text = true;
        self
    }

    const fn bars(mut self, bars: &'static [Bar]) -> Self {
        self.bars = bars;
        self
    }

    /// Returns the bars of a backend of `sinews` beside these targets, each with the target to compare with.
    pub(crate) fn bars_of(&self, sinews: Target, targets: &[Target]) -> Vec<(Target, Bar)> {
        let all = self.bars.iter().flat_map(|bar| targets.iter().map(move |target| (*target, *bar)));
        all.filter(|(target, bar)| match bar.beside {
            Beside::Plain if sinews.needs_ring() => *target == Target::PlainRing,
            Beside::Plain => *target == Target::PlainMio,
            Beside::Engine if sinews.needs_ring() => *target == Target::TcpEchoRing,
            Beside::Engine => *target == Target::TcpEchoPoll,
            Beside::Peers => target.is_peer(),
            Beside::Sends => Target::PEERS.contains(target),
        })
        .collect()
    }

    /// Returns the bytes of one write of a client, and the expected reply of the target.
    pub(crate) fn batch(&self, target: Target) -> Batch {
        let (mut request, mut frames) = (Vec::new(), Vec::new());
        for number in 0..self.in_flight {
            let payload: Vec<u8> = (0..self.size).map(|at| b'a' + ((at * 7 + number) % 26) as u8).collect();
            let frame = if self.text { Frame::text(payload) } else { Frame::binary(payload) };
            request.extend(frame.clone().key(key(number)).encode(Role::Client));
            frames.extend(frame.encode(Role::Server));
        }
        let reply = if target.speaks_websocket() { frames } else { request.clone() };
        Batch { request, reply, messages: self.in_flight as u64, exact: true }
    }
}

impl Bar {
    const fn plain(most: f64) -> Self {
        Self { beside: Beside::Plain, most }
    }

    const fn engine(most: f64) -> Self {
        Self { beside: Beside::Engine, most }
    }

    const fn peers(most: f64) -> Self {
        Self { beside: Beside::Peers, most }
    }

    const fn sends(most: f64) -> Self {
        Self { beside: Beside::Sends, most }
    }
}

/// The messages in flight on one connection.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Vec<u8>,
    /// Number of messages in the batch.
    pub(crate) messages: u64,
    /// The reply is the same each time, byte for byte.
    pub(crate) exact: bool,
}

/// Returns masks that differ and have no zero byte: a server that skips unmasking cannot pass.
fn key(number: usize) -> [u8; 4] {
    [0x9d, 0x05, 0xe1, 0x7a].map(|byte: u8| byte.wrapping_add(number as u8) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_echo_returns_the_frames_as_they_are_and_sinews_without_mask() {
        let load = &LOADS[1];
        let plain = load.batch(Target::TcpEchoPoll);
        assert_eq!(plain.request, plain.reply);
        assert_eq!(plain.request.len(), 16 * (2 + 4 + 64));
        let sinews = load.batch(Target::SinewsRing);
        assert_eq!(sinews.request, plain.request);
        assert_eq!(sinews.reply.len(), 16 * (2 + 64));
        assert_eq!(&sinews.reply[..5], [0x82, 64, b'a', b'h', b'o']);
    }

    #[test]
    fn bars_compare_like_with_like() {
        let targets = [Target::PlainMio, Target::PlainRing, Target::Axum];
        let beside = |sinews| {
            let bars = LOADS[0].bars_of(sinews, &targets);
            bars.into_iter().map(|(target, bar)| (target, bar.most)).collect::<Vec<_>>()
        };
        assert_eq!(beside(Target::SinewsPoll), [(Target::PlainMio, 1.05), (Target::Axum, 1.)]);
        let bars = LOADS[1].bars_of(Target::SinewsPoll, &[Target::Axum, Target::AxumFeed]);
        let bars: Vec<_> = bars.into_iter().map(|(target, bar)| (target, bar.most)).collect();
        assert_eq!(bars, [(Target::Axum, 1.), (Target::AxumFeed, 1.), (Target::Axum, 1. / 8.)]);
        assert_eq!(beside(Target::SinewsRing), [(Target::PlainRing, 1.05), (Target::Axum, 1.)]);
    }

    #[test]
    fn load_names_match_their_parameters() {
        for load in &LOADS {
            let prefix = format!("{}x", load.connections);
            assert!(load.name.starts_with(&prefix), "{}", load.name);
            assert_eq!(load.name.ends_with("x16"), load.in_flight == 16, "{}", load.name);
            assert_eq!(load.name.ends_with("-text"), load.text, "{}", load.name);
        }
    }
}
