//! hyper with its HTTP/1 server, and libraries that upgrade from it.

use std::convert::Infallible;
use std::future::Future;
use std::io::Cursor;
use std::pin::pin;
use std::task::Poll;

use ::fastwebsockets::upgrade::{UpgradeFut, upgrade};
use ::fastwebsockets::{
    FragmentCollector, FragmentCollectorRead, Frame, OpCode, Role, WebSocketError, after_handshake_split,
};
use futures_util::poll;
use http_body_util::{Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, BufWriter};
use tokio::net::TcpStream;
use tokio::task::unconstrained;

use crate::{Error, HELLO, MESSAGE_MAX};

pub(crate) async fn fastwebsockets(stream: TcpStream) -> Result<(), Error> {
    serve(stream, echo).await
}

/// It has no `feed`, and writes each frame at once. So its halves (`unstable-split`) get the socket's bare halves. The
/// write half has a buffer, which is flushed when no further message has arrived. The task is `unconstrained`, as in
/// the library's own echo server.
pub(crate) async fn fastwebsockets_buffered(stream: TcpStream) -> Result<(), Error> {
    serve(stream, |upgraded| unconstrained(echo_buffered(upgraded))).await
}

async fn serve<F>(stream: TcpStream, echo: fn(UpgradeFut) -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), WebSocketError>> + Send + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| async move {
        let (response, upgraded): (Response<Empty<Bytes>>, _) = upgrade(&mut request)?;
        tokio::spawn(echo(upgraded));
        Ok::<_, WebSocketError>(response)
    });
    Ok(http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await?)
}

async fn echo(upgraded: UpgradeFut) -> Result<(), WebSocketError> {
    let mut socket = upgraded.await?;
    socket.set_max_message_size(MESSAGE_MAX);
    let mut socket = FragmentCollector::new(socket);
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Text | OpCode::Binary => socket.write_frame(frame).await?,
            OpCode::Close => return Ok(()),
            _ => {}
        }
    }
}

async fn echo_buffered(upgraded: UpgradeFut) -> Result<(), WebSocketError> {
    let upgraded = upgraded.await?.into_inner().into_inner();
    let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else {
        return Err(WebSocketError::ConnectionClosed);
    };
    let (read, write) = parts.io.into_inner().into_split();
    let read = Cursor::new(parts.read_buf).chain(read);
    let write = BufWriter::with_capacity(WRITE_BUFFER, write);
    let (mut reader, mut writer) = after_handshake_split(read, write, Role::Server);
    reader.set_max_message_size(MESSAGE_MAX);
    // The library's automatic answers are sent below, since only this code has the write half.
    reader.set_auto_close(false);
    reader.set_auto_pong(false);
    let mut reader = FragmentCollectorRead::new(reader);
    let mut nothing = |_: Frame<'static>| async { Ok::<(), WebSocketError>(()) };
    loop {
        let frame = {
            // Not restarted after the flush: the future may contain half a frame header.
            let mut reading = pin!(reader.read_frame(&mut nothing));
            match poll!(&mut reading) {
                Poll::Ready(frame) => frame?,
                Poll::Pending => {
                    writer.flush().await?;
                    reading.await?
                }
            }
        };
        match frame.opcode {
            OpCode::Text | OpCode::Binary => writer.write_frame(frame).await?,
            OpCode::Ping => writer.write_frame(Frame::pong(frame.payload)).await?,
            OpCode::Close => {
                writer.write_frame(Frame::close_raw(frame.payload)).await?;
                return writer.flush().await;
            }
            _ => {}
        }
    }
}

/// Twice Tokio's default: sixteen small answers fit many times.
const WRITE_BUFFER: usize = 16 << 10;

/// Answers pipelined requests with one write.
pub(crate) async fn requests(stream: TcpStream) -> Result<(), Error> {
    let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request)));
    Ok(http1::Builder::new().pipeline_flush(true).serve_connection(TokioIo::new(stream), service).await?)
}

pub(crate) fn answer(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, body) = match request.uri().path() {
        "/healthz" => (StatusCode::OK, "ok\n"),
        "/hello" => (StatusCode::OK, HELLO),
        _ => (StatusCode::NOT_FOUND, ""),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
