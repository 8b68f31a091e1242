//! The server that the HTTP cases are asked of: `http-subject poll|uring DIRECTORY [TLS ADDRESS]`. It echoes the
//! body of any request to any path, but for the few of `subject`. In the directory it makes the file that is served and a
//! Unix socket, and there it finds its certificate.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use sinews_conformance::http::subject;
use sinews_server::{
    Certificates, Context, EngineConfig, Files, Handler, Payload, Response, Router, Server, TlsConfig,
    WebSocketRoute,
};

struct Silent;

impl Handler for Silent {
    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(backend), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err("http-subject poll|uring DIRECTORY [TLS ADDRESS]".into());
    };
    let directory = PathBuf::from(directory);
    let files = directory.join("files");
    fs::create_dir_all(&files)?;
    let mut file = File::create(files.join(subject::FILE_NAME))?;
    file.write_all(subject::FILE)?;
    file.set_modified(UNIX_EPOCH + Duration::from_secs(subject::FILE_SECONDS))?;
    let router = Router::new()
        .any("/", |request| Response::new(200).with_body(request.body().to_vec()))
        .any("/{*rest}", |request| Response::new(200).with_body(request.body().to_vec()))
        .get(subject::ONLY_GET, |_| Response::text("get\n"))
        .files(subject::FILES, Files::open(files)?)
        .websocket(subject::WEBSOCKET, WebSocketRoute::new(|_request| Ok(Silent)));
    let mut server = Server::new(router)
        .listen("127.0.0.1:0".parse()?)
        .listen_unix(directory.join("socket"), 0o600)
        // So that what was sent before an answer has been looked at when that comes.
        .threads(1)
        .engine(EngineConfig::default().backend(backend.parse()?));
    if let Some(address) = arguments.next() {
        let read = |name| fs::read(directory.join(name));
        let certificates = Certificates::new().with_pem(&read("certificate.pem")?, &read("key.pem")?)?;
        server = server.listen_tls(address.parse()?, TlsConfig::new(certificates)?);
    }
    let server = server.bind()?;
    println!("listening on {}", server.addresses()[0]);
    server.run()?;
    Ok(())
}
