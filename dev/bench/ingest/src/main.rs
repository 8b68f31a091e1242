//! HTTP to Kafka on our server, to be measured by `sinews bench compare` beside hyper. Each request's body becomes one
//! message; the server replies after the broker's acknowledgement.
//!
//! Messages go through `sinews_brokers`, as in `sinews serve`. A full queue results in 503.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use sinews_server::{Answer, BackendChoice, EngineConfig, Request, Response, Router, Server};
use sinews_stream::broker::Broker;
use sinews_stream::record::{RecordBuilder, ValueKind};
use sinews_stream::{AppendError, Durability};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// `POST` to Kafka: prints its address and serves until its standard input is closed.
#[derive(Debug, Parser)]
#[command(name = "sinews-ingest")]
struct Cli {
    what: What,

    /// Address of Kafka
    #[arg(long, default_value = "127.0.0.1:19092")]
    kafka: String,

    /// Topic of the messages
    #[arg(long, default_value = "ingest")]
    topic: String,

    /// Port on 127.0.0.1; 0 picks a free port
    #[arg(default_value_t = 0)]
    port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Serve on readiness
    Poll,
    /// Serve on io_uring
    Uring,
    /// Print the first and the next offset of the topic, and exit
    Ends,
}

fn main() -> Result<(), Error> {
    let Cli { what, kafka, topic, port } = Cli::parse();
    let broker = sinews_brokers::connect(&format!("kafka://{kafka}"), &BTreeMap::new())?;
    let backend = match what {
        What::Ends => return print_ends(&*broker, &topic),
        What::Poll => BackendChoice::Poll,
        What::Uring => BackendChoice::Uring,
    };
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let topic: Arc<str> = topic.into();
    let router = Router::new().post("/events", move |request| publish(&*broker, &topic, request));
    let server = Server::new(router)
        .listen(SocketAddr::from(([127, 0, 0, 1], port)))
        .engine(EngineConfig::default().with_backend(backend))
        .threads(1)
        .bind()?;
    println!("{}", server.addresses()[0]);
    io::stdout().flush()?;
    server.run()?;
    Ok(())
}

fn publish(broker: &dyn Broker, topic: &str, request: &Request<'_>) -> Answer {
    let mut builder = RecordBuilder::new();
    if let Err(error) = builder.push(0, b"", request.body(), ValueKind::Bytes) {
        return Response::text(error.to_string()).with_status(413).into();
    }
    let Some(records) = builder.finish() else { return Response::new(500).into() };
    let mut pending = match broker.publish(topic, 0, records) {
        Ok(pending) => pending,
        Err(error) => return refused(&error).into(),
    };
    Answer::later(async move {
        match pending.wait(Durability::Broker).await {
            Ok(appended) => Response::text(format!("{}\n", appended.first)),
            Err(error) => refused(&error),
        }
    })
}

fn refused(error: &AppendError) -> Response {
    match error {
        AppendError::TooLarge { .. } => Response::text(error.to_string()).with_status(413),
        _ => Response::text(error.to_string()).with_status(503).with_header("Retry-After", "1"),
    }
}

fn print_ends(broker: &dyn Broker, topic: &str) -> Result<(), Error> {
    // A missing topic is created.
    broker.partitions(topic).block()?;
    let (first, next) = broker.offset_range(topic, 0).block()?;
    println!("{first} {next}");
    broker.close(Duration::ZERO);
    Ok(())
}
