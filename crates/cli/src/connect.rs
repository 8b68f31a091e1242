//! `sinews connect`: a WebSocket client for terminals and scripts, and a matching server.
//!
//! A conversation ([`conversation`]) has three parts: connections, which the library drives and which report
//! [`conversation::ConnectionEvent`]s; input from a terminal, a pipe or a recording ([`input::InputEvent`]); and the
//! output ([`output`]). `--inspect` ([`inspect`]) shares input and output, and handles the wire itself.

mod args;
mod command;
mod console;
mod conversation;
mod dial;
mod end;
mod entry;
mod http3;
mod input;
mod inspect;
mod listen;
mod output;
mod replay;
mod tls;

use std::path::Path;
use std::process::ExitCode;

use tokio::sync::{mpsc, watch};

pub(crate) use self::args::ConnectArgs;
use self::conversation::{Conversation, EVENTS_MAX, EndRules, drive};
use self::dial::OpenedWebSocket;
use self::end::{RunEnd, print_error};
use self::entry::{EntryKind, RecordEntry};
use self::input::InputEvent;
use self::listen::ConnectListener;
use self::output::Output;
use self::replay::Recording;

/// Runs the conversation. The exit code reports the reason for its end.
pub(crate) fn run(args: &ConnectArgs) -> ExitCode {
    if let Some(why) = args.misuse() {
        print_error(why);
        return ExitCode::from(MISUSE);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let end = match runtime {
        Ok(runtime) => runtime.block_on(start(args)),
        Err(error) => RunEnd::io("the runtime", &error),
    };
    end.exit()
}

async fn start(args: &ConnectArgs) -> RunEnd {
    let done = match (&args.url, args.listen) {
        (Some(url), _) if !args.inspect.probe.is_empty() => inspect::probe(args, url).await,
        (Some(url), _) if args.inspect.inspect => inspect::inspect(args, url).await,
        (Some(url), _) => connect(args, url).await,
        (None, Some(address)) => serve(args, address).await,
        (None, None) => Err(RunEnd::failed("a URL or --listen is required")),
    };
    done.unwrap_or_else(|end| end)
}

async fn connect(args: &ConnectArgs, url: &str) -> Result<RunEnd, RunEnd> {
    let secure = dial::ServerUrl::parse(url)?.secure;
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let recording = args.session.replay.as_deref().map(Recording::read).transpose()?;
    // Print the warning before any data is sent.
    if let Some(warning) = dial::warning(args, secure) {
        print_error(warning);
    }
    let (sender, response): (_, OpenedWebSocket) = match &args.dial.unix {
        _ if args.dial.http2 => {
            let (ws, response) = dial::open_http2(args, url).await?;
            (drive(1, ws, events, false), response.into())
        }
        _ if args.dial.http3 => {
            let (ws, response) = http3::open(args, url).await?;
            (drive(1, ws, events, false), response)
        }
        None => {
            let (ws, response) = dial::connect(args, url)?.open().await?;
            (drive(1, ws, events, false), response.into())
        }
        Some(_) => {
            let connect = dial::connect(args, url)?.over(dial::dial(args, url).await?);
            let (ws, response) = connect.open().await?;
            (drive(1, ws, events, false), response.into())
        }
    };
    let entry = RecordEntry {
        kind: EntryKind::Open,
        url: Some(url.to_owned()),
        status: Some(response.status),
        subprotocol: response.subprotocol.clone(),
        extensions: response.extensions.clone(),
        ..RecordEntry::default()
    };
    let (received, seen) = watch::channel(0);
    let expected = recording.as_ref().filter(|_| args.session.check).map(Recording::answers);
    let ProgramIo { output, input, in_console } =
        program_io(args, recording, args.session.check.then_some(seen))?;
    let rules = EndRules { expected, ..rules(args, in_console) };
    let mut conversation = Conversation::new(output, rules, received);
    conversation.open(1, sender, entry, &dial::describe(args, url, &response))?;
    Ok(conversation.run(receiver, input).await)
}

async fn serve(args: &ConnectArgs, address: std::net::SocketAddr) -> Result<RunEnd, RunEnd> {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let listener = ConnectListener::bind(args, address, events).await?;
    let ProgramIo { mut output, input, in_console } = program_io(args, None, None)?;
    // Scripts need the URL too: the system may choose the port.
    output.warn(&format!("listening on {}", listener.url()))?;
    listener.start();
    let conversation = Conversation::new(output, rules(args, in_console), watch::channel(0).0);
    Ok(conversation.run(receiver, input).await)
}

/// Exit code for wrong command-line arguments, equal to the parser's.
const MISUSE: u8 = 2;

/// The program's input and output.
struct ProgramIo {
    output: Output,
    input: mpsc::Receiver<InputEvent>,
    in_console: bool,
}

/// Opens the input: a recording, the terminal, or a pipe.
fn program_io(
    args: &ConnectArgs,
    recording: Option<Recording>,
    seen: Option<watch::Receiver<u64>>,
) -> Result<ProgramIo, RunEnd> {
    if let Some(recording) = recording {
        let input = recording.play(args.session.speed, seen);
        return Ok(ProgramIo { output: Output::open(args, None)?, input, in_console: false });
    }
    if args.output.jsonl || !console::is_interactive() {
        return Ok(ProgramIo {
            output: Output::open(args, None)?,
            input: input::start(args)?,
            in_console: false,
        });
    }
    let history = match &args.output.history {
        Some(path) if path.as_path() == Path::new("none") => None,
        Some(path) => Some(path.clone()),
        None => console::default_history(),
    };
    let (printer, input) = console::start("> ", history, args.inspect.inspect)?;
    Ok(ProgramIo { output: Output::open(args, Some(printer))?, input, in_console: true })
}

fn rules(args: &ConnectArgs, in_console: bool) -> EndRules {
    EndRules {
        in_console,
        wait: args.exit.wait.map(|wait| wait.0),
        count: args.exit.count,
        timeout: args.exit.timeout.map(|timeout| timeout.0),
        expected: None,
        once: args.server.once,
        echo: args.server.echo,
        listening: args.listen.is_some(),
        close_timeout: dial::closing_timeout(&args.limits),
    }
}
