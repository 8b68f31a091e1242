//! Client address of a request behind trusted proxies.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use sinews_http::RequestHead;

/// Trusted proxies and the header in which they pass the client address.
///
/// ```
/// use sinews_server::{Router, Server, TrustedProxies};
///
/// let proxies = TrustedProxies::x_forwarded_for(["10.0.0.0/8".parse()?, "fd00::/8".parse()?]);
/// let server = Server::new(Router::new()).trusted_proxies(proxies);
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    header: ForwardingHeader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForwardingHeader {
    XForwardedFor,
    Forwarded,
}

impl Default for TrustedProxies {
    /// Trusts no proxy.
    fn default() -> Self {
        Self::x_forwarded_for([])
    }
}

impl TrustedProxies {
    /// Trusts proxies of these networks, which append the address of their client to `X-Forwarded-For`, as most do.
    /// `Forwarded` is ignored: a proxy passes on headers that it does not know, and a client may have written it.
    #[must_use]
    pub fn x_forwarded_for(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { networks: networks.into_iter().collect(), header: ForwardingHeader::XForwardedFor }
    }

    /// Trusts proxies of these networks, which append to `Forwarded` (RFC 7239), where `for` names the client.
    /// `X-Forwarded-For` is ignored.
    #[must_use]
    pub fn forwarded(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { networks: networks.into_iter().collect(), header: ForwardingHeader::Forwarded }
    }

    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Returns the client address of a request: the last address that belongs to no trusted proxy. Addresses before
    /// it in the header may be forged.
    pub(crate) fn client(&self, head: &RequestHead<'_>, peer: SocketAddr) -> IpAddr {
        let mut client = peer.ip().to_canonical();
        if !self.trusts(client) {
            return client;
        }
        let (name, read): (_, fn(&str) -> Option<IpAddr>) = match self.header {
            ForwardingHeader::XForwardedFor => ("x-forwarded-for", node),
            ForwardingHeader::Forwarded => ("forwarded", forwarded_for),
        };
        let values: Vec<&[u8]> = head.header(name).collect();
        let hops = values.iter().rev().flat_map(|value| {
            let mut hops = split(value, b',');
            hops.reverse();
            hops
        });
        // Empty elements of a list are ignored (RFC 9110 section 5.6.1.2).
        let mut hops = hops.filter(|hop| !hop.trim_ascii().is_empty());
        while self.trusts(client)
            && let Some(hop) = hops.next()
        {
            // Addresses before an unnamed hop cannot be trusted.
            let Some(address) = std::str::from_utf8(hop).ok().and_then(read) else { break };
            client = address.to_canonical();
        }
        client
    }
}

/// Splits at a separator outside of quoted strings.
fn split(value: &[u8], separator: u8) -> Vec<&[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = value.split(|byte| {
        let ends = !quoted && *byte == separator;
        quoted ^= *byte == b'"' && !escaped;
        escaped = quoted && *byte == b'\\' && !escaped;
        ends
    });
    parts.collect()
}

/// Parses the `for` parameter of one element of `Forwarded` (RFC 7239 section 4).
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let pairs = split(element.as_bytes(), b';').into_iter().filter_map(|pair| std::str::from_utf8(pair).ok());
    let mut values = pairs.filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        name.eq_ignore_ascii_case("for").then_some(value)
    });
    let value = values.next()?;
    let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    node(unquoted.unwrap_or(value))
}

/// Parses an address with an optional port; an IPv6 address may have brackets (RFC 7239 section 6).
fn node(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(bare).or_else(with_port)
}

#[cfg(test)]
mod tests {
    use sinews_http::{HeadLimits, HeaderSlots};

    use super::*;

    fn client(proxies: &TrustedProxies, peer: &str, lines: &str) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(request.as_bytes(), &HeadLimits::new(), &mut slots).unwrap();
        proxies.client(&head, SocketAddr::new(peer.parse().unwrap(), 9)).to_string()
    }

    fn networks() -> [IpNet; 2] {
        ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap())
    }

    #[test]
    fn only_trusted_proxies_name_the_client() {
        let proxies = TrustedProxies::x_forwarded_for(networks());
        for (peer, lines, expected) in [
            ("192.0.2.9", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.9"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("::ffff:10.0.0.1", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("fd00::1", "X-Forwarded-For: 2001:db8::1\r\n", "2001:db8::1"),
            ("10.0.0.1", "X-Forwarded-For: 1.2.3.4, 192.0.2.1\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: 1.2.3.4,192.0.2.1 , 10.9.9.9\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 10.0.0.2\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3"),
            ("10.0.0.1", "X-Forwarded-For: 1.2.3.4, who, 10.0.0.2\r\n", "10.0.0.2"),
            ("10.0.0.1", "X-Forwarded-For: 192.0.2.1, \r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: ,192.0.2.1,,\t,10.0.0.2,\r\n", "192.0.2.1"),
            (
                "10.0.0.1",
                "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For:\r\nX-Forwarded-For: ,\r\n",
                "192.0.2.1",
            ),
            ("10.0.0.1", "X-Forwarded-For: 192.0.2.1:5000\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: [2001:db8::1]:5000\r\n", "2001:db8::1"),
            ("10.0.0.1", "X-Forwarded-For: \u{fe}\r\n", "10.0.0.1"),
            ("10.0.0.1", "Forwarded: for=192.0.2.1\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client(&proxies, peer, lines), expected, "{peer} {lines}");
        }
        assert_eq!(
            client(&TrustedProxies::default(), "10.0.0.1", "X-Forwarded-For: 1.2.3.4\r\n"),
            "10.0.0.1"
        );
    }

    #[test]
    fn forwarded_parses_as_in_rfc_7239() {
        let proxies = TrustedProxies::forwarded(networks());
        for (lines, expected) in [
            ("Forwarded: for=192.0.2.1\r\n", "192.0.2.1"),
            ("Forwarded: proto=https;For=192.0.2.1;by=10.0.0.1\r\n", "192.0.2.1"),
            ("Forwarded: for=1.2.3.4, for=\"[2001:db8::1]:47011\"\r\n", "2001:db8::1"),
            ("Forwarded: for=\"[2001:db8::1]\";host=\"a,b;for=1.2.3.4\"\r\n", "2001:db8::1"),
            ("Forwarded: host=\"\\\",for=1.2.3.4\";for=192.0.2.1\r\n", "192.0.2.1"),
            ("Forwarded: for=192.0.2.1, for=10.0.0.2\r\n", "192.0.2.1"),
            ("Forwarded: for=192.0.2.1, for=_hidden\r\n", "10.0.0.1"),
            ("Forwarded: for=unknown\r\n", "10.0.0.1"),
            ("Forwarded: for=192.0.2.1, ,\r\nForwarded: \r\n", "192.0.2.1"),
            ("Forwarded: ,for=192.0.2.1;;proto=https,,for=10.0.0.2\r\n", "192.0.2.1"),
            ("Forwarded: for=192.0.2.1, proto=https\r\n", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.1\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client(&proxies, "10.0.0.1", lines), expected, "{lines}");
        }
    }
}
