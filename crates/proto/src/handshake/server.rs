use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;
use core::str;

use super::headers::{HANDSHAKE_HEADERS, VERSION};
use super::key::{AcceptText, KeyText, accept_text, valid_key};
use super::refusal::{FRAMING_HEADERS, check_header};
use super::{HandshakeMisuse, Negotiated, OriginPolicy, Refusal, RequestView, Role, deflate, subprotocol};
use crate::deflate::{DeflateConfig, DeflateSetup};
use crate::http::Version;
use sinews_http::text::{lists_token, push_header};

/// The options that a server offers to clients.
///
/// ```
/// use sinews_proto::deflate::DeflateConfig;
/// use sinews_proto::handshake::{OriginPolicy, ServerOptions};
///
/// let options = ServerOptions::new()
///     .with_subprotocol("v2.chat")?
///     .with_subprotocol("v1.chat")?
///     .with_deflate(DeflateConfig::new())
///     .with_origin(OriginPolicy::list(["https://example.com"])?);
/// # Ok::<(), sinews_proto::handshake::HandshakeMisuse>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    subprotocols: Vec<String>,
    deflate: Option<DeflateConfig>,
    origin: OriginPolicy,
}

impl ServerOptions {
    /// Maximum subprotocols that a server may support and a client may offer.
    pub const SUBPROTOCOLS_MAX: usize = subprotocol::SUBPROTOCOLS_MAX;

    /// Creates options without subprotocols and compression, for pages of the [same
    /// origin](OriginPolicy::same_origin).
    #[must_use]
    pub const fn new() -> Self {
        Self { subprotocols: Vec::new(), deflate: None, origin: OriginPolicy::same_origin() }
    }

    /// Adds a subprotocol, with lower preference than earlier ones. A client that offers none of them gets
    /// a connection without a subprotocol; the application decides whether to use it.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Subprotocol`] if it is not a token, [`HandshakeMisuse::SubprotocolList`] if it is
    /// a duplicate or exceeds the limit.
    pub fn with_subprotocol(mut self, name: impl Into<String>) -> Result<Self, HandshakeMisuse> {
        subprotocol::add(&mut self.subprotocols, name.into())?;
        Ok(self)
    }

    /// Accepts permessage-deflate (RFC 7692). Default: off, since compression costs more time than it saves
    /// for small messages or on a fast network.
    #[must_use]
    pub const fn with_deflate(mut self, config: DeflateConfig) -> Self {
        self.deflate = Some(config);
        self
    }

    /// Sets the web pages that may connect. Default: [`OriginPolicy::same_origin`], so that a server
    /// without this setting rejects foreign pages.
    #[must_use]
    pub fn with_origin(mut self, policy: OriginPolicy) -> Self {
        self.origin = policy;
        self
    }

    /// The subprotocols in order of preference.
    pub fn subprotocols(&self) -> impl Iterator<Item = &str> {
        self.subprotocols.iter().map(String::as_str)
    }

    /// The compression settings, if enabled.
    #[must_use]
    pub const fn deflate(&self) -> Option<&DeflateConfig> {
        self.deflate.as_ref()
    }

    /// The web pages that may connect.
    #[must_use]
    pub const fn origin(&self) -> &OriginPolicy {
        &self.origin
    }
}

