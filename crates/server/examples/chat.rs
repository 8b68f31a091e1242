//! Chat rooms: `cargo run -p sinews-server --example chat -- [PORT] [auto|poll|uring]`.
//!
//! The path names the room and the member: `python3 -m websockets ws://127.0.0.1:8080/garden/Ada`, and in another
//! terminal `…/garden/Grace`. Each message is broadcast to all members of the room, on all threads.

use std::error::Error;

use sinews_server::{
    CloseCode, Closed, Config, Context, EngineConfig, Handler, Payload, Prepared, PublishOptions, Refusal,
    Request, Router, Server, Topics, WebSocketRoute,
};

struct Member {
    room: String,
    name: String,
}

impl Member {
    /// Rejects an invalid room or name: empty, too long, with line breaks, or a pattern such as `>`, which would
    /// subscribe to every room.
    fn new(request: &Request<'_>) -> Result<Self, Refusal> {
        let part = |of| request.param(of).filter(|part| Topics::check(part).is_ok()).map(String::from);
        let (Some(room), Some(name)) = (part("room"), part("name")) else {
            let refusal = Refusal::new(400).expect("400 is among the statuses of a refusal");
            return Err(refusal.with_body("no such room or name\n"));
        };
        Ok(Self { room, name })
    }

    fn broadcast(&self, words: &str, cx: &mut Context<'_>) {
        let message = Prepared::text(format!("{} {words}", self.name));
        // Encoded once, for any number of members.
        cx.publish(&self.room, &message, PublishOptions::new()).expect("the name was found to be valid");
    }
}

impl Handler for Member {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.subscribe(&self.room).expect("the name was found to be valid, and it is the only one");
        self.broadcast("is here", cx);
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        match payload.text() {
            Some(text) => self.broadcast(&format!("says: {text}"), cx),
            None => {
                // Fails only after a Close, which has the same effect.
                let _ = cx.close(CloseCode::UNSUPPORTED, "this is a room for text");
            }
        }
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        // The own subscription has ended already: only the other members get this.
        self.broadcast("has left", cx);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    // Too many or too large messages end the connection.
    let room = WebSocketRoute::new(Member::new)
        .with_config(Config::default().with_max_message(4 << 10))
        .with_message_rate(10, 50);
    let server = Server::new(Router::new().websocket("/{room}/{name}", room))
        .listen(format!("127.0.0.1:{}", argument(1, "8080")).parse()?)
        .engine(EngineConfig::default().with_backend(argument(2, "auto").parse()?))
        .bind()?;
    println!("ws://{}/garden/Ada", server.addresses()[0]);
    server.run()?;
    Ok(())
}
