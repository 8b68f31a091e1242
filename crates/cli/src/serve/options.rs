//! The hub's options, from the settings.

use sinews_hub::auth::{ApiKeys, Auth, AuthError, AuthOptions, TokenKeys};
use sinews_hub::{BrowserRejection, BuildError, Hub, HubBuilder, HubConfig, Predecessor};
use sinews_server::DeflateMode;

use super::notify::{ServiceState, notify};
use crate::config::units::Redacted;
use crate::output;
use crate::settings::admin::ADMIN_TAG;
use crate::settings::{AuthSettings, DeflateSetting, KeySource, RejectBrowsers, ServeSettings};
use crate::version;

/// Builds the hub.
///
/// # Errors
/// The invalid setting, and the reason.
pub(super) fn build_hub(
    settings: &ServeSettings,
    access: HubConfig,
    predecessor: Option<&Predecessor>,
) -> Result<Hub, String> {
    let builder = hub_builder(settings, access)?
        .websocket(settings.websocket.config())
        .deflate(deflate(settings.deflate))
        .message_rate(settings.limits.messages_per_second.map(Into::into))
        .build_info(version::VERSION, version::COMMIT)
        .dropped_log_lines(output::dropped_lines)
        .predecessor(predecessor)
        .on_successor(|process| notify(ServiceState::MainPid(process)));
    builder.build().map_err(|error| describe(settings, error))
}

/// Checks the hub's options against each other.
///
/// # Errors
/// The invalid setting, and the reason.
pub(super) fn check_hub(settings: &ServeSettings) -> Result<(), String> {
    let builder = hub_builder(settings, access_policy(settings)?)?;
    builder.check().map_err(|error| describe(settings, error))
}

/// Returns the hub's options that may contradict each other.
fn hub_builder(settings: &ServeSettings, access: HubConfig) -> Result<HubBuilder, String> {
    let mut builder = Hub::builder().config(access).max_message(settings.max_message);
    if settings.admin.is_apart() {
        builder = builder.admin_tag(ADMIN_TAG);
    }
    if !settings.pages {
        builder = builder.without_pages();
    }
    builder = builder.chat_history(settings.chat_history);
    for history in &settings.history {
        builder = builder.history(&history.pattern, history.messages);
    }
    if let Some(prefix) = settings.pusher.path_prefix() {
        builder = builder.pusher_path_prefix(prefix);
    }
    builder = builder.pusher_recovery_bytes(settings.pusher.max_recovery_bytes());
    if let Some(streams) = settings.streams.options()? {
        builder = builder.streams(streams);
    }
    if let Some(cluster) = settings.cluster.options(&settings.names)? {
        builder = builder.cluster(cluster);
    }
    if let Some(store) = settings.cluster.topic_store(&settings.names)? {
        builder = builder.topic_store(store).store_away(settings.cluster.store_away.into());
    }
    Ok(builder)
}

/// Names the setting of a fault.
fn describe(settings: &ServeSettings, error: BuildError) -> String {
    match error {
        BuildError::StreamDirectory(why) => format!("streams.directory: {why}"),
        BuildError::Compaction(why) => format!("{}: {why}", settings.name("streams.compact")),
        BuildError::Cluster(why) => format!("{}: {why}", settings.name("cluster.url")),
        BuildError::PusherPrefix(why) => format!("{}: {why}", settings.name("pusher.path_prefix")),
        BuildError::KeysInStore => format!(
            "{}: the topic store has the keys of topics: streams.durable_keys and namespace.*.durable_keys are for a \
             server without cluster.store",
            settings.name("cluster.store")
        ),
        error => error.to_string(),
    }
}