/// Decides on a WebSocket request, for any HTTP version.
///
/// Over HTTP/1.1 it applies the list in RFC 6455 section 4.2.1, over HTTP/2 and HTTP/3 the list in RFC 8441 section 5,
/// which has no `Upgrade` and requires no key.
///
/// # Errors
/// A [`Refusal`], ready to be sent:
///
/// | status | cause |
/// |---|---|
/// | 400 | `Host` not exactly once, or empty; key missing, repeated or not 16 bytes; a request body; a subprotocol repeated or no token; extensions against the grammar; HTTP/2 or HTTP/3 without extended CONNECT |
/// | 403 | the origin is not [allowed](ServerOptions::with_origin) |
/// | 405 | a method other than GET |
/// | 426 | no `websocket` in `Upgrade`, no `Upgrade` in `Connection`, or HTTP/1.0, where `Upgrade` must be ignored (RFC 9110 section 7.8) and which is thus a request without; a version other than 13 |
/// | 501 | an extended CONNECT for another protocol (RFC 9220 section 3) |
///
/// HTTP/1.0 is not answered with 505: that rejects a major version (RFC 9110 section 15.6.6), and major
/// version 1 is supported.
pub fn accept(request: &impl RequestView, options: &ServerOptions) -> Result<Accepted, Refusal> {
    let is_upgrade = matches!(request.version(), Version::Http10 | Version::Http11);
    let key = if is_upgrade {
        Some(check_upgrade(request)?)
    } else {
        check_connect(request)?;
        // RFC 8441 section 5 has no key. undici sends one over HTTP/2, too, and requires the answer to it.
        request.only("sec-websocket-key").and_then(valid_key)
    };
    options.origin.check(request)?;
    let subprotocol = subprotocol::choose(request.header("sec-websocket-protocol"), &options.subprotocols)
        .map_err(|_| Refusal::with_reason(400, "malformed Sec-WebSocket-Protocol"))?;
    let agreed = deflate::agree(request.header("sec-websocket-extensions"), options.deflate())
        .map_err(|_| Refusal::with_reason(400, "malformed Sec-WebSocket-Extensions"))?;
    let (params, extensions) = agreed.unzip();
    let deflate =
        params.zip(options.deflate()).map(|(params, config)| DeflateSetup::new(Role::Server, params, config));
    Ok(Accepted {
        is_upgrade,
        accept: key.map(accept_text),
        subprotocol: subprotocol.map(str::to_owned),
        extensions,
        negotiated: Negotiated::new(Role::Server, deflate),
    })
}

/// Decides on a request for a session of WebTransport over HTTP/3 whose stream carries messages
/// ([`Negotiated::tagged`]). The HTTP stack has checked that it is an extended CONNECT.
///
/// # Errors
/// A [`Refusal`]: 403 if the origin is not [allowed](ServerOptions::with_origin).
pub fn accept_session(request: &impl RequestView, options: &ServerOptions) -> Result<Accepted, Refusal> {
    options.origin.check(request)?;
    Ok(Accepted {
        is_upgrade: false,
        accept: None,
        subprotocol: None,
        extensions: None,
        negotiated: Negotiated::tagged(Role::Server),
    })
}

/// Checks RFC 6455 section 4.2.1 and the upgrade rules of RFC 9110. Returns the key.
fn check_upgrade(request: &impl RequestView) -> Result<&KeyText, Refusal> {
    if request.method() != "GET" {
        let refusal = Refusal::with_reason(405, "a WebSocket handshake requires GET").and("Allow", "GET");
        return Err(if request.method() == "HEAD" { refusal.without_body() } else { refusal });
    }
    if request.only("host").is_none_or(<[u8]>::is_empty) {
        return Err(Refusal::with_reason(400, "Host missing, empty or repeated"));
    }
    let upgrades = request.version() == Version::Http11
        && lists_token(request.header("upgrade"), "websocket")
        && lists_token(request.header("connection"), "upgrade");
    if !upgrades {
        return Err(upgrade_required("this resource requires a WebSocket upgrade"));
    }
    if !names_version(request) {
        return Err(upgrade_required("unsupported WebSocket version"));
    }
    let Some(key) = request.only("sec-websocket-key").and_then(valid_key) else {
        return Err(Refusal::with_reason(400, "Sec-WebSocket-Key is not one key of 16 bytes"));
    };
    if has_body(request) {
        return Err(Refusal::with_reason(400, "a WebSocket request must not have a body"));
    }
    Ok(key)
}

/// The response names the supported protocol and version (RFC 6455 section 4.4, RFC 9110 section 15.5.22).
fn upgrade_required(reason: &'static str) -> Refusal {
    Refusal::with_reason(426, reason).and("Upgrade", "websocket").and("Sec-WebSocket-Version", VERSION)
}

/// A body would have to be read before the protocol changes (RFC 9110 section 7.8). Legitimate clients send
/// none, and a proxy that confuses body and frames can be exploited.
fn has_body(request: &impl RequestView) -> bool {
    let present = |name| request.header(name).next().is_some();
    present("transfer-encoding")
        || present("content-length") && request.only("content-length") != Some(b"0".as_slice())
}

