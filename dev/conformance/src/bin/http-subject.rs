//! Server for the HTTP cases: `http-subject poll|uring DIRECTORY [TLS ADDRESS [http2]]`. It echoes any request's body
//! on any path except the few paths in `subject`. It creates the served file and a Unix socket in the directory, and
//! reads its certificate from there.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use sinews_conformance::http::subject;
use sinews_server::{
    Certificates, Context, EngineConfig, Files, Handler, HttpConfig, Payload, Response, Router, Server,
    TlsConfig, WebSocketRoute,
};

struct Silent;

impl Handler for Silent {
    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(backend), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err("http-subject poll|uring DIRECTORY [TLS ADDRESS [http2]]".into());
    };
    let directory = PathBuf::from(directory);
    let files = directory.join("files");
    fs::create_dir_all(&files)?;
    let mut file = File::create(files.join(subject::FILE_NAME))?;
    file.write_all(subject::FILE)?;
    file.set_modified(UNIX_EPOCH + Duration::from_secs(subject::FILE_SECONDS))?;
    let answered = Arc::<Mutex<Vec<String>>>::default();
    let (added, taken) = (Arc::clone(&answered), answered);
    let router = Router::new()
        .after("/", move |request, response| {
            let head = request.head();
            if head.path() != subject::ANSWERED {
                let mut answered = added.lock().unwrap_or_else(PoisonError::into_inner);
                answered.push(format!("{} {} {}\n", response.status(), head.method(), head.target()));
                // A client that never takes the lines has the newest.
                let excess = answered.len().saturating_sub(subject::ANSWERED_MAX);
                answered.drain(..excess);
            }
        })
        .get(subject::ANSWERED, move |_| {
            Response::text(
                std::mem::take(&mut *taken.lock().unwrap_or_else(PoisonError::into_inner)).concat(),
            )
        })
        .any("/", |request| Response::new(200).with_body(request.body().to_vec()))
        .any("/{*rest}", |request| Response::new(200).with_body(request.body().to_vec()))
        .any(subject::CONTENT, |_| Response::text("content\n"))
        .get(subject::ONLY_GET, |_| Response::text("get\n"))
        .files(subject::FILES, Files::open(files)?)
        .websocket(subject::WEBSOCKET, WebSocketRoute::new(|_request| Ok(Silent)));
    let mut server = Server::new(router)
        .listen("127.0.0.1:0".parse()?)
        .listen_unix(directory.join("socket"), 0o600)
        // One thread: once a marker request is answered, all earlier bytes are processed.
        .threads(1)
        .engine(EngineConfig::default().with_backend(backend.parse()?));
    if let Some(address) = arguments.next() {
        let read = |name| fs::read(directory.join(name));
        let certificates = Certificates::new().with_pem(&read("certificate.pem")?, &read("key.pem")?)?;
        server = server.listen_tls(address.parse()?, TlsConfig::new(certificates)?);
    }
    let http2 = arguments.next().as_deref() == Some("http2");
    server = server.http(HttpConfig::default().with_http2(http2).with_http2_clear_text(http2));
    let server = server.bind()?;
    println!("listening on {}", server.addresses()[0]);
    server.run()?;
    Ok(())
}
