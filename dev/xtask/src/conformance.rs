//! HTTP cases against the server (see [`crate::http`]); the Autobahn suite against the server, with TLS too,
//! and against the library: run in shards, with stricter verdicts than its own (see [`crate::report`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use clap::{Args, ValueEnum};

use crate::Outcome;
use crate::backend::{Backend, Choice};
use crate::certificate::Certificate;
use crate::count::Count;
use crate::http;
use crate::process;
use crate::report;
use crate::server::{self, Server};
use crate::suite::{self, Messages, Shard, Subject, Suite};

#[derive(Args)]
pub(crate) struct Options {
    /// Cases, such as `1.1.*,6.3.1`
    #[arg(long, default_value = "*")]
    cases: String,
    /// Messages in each case of sections 12 and 13
    #[arg(long, default_value_t = 20, conflicts_with = "full")]
    count: u32,
    /// Run the suite's default of 1,000 messages in each case of sections 12 and 13
    #[arg(long)]
    full: bool,
    /// Sections run at the same time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// Subjects to test [default: all]: the HTTP cases, the program `sinews serve`, the same over TLS, over HTTP/2,
    /// over HTTP/3, or the library on a runtime
    #[arg(long, value_enum, value_delimiter = ',')]
    target: Vec<Target>,
    /// End of the connection to test [default: both]
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Address to test, instead of starting a server
    #[arg(long, conflicts_with_all = ["binary", "deflate", "backend", "target", "role"])]
    url: Option<String>,
    /// Path of the `sinews` program to test, instead of building it
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Compression of the started `sinews serve`
    #[arg(long, value_enum, default_value_t = Deflate::Dedicated)]
    deflate: Deflate,
    /// Backend of the started `sinews serve`: all cases run once for each. compio needs `uring`
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    Http,
    Serve,
    Tls,
    Http2,
    Http3,
    Tokio,
    Axum,
    Compio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Server,
    Client,
}

#[derive(Clone, Copy, ValueEnum)]
enum Deflate {
    Shared,
    Dedicated,
}

/// A program of `examples/programs`: an echo server, or a client that runs the suite's cases.
struct Program {
    name: &'static str,
    target: Target,
    role: Role,
}

const PROGRAMS: [Program; 5] = [
    Program { name: "echo-server", target: Target::Tokio, role: Role::Server },
    Program { name: "echo-axum", target: Target::Axum, role: Role::Server },
    Program { name: "echo-compio", target: Target::Compio, role: Role::Server },
    Program { name: "autobahn-client", target: Target::Tokio, role: Role::Client },
    Program { name: "autobahn-client-compio", target: Target::Compio, role: Role::Client },
];

impl Options {
    fn wants(&self, target: Target, role: Role) -> bool {
        (self.target.is_empty() || self.target.contains(&target)) && self.role.is_none_or(|only| only == role)
    }

    const fn messages(&self) -> Messages {
        if self.full { Messages::All } else { Messages::Few(self.count) }
    }

    /// Fewer messages over TLS, HTTP/2 and HTTP/3: the first messages cover all of their code.
    fn messages_few(&self) -> Messages {
        if self.full { Messages::All } else { Messages::Few(self.count.min(FEW_COUNT)) }
    }
}

/// The HTTP cases, and the Autobahn suite.
pub(crate) fn run(options: &Options) -> Outcome {
    let wants_http =
        options.wants(Target::Http, Role::Server) && options.cases == "*" && options.url.is_none();
    if !wants_http {
        return run_suite(options);
    }
    let count = http::run_cases(options.binary.as_deref(), options.backend)?;
    if options.target == [Target::Http] { Ok(count) } else { Ok(count + run_suite(options)?) }
}

/// Installs the suite, starts the subject and runs every case.
fn run_suite(options: &Options) -> Outcome {
    let Some(interpreter) = suite::find_python() else {
        println!(
            "skipped: no CPython 2.7 (pyenv install 2.7.18, or set AB_PY27); the suite runs on nothing newer"
        );
        return Ok(Count::SKIPPED);
    };
    let suite = match Suite::install(&interpreter) {
        Ok(suite) => suite,
        Err(why) => {
            println!("skipped: the suite could not be installed from PyPI: {why}");
            return Ok(Count::SKIPPED);
        }
    };
    let expected = suite.list(&options.cases)?;
    let out = process::target().join("xtask/autobahn");
    let _ = fs::remove_dir_all(&out);
    let run = Run { suite: &suite, options, messages: options.messages(), expected: &expected, out };
    if let Some(url) = &options.url {
        return run.against(Subject::Server(url));
    }
    Ok(run.on_serve()? + run.on_library()?)
}

