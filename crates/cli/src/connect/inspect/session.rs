//! A connection under inspection: all traffic is shown and checked.

use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::deflate::{DirectionParams, MessageDeflater};
use super::frame;
use super::handshake::InspectResponse;
use super::parser::{FrameEvent, FrameParser, FramePayload};
use super::reactions::ReactionChecker;
use super::show;
use super::violation::Violation;
use crate::connect::args::ConnectArgs;
use crate::connect::command::{ConsoleCommand, FrameCommand, HELP};
use crate::connect::conversation::{interrupts, wait_until};
use crate::connect::dial::ByteStream;
use crate::connect::end::{EndKind, RunEnd};
use crate::connect::input::InputEvent;
use crate::connect::output::Output;

/// High-water mark for outbound bytes, above which input is paused.
const OUT_MAX: usize = 1 << 20;
/// Bytes per read.
const CHUNK: usize = 16 << 10;
/// Time without data after the input has ended.
const WAIT: Duration = Duration::from_secs(1);

/// An inspection's result.
pub(crate) struct InspectionResult {
    pub(crate) violations: Vec<Violation>,
    pub(crate) end: RunEnd,
}

/// A connection under inspection.
pub(crate) struct Inspection<'a> {
    args: &'a ConnectArgs,
    /// `None`: only the result counts.
    output: Option<Output>,
    in_console: bool,
    wait: Option<Duration>,
    inbound: FrameParser,
    outbound: FrameParser,
    deflater: Option<MessageDeflater>,
    reactions: ReactionChecker,
    violations: Vec<Violation>,
    /// Frames per direction.
    frames: [u64; 2],
    out: Vec<u8>,
    sent: u64,
    received: u64,
    close_sent: bool,
    /// The peer's Close code.
    peer_close: Option<Option<u16>>,
    input_ended: bool,
    last_event: Instant,
    /// When closing started.
    closing_since: Option<Instant>,
    end: Option<RunEnd>,
}

impl<'a> Inspection<'a> {
    /// Starts after the handshake, with its violations.
    pub(crate) fn new(
        args: &'a ConnectArgs,
        answer: InspectResponse,
        output: Option<Output>,
        in_console: bool,
    ) -> Self {
        let parser = |from_client| {
            FrameParser::new(
                from_client,
                answer.deflate.as_ref(),
                args.inspect.excerpt,
                args.limits.max_message.0,
            )
        };
        Self {
            args,
            output,
            in_console,
            wait: args.exit.wait.map(|wait| wait.0),
            inbound: parser(false),
            outbound: parser(true),
            deflater: answer
                .deflate
                .as_ref()
                .and_then(|params| MessageDeflater::new(DirectionParams::new(params, true))),
            reactions: ReactionChecker::default(),
            violations: answer.violations,
            frames: [0; 2],
            out: Vec::new(),
            sent: 0,
            received: 0,
            close_sent: false,
            peer_close: None,
            input_ended: false,
            last_event: Instant::now(),
            closing_since: None,
            end: None,
        }
    }

    /// Sets a reaction's timeout in place of the option's value.
    pub(crate) fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Expects the connection to end although no frame violates a rule.
    pub(crate) fn expect_end(&mut self, violation: &Violation) {
        self.reactions.expect_failure(violation);
    }

    /// Records frames sent with the handshake.
    pub(crate) fn record_early(&mut self, bytes: &[u8]) -> Result<(), RunEnd> {
        self.inspect_sent(bytes)
    }

    /// Runs until the connection or the input ends.
    pub(crate) async fn run(
        mut self,
        io: Box<dyn ByteStream>,
        received: &[u8],
        mut input: mpsc::Receiver<InputEvent>,
    ) -> InspectionResult {
        let (mut reader, mut writer) = split(io);
        let done = async {
            self.handle_received(received)?;
            self.run_loop(&mut reader, &mut writer, &mut input).await
        };
        let end = match done.await {
            Ok(()) => self.end.take(),
            Err(failure) => Some(failure),
        };
        let mut end = end.unwrap_or_else(|| self.verdict());
        if let Some(Err(failure)) = self.output.as_mut().map(Output::finish) {
            end = failure;
        }
        InspectionResult { violations: self.violations, end }
    }

