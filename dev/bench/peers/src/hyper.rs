//! hyper with its HTTP/1 server, and what upgrades from it.

use std::convert::Infallible;

use ::fastwebsockets::upgrade::{UpgradeFut, upgrade};
use ::fastwebsockets::{FragmentCollector, OpCode, WebSocketError};
use http_body_util::{Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::{Error, MESSAGE_MAX};

pub(crate) async fn fastwebsockets(stream: TcpStream) -> Result<(), Error> {
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

pub(crate) async fn healthz(stream: TcpStream) -> Result<(), Error> {
    let service = service_fn(|request: Request<Incoming>| async move {
        let mut response = Response::new(Full::new(Bytes::from_static(b"ok\n")));
        if request.uri().path() != "/healthz" {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        Ok::<_, Infallible>(response)
    });
    Ok(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?)
}
