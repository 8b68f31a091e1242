use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::{Config, Kind, Negotiated, PeerMisbehaved, Role};
use sinews_session::{Cause, TransportAction};
use sinews_testkit::{Chunks, Codec, Frame, Heard, Machine, Probe, Reply, negotiate, negotiate_plain};

/// A conversation between a peer and an echoing machine: the sent frames and the expected results.
#[derive(Clone, Debug)]
pub struct Case {
    id: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The peer sends a frame.
    Frame(Frame),
    /// The peer sends a part of a frame: from its header or the first offset in its payload to the second
    /// offset.
    Part(Frame, Option<usize>, usize),
    /// The peer sends a message, compressed if negotiated, in frames of at most the given length.
    Message(Kind, Vec<u8>, usize),
    Reply(Reply),
    Heard(Heard),
    /// All expected events so far have happened, and no others.
    Sync,
}

/// A case's environment.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Role of the machine under test.
    pub role: Role,
    /// Chunks of the peer's bytes.
    pub chunks: Chunks,
    /// Partial-send sizes.
    pub takes: Chunks,
    /// Handshake parameters.
    pub negotiated: Negotiated,
    /// The machine's limits.
    pub config: Config,
}

impl Setup {
    /// A role without compression.
    #[must_use]
    pub fn new(role: Role, chunks: Chunks) -> Self {
        Self::with(negotiate_plain(role), chunks)
    }

    /// Returns handshake parameters under the default limits.
    #[must_use]
    pub fn with(negotiated: Negotiated, chunks: Chunks) -> Self {
        let role = negotiated.role();
        Self { role, chunks, takes: Chunks::Whole, negotiated, config: Config::default() }
    }
}

impl Case {
    /// A case with the number from Autobahn.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), steps: Vec::new() }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The peer sends a frame.
    #[must_use]
    pub fn send(self, frame: Frame) -> Self {
        self.then(Step::Frame(frame))
    }

    /// The peer sends a frame's bytes up to an offset in its payload.
    #[must_use]
    pub fn send_head(self, frame: &Frame, payload: usize) -> Self {
        self.then(Step::Part(frame.clone(), None, payload))
    }

    /// The peer sends a frame's payload bytes from one offset to another.
    #[must_use]
    pub fn send_part(self, frame: &Frame, from: usize, to: usize) -> Self {
        self.then(Step::Part(frame.clone(), Some(from), to))
    }

    /// The peer sends a message, compressed if negotiated, in frames of at most `frame` bytes, and receives
    /// it back.
    #[must_use]
    pub fn message(self, kind: Kind, payload: &[u8], frame_max: usize) -> Self {
        self.then(Step::Message(kind, payload.to_vec(), frame_max)).echoes(kind, payload)
    }

    /// The machine reports a message and sends it back.
    #[must_use]
    pub fn echoes(self, kind: Kind, payload: impl AsRef<[u8]>) -> Self {
        let payload = payload.as_ref();
        self.then(Step::Heard(Heard::Message(kind, payload.to_vec())))
            .then(Step::Reply(Reply::Message(kind, payload.to_vec())))
    }

    /// The machine reports a ping and answers it.
    #[must_use]
    pub fn pongs(self, payload: impl AsRef<[u8]>) -> Self {
        let payload = payload.as_ref().to_vec();
        self.then(Step::Heard(Heard::Ping(payload.clone()))).then(Step::Reply(Reply::Pong(payload)))
    }

    /// The machine reports an event and sends nothing.
    #[must_use]
    pub fn hears(self, heard: Heard) -> Self {
        self.then(Step::Heard(heard))
    }

    /// The machine reports a pong and sends nothing.
    #[must_use]
    pub fn hears_pong(self, payload: impl AsRef<[u8]>) -> Self {
        self.hears(Heard::Pong(payload.as_ref().to_vec(), None))
    }

    /// At this point all expected events have happened, and no others.
    #[must_use]
    pub fn by_now(self) -> Self {
        self.then(Step::Sync)
    }

    /// The machine fails the connection with the Close for the fault, and sends nothing after it.
    #[must_use]
    pub fn fails(self, fault: PeerMisbehaved) -> Self {
        let code = fault.close_code().as_u16();
        self.then(Step::Heard(Heard::Over(Some(code), Cause::Fault(fault))))
            .then(Step::Reply(Reply::Close(Some(code), fault.reason().to_owned())))
            .then(Step::Sync)
    }

    /// The machine answers the peer's Close with the same code and no reason.
    #[must_use]
    pub fn closes(self, code: Option<u16>) -> Self {
        self.then(Step::Heard(Heard::Over(code, Cause::Peer)))
            .then(Step::Reply(Reply::Close(code, String::new())))
    }

    /// The peer closes with 1000, as most cases end.
    #[must_use]
    pub fn bye(self) -> Self {
        self.send(Frame::close(1000, "")).closes(Some(1000))
    }

    /// Runs the case in both roles, cut in all the usual ways, against a session and a bare connection
    /// machine.
    ///
    /// # Panics
    /// If a machine deviates from the case.
    pub fn run_everywhere(&self) {
        self.run_under(&Config::default(), None);
    }

