//! HTTP to Kafka in its usual form: each request's body becomes one message, answered after the broker's
//! acknowledgement. hyper on Tokio and on compio, with rdkafka's `FutureProducer`; a full queue results in
//! 503. The settings equal ours: all replicas acknowledge, idempotent, linger of at most one millisecond.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use cyper_core::HyperStream;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::{Error, MESSAGE_MAX};

/// The message producer.
struct Kafka {
    producer: FutureProducer,
    topic: String,
}

static KAFKA: OnceLock<Arc<Kafka>> = OnceLock::new();

/// The `sinews_brokers` settings; all other settings are librdkafka's defaults for both.
const SETTINGS: [(&str, &str); 4] = [
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("linger.ms", "1"),
    ("queue.buffering.max.kbytes", "65536"),
];

/// Creates the producer, which all connections share.
pub(crate) fn connect(brokers: &str, topic: &str) -> Result<(), Error> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    SETTINGS.iter().for_each(|(name, value)| _ = config.set(*name, *value));
    let kafka = Kafka { producer: config.create()?, topic: topic.to_owned() };
    // This is the only caller that sets it.
    let _ = KAFKA.set(Arc::new(kafka));
    Ok(())
}

/// On Tokio.
pub(crate) async fn tokio(stream: tokio::net::TcpStream) -> Result<(), Error> {
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(publish));
    Ok(connection.await?)
}

/// On compio, through its authors' adapter.
pub(crate) async fn compio(stream: compio::net::TcpStream) -> Result<(), Error> {
    let stream = HyperStream::new_plain(stream);
    Ok(http1::Builder::new().serve_connection(stream, service_fn(publish)).await?)
}

async fn publish(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let Some(kafka) = KAFKA.get() else {
        return Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, String::new()));
    };
    if request.method() != Method::POST {
        return Ok(answer(StatusCode::METHOD_NOT_ALLOWED, String::new()));
    }
    let body = match http_body_util::Limited::new(request.into_body(), MESSAGE_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Ok(answer(StatusCode::BAD_REQUEST, error.to_string())),
    };
    let record = FutureRecord::<(), [u8]>::to(&kafka.topic).payload(&body);
    let stored = match kafka.producer.send_result(record) {
        Ok(stored) => stored.await,
        Err((error, _)) => return Ok(busy(&error.to_string())),
    };
    Ok(match stored {
        Ok(Ok(place)) => answer(StatusCode::OK, format!("{}\n", place.offset)),
        Ok(Err((error, _))) => busy(&error.to_string()),
        Err(error) => busy(&error.to_string()),
    })
}

fn busy(why: &str) -> Response<Full<Bytes>> {
    let mut response = answer(StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn answer(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
