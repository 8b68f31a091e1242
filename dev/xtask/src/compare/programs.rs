//! The programs of the servers: how cargo builds them, and the commands that start them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Load;
use super::contenders::{Contender, Program, Serves};
use crate::process;

/// The built programs.
pub(crate) struct Programs {
    profile: String,
    /// Threads of each server.
    threads: u8,
    python_packages: Option<String>,
    built: BTreeSet<Program>,
    certificate: Certificate,
}

/// A self-signed certificate for `localhost`, and its key, as files.
struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
}

impl Program {
    /// Arguments of cargo that build it; none for programs of the system.
    const fn build_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Serve => &["--package", "sinews-cli", "--bin", "sinews"],
            Self::ServeHttp3 => &["--package", "sinews-cli", "--bin", "sinews", "--features", "http3"],
            Self::Hello => &["--package", "sinews-server", "--example", "hello_http"],
            Self::Library => &["--package", "sinews-library"],
            Self::Plain => &["--package", "sinews-loopback"],
            Self::TcpEcho => &["--package", "sinews-engine", "--example", "tcp_echo"],
            Self::Peer => &["--package", "sinews-peers", "--features", "peers", "--bin", "sinews-peers"],
            Self::PeerHttp3 => {
                &["--package", "sinews-peers", "--features", "http3", "--bin", "sinews-peers-http3"]
            }
            Self::Nginx | Self::Aioquic => &[],
        }
    }

    /// Its path below the profile's folder.
    const fn path(self) -> &'static str {
        match self {
            Self::Serve | Self::ServeHttp3 => "sinews",
            Self::Hello => "examples/hello_http",
            Self::Library => "sinews-library",
            Self::Plain => "sinews-loopback",
            Self::TcpEcho => "examples/tcp_echo",
            Self::Peer => "sinews-peers",
            Self::PeerHttp3 => "sinews-peers-http3",
            Self::Nginx => "nginx",
            Self::Aioquic => "python3",
        }
    }
}

impl Programs {
    pub(crate) fn new(profile: &str, threads: u8, python_packages: Option<&str>) -> Self {
        let folder = process::target().join("xtask/compare");
        Self {
            profile: profile.to_owned(),
            threads,
            python_packages: python_packages.map(str::to_owned),
            built: BTreeSet::new(),
            certificate: Certificate {
                certificate: folder.join("certificate.pem"),
                key: folder.join("key.pem"),
            },
        }
    }

    /// Builds these programs, each once.
    pub(crate) fn build(&mut self, programs: impl Iterator<Item = Program>) -> Result<(), String> {
        let mut programs: BTreeSet<Program> = programs.collect();
        if programs.contains(&Program::ServeHttp3) {
            programs.remove(&Program::Serve);
        }
        for program in programs.difference(&self.built.clone()) {
            let what = program.build_arguments();
            if !what.is_empty() {
                let name = format!("{program:?}").to_lowercase();
                let log = process::target().join(format!("xtask/compare-{name}.log"));
                let mut build = process::cargo();
                build.args(["build", "--profile", &self.profile]).args(what);
                process::run(&mut build, &log, process::COMMAND_LIMIT)?
                    .check(&format!("build of {}", what[1]), &log)?;
            }
            self.built.insert(*program);
        }
        if programs.is_empty() { Ok(()) } else { self.make_certificate() }
    }

    fn make_certificate(&self) -> Result<(), String> {
        let log = process::target().join("xtask/compare-certificate.log");
        let mut command = process::cargo();
        command.args(["run", "--profile", &self.profile, "--package", "sinews-interop", "--", "certificate"]);
        command.args(self.certificate.key.parent());
        process::run(&mut command, &log, process::COMMAND_LIMIT)?.check("certificate", &log)
    }

    pub(crate) fn has(&self, program: Program) -> bool {
        self.built.contains(&program)
    }

    /// The program `sinews`, which is also the load.
    pub(crate) fn sinews(&self) -> PathBuf {
        self.path(Program::Serve)
    }

    fn path(&self, program: Program) -> PathBuf {
        if program.build_arguments().is_empty() {
            return program.path().into();
        }
        let folder = if self.profile == "dev" { "debug" } else { &self.profile };
        process::target().join(folder).join(program.path())
    }

