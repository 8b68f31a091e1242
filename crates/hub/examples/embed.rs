//! A program with a route of its own, and the hub beside it.
//!
//! ```sh
//! cargo run --package sinews-hub --example embed
//! curl -d hello http://127.0.0.1:8080/topics/chat.lobby     # a route of the hub
//! curl http://127.0.0.1:8080/rooms                          # the program's own route
//! ```
//!
//! The chat page is at <http://127.0.0.1:8080/chat>.

use std::error::Error;
use std::net::SocketAddr;

use sinews_hub::Hub;
use sinews_server::{BoundServer, Response, Router, Server};

/// Serves until the server is stopped. Calls `ready` when the addresses are bound.
pub(crate) fn serve(address: SocketAddr, ready: impl FnOnce(&BoundServer)) -> Result<(), Box<dyn Error>> {
    // The last 100 messages of each room are replayed to clients that reconnect.
    let hub = Hub::builder().history("chat.>", 100).build()?;
    let router = Router::new().get("/rooms", |_| Response::json("[\"chat.lobby\"]\n"));
    let server = hub.configure(Server::new(hub.mount(router)));
    let server = server.listen(address).bind()?;
    let hub = hub.start(&server)?;
    ready(&server);
    server.run()?;
    hub.shut_down();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    serve(([127, 0, 0, 1], 8080).into(), |server| {
        for address in server.addresses() {
            println!("http://{address}/chat");
        }
    })
}
