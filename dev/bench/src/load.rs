//! The loads.

use std::net::SocketAddr;

use crate::Error;
use crate::generator::Generator;
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
pub(crate) const LOADS: [Load; 9] = [
    Load::new("64x64", 64, 64, 1).bars(&[Bar::plain(1.05), Bar::peers(1.)]),
    Load::new("64x64x16", 64, 64, 16).bars(&[Bar::engine(1.3), Bar::peers(1.), Bar::sends(1. / 8.)]),
    Load::new("512x512", 512, 512, 1),
    Load::new("64x512x16-text", 64, 512, 16).text(),
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

    /// Opens the load on a target. A plain echo gets messages as long as the masked frames of the others.
    pub(crate) fn open(&self, target: Target, address: SocketAddr) -> Result<Generator, Error> {
        let (connections, in_flight) = (self.connections.to_string(), self.in_flight.to_string());
        let websocket = target.speaks_websocket();
        let size = if websocket { self.size } else { masked_frame(self.size) }.to_string();
        let url = if websocket { format!("ws://{address}/echo") } else { format!("tcp://{address}") };
        let kind = if self.text { "--text" } else { "--binary" };
        let load = ["-c", &connections, "-i", &in_flight, "-s", &size, "--burst"];
        Generator::warm(&url, &[&load[..], &[kind]].concat())
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

/// Bytes of a client's frame with this payload (RFC 6455 section 5.2).
const fn masked_frame(payload: usize) -> usize {
    let length = match payload {
        0..126 => 0,
        126..65_536 => 2,
        _ => 8,
    };
    2 + length + 4 + payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_echo_gets_the_bytes_of_masked_frames() {
        assert_eq!([0, 64, 125, 126, 65_535, 65_536].map(masked_frame), [6, 70, 131, 134, 65_543, 65_550]);
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
            let counts = load.name.trim_end_matches("-text");
            assert_eq!(counts.ends_with("x16"), load.in_flight == 16, "{}", load.name);
            assert_eq!(load.name.ends_with("-text"), load.text, "{}", load.name);
        }
    }
}
