//! Answers `GET /hello` only, to measure the minimum cost of a request. `cargo run --release -p sinews-server
//! --example hello_http -- [PORT] [auto|poll|uring] [THREADS]`.
//!
//! ```sh
//! curl -i http://127.0.0.1:8080/hello
//! wrk -c128 http://127.0.0.1:8080/hello
//! ```

use std::error::Error;

use sinews_server::{EngineConfig, Response, Router, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let router = Router::new().get("/hello", |_| Response::text("Hello, world!"));
    let server = Server::new(router)
        .listen(format!("127.0.0.1:{}", argument(1, "8080")).parse()?)
        .engine(EngineConfig::default().with_backend(argument(2, "auto").parse()?))
        .threads(argument(3, "1").parse()?)
        .bind()?;
    println!("http://{}/hello", server.addresses()[0]);
    server.run()?;
    Ok(())
}
