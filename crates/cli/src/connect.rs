//! `sinews connect`: a WebSocket client for terminals and scripts, and a matching server.
//!
//! A conversation ([`talk`]) has three parts: connections, which the library drives and which report
//! [`talk::Event`]s; input from a terminal, a pipe or a recording ([`input::Input`]); and the output ([`output`]).
//! `--inspect` ([`inspect`]) shares input and output, and handles the wire itself.

mod args;
mod command;
mod console;
mod dial;
mod end;
mod entry;
mod input;
mod inspect;
mod listen;
mod output;
mod replay;
mod talk;
mod tls;

use std::path::Path;
use std::process::ExitCode;

use tokio::sync::{mpsc, watch};

pub(crate) use self::args::ConnectArgs;
use self::end::{End, tell};
use self::entry::{Entry, Kind};
use self::input::Input;
use self::listen::Listener;
use self::output::Output;
use self::replay::Recording;
use self::talk::{EVENTS_MAX, Rules, Talk, drive};

/// Runs the conversation. The exit code reports the reason for its end.
pub(crate) fn run(args: &ConnectArgs) -> ExitCode {
    if let Some(why) = args.misuse() {
        tell(why);
        return ExitCode::from(MISUSE);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let end = match runtime {
        Ok(runtime) => runtime.block_on(start(args)),
        Err(error) => End::io("the runtime", &error),
    };
    end.exit()
}

async fn start(args: &ConnectArgs) -> End {
    let done = match (&args.url, args.listen) {
        (Some(url), _) if !args.inspect.probe.is_empty() => inspect::probe(args, url).await,
        (Some(url), _) if args.inspect.inspect => inspect::inspect(args, url).await,
        (Some(url), _) => connect(args, url).await,
        (None, Some(address)) => serve(args, address).await,
        (None, None) => Err(End::trouble("a URL or --listen is required")),
    };
    done.unwrap_or_else(|end| end)
}

async fn connect(args: &ConnectArgs, url: &str) -> Result<End, End> {
    let secure = dial::Url::parse(url)?.secure;
    let (events, said) = mpsc::channel(EVENTS_MAX);
    let recording = args.session.replay.as_deref().map(Recording::read).transpose()?;
    // Print the warning before any data is sent.
    if let Some(warning) = dial::warning(args, secure) {
        tell(warning);
    }
    let connect = dial::connect(args, url)?;
    let (sender, response) = match &args.way.unix {
        None => {
            let (ws, response) = connect.open().await?;
            (drive(1, ws, events, false), response)
        }
        Some(_) => {
            let (ws, response) = connect.over(dial::dial(args, url).await?).open().await?;
            (drive(1, ws, events, false), response)
        }
    };
    let entry = Entry {
        kind: Kind::Open,
        url: Some(url.to_owned()),
        status: Some(response.status().as_u16()),
        subprotocol: response.subprotocol().map(str::to_owned),
        extensions: dial::extensions(&response).map(str::to_owned),
        ..Entry::default()
    };
    let (received, seen) = watch::channel(0);
    let expected = recording.as_ref().filter(|_| args.session.check).map(Recording::answers);
    let Ends { output, input, in_console } = ends(args, recording, args.session.check.then_some(seen))?;
    let rules = Rules { expected, ..rules(args, in_console) };
    let mut talk = Talk::new(output, rules, received);
    talk.open(1, sender, entry, &dial::describe(url, &response))?;
    Ok(talk.run(said, input).await)
}

async fn serve(args: &ConnectArgs, address: std::net::SocketAddr) -> Result<End, End> {
    let (events, said) = mpsc::channel(EVENTS_MAX);
    let listener = Listener::bind(args, address, events).await?;
    let Ends { mut output, input, in_console } = ends(args, None, None)?;
    // Scripts need the URL too: the system may choose the port.
    output.warn(&format!("listening on {}", listener.url()))?;
    listener.start();
    let talk = Talk::new(output, rules(args, in_console), watch::channel(0).0);
    Ok(talk.run(said, input).await)
}

/// Exit code of wrong command-line arguments, equal to the parser's.
const MISUSE: u8 = 2;

/// Input and output of the program.
struct Ends {
    output: Output,
    input: mpsc::Receiver<Input>,
    in_console: bool,
}

/// Opens the input: a recording, the terminal, or a pipe.
fn ends(
    args: &ConnectArgs,
    recording: Option<Recording>,
    seen: Option<watch::Receiver<u64>>,
) -> Result<Ends, End> {
    if let Some(recording) = recording {
        let input = recording.play(args.session.speed, seen);
        return Ok(Ends { output: Output::open(args, None)?, input, in_console: false });
    }
    if args.output.jsonl || !console::is_there() {
        return Ok(Ends { output: Output::open(args, None)?, input: input::start(args)?, in_console: false });
    }
    let history = match &args.output.history {
        Some(path) if path.as_path() == Path::new("none") => None,
        Some(path) => Some(path.clone()),
        None => console::default_history(),
    };
    let (printer, input) = console::start("> ", history, args.inspect.inspect)?;
    Ok(Ends { output: Output::open(args, Some(printer))?, input, in_console: true })
}

fn rules(args: &ConnectArgs, in_console: bool) -> Rules {
    Rules {
        in_console,
        wait: args.end.wait.map(|wait| wait.0),
        count: args.end.count,
        timeout: args.end.timeout.map(|timeout| timeout.0),
        expected: None,
        once: args.server.once,
        echo: args.server.echo,
        listening: args.listen.is_some(),
        leaving: dial::leaving_max(&args.limits),
    }
}
