//! A connection under inspection: all traffic is shown and checked.

use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::deflate::{Agreed, Deflater};
use super::fault::Fault;
use super::frame;
use super::handshake::Answer;
use super::judge::Judge;
use super::show;
use super::side::{Payload, Seen, Side};
use crate::connect::args::ConnectArgs;
use crate::connect::command::{Command, Frame, HELP};
use crate::connect::dial::Transport;
use crate::connect::end::{End, Kind};
use crate::connect::input::Input;
use crate::connect::output::Output;
use crate::connect::talk::{interrupts, wait_until};

/// High-water mark of outbound bytes, above which input is paused.
const OUT_MAX: usize = 1 << 20;
/// Bytes per read.
const CHUNK: usize = 16 << 10;
/// Time without data after the end of the input.
const WAIT: Duration = Duration::from_secs(1);

/// Result of an inspection.
pub(crate) struct Found {
    pub(crate) faults: Vec<Fault>,
    pub(crate) end: End,
}

/// A connection under inspection.
pub(crate) struct Inspection<'a> {
    args: &'a ConnectArgs,
    /// `None`: only the result counts.
    output: Option<Output>,
    in_console: bool,
    wait: Option<Duration>,
    inbound: Side,
    outbound: Side,
    deflater: Option<Deflater>,
    judge: Judge,
    faults: Vec<Fault>,
    /// Number of frames per direction.
    frames: [u64; 2],
    out: Vec<u8>,
    sent: u64,
    received: u64,
    close_sent: bool,
    /// Code of the peer's Close.
    close_came: Option<Option<u16>>,
    input_ended: bool,
    heard: Instant,
    /// Start time of closing.
    leaving: Option<Instant>,
    end: Option<End>,
}

impl<'a> Inspection<'a> {
    /// Starts after the handshake, with its violations.
    pub(crate) fn new(
        args: &'a ConnectArgs,
        answer: Answer,
        output: Option<Output>,
        in_console: bool,
    ) -> Self {
        let side = |from_client| {
            Side::new(from_client, answer.deflate.as_ref(), args.inspect.excerpt, args.limits.max_message.0)
        };
        Self {
            args,
            output,
            in_console,
            wait: args.end.wait.map(|wait| wait.0),
            inbound: side(false),
            outbound: side(true),
            deflater: answer.deflate.as_ref().and_then(|params| Deflater::new(Agreed::of(params, true))),
            judge: Judge::default(),
            faults: answer.faults,
            frames: [0; 2],
            out: Vec::new(),
            sent: 0,
            received: 0,
            close_sent: false,
            close_came: None,
            input_ended: false,
            heard: Instant::now(),
            leaving: None,
            end: None,
        }
    }

    /// Sets the timeout of a reaction, instead of the option's value.
    pub(crate) fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Expects the connection to end although no frame violates a rule.
    pub(crate) fn expect_end(&mut self, fault: &Fault) {
        self.judge.break_rule(fault);
    }

    /// Records frames sent with the handshake.
    pub(crate) fn sent_early(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.look_at_sent(bytes)
    }

    /// Runs until the connection or the input ends.
    pub(crate) async fn run(
        mut self,
        io: Box<dyn Transport>,
        received: &[u8],
        mut input: mpsc::Receiver<Input>,
    ) -> Found {
        let (mut reader, mut writer) = split(io);
        let done = async {
            self.handle_received(received)?;
            self.turns(&mut reader, &mut writer, &mut input).await
        };
        let end = match done.await {
            Ok(()) => self.end.take(),
            Err(trouble) => Some(trouble),
        };
        let mut end = end.unwrap_or_else(|| self.verdict());
        if let Some(Err(trouble)) = self.output.as_mut().map(Output::finish) {
            end = trouble;
        }
        Found { faults: self.faults, end }
    }