/// RFC 8441 section 5: the key, `Upgrade` and `Connection` have no meaning here.
fn check_connect(request: &impl RequestView) -> Result<(), Refusal> {
    match request.protocol() {
        Some("websocket") if request.method() == "CONNECT" => {}
        Some(_) if request.method() == "CONNECT" => {
            return Err(Refusal::with_reason(501, "unknown :protocol"));
        }
        _ => {
            return Err(Refusal::with_reason(
                400,
                "a WebSocket over HTTP/2 or HTTP/3 requires extended CONNECT",
            ));
        }
    }
    if !names_version(request) {
        // 426 refers to the HTTP version here, where `Upgrade` does not exist.
        return Err(
            Refusal::with_reason(400, "unsupported WebSocket version").and("Sec-WebSocket-Version", VERSION)
        );
    }
    if has_body(request) {
        return Err(Refusal::with_reason(400, "a WebSocket request must not have a body"));
    }
    Ok(())
}

fn names_version(request: &impl RequestView) -> bool {
    request.only("sec-websocket-version") == Some(VERSION.as_bytes())
}

/// An accepted WebSocket request, and its response.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Over HTTP/1.1.
    is_upgrade: bool,
    /// Present if the request has a key.
    accept: Option<AcceptText>,
    subprotocol: Option<String>,
    extensions: Option<String>,
    negotiated: Negotiated,
}

impl Accepted {
    /// The negotiated parameters for [`Connection::new`](crate::Connection::new).
    #[must_use]
    pub const fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The subprotocol, supported by both ends.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// The value of `Sec-WebSocket-Extensions`, if the response has one.
    #[must_use]
    pub fn extensions(&self) -> Option<&str> {
        self.extensions.as_deref()
    }

    /// 101 over HTTP/1.1, 200 over HTTP/2 and HTTP/3 (RFC 8441 section 5).
    #[must_use]
    pub const fn status(&self) -> u16 {
        if self.is_upgrade { 101 } else { 200 }
    }

    /// The headers of the response, for an HTTP stack that writes it itself.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let upgrade = self.is_upgrade.then_some([("Upgrade", "websocket"), ("Connection", "Upgrade")]);
        let accept = self.accept.as_ref().map(|accept| {
            // Base64 is ASCII.
            ("Sec-WebSocket-Accept", str::from_utf8(accept).expect("base64 is ASCII"))
        });
        let subprotocol = self.subprotocol().map(|name| ("Sec-WebSocket-Protocol", name));
        let extensions = self.extensions().map(|value| ("Sec-WebSocket-Extensions", value));
        upgrade.into_iter().flatten().chain(accept).chain(subprotocol).chain(extensions)
    }

    /// Checks further headers of the caller, such as `Set-Cookie`, for an HTTP stack that writes the response itself.
    ///
    /// # Errors
    /// [`HandshakeMisuse::HeaderName`], [`HandshakeMisuse::HeaderValue`] or [`HandshakeMisuse::ReservedHeader`] for a header
    /// that may not be added.
    pub fn check_headers(extra_headers: &[(&str, &str)]) -> Result<(), HandshakeMisuse> {
        for (name, value) in extra_headers {
            check_header(name, value, &FRAMING_HEADERS)?;
            check_header(name, value, &HANDSHAKE_HEADERS)?;
        }
        Ok(())
    }

    /// Appends the complete HTTP/1.1 response, with further headers of the caller such as `Set-Cookie`.
    ///
    /// # Errors
    /// [`HandshakeMisuse::HeaderName`], [`HandshakeMisuse::HeaderValue`] or
    /// [`HandshakeMisuse::ReservedHeader`] for a header that may not be added, and
    /// [`HandshakeMisuse::NotHttp1`] over HTTP/2 and HTTP/3. No bytes are appended then.
    pub fn write_response(
        &self,
        extra_headers: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), HandshakeMisuse> {
        if !self.is_upgrade {
            return Err(HandshakeMisuse::NotHttp1);
        }
        Self::check_headers(extra_headers)?;
        out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\n");
        for (name, value) in self.headers() {
            push_header(out, name, value);
        }
        for (name, value) in extra_headers {
            push_header(out, name, value);
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }
}
