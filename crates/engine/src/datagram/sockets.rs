//! A loop's datagram sockets, and which are readable.

use crate::DatagramSocket;

/// In the order of their addition. A socket is absent while the application reads it.
#[derive(Debug, Default)]
pub(crate) struct DatagramSockets {
    sockets: Vec<WatchedSocket>,
    /// Sockets that were opened while the loop runs, and are not yet watched.
    opened: Vec<usize>,
    closing: bool,
}

#[derive(Debug)]
struct WatchedSocket {
    socket: Option<DatagramSocket>,
    /// Datagrams may be available.
    ready: bool,
}

impl DatagramSockets {
    /// Adds a socket, or an index for one.
    pub(crate) fn add(&mut self, socket: Option<DatagramSocket>) {
        // Earlier datagrams are reported by the kernel, too.
        self.sockets.push(WatchedSocket { socket, ready: false });
    }

    /// Opens the socket of an index.
    pub(crate) fn open(&mut self, index: usize, socket: DatagramSocket) {
        if let Some(watched) = self.sockets.get_mut(index) {
            watched.socket = Some(socket);
            self.opened.push(index);
        }
    }

    /// Takes the indexes of sockets to watch.
    pub(crate) fn take_opened(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.opened)
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.sockets.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&DatagramSocket> {
        self.sockets.get(index)?.socket.as_ref()
    }

    /// Whether a socket is open.
    pub(crate) fn is_open(&self) -> bool {
        self.sockets.iter().any(|watched| watched.socket.is_some())
    }

    pub(crate) fn mark_ready(&mut self, index: usize) {
        if let Some(watched) = self.sockets.get_mut(index) {
            watched.ready = true;
        }
    }

    /// Whether the next turn must not wait.
    pub(crate) fn have_work(&self) -> bool {
        let is_ready = |watched: &WatchedSocket| watched.socket.is_some() && (watched.ready || self.closing);
        !self.opened.is_empty() || self.sockets.iter().any(is_ready)
    }

    /// Takes the first readable socket from an index on. Return it by [`put_back`](Self::put_back).
    pub(crate) fn take_ready(&mut self, from: usize) -> Option<(usize, DatagramSocket)> {
        let watched = self.sockets.iter_mut().enumerate().skip(from).find(|(_, watched)| watched.ready);
        let (index, watched) = watched?;
        watched.ready = false;
        Some((index, watched.socket.take()?))
    }

    pub(crate) fn put_back(&mut self, index: usize, socket: DatagramSocket, has_more: bool) {
        if let Some(watched) = self.sockets.get_mut(index) {
            watched.socket = Some(socket);
            watched.ready |= has_more;
        }
    }

    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    #[inline]
    pub(crate) fn are_changing(&self) -> bool {
        self.closing || !self.opened.is_empty()
    }

    /// Takes the sockets to close.
    pub(crate) fn take_closed(&mut self) -> Vec<(usize, DatagramSocket)> {
        if !std::mem::take(&mut self.closing) {
            return Vec::new();
        }
        let sockets = self.sockets.iter_mut().enumerate();
        sockets
            .filter_map(|(index, watched)| {
                watched.ready = false;
                Some((index, watched.socket.take()?))
            })
            .collect()
    }
}