    async fn run_loop(
        &mut self,
        reader: &mut ReadHalf<Box<dyn ByteStream>>,
        writer: &mut WriteHalf<Box<dyn ByteStream>>,
        input: &mut mpsc::Receiver<InputEvent>,
    ) -> Result<(), RunEnd> {
        let started = Instant::now();
        let mut chunk = vec![0; CHUNK];
        let mut interrupts = interrupts()?;
        loop {
            self.check_done()?;
            let wants_input = !self.input_ended && self.closing_since.is_none() && self.out.len() < OUT_MAX;
            let timeout = self.args.exit.timeout.map(|timeout| started + timeout.0);
            let due = self.due().into_iter().chain(timeout).min();
            tokio::select! {
                read = reader.read(&mut chunk) => match read {
                    Ok(0) => return self.handle_end(None),
                    Ok(count) => self.handle_received(&chunk[..count])?,
                    Err(error) => return self.handle_end(Some(error.to_string())),
                },
                written = writer.write(&self.out), if !self.out.is_empty() => match written {
                    Ok(count) => {
                        self.out.drain(..count);
                        // TLS buffers writes until a flush.
                        let _ = writer.flush().await;
                    }
                    // A peer that has stopped reading may still have sent data.
                    Err(_) => self.out.clear(),
                },
                command = input.recv(), if wants_input => self.handle_input(command)?,
                () = wait_until(due) => {
                    if timeout.is_some_and(|timeout| Instant::now() >= timeout) {
                        self.end = Some(RunEnd::new(EndKind::TimedOut, "run exceeds --timeout"));
                        return Ok(());
                    }
                    if self.handle_time()? {
                        return Ok(());
                    }
                }
                _ = interrupts.recv() => match self.closing_since {
                    None => self.start_closing()?,
                    Some(_) => return Ok(()),
                },
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        match self.closing_since {
            Some(closing_since) => Some(closing_since + self.args.limits.close_timeout.0),
            None => self.input_ended.then(|| self.last_event + self.wait.unwrap_or(WAIT)),
        }
    }

    /// Handles expired timeouts. Returns whether the inspection is complete.
    fn handle_time(&mut self) -> Result<bool, RunEnd> {
        let now = Instant::now();
        if self.due().is_none_or(|due| now < due) {
            return Ok(false);
        }
        if let Some(violation) = self.reactions.expired() {
            self.report(vec![violation])?;
            return Ok(true);
        }
        if self.closing_since.is_none() {
            self.missing();
            self.start_closing()?;
            // Without a sent Close there is nothing to wait for: the surviving connection was reported.
            return Ok(!self.close_sent);
        }
        let text = format!("within {:?}", self.args.limits.close_timeout.0);
        let violation = match self.peer_close {
            None if !self.close_sent => None,
            None => {
                Some(Violation::new("RFC 6455 section 5.5.1", format!("our Close is not answered {text}")))
            }
            Some(_) => Some(Violation::new(
                "RFC 6455 section 7.1.1",
                format!("the server does not end the transport {text} of the Close"),
            )),
        };
        self.report(violation.into_iter().collect())?;
        Ok(true)
    }

    fn missing(&mut self) {
        if let Some(count) = self.args.exit.count.filter(|count| self.received < *count) {
            let text = format!("received {} of {count} messages (--count)", self.received);
            self.end = Some(RunEnd::new(EndKind::TimedOut, text));
        }
    }

    fn check_done(&mut self) -> Result<(), RunEnd> {
        let all_answered =
            self.wait.is_none() && !self.reactions.has_sent_violation() && self.received >= self.sent;
        let is_done = match self.args.exit.count {
            _ if self.closing_since.is_some() => false,
            _ if self.in_console => self.input_ended,
            Some(count) => self.received >= count,
            None => self.input_ended && all_answered,
        };
        if is_done { self.start_closing() } else { Ok(()) }
    }

    fn start_closing(&mut self) -> Result<(), RunEnd> {
        self.closing_since.get_or_insert_with(Instant::now);
        if self.close_sent || self.reactions.has_sent_violation() {
            Ok(())
        } else {
            self.send(0x88, &1000_u16.to_be_bytes())
        }
    }

    fn handle_input(&mut self, input: Option<InputEvent>) -> Result<(), RunEnd> {
        match input {
            Some(InputEvent::Command(command)) => self.handle_command(command),
            Some(InputEvent::Invalid(why)) => self.lines(&format!("* {why}")),
            Some(InputEvent::Failed(why)) => Err(RunEnd::failed(why)),
            Some(InputEvent::End) | None => {
                self.input_ended = true;
                self.last_event = Instant::now();
                Ok(())
            }
        }
    }

    fn handle_command(&mut self, command: ConsoleCommand) -> Result<(), RunEnd> {
        match command {
            ConsoleCommand::Text(text) => self.send_message(0x81, text.as_bytes()),
            ConsoleCommand::Binary(payload) => self.send_message(0x82, &payload),
            ConsoleCommand::Ping(payload) => self.send(0x89, &payload),
            ConsoleCommand::Pong(payload) => self.send(0x8a, &payload),
            ConsoleCommand::Close(None, _) => self.send(0x88, b""),
            ConsoleCommand::Close(Some(code), reason) => {
                self.send(0x88, &[&code.to_be_bytes(), reason.as_bytes()].concat())
            }
            ConsoleCommand::Raw(bytes) => self.queue(&bytes),
            ConsoleCommand::Frame(FrameCommand { first, masked, length_bytes, payload }) => {
                let key = if masked { Some(mask()?) } else { None };
                self.queue(&frame::write(first, key, length_bytes, &payload))
            }
            ConsoleCommand::Help => self.lines(HELP),
            ConsoleCommand::To(..) | ConsoleCommand::Peers => self.lines("* this command needs --listen"),
        }
    }

    fn send_message(&mut self, first: u8, payload: &[u8]) -> Result<(), RunEnd> {
        match self.deflater.as_mut().and_then(|deflater| deflater.deflate(payload)) {
            Some(compressed) => self.send(first | 0x40, &compressed),
            None => self.send(first, payload),
        }
    }

    fn send(&mut self, first: u8, payload: &[u8]) -> Result<(), RunEnd> {
        self.queue(&frame::write(first, Some(mask()?), None, payload))
    }

    fn queue(&mut self, bytes: &[u8]) -> Result<(), RunEnd> {
        self.out.extend_from_slice(bytes);
        self.inspect_sent(bytes)
    }

    fn inspect_sent(&mut self, bytes: &[u8]) -> Result<(), RunEnd> {
        let mut broken = false;
        for event in self.outbound.read(bytes) {
            match event {
                FrameEvent::Head(head, violations) => {
                    self.frames[1] += 1;
                    self.lines(&show::head('>', self.frames[1], &head))?;
                    broken = self.report_sent(&violations)?;
                }
                FrameEvent::Payload(payload) => {
                    self.show_payload(&payload)?;
                    broken |= self.report_sent(&payload.violations)?;
                    self.reactions.sent(&payload.bytes);
                    match payload.head.opcode() {
                        8 => {
                            self.close_sent = true;
                            self.closing_since.get_or_insert_with(Instant::now);
                            self.reactions.close_sent(code(&payload.bytes), !broken);
                        }
                        9 => self.reactions.pinged(&payload.bytes),
                        _ => self.sent += u64::from(payload.is_message),
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles violations in our own frames: they are deliberate, and the peer's reaction is checked.
    fn report_sent(&mut self, violations: &[Violation]) -> Result<bool, RunEnd> {
        for violation in violations {
            self.reactions.expect_failure(violation);
            self.lines(&format!("    (ours) {violation}"))?;
        }
        Ok(violations.iter().any(|violation| !violation.codes.is_empty()))
    }

    fn handle_received(&mut self, bytes: &[u8]) -> Result<(), RunEnd> {
        for event in self.inbound.read(bytes) {
            match event {
                FrameEvent::Head(head, violations) => {
                    self.frames[0] += 1;
                    self.lines(&show::head('<', self.frames[0], &head))?;
                    self.report(violations)?;
                }
                FrameEvent::Payload(payload) => self.handle_payload(payload)?,
            }
        }
        Ok(())
    }

    fn handle_payload(&mut self, payload: FramePayload) -> Result<(), RunEnd> {
        self.show_payload(&payload)?;
        let is_sound = payload.violations.is_empty();
        let FramePayload { head, bytes, inflated, is_message, violations, .. } = payload;
        self.report(violations)?;
        self.received += u64::from(is_message);
        self.last_event = Instant::now();
        let violation = match head.opcode() {
            8 => {
                self.peer_close = Some(code(&bytes));
                self.closing_since.get_or_insert(self.last_event);
                let violation = self.reactions.close(&bytes);
                if !self.close_sent {
                    let answer =
                        if is_sound { bytes.get(..2).unwrap_or_default().to_vec() } else { vec![3, 0xea] };
                    self.send(0x88, &answer)?;
                }
                violation
            }
            9 if !self.close_sent => {
                self.send(0x8a, bytes.get(..125).unwrap_or(&bytes))?;
                None
            }
            10 => {
                let (rtt, violation) = self.reactions.pong(&bytes);
                if let Some(rtt) = rtt {
                    self.lines(&format!("    after {:.1} ms", rtt.as_secs_f64() * 1e3))?;
                }
                violation
            }
            0..=2 => self.reactions.data(inflated.as_ref().map_or(&bytes, |(bytes, _)| bytes)),
            _ => None,
        };
        self.report(violation.into_iter().collect())
    }

    /// Handles the transport's end.
    fn handle_end(&mut self, error: Option<String>) -> Result<(), RunEnd> {
        let (payload, mut violations) = self.inbound.end();
        if let Some(payload) = payload {
            self.show_payload(&payload)?;
        }
        self.lines(&format!(
            "< transport ended{}",
            error.map_or_else(String::new, |error| format!(": {error}"))
        ))?;
        if self.peer_close.is_none()
            && let Some(violation) = self.reactions.dropped()
        {
            violations = vec![violation];
        }
        self.report(violations)
    }

    fn show_payload(&mut self, payload: &FramePayload) -> Result<(), RunEnd> {
        let shown = show::payload(payload);
        if shown.is_empty() { Ok(()) } else { self.lines(&shown) }
    }

    fn report(&mut self, violations: Vec<Violation>) -> Result<(), RunEnd> {
        for violation in violations {
            self.lines(&show::violation(&violation))?;
            self.violations.push(violation);
        }
        Ok(())
    }

    fn lines(&mut self, text: &str) -> Result<(), RunEnd> {
        self.output.as_mut().map_or(Ok(()), |output| output.lines(text))
    }

    fn verdict(&self) -> RunEnd {
        match self.peer_close {
            _ if !self.violations.is_empty() => show::verdict(self.violations.len()),
            Some(Some(code)) if !matches!(code, 1000 | 1001) && !self.close_sent_first() => {
                RunEnd::new(EndKind::Abnormal, format!("closed by the peer with {code}"))
            }
            _ => RunEnd::new(EndKind::Success, ""),
        }
    }

    /// Whether the peer answered our Close with the same code.
    fn close_sent_first(&self) -> bool {
        self.reactions.has_closed()
    }
}

fn code(payload: &[u8]) -> Option<u16> {
    payload.first_chunk().map(|code| u16::from_be_bytes(*code))
}

fn mask() -> Result<[u8; 4], RunEnd> {
    let mut key = [0; 4];
    random(&mut key)?;
    Ok(key)
}

/// Fills the buffer from the system's random source.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), RunEnd> {
    SystemRandom::new().fill(bytes).map_err(|_| RunEnd::failed("system random source failed"))
}