/// Creates the hub's configuration. Reads the keys that the settings name.
///
/// # Errors
/// The invalid setting, and the reason.
pub(super) fn access_policy(settings: &ServeSettings) -> Result<HubConfig, String> {
    let options = auth_options(&settings.auth);
    let options = options.map_err(|(key, fault)| format!("{}: {fault}", settings.name(key)))?;
    let auth = Auth::new(&options).map_err(|error| {
        let key = match error {
            AuthError::PublicSubscribe(_) => "auth.public_subscribe",
            AuthError::PublicPublish(_) => "auth.public_publish",
            AuthError::PersonalTopics(_) => "auth.personal_topics",
            _ => settings.auth.keys.key(),
        };
        format!("{}: {error}", settings.name(key))
    })?;
    let rejection = match settings.websocket.reject_browsers {
        RejectBrowsers::Close => BrowserRejection::Close,
        RejectBrowsers::Status => BrowserRejection::Status,
    };
    let policy = HubConfig::new(auth, settings.host_policy()?).with_origin(settings.origin_policy()?);
    let policy = policy.with_browser_rejection(rejection).with_namespaces(settings.namespace_options()?);
    let policy = policy.with_hooks(settings.hook_options()?).with_webhooks(settings.webhook_options()?);
    let policy = policy.with_pusher(settings.pusher.apps()?);
    Ok(match api_keys(settings)? {
        Some(keys) => policy.with_api_keys(keys),
        None => policy,
    })
}

/// Returns the HTTP API's keys; `None` without keys.
fn api_keys(settings: &ServeSettings) -> Result<Option<ApiKeys>, String> {
    let (key, file) = (&settings.api.key, &settings.api.keys_file);
    if key.is_none() && file.is_none() {
        return Ok(None);
    }
    let mut keys = ApiKeys::new();
    if let Some(Redacted(key)) = key {
        keys = keys.with_key(key).map_err(|fault| format!("{}: {fault}", settings.name("api.key")))?;
    }
    if let Some(file) = file {
        keys =
            keys.with_file(file).map_err(|fault| format!("{}: {fault}", settings.name("api.keys_file")))?;
    }
    Ok(Some(keys))
}

/// # Errors
/// The invalid key's name, and the reason.
fn auth_options(settings: &AuthSettings) -> Result<AuthOptions, (&'static str, String)> {
    let mut options = AuthOptions::new()
        .with_leeway(settings.leeway)
        .with_public_subscribe(settings.public_subscribe.iter().cloned())
        .with_public_publish(settings.public_publish.iter().cloned())
        .with_personal_topics(settings.personal_topics.iter().cloned());
    if let KeySource::JwksUrls(urls) = &settings.keys {
        options = options.with_keys(TokenKeys::JwksUrls(settings.jwks_options(urls)?));
    } else if let Some(keys) = token_keys(&settings.keys) {
        options = options.with_keys(keys);
    }
    let names = [("auth.audience", &settings.audience), ("auth.issuer", &settings.issuer)];
    for (key, names) in names {
        let is_wrong = |name: &&String| name.is_empty() || name.trim() != name.as_str();
        if let Some(name) = names.iter().flatten().find(is_wrong) {
            return Err((
                key,
                format!("{name:?} is empty or has blanks around it: no token has such a name"),
            ));
        }
    }
    if let Some(audience) = &settings.audience {
        options = options.with_audience(audience.iter().cloned());
    }
    if let Some(issuer) = &settings.issuer {
        options = options.with_issuer(issuer.iter().cloned());
    }
    Ok(options)
}

/// The keys for tokens that are read at once; `None` without tokens, and for keys from URLs.
pub(super) fn token_keys(source: &KeySource) -> Option<TokenKeys> {
    match source.clone() {
        KeySource::None | KeySource::JwksUrls(_) => None,
        KeySource::Secret(secret) => Some(TokenKeys::Secret(secret)),
        KeySource::SecretFile(path) => Some(TokenKeys::SecretFile(path)),
        KeySource::PublicKeyFile(path) => Some(TokenKeys::PublicKeyFile(path)),
        KeySource::JwksFile(path) => Some(TokenKeys::JwksFile(path)),
    }
}

fn deflate(setting: DeflateSetting) -> Option<DeflateMode> {
    match setting {
        DeflateSetting::Off => None,
        DeflateSetting::Shared => Some(DeflateMode::Shared),
        DeflateSetting::Dedicated => Some(DeflateMode::Dedicated),
    }
}