    async fn turns(
        &mut self,
        reader: &mut ReadHalf<Box<dyn Transport>>,
        writer: &mut WriteHalf<Box<dyn Transport>>,
        input: &mut mpsc::Receiver<Input>,
    ) -> Result<(), End> {
        let started = Instant::now();
        let mut chunk = vec![0; CHUNK];
        let mut interrupts = interrupts()?;
        loop {
            self.look_whether_done()?;
            let wants_input = !self.input_ended && self.leaving.is_none() && self.out.len() < OUT_MAX;
            let timeout = self.args.end.timeout.map(|timeout| started + timeout.0);
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
                        self.end = Some(End::new(Kind::TimedOut, "run exceeds --timeout"));
                        return Ok(());
                    }
                    if self.handle_time()? {
                        return Ok(());
                    }
                }
                _ = interrupts.recv() => match self.leaving {
                    None => self.leave()?,
                    Some(_) => return Ok(()),
                },
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        match self.leaving {
            Some(leaving) => Some(leaving + self.args.limits.close_timeout.0),
            None => self.input_ended.then(|| self.heard + self.wait.unwrap_or(WAIT)),
        }
    }

    /// Handles expired timeouts. Returns whether the inspection is complete.
    fn handle_time(&mut self) -> Result<bool, End> {
        let now = Instant::now();
        if self.due().is_none_or(|due| now < due) {
            return Ok(false);
        }
        if let Some(fault) = self.judge.silent() {
            self.found(vec![fault])?;
            return Ok(true);
        }
        if self.leaving.is_none() {
            self.missing();
            self.leave()?;
            // Without a sent Close there is nothing to wait for: the surviving connection was reported.
            return Ok(!self.close_sent);
        }
        let words = format!("within {:?}", self.args.limits.close_timeout.0);
        let fault = match self.close_came {
            None if !self.close_sent => None,
            None => Some(Fault::new("RFC 6455 section 5.5.1", format!("our Close is not answered {words}"))),
            Some(_) => Some(Fault::new(
                "RFC 6455 section 7.1.1",
                format!("the server does not end the transport {words} of the Close"),
            )),
        };
        self.found(fault.into_iter().collect())?;
        Ok(true)
    }

    fn missing(&mut self) {
        if let Some(count) = self.args.end.count.filter(|count| self.received < *count) {
            let words = format!("received {} of {count} messages (--count)", self.received);
            self.end = Some(End::new(Kind::TimedOut, words));
        }
    }

    fn look_whether_done(&mut self) -> Result<(), End> {
        let all_answered = self.wait.is_none() && !self.judge.is_broken() && self.received >= self.sent;
        let is_done = match self.args.end.count {
            _ if self.leaving.is_some() => false,
            _ if self.in_console => self.input_ended,
            Some(count) => self.received >= count,
            None => self.input_ended && all_answered,
        };
        if is_done { self.leave() } else { Ok(()) }
    }

    fn leave(&mut self) -> Result<(), End> {
        self.leaving.get_or_insert_with(Instant::now);
        if self.close_sent || self.judge.is_broken() {
            Ok(())
        } else {
            self.send(0x88, &1000_u16.to_be_bytes())
        }
    }

    fn handle_input(&mut self, input: Option<Input>) -> Result<(), End> {
        match input {
            Some(Input::Command(command)) => self.handle_command(command),
            Some(Input::Bad(why)) => self.lines(&format!("* {why}")),
            Some(Input::Trouble(why)) => Err(End::trouble(why)),
            Some(Input::End) | None => {
                self.input_ended = true;
                self.heard = Instant::now();
                Ok(())
            }
        }
    }

    fn handle_command(&mut self, command: Command) -> Result<(), End> {
        match command {
            Command::Text(text) => self.send_message(0x81, text.as_bytes()),
            Command::Binary(payload) => self.send_message(0x82, &payload),
            Command::Ping(payload) => self.send(0x89, &payload),
            Command::Pong(payload) => self.send(0x8a, &payload),
            Command::Close(None, _) => self.send(0x88, b""),
            Command::Close(Some(code), reason) => {
                self.send(0x88, &[&code.to_be_bytes(), reason.as_bytes()].concat())
            }
            Command::Raw(bytes) => self.queue(&bytes),
            Command::Frame(Frame { first, masked, length_bytes, payload }) => {
                let key = if masked { Some(mask()?) } else { None };
                self.queue(&frame::write(first, key, length_bytes, &payload))
            }
            Command::Help => self.lines(HELP),
            Command::To(..) | Command::Peers => self.lines("* this command needs --listen"),
        }
    }

    fn send_message(&mut self, first: u8, payload: &[u8]) -> Result<(), End> {
        match self.deflater.as_mut().and_then(|deflater| deflater.deflate(payload)) {
            Some(compressed) => self.send(first | 0x40, &compressed),
            None => self.send(first, payload),
        }
    }

    fn send(&mut self, first: u8, payload: &[u8]) -> Result<(), End> {
        self.queue(&frame::write(first, Some(mask()?), None, payload))
    }

    fn queue(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.out.extend_from_slice(bytes);
        self.look_at_sent(bytes)
    }

    fn look_at_sent(&mut self, bytes: &[u8]) -> Result<(), End> {
        let mut broken = false;
        for seen in self.outbound.read(bytes) {
            match seen {
                Seen::Head(head, faults) => {
                    self.frames[1] += 1;
                    self.lines(&show::head('>', self.frames[1], &head))?;
                    broken = self.ours(&faults)?;
                }
                Seen::Payload(payload) => {
                    self.show_payload(&payload)?;
                    broken |= self.ours(&payload.faults)?;
                    self.judge.sent(&payload.bytes);
                    match payload.head.opcode() {
                        8 => {
                            self.close_sent = true;
                            self.leaving.get_or_insert_with(Instant::now);
                            self.judge.close_sent(code(&payload.bytes), !broken);
                        }
                        9 => self.judge.pinged(&payload.bytes),
                        _ => self.sent += u64::from(payload.is_message),
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles violations of our own frames: they are deliberate, and the peer's reaction is checked.
    fn ours(&mut self, faults: &[Fault]) -> Result<bool, End> {
        for fault in faults {
            self.judge.break_rule(fault);
            self.lines(&format!("    (ours) {fault}"))?;
        }
        Ok(faults.iter().any(|fault| !fault.codes.is_empty()))
    }

    fn handle_received(&mut self, bytes: &[u8]) -> Result<(), End> {
        for seen in self.inbound.read(bytes) {
            match seen {
                Seen::Head(head, faults) => {
                    self.frames[0] += 1;
                    self.lines(&show::head('<', self.frames[0], &head))?;
                    self.found(faults)?;
                }
                Seen::Payload(payload) => self.handle_payload(payload)?,
            }
        }
        Ok(())
    }

    fn handle_payload(&mut self, payload: Payload) -> Result<(), End> {
        self.show_payload(&payload)?;
        let is_sound = payload.faults.is_empty();
        let Payload { head, bytes, inflated, is_message, faults, .. } = payload;
        self.found(faults)?;
        self.received += u64::from(is_message);
        self.heard = Instant::now();
        let fault = match head.opcode() {
            8 => {
                self.close_came = Some(code(&bytes));
                self.leaving.get_or_insert(self.heard);
                let fault = self.judge.close(&bytes);
                if !self.close_sent {
                    let answer =
                        if is_sound { bytes.get(..2).unwrap_or_default().to_vec() } else { vec![3, 0xea] };
                    self.send(0x88, &answer)?;
                }
                fault
            }
            9 if !self.close_sent => {
                self.send(0x8a, bytes.get(..125).unwrap_or(&bytes))?;
                None
            }
            10 => {
                let (rtt, fault) = self.judge.pong(&bytes);
                if let Some(rtt) = rtt {
                    self.lines(&format!("    after {:.1} ms", rtt.as_secs_f64() * 1e3))?;
                }
                fault
            }
            0..=2 => self.judge.data(inflated.as_ref().map_or(&bytes, |(bytes, _)| bytes)),
            _ => None,
        };
        self.found(fault.into_iter().collect())
    }

    /// Handles the end of the transport.
    fn handle_end(&mut self, error: Option<String>) -> Result<(), End> {
        let (payload, mut faults) = self.inbound.end();
        if let Some(payload) = payload {
            self.show_payload(&payload)?;
        }
        self.lines(&format!(
            "< transport ended{}",
            error.map_or_else(String::new, |error| format!(": {error}"))
        ))?;
        if self.close_came.is_none()
            && let Some(fault) = self.judge.dropped()
        {
            faults = vec![fault];
        }
        self.found(faults)
    }

    fn show_payload(&mut self, payload: &Payload) -> Result<(), End> {
        let shown = show::payload(payload);
        if shown.is_empty() { Ok(()) } else { self.lines(&shown) }
    }

    fn found(&mut self, faults: Vec<Fault>) -> Result<(), End> {
        for fault in faults {
            self.lines(&show::fault(&fault))?;
            self.faults.push(fault);
        }
        Ok(())
    }

    fn lines(&mut self, text: &str) -> Result<(), End> {
        self.output.as_mut().map_or(Ok(()), |output| output.lines(text))
    }

    fn verdict(&self) -> End {
        match self.close_came {
            _ if !self.faults.is_empty() => show::verdict(self.faults.len()),
            Some(Some(code)) if !matches!(code, 1000 | 1001) && !self.close_sent_first() => {
                End::new(Kind::Abnormal, format!("closed by the peer with {code}"))
            }
            _ => End::new(Kind::Fine, ""),
        }
    }

    /// Whether the peer answered our Close with the same code.
    fn close_sent_first(&self) -> bool {
        self.judge.has_closed()
    }
}

fn code(payload: &[u8]) -> Option<u16> {
    payload.first_chunk().map(|code| u16::from_be_bytes(*code))
}

fn mask() -> Result<[u8; 4], End> {
    let mut key = [0; 4];
    random(&mut key)?;
    Ok(key)
}

/// Fills the buffer from the system's random source.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), End> {
    SystemRandom::new().fill(bytes).map_err(|_| End::trouble("system random source failed"))
}