    /// Returns the command of the shell that starts the server on a port.
    pub(super) fn command(&self, one: &Contender, port: u16) -> Result<String, String> {
        let Contender { program, what, serves, .. } = one;
        let secured = match serves {
            Serves::Only(load) => Some((*load, &self.certificate)),
            _ => None,
        };
        let path = quoted(&self.path(*program));
        let threads = self.threads;
        let runtime = if threads > 1 { " --threads multi" } else { "" };
        let files = |certificate: &str, key: &str| {
            secured.map_or_else(String::new, |(_, files)| {
                format!(" {certificate}{} {key}{}", quoted(&files.certificate), quoted(&files.key))
            })
        };
        Ok(match program {
            Program::Serve | Program::ServeHttp3 => {
                let http3 = if *program == Program::ServeHttp3 { " --http-http3" } else { "" };
                let tls = files("--tls-certificate ", "--tls-key ");
                let options =
                    format!("--threads {threads} --deflate off --log error --backend {what}{http3}{tls}");
                format!("{path} serve --listen 127.0.0.1:{port} {options}")
            }
            Program::Hello => {
                let is_http3 = secured.is_some_and(|(load, _)| load.uses_http3());
                let http3 = if is_http3 { " http3" } else { "" };
                format!("{path} {port} {what} {threads}{}{http3}", files("", ""))
            }
            Program::Plain => format!("{path} {what} {port}"),
            Program::TcpEcho => format!("{path} {port} {what}"),
            Program::Library | Program::Peer => {
                format!("{path} {what} {port}{runtime}{}", files("--certificate ", "--key "))
            }
            Program::PeerHttp3 => format!("{path} {what} {port}{}", files("--certificate ", "--key ")),
            Program::Nginx => {
                let config = self.nginx(port, secured.map(|(_, files)| files))?;
                format!(
                    "{path} -p {} -c {}",
                    quoted(&process::target().join("xtask/compare")),
                    quoted(&config)
                )
            }
            Program::Aioquic => {
                let packages = self.python_packages.as_deref().ok_or("aioquic needs --python-packages")?;
                let script = quoted(&process::root().join("dev/bench/peers/http3_aioquic.py"));
                let packages = quoted(Path::new(packages));
                format!("PYTHONPATH={packages} {path} -B {script}{} {port}", files("", ""))
            }
        })
    }

    /// Writes a configuration of nginx, the fast one of its documentation: no logs, one listener for each worker, and persistent
    /// connections. With a certificate it serves HTTP/2.
    fn nginx(&self, port: u16, certificate: Option<&Certificate>) -> Result<PathBuf, String> {
        let tls = certificate.map_or_else(String::new, |files| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            format!("http2 ssl; ssl_certificate {certificate}; ssl_certificate_key {key}")
        });
        let text = NGINX
            .replace("PORT", &port.to_string())
            .replace("WORKERS", &self.threads.to_string())
            .replace("TLS", &tls);
        let folder = process::target().join("xtask/compare");
        process::create_folder(&folder)?;
        let path = folder.join(format!("nginx-{port}.conf"));
        process::write(&path, text)?;
        Ok(path)
    }
}

impl Load {
    pub(super) const fn uses_http3(self) -> bool {
        matches!(self, Self::Http3 | Self::Http3Requests | Self::Sessions | Self::Deliveries)
    }
}

/// Quotes a path for the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

const NGINX: &str = "\
daemon off;
pid nginx-PORT.pid;
error_log stderr crit;
worker_processes WORKERS;
events { worker_connections 4096; }
http {
  access_log off;
  server_tokens off;
  keepalive_requests 1000000000;
  tcp_nodelay on;
  default_type \"text/plain; charset=utf-8\";
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {
    listen 127.0.0.1:PORT reuseport backlog=4096 TLS;
    location = /hello { return 200 \"Hello, world!\"; }
  }
}
";

#[cfg(test)]
mod tests {
    use super::super::contenders::CONTENDERS;
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), "'/a b/it'\\''s'");
    }

    #[test]
    fn each_server_has_a_command_with_its_port() {
        let mut programs = Programs::new("dist", 1, Some("packages"));
        programs.build(std::iter::empty()).expect("nothing is built");
        for one in &CONTENDERS {
            let command = programs.command(one, 4711).expect("a command");
            assert!(command.contains("4711"), "{}: {command}", one.name);
            let has_certificate = command.contains("certificate.pem") || one.program == Program::Nginx;
            assert!(has_certificate || !matches!(one.serves, Serves::Only(_)), "{}: {command}", one.name);
        }
    }
}
