//! Rooms to talk in: `cargo run -p sinews-server --example chat -- [PORT] [auto|poll|uring]`.
//!
//! The path names the room and who comes: `python3 -m websockets ws://127.0.0.1:8080/garden/Ada`, and in another
//! terminal `…/garden/Grace`. What one says, all in the room hear, whatever thread serves them.

use std::error::Error;

use sinews_server::{
    CloseCode, Closed, Config, Context, EngineConfig, Handler, Payload, Prepared, Refusal, Request, Router,
    Server, Topics, WebSocketRoute,
};

struct Member {
    room: String,
    name: String,
}

impl Member {
    /// Refuses a room or a name that cannot be: empty, too long, with line breaks in it, or a pattern such as `>`, by
    /// which one would hear every room.
    fn new(request: &Request<'_>) -> Result<Self, Refusal> {
        let part = |of| request.param(of).filter(|part| Topics::check(part).is_ok()).map(String::from);
        let (Some(room), Some(name)) = (part("room"), part("name")) else {
            let refusal = Refusal::new(400).expect("400 is among the statuses of a refusal");
            return Err(refusal.with_body("no such room or name\n"));
        };
        Ok(Self { room, name })
    }

    fn tell_all(&self, words: &str, cx: &mut Context<'_>) {
        let message = Prepared::text(format!("{} {words}", self.name));
        // Framed once, however many are in the room.
        cx.publish(&self.room, &message).expect("the name was found to be valid");
    }
}

impl Handler for Member {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.subscribe(&self.room).expect("the name was found to be valid, and it is the only one");
        self.tell_all("is here", cx);
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        match payload.text() {
            Some(text) => self.tell_all(&format!("says: {text}"), cx),
            None => {
                // Fails only if a Close is under way, which does as well.
                let _ = cx.close(CloseCode::UNSUPPORTED, "this is a room for text");
            }
        }
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        // The subscription is gone already: the others hear it.
        self.tell_all("has left", cx);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    // One who talks all the time, or in books, ends up outside.
    let room = WebSocketRoute::new(Member::new)
        .with_config(Config::default().with_max_message(4 << 10))
        .with_message_rate(10, 50);
    let server = Server::new(Router::new().websocket("/{room}/{name}", room))
        .listen(format!("127.0.0.1:{}", argument(1, "8080")).parse()?)
        .engine(EngineConfig::default().backend(argument(2, "auto").parse()?))
        .bind()?;
    println!("ws://{}/garden/Ada", server.addresses()[0]);
    server.run()?;
    Ok(())
}
