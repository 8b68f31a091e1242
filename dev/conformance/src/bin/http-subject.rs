//! The server that the HTTP cases are asked of: `http-subject poll|uring DIRECTORY`. It echoes the body of any request
//! to any path, but for the few of `subject`; in the directory it makes the file that is served.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use sinews_conformance::http::subject;
use sinews_server::{
    Context, EngineConfig, Files, Handler, Payload, Response, Router, Server, WebSocketRoute,
};

struct Silent;

impl Handler for Silent {
    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(backend), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err("http-subject poll|uring DIRECTORY".into());
    };
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory)?;
    let mut file = File::create(directory.join(subject::FILE_NAME))?;
    file.write_all(subject::FILE)?;
    file.set_modified(UNIX_EPOCH + Duration::from_secs(subject::FILE_SECONDS))?;
    let router = Router::new()
        .any("/", |request| Response::new(200).with_body(request.body().to_vec()))
        .any("/{*rest}", |request| Response::new(200).with_body(request.body().to_vec()))
        .get(subject::ONLY_GET, |_| Response::text("get\n"))
        .files(subject::FILES, Files::open(directory)?)
        .websocket(subject::WEBSOCKET, WebSocketRoute::new(|_request| Ok(Silent)));
    let server = Server::new(router)
        .listen("127.0.0.1:0".parse()?)
        // So that what was sent before an answer has been looked at when that comes.
        .threads(1)
        .engine(EngineConfig::default().backend(backend.parse()?))
        .bind()?;
    println!("listening on {}", server.addresses()[0]);
    server.run()?;
    Ok(())
}
