//! # embedded-hub
//!
//! The real-time server in a program without its optional parts: no cluster, no pages, no webhooks.
//!
//! ```sh
//! cargo run -p embedded-hub
//! curl -d hello http://127.0.0.1:8080/topics/chat.lobby
//! ```
//!
//! `--features all` compiles all parts. docs/book/src/library/hub.md has the figures of both builds.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;

use sinews_hub::Hub;
use sinews_server::{BoundServer, Router, Server};

/// Serves until the server is stopped. Calls `ready` when the address is bound.
fn serve(address: SocketAddr, ready: impl FnOnce(&BoundServer)) -> Result<(), Box<dyn Error>> {
    let hub = Hub::builder().history("chat.>", 100).build()?;
    let server = hub.configure(Server::new(hub.mount(Router::new()))).listen(address).bind()?;
    let hub = hub.start(&server)?;
    ready(&server);
    server.run()?;
    hub.shut_down();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    serve(([127, 0, 0, 1], 8080).into(), |server| {
        for address in server.addresses() {
            println!("http://{address}/topics");
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Sends a request on a connection of its own; returns the answer.
    fn request(address: SocketAddr, line: &str, rest: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{rest}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn topics_are_served_and_the_pages_only_together() {
        let (ready, is_ready) = channel();
        let server = thread::spawn(move || {
            serve(([127, 0, 0, 1], 0).into(), |server| {
                ready.send((server.addresses()[0], server.stop_handle())).unwrap();
            })
            .unwrap();
        });
        let (address, stop) = is_ready.recv().unwrap();

        let published = request(address, "POST /topics/chat.lobby", "Content-Length: 5\r\n\r\nhello");
        assert!(published.ends_with("{\"subscribers\":0,\"topic\":\"chat.lobby\"}\n"), "{published}");
        let poll =
            request(address, "GET /topics/chat.lobby?wait=0&last=1", "Accept: application/json\r\n\r\n");
        assert!(poll.contains("\"data\":\"hello\""), "{poll}");
        assert!(request(address, "GET /metrics", "\r\n").contains("sinews_rejections"));
        // Another package of the same build may enable the feature.
        let is_served = |path| !request(address, &format!("GET {path}"), "\r\n").starts_with("HTTP/1.1 404");
        let pages = ["/", "/chat", "/console", "/dashboard", "/dashboard/feed", "/sinews.js"].map(is_served);
        assert!(pages == [true; 6] || pages == [false; 6], "{pages:?}");

        stop.stop_now();
        server.join().unwrap();
    }
}