/// All cases against one subject.
struct Run<'a> {
    suite: &'a Suite,
    options: &'a Options,
    messages: Messages,
    expected: &'a [String],
    /// Directory of its reports.
    out: PathBuf,
}

impl Run<'_> {
    fn below(&self, name: &str) -> Run<'_> {
        Run { out: self.out.join(name), ..*self }
    }

    /// Against `sinews serve` on each backend, without TLS and with it.
    fn on_serve(&self) -> Outcome {
        let wants = |target| self.options.wants(target, Role::Server);
        if ![Target::Serve, Target::Tls, Target::Http2, Target::Http3].into_iter().any(wants) {
            return Ok(Count::default());
        }
        let given = self.options.binary.as_deref();
        // The suite's own 1,000 messages take a debug build very long.
        let binary = if self.options.full { server::optimized(given) } else { server::binary(given) }?;
        let permitted = self.options.backend.permitted(&binary)?;
        let mut count = permitted.print_skipped();
        for backend in permitted.backends {
            let name = backend.name();
            if wants(Target::Serve) {
                println!("sinews serve, backend {name}");
                count = count + self.below(name).on_backend(backend, &binary)?;
            }
            if wants(Target::Tls) {
                println!("sinews serve with TLS, backend {name}");
                let messages = self.options.messages_few();
                let run = Run { messages, ..self.below(&format!("{name}-tls")) };
                count = count + run.on_backend_tls(backend, &binary)?;
            }
            if wants(Target::Http2) {
                println!("sinews serve over HTTP/2, backend {name}");
                let messages = self.options.messages_few();
                let run = Run { messages, ..self.below(&format!("{name}-http2")) };
                count = count + run.on_backend_http2(backend, &binary)?;
            }
            if wants(Target::Http3) {
                println!("sinews serve over HTTP/3, backend {name}");
                let messages = self.options.messages_few();
                let run = Run { messages, ..self.below(&format!("{name}-http3")) };
                count = count + run.on_backend_http3(backend, &binary)?;
            }
        }
        Ok(count)
    }

    fn on_backend(&self, backend: Backend, binary: &Path) -> Outcome {
        let server = Server::start(binary, &self.arguments(backend), &self.out.join("server.log"))?;
        let url = format!("{}/echo", server.url());
        self.on_server(server, &url)
    }

    /// The suite does not verify the server's certificate.
    fn on_backend_tls(&self, backend: Backend, binary: &Path) -> Outcome {
        let certificate = Certificate::make(&self.out)?;
        let log = self.out.join("server.log");
        let server = Server::start_tls(binary, &self.arguments(backend), &certificate, &log)?;
        let url = format!("wss://{}/echo", server.address());
        self.on_server(server, &url)
    }

    /// The suite speaks HTTP/1.1 with a proxy, which passes the bytes on over streams of one connection.
    fn on_backend_http2(&self, backend: Backend, binary: &Path) -> Outcome {
        let arguments = [&self.arguments(backend)[..], &["--http-http2-clear-text"]].concat();
        let server = Server::start(binary, &arguments, &self.out.join("server.log"))?;
        let proxied = server.address().to_string();
        self.behind_proxy(server, "http2-proxy", &[&proxied])
    }

    /// As over HTTP/2, but with a connection for each client.
    fn on_backend_http3(&self, backend: Backend, binary: &Path) -> Outcome {
        let certificate = Certificate::make(&self.out)?;
        let arguments = [&self.arguments(backend)[..], &["--http-http3"]].concat();
        let log = self.out.join("server.log");
        let server = Server::start_tls(binary, &arguments, &certificate, &log)?;
        let proxied = server.address().to_string();
        let certificate = certificate.certificate.display().to_string();
        self.behind_proxy(server, "http3-proxy", &[&proxied, &certificate])
    }

    fn behind_proxy(&self, server: Server, name: &str, arguments: &[&str]) -> Outcome {
        let programs = server::build_all_debug(&[name])?;
        let mut proxy = Command::new(programs.join(name));
        proxy.args(arguments);
        let mut proxy = Server::start_announced(&mut proxy, &self.out.join("proxy.log"))?;
        let url = format!("{}/echo", proxy.url());
        let count = self.on_server(server, &url)?;
        Ok(match proxy.ended() {
            None => count,
            Some(how) => {
                println!("  proxy: {how}");
                count + Count::FAILED
            }
        })
    }

    fn arguments(&self, backend: Backend) -> [&'static str; 4] {
        let deflate = match self.options.deflate {
            Deflate::Shared => "shared",
            Deflate::Dedicated => "dedicated",
        };
        ["--deflate", deflate, "--backend", backend.name()]
    }

    /// Against the programs on the library.
    fn on_library(&self) -> Outcome {
        let mut chosen: Vec<_> =
            PROGRAMS.iter().filter(|program| self.options.wants(program.target, program.role)).collect();
        let mut count = Count::default();
        if chosen.iter().any(|program| program.target == Target::Compio) {
            let permitted = self.options.backend.permitted_uring(self.options.binary.as_deref())?;
            count = permitted.print_skipped();
            if permitted.backends.is_empty() {
                chosen.retain(|program| program.target != Target::Compio);
            }
        }
        if chosen.is_empty() {
            return Ok(count);
        }
        let binaries = if self.options.full {
            server::build_all("sinews-programs")?
        } else {
            server::build_all_debug(&PROGRAMS.map(|program| program.name))?
        };
        for Program { name, target, role } in chosen {
            println!("library on {}, {}", value_name(target), value_name(role));
            count = count + self.below(name).on_program(&binaries.join(name), *role)?;
        }
        Ok(count)
    }

    fn on_program(&self, program: &Path, role: Role) -> Outcome {
        if role == Role::Client {
            return self.against(Subject::Client(program));
        }
        let mut command = Command::new(program);
        let server = Server::start_announced(command.arg("127.0.0.1:0"), &self.out.join("server.log"))?;
        let url = server.url();
        self.on_server(server, &url)
    }

    /// Runs the cases against a server of ours, which must outlive the run.
    fn on_server(&self, mut server: Server, url: &str) -> Outcome {
        let count = self.against(Subject::Server(url))?;
        if let Some(usage) = server.usage() {
            let mib = usage.resident_kib_max / 1024;
            println!("server: {:.1} s of CPU, {mib} MiB resident at most", usage.cpu_seconds);
        }
        Ok(match server.ended() {
            None => count,
            Some(how) => {
                println!("  {how}");
                count + Count::FAILED
            }
        })
    }

    fn against(&self, subject: Subject<'_>) -> Outcome {
        let Self { expected, out, .. } = self;
        fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
        match subject {
            Subject::Server(url) => println!("{} cases against {url}", expected.len()),
            Subject::Client(program) => println!("{} cases for {}", expected.len(), program.display()),
        }
        let started = Instant::now();
        let shards = suite::shards(expected);
        let faults = self.run_shards(&shards, subject);
        let wall = started.elapsed();

        let mut cases = Vec::new();
        for shard in &shards {
            // A shard without a report is already among the faults; its cases count as not run.
            cases.extend(report::read(&out.join(&shard.name)).unwrap_or_default());
        }
        let count = report::judge(&cases, expected);
        for fault in faults {
            println!("  {fault}");
        }
        println!("wall {:.1} s; reports in {}", wall.as_secs_f64(), out.display());
        Ok(count)
    }

    /// Runs the shards, `--jobs` at a time, the last sections first since they take longest. Returns the
    /// faults.
    fn run_shards(&self, shards: &[Shard], subject: Subject<'_>) -> Vec<String> {
        let queue = Mutex::new(shards.iter().collect::<Vec<_>>());
        let faults = Mutex::new(Vec::new());
        let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
        thread::scope(|scope| {
            for _ in 0..self.options.jobs {
                scope.spawn(|| {
                    while let Some(shard) = take() {
                        if let Err(fault) = self.suite.run(shard, self.messages, subject, &self.out) {
                            faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
                        }
                    }
                });
            }
        });
        faults.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum messages in each case of sections 12 and 13 over TLS, HTTP/2 and HTTP/3.
const FEW_COUNT: u32 = 5;

/// Returns the name of a value on the command line.
fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