    /// Like [`run_everywhere`](Self::run_everywhere), with compression negotiated in either mode.
    ///
    /// # Panics
    /// If a machine deviates from the case.
    pub fn run_everywhere_deflated(&self) {
        for mode in [DeflateMode::Shared, DeflateMode::Dedicated] {
            self.run_under(&Config::default(), Some(DeflateConfig::new().with_mode(mode)));
        }
    }

    /// Like [`run_everywhere`](Self::run_everywhere), under other limits, and with compression if both ends
    /// want it.
    ///
    /// # Panics
    /// If a machine deviates from the case.
    pub fn run_under(&self, config: &Config, deflate: Option<DeflateConfig>) {
        for role in [Role::Server, Role::Client] {
            let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
            for chunks in Chunks::USUAL {
                let setup = Setup { config: config.clone(), ..Setup::with(negotiated, chunks) };
                self.run(&setup);
                self.run_bare(&setup);
            }
        }
    }

    /// Runs the case against a session; returns how many bytes it sent.
    ///
    /// # Panics
    /// If the machine deviates from the case.
    pub fn run(&self, setup: &Setup) -> usize {
        let probe = Probe::session(setup.negotiated, setup.config.clone());
        self.run_on(probe.taking(setup.takes), setup)
    }

    /// Runs the case against a bare connection machine; returns how many bytes it sent.
    ///
    /// # Panics
    /// If the machine deviates from the case.
    pub fn run_bare(&self, setup: &Setup) -> usize {
        let probe = Probe::connection(setup.negotiated, setup.config.clone());
        self.run_on(probe.taking(setup.takes), setup)
    }

    fn run_on<M: Machine>(&self, mut probe: Probe<M>, setup: &Setup) -> usize {
        let context = format!("case {} as {:?}, {:?}", self.id, setup.role, setup.chunks);
        let peer = probe.peer();
        let mut codec = setup.negotiated.deflate().map(|params| Codec::new(peer, params));
        let (mut bytes, mut heard, mut replies) = (Vec::new(), Vec::new(), Vec::new());
        for step in self.steps.iter().chain([&Step::Sync]) {
            match step {
                Step::Frame(frame) => bytes.extend(frame.encode(peer)),
                Step::Part(frame, from, to) => bytes.extend(part(frame, peer, *from, *to)),
                Step::Message(kind, payload, frame_max) => {
                    bytes.extend(encode_message(*kind, payload, *frame_max, peer, codec.as_mut()));
                }
                Step::Reply(reply) => replies.push(reply.clone()),
                Step::Heard(one) => heard.push(one.clone()),
                Step::Sync => {
                    probe.send(&std::mem::take(&mut bytes), setup.chunks);
                    assert_same(&probe.take_heard(), &heard, &context);
                    assert_same(&probe.take_replies(), &replies, &context);
                    heard.clear();
                    replies.clear();
                }
            }
        }
        self.assert_ended(&mut probe, setup, &context);
        probe.output().len()
    }

    /// Checks that the machine has ended the connection and releases the transport.
    fn assert_ended<M: Machine>(&self, probe: &mut Probe<M>, setup: &Setup, context: &str) {
        let by_peer = self.steps.iter().any(|step| matches!(step, Step::Heard(Heard::Over(_, Cause::Peer))));
        let transport_action = match setup.role {
            // The server closes the transport first (RFC 6455 section 7.1.1); so does an end that fails it.
            Role::Client if by_peer => TransportAction::AwaitEnd,
            _ => TransportAction::Finish,
        };
        assert_eq!(probe.machine.transport_action(), transport_action, "{context}");
        // Further input is discarded without an answer.
        probe.send(&Frame::ping("late").encode(probe.peer()), setup.chunks);
        assert!(probe.finishes(), "{context}: lets go of the transport");
        assert_same(&probe.take_heard(), &[], context);
        assert_same(&probe.take_replies(), &[], context);
    }
}

/// Compares, without printing megabytes on failure.
fn assert_same<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T], context: &str) {
    if found != expected {
        let show = |list: &[T]| -> Vec<String> {
            list.iter().map(|one| format!("{one:?}").chars().take(200).collect()).collect()
        };
        panic!("{context}\n   found {:#?}\nexpected {:#?}", show(found), show(expected));
    }
}

fn part(frame: &Frame, peer: Role, from: Option<usize>, to: usize) -> Vec<u8> {
    let bytes = frame.encode(peer);
    let head = bytes.len() - frame.payload().len();
    bytes[from.map_or(0, |from| head + from)..head + to].to_vec()
}

fn encode_message(
    kind: Kind,
    payload: &[u8],
    frame_max: usize,
    peer: Role,
    codec: Option<&mut Codec>,
) -> Vec<u8> {
    let rsv = if codec.is_some() { 4 } else { 0 };
    let compressed = codec.map(|codec| codec.compress(payload));
    let body = compressed.as_deref().unwrap_or(payload);
    let opcode = if kind == Kind::Text { 1 } else { 2 };
    let mut bytes = Vec::new();
    let mut pieces = body.chunks(frame_max).peekable();
    let mut first = true;
    loop {
        let piece = pieces.next().unwrap_or_default();
        let last = pieces.peek().is_none();
        let frame = match first {
            true => Frame::new(opcode, piece).rsv(rsv),
            false => Frame::continuation(piece),
        };
        bytes.extend(frame.fin(last).encode(peer));
        first = false;
        if last {
            return bytes;
        }
    }
}
