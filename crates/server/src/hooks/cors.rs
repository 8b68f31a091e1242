//! Cross-origin requests (the Fetch standard, section 3.2).

use std::time::Duration;

use sinews_http::text::is_token_byte;
use sinews_proto::handshake::OriginPolicy;

use crate::request::{Request, Response};

/// Origins whose pages may read answers: for [`Router::cors`](crate::Router::cors).
///
/// A browser sends a preflight before a request that a form could not send; it is answered here, before routes and
/// later hooks. Other requests are answered as usual, with headers that allow the page to read the answer. CORS
/// restrains browsers only: authorization is up to the handler or a hook.
///
/// ```
/// use sinews_server::{Cors, OriginPolicy, Response, Router};
///
/// let cors = Cors::new(OriginPolicy::list(["https://example.com"])?).with_credentials(true);
/// let router = Router::new().cors("/api", cors).put("/api/name", |_| Response::new(204));
/// # drop(router);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cors {
    origins: OriginPolicy,
    is_any: bool,
    methods: Option<String>,
    headers: Option<String>,
    exposed: Option<String>,
    credentials: bool,
    max_age: Duration,
}

impl Cors {
    /// Allows pages of these origins.
    #[must_use]
    pub fn new(origins: OriginPolicy) -> Self {
        let is_any = origins == OriginPolicy::any();
        let max_age = Duration::from_secs(600);
        Self { origins, is_any, methods: None, headers: None, exposed: None, credentials: false, max_age }
    }

    /// Allowed methods. Default: all; a route without the method answers 405.
    #[must_use]
    pub fn with_methods<'m>(mut self, methods: impl IntoIterator<Item = &'m str>) -> Self {
        self.methods = Some(list(methods));
        self
    }

    /// Allowed request headers. Default: all.
    #[must_use]
    pub fn with_headers<'h>(mut self, names: impl IntoIterator<Item = &'h str>) -> Self {
        self.headers = Some(list(names));
        self
    }

    /// Response headers that pages may read, beside the headers that are always readable. Default: none.
    #[must_use]
    pub fn with_exposed_headers<'h>(mut self, names: impl IntoIterator<Item = &'h str>) -> Self {
        self.exposed = Some(list(names));
        self
    }

    /// Whether the browser may send cookies, so that the page acts as the user. Default: no. Has no effect if any
    /// origin is allowed: every page would act as the user.
    #[must_use]
    pub fn with_credentials(mut self, allow: bool) -> Self {
        self.credentials = allow;
        self
    }

    /// How long a browser may cache a preflight. Default 10 min; browsers have limits of their own, 2 h in Chromium.
    #[must_use]
    pub fn with_max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// Answers a preflight: with 204, or with 403 if the origin is not allowed. Other requests get `None`.
    #[must_use]
    pub fn before(&self, request: &Request<'_>) -> Option<Response> {
        let head = request.head();
        let requested = head.header("access-control-request-method").next()?;
        head.header("origin").next()?;
        if head.method() != "OPTIONS" {
            return None;
        }
        let mut response = Response::new(204);
        response.vary("Access-Control-Request-Method, Access-Control-Request-Headers");
        if self.allowed(request).is_none() {
            // The after hook adds headers for allowed origins only.
            return Some(response.with_status(403));
        }
        let methods = self.methods.clone().or_else(|| tokens(requested));
        let headers =
            self.headers.clone().or_else(|| tokens(head.header("access-control-request-headers").next()?));
        for (name, value) in
            [("Access-Control-Allow-Methods", methods), ("Access-Control-Allow-Headers", headers)]
        {
            if let Some(value) = value {
                response.add_header(name, value);
            }
        }
        response.add_header("Access-Control-Max-Age", self.max_age.as_secs().to_string());
        Some(response)
    }

    /// Adds the headers that allow the page to read an answer, if it is of an allowed origin.
    pub fn after(&self, request: &Request<'_>, response: &mut Response) {
        if !self.is_any {
            response.vary("Origin");
        }
        let Some(origin) = self.allowed(request) else { return };
        response.set_header("Access-Control-Allow-Origin", origin);
        if self.credentials && !self.is_any {
            response.set_header("Access-Control-Allow-Credentials", "true");
        }
        if let Some(exposed) = &self.exposed {
            response.set_header("Access-Control-Expose-Headers", exposed.clone());
        }
    }

    /// Returns the value of `Access-Control-Allow-Origin` for the page's origin.
    fn allowed(&self, request: &Request<'_>) -> Option<String> {
        if self.is_any {
            // The same for every origin: caches may serve the answer to other pages.
            return Some("*".to_owned());
        }
        let origin = request.head().header("origin").next()?;
        self.origins.check(request.head()).ok()?;
        String::from_utf8(origin.to_vec()).ok()
    }
}

fn list<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns a list of tokens unchanged, to be echoed.
fn tokens(value: &[u8]) -> Option<String> {
    let is_valid = value.iter().all(|&byte| is_token_byte(byte) || b", \t".contains(&byte));
    is_valid.then(|| String::from_utf8_lossy(value).into_owned())
}
