//! Binds listeners, and creates the loops that serve them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sinews_engine::{Engine, EngineConfig, Listener};
use sinews_quic::QuicEndpoint;

use super::Server;
use super::bind_error::{BindError, BindFault};
use super::quic::ThreadEndpoints;
use crate::inherit::{ListenerFds, Listeners};
use crate::listen::{Listen, ListenerProtocol, SocketFile};
use crate::worker::{QuicRouting, Worker};

/// Bound listeners of a server.
pub(super) struct BoundListeners {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) files: Vec<SocketFile>,
    pub(super) threads: Vec<ThreadListeners>,
    /// Indexes and addresses of datagram sockets that are bound late.
    pub(super) late: Vec<(usize, SocketAddr)>,
    pub(super) listener_fds: ListenerFds,
}

/// Sockets of one thread.
#[derive(Default)]
pub(super) struct ThreadListeners {
    listeners: Vec<(Listener, ListenerProtocol)>,
    quic: ThreadEndpoints,
}

/// The loop of one thread.
pub(super) struct ThreadLoop {
    pub(super) engine: Engine<Worker>,
    /// By the listener.
    pub(super) protocols: Arc<[ListenerProtocol]>,
    pub(super) endpoints: Vec<QuicEndpoint>,
}

impl Server {
    /// Binds every address for every thread.
    pub(super) fn bind_listeners(&mut self, routing: &QuicRouting) -> Result<BoundListeners, BindError> {
        let (mut addresses, mut files, mut kept) = (Vec::new(), Vec::new(), Listeners::default());
        let (mut late, mut datagram_addresses) = (Vec::new(), Vec::new());
        let mut threads: Vec<ThreadListeners> =
            (0..self.threads).map(|_| ThreadListeners::default()).collect();
        for Listen { target, mut protocol } in std::mem::take(&mut self.listens) {
            let inherited = self.inherited.take(&target);
            let bound = self.bind_address(&target, &mut protocol, inherited);
            let bound = bound.and_then(|(bound, sockets)| {
                kept.add(
                    &target,
                    if bound.file.is_some() { &bound.listeners[..1] } else { &bound.listeners },
                )?;
                if let (Some(first), Some(address)) = (sockets.first(), bound.address) {
                    if first.is_none() {
                        late.push((threads[0].quic.len(), address));
                    }
                    datagram_addresses.push(address);
                }
                for (thread, socket) in sockets.into_iter().enumerate() {
                    let endpoint = self.endpoint(&protocol, routing, thread)?;
                    threads[thread].quic.push((socket, endpoint));
                }
                Ok(bound)
            });
            if let Some(port) = protocol.http3_port {
                self.router.announce_http3(port);
            }
            let bound = bound.map_err(|error| BindError { fault: BindFault::Listen(target), error })?;
            addresses.extend(bound.address);
            files.extend(bound.file);
            for (at, listener) in bound.listeners.into_iter().enumerate() {
                threads[at % self.threads].listeners.push((listener, protocol.clone()));
            }
        }
        routing.set_addresses(datagram_addresses);
        Ok(BoundListeners { addresses, files, threads, late, listener_fds: ListenerFds::new(kept) })
    }
}

/// Creates the loop of each thread.
pub(super) fn start_loops(
    config: &EngineConfig,
    threads: Vec<ThreadListeners>,
) -> io::Result<Vec<ThreadLoop>> {
    let start = |ThreadListeners { listeners, quic }| {
        let (listeners, protocols): (_, Vec<ListenerProtocol>) = listeners.into_iter().unzip();
        let mut engine = Engine::new(config.clone(), listeners)?;
        let mut endpoints = Vec::new();
        for (socket, endpoint) in quic {
            match socket {
                Some(socket) => engine.add_datagrams(socket)?,
                None => engine.reserve_datagrams(),
            };
            endpoints.push(endpoint);
        }
        Ok(ThreadLoop { engine, protocols: protocols.into(), endpoints })
    };
    threads.into_iter().map(start).collect()
}

/// Threads share the socket of a path, and its blocking mode: a ring needs a blocking socket, a readiness loop a
/// non-blocking one.
pub(super) fn check_backends(loops: &[ThreadLoop], shares_sockets: bool) -> Result<(), BindError> {
    let mut backends = loops.iter().map(|thread| thread.engine.backend());
    let first = backends.next();
    if shares_sockets && backends.any(|backend| Some(backend) != first) {
        let what = "io_uring was permitted to some threads only, which cannot share a Unix socket: choose \
                    `BackendChoice::Poll`";
        return Err(BindError::invalid(what.to_owned()));
    }
    Ok(())
}
