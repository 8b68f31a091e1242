//! The identity of this node.

/// The host name, which identifies the node.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
