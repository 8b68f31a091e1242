//! Echo server: `cargo run -p sinews-server --example echo -- [PORT] [auto|poll|uring]`.
//!
//! Use any client, for example `python3 -m websockets ws://127.0.0.1:8080/`.

use std::error::Error;

use sinews_server::{Context, EngineConfig, Handler, Payload, Router, Server, WebSocketRoute};

struct Echo;

impl Handler for Echo {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        // Fails only after a Close.
        let _ = cx.send_payload(payload);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let router = Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Echo)));
    let server = Server::new(router)
        .listen(format!("127.0.0.1:{}", argument(1, "8080")).parse()?)
        .engine(EngineConfig::default().with_backend(argument(2, "auto").parse()?))
        .bind()?;
    println!("ws://{}/", server.addresses()[0]);
    server.run()?;
    Ok(())
}
