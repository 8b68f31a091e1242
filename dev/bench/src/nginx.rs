//! nginx as a server to measure.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::Error;
use crate::process::Server;

/// Starts nginx in a folder, on a free port. With the paths of a certificate and of its key, it serves HTTP/2.
pub(crate) fn start(
    folder: &Path,
    workers: u8,
    cores: &str,
    certificate: Option<[&str; 2]>,
) -> Result<Server, Error> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let tls = certificate.map(|[certificate, key]| {
        format!("http2 ssl; ssl_certificate {certificate}; ssl_certificate_key {key}")
    });
    let config = CONFIG
        .replace("ADDRESS", &address.to_string())
        .replace("WORKERS", &workers.to_string())
        .replace("TLS", &tls.unwrap_or_default());
    let path = folder.join("nginx.conf");
    fs::write(&path, config)?;
    let arguments = ["-p".into(), folder.into(), "-c".into(), path.into()];
    Server::start_at(Path::new("nginx"), &arguments, cores, address)
}

/// The fast configuration of its documentation: no logs, one listener for each worker, persistent connections.
const CONFIG: &str = "\
daemon off;
pid nginx.pid;
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
    listen ADDRESS reuseport backlog=4096 TLS;
    location = /hello { return 200 \"Hello, world!\"; }
  }
}
";
