//! Answers `GET /hello`, and echoes WebSocket messages at `/echo`, to measure the minimum cost of both. `cargo run --release -p sinews-server
//! --example hello_http -- [PORT] [auto|poll|uring] [THREADS] [CERTIFICATE KEY [http3]]`. With a certificate it serves
//! HTTPS, with HTTP/2, and on request with HTTP/3.
//!
//! ```sh
//! curl -i http://127.0.0.1:8080/hello
//! wrk -c128 http://127.0.0.1:8080/hello
//! ```

use std::error::Error;

use sinews_server::{
    Certificates, Context, EngineConfig, Handler, HttpConfig, Payload, Response, Router, Server, TlsConfig,
    WebSocketRoute,
};

/// Returns each message.
struct Mirror;

impl Handler for Mirror {
    fn message(&mut self, message: Payload<'_>, context: &mut Context<'_>) {
        context.send_payload(message).ok();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let router = Router::new()
        .get("/hello", |_| Response::text("Hello, world!"))
        .websocket("/echo", WebSocketRoute::new(|_| Ok(Mirror)));
    let address = format!("127.0.0.1:{}", argument(1, "8080")).parse()?;
    let server = match (std::env::args().nth(4), std::env::args().nth(5)) {
        (Some(certificate), Some(key)) => {
            let certificates =
                Certificates::new().with_pem(&std::fs::read(certificate)?, &std::fs::read(key)?)?;
            let server = Server::new(router).http(
                HttpConfig::default().with_http2_clear_text(true).with_http3(argument(6, "") == "http3"),
            );
            server.listen_tls(address, TlsConfig::new(certificates)?)
        }
        _ => Server::new(router).listen(address),
    };
    let server = server
        .engine(EngineConfig::default().with_backend(argument(2, "auto").parse()?))
        .threads(argument(3, "1").parse()?)
        .bind()?;
    let scheme = if std::env::args().len() > 5 { "https" } else { "http" };
    println!("{scheme}://{}/hello", server.addresses()[0]);
    server.run()?;
    Ok(())
}
