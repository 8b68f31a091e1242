//! Settings shared by all server interfaces.

use std::sync::{Arc, LazyLock};

use sinews_proto::Config;
use sinews_proto::handshake::{Accepted, HandshakeMisuse, RequestView, ServerOptions, accept};

use super::error::AcceptError;

/// Negotiation settings, and the limits of the connection. Misuse is stored until it can be reported.
#[derive(Clone, Debug)]
pub(crate) struct AcceptSettings {
    options: Arc<ServerOptions>,
    config: Arc<Config>,
    misuse: Option<HandshakeMisuse>,
}

impl Default for AcceptSettings {
    fn default() -> Self {
        Self { options: Arc::default(), config: default_config(), misuse: None }
    }
}

/// The shared default of all connections without their own configuration.
pub(crate) fn default_config() -> Arc<Config> {
    static DEFAULT: LazyLock<Arc<Config>> = LazyLock::new(Arc::default);
    Arc::clone(&DEFAULT)
}

impl AcceptSettings {
    pub(crate) fn set_options(&mut self, options: Arc<ServerOptions>) {
        self.options = options;
    }

    pub(crate) fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Changes the limits.
    #[cfg(feature = "axum")]
    pub(crate) fn change_config(&mut self, change: impl FnOnce(Config) -> Config) {
        self.config = Arc::new(change(Arc::unwrap_or_clone(std::mem::take(&mut self.config))));
    }

    /// Changes the negotiation settings.
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce(ServerOptions) -> Result<ServerOptions, HandshakeMisuse>,
    ) {
        match change(Arc::unwrap_or_clone(std::mem::take(&mut self.options))) {
            Ok(options) => self.options = Arc::new(options),
            Err(misuse) => self.misuse = self.misuse.or(Some(misuse)),
        }
    }

    /// Adds subprotocols, with lower preference than earlier calls.
    pub(crate) fn add_subprotocols<I: IntoIterator<Item: Into<String>>>(&mut self, names: I) {
        let add = |options: ServerOptions, name: I::Item| options.with_subprotocol(name);
        self.change(|options| names.into_iter().try_fold(options, add));
    }

    /// The subprotocol that the request would get.
    #[cfg(feature = "axum")]
    pub(crate) fn subprotocol(&self, request: &impl RequestView) -> Option<&str> {
        let accepted = accept(request, &self.options).ok()?;
        let chosen = accepted.subprotocol()?;
        self.options.subprotocols().find(|name| *name == chosen)
    }

    /// Decides on a request; `chosen` is the application's choice of a subprotocol, instead of the list's.
    pub(crate) fn accept(
        &self,
        request: &impl RequestView,
        chosen: Option<&str>,
    ) -> Result<Accepted, AcceptError> {
        self.config.check().map_err(AcceptError::Config)?;
        if let Some(misuse) = self.misuse {
            return Err(AcceptError::Misuse(misuse));
        }
        let Some(chosen) = chosen else {
            return accept(request, &self.options).map_err(AcceptError::Rejected);
        };
        let options = ServerOptions::new().with_origin(self.options.origin().clone());
        let options = match self.options.deflate() {
            Some(deflate) => options.with_deflate(deflate.clone()),
            None => options,
        };
        let options = options.with_subprotocol(chosen).map_err(AcceptError::Misuse)?;
        let accepted = accept(request, &options).map_err(AcceptError::Rejected)?;
        if accepted.subprotocol().is_none() {
            // The client would have to fail the connection (RFC 6455 section 4.1).
            return Err(AcceptError::Misuse(HandshakeMisuse::Subprotocol));
        }
        Ok(accepted)
    }
}

/// Defines the setters that each interface has, over its `settings_mut`.
macro_rules! setters {
    ($subprotocols:ident) => {
        /// Supports these subprotocols in order of preference, with lower preference than earlier calls. Selects the
        /// first that the client offers; a client that offers none of them gets a connection without a subprotocol.
        /// Default: none.
        pub fn $subprotocols<I: IntoIterator<Item: Into<String>>>(mut self, names: I) -> Self {
            self.settings_mut().add_subprotocols(names);
            self
        }

        /// Accepts permessage-deflate (RFC 7692). Default: disabled, since compression costs more time than it saves
        /// where messages are small or the network is near.
        #[cfg(feature = "deflate")]
        pub fn deflate(mut self, config: sinews_proto::deflate::DeflateConfig) -> Self {
            self.settings_mut().change(|options| Ok(options.with_deflate(config)));
            self
        }

        /// Sets the origins whose pages may connect from a browser; other origins get 403. Default: the [same
        /// origin](crate::OriginPolicy::same_origin), since a browser sends the user's cookies along for any page
        /// (RFC 6455 section 10.2). Clients other than browsers send no origin, and are accepted.
        pub fn origin(mut self, policy: sinews_proto::handshake::OriginPolicy) -> Self {
            self.settings_mut().change(|options| Ok(options.with_origin(policy)));
            self
        }

        /// Sets limits and timeouts of the connection. Connections with the same `Arc` share it. Default:
        /// [`Config::default`](crate::Config).
        pub fn config(mut self, config: impl Into<std::sync::Arc<sinews_proto::Config>>) -> Self {
            self.settings_mut().set_config(config.into());
            self
        }

        /// Sets subprotocols, deflate and origin at once, and replaces earlier settings: built once, and shared by
        /// all connections.
        pub fn options(
            mut self,
            options: impl Into<std::sync::Arc<sinews_proto::handshake::ServerOptions>>,
        ) -> Self {
            self.settings_mut().set_options(options.into());
            self
        }
    };
}

pub(crate) use setters;
