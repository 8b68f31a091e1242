//! `sinews token`: makes and inspects tokens.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use jsonwebtoken::dangerous::insecure_decode;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use sinews_hub::auth::{
    Auth, AuthOptions, TokenKeys, crypto, hmac_algorithms, key_pattern, pem, read_secret, seconds,
};
use sinews_hub::check_pattern;
use sinews_server::escape::escape_json;

use crate::config::units::DurationSetting;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: Option<TokenCommand>,

    #[command(flatten)]
    make: MakeTokenArgs,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Show the claims of a token, and with a key whether a server accepts it.
    Inspect(InspectTokenArgs),
}

#[derive(Debug, Args)]
struct MakeTokenArgs {
    /// File with the server's secret (`auth.secret_file`)
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_SECRET_FILE", conflicts_with = "private_key_file")]
    secret_file: Option<PathBuf>,

    /// File with a private key in PEM: RSA, EC (PKCS #8) or Ed25519; the server needs its public key
    #[arg(long, value_name = "FILE")]
    private_key_file: Option<PathBuf>,

    /// Signature algorithm: HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA
    /// [default: the first that fits the key]
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,

    /// Name of the key in the server's key set (`kid`)
    #[arg(long, value_name = "NAME")]
    key_id: Option<String>,

    /// Topics that the token permits to subscribe to, as a pattern such as `chat.>`; repeatable
    #[arg(long, value_name = "PATTERN")]
    subscribe: Vec<String>,

    /// Topics that the token permits to publish to, as a pattern; repeatable
    #[arg(long, value_name = "PATTERN")]
    publish: Vec<String>,

    /// Keys of topics that the token permits to write, as patterns of a topic and a key such as `players/{sub}`, where
    /// `{sub}` is the subject of the token; repeatable
    #[arg(long, value_name = "PATTERN")]
    keys: Vec<String>,

    /// Streams that the token permits to delete, as a pattern; repeatable
    #[arg(long, value_name = "PATTERN")]
    delete: Vec<String>,

    /// Topic or pattern to which the server subscribes the client, whatever its rights; repeatable
    #[arg(long, value_name = "TOPIC")]
    topics: Vec<String>,

    /// Lifetime of the token, such as 15m, 1h or 7d
    #[arg(long, value_name = "TIME", default_value = "1h")]
    expires: DurationSetting,

    /// Subject of the token (`sub`)
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,

    /// Id of the token (`jti`), by which it can be revoked
    #[arg(long, value_name = "NAME")]
    id: Option<String>,

    /// Audience of the token (`aud`); repeatable
    #[arg(long, value_name = "NAME")]
    audience: Vec<String>,

    /// Issuer of the token (`iss`)
    #[arg(long, value_name = "NAME")]
    issuer: Option<String>,
}

#[derive(Debug, Args)]
struct InspectTokenArgs {
    /// The token; `-` reads it from standard input, so that it stays out of the shell's history
    token: String,

    /// File with the secret of the signature
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_SECRET_FILE", group = "key")]
    secret_file: Option<PathBuf>,

    /// File with the public key in PEM
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_PUBLIC_KEY_FILE", group = "key")]
    public_key_file: Option<PathBuf>,

    /// File with a key set in JSON
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_JWKS_FILE", group = "key")]
    jwks_file: Option<PathBuf>,

    /// Expected audience of the token (`aud`); repeatable
    #[arg(long, value_name = "NAME")]
    audience: Option<Vec<String>>,

    /// Expected issuer of the token (`iss`); repeatable
    #[arg(long, value_name = "NAME")]
    issuer: Option<Vec<String>>,
}

/// Prints a new token, or a token's content.
///
/// # Errors
/// Returns an error about a key, a pattern or the token.
pub(crate) fn run(args: &TokenArgs) -> Result<(), String> {
    crypto::install();
    let message = match &args.command {
        None => make(&args.make)?,
        Some(TokenCommand::Inspect(args)) => return inspect(args),
    };
    print(&format!("{message}\n"))
}

/// Makes a token that permits all topics and keys, for the first steps.
///
/// # Errors
/// The secret cannot be read.
pub(crate) fn for_development(secret_file: &Path) -> Result<String, String> {
    crypto::install();
    let all = || vec![">".to_owned()];
    make(&MakeTokenArgs {
        secret_file: Some(secret_file.to_owned()),
        private_key_file: None,
        algorithm: None,
        key_id: None,
        subscribe: all(),
        publish: all(),
        keys: vec![">/>".to_owned()],
        delete: Vec::new(),
        topics: Vec::new(),
        expires: DurationSetting(DEVELOPMENT_LIFETIME),
        subject: Some("developer".to_owned()),
        id: None,
        audience: Vec::new(),
        issuer: None,
    })
}

/// Seven days.
const DEVELOPMENT_LIFETIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);

fn make(args: &MakeTokenArgs) -> Result<String, String> {
    let (key, good) = key_and_algorithms(args)?;
    let algorithm = args.algorithm.unwrap_or(good[0]);
    if !good.contains(&algorithm) {
        return Err(format!("--algorithm {algorithm:?}: the key is good for {good:?}"));
    }
    for (flag, patterns) in [
        ("--subscribe", &args.subscribe),
        ("--publish", &args.publish),
        ("--delete", &args.delete),
        ("--topics", &args.topics),
    ] {
        for pattern in patterns {
            check_pattern(pattern)
                .map_err(|error| format!("{flag} {pattern}: not a valid topic pattern: {error}"))?;
        }
    }
    if let Some(bad) = args.keys.iter().find(|pattern| !key_pattern::is_valid(pattern)) {
        return Err(format!("--keys {bad}: not a topic pattern, a slash and a key pattern"));
    }
    let rights = [&args.subscribe, &args.publish, &args.keys, &args.delete, &args.topics];
    if rights.into_iter().all(Vec::is_empty) {
        return Err(
            "the token would permit nothing: give --subscribe, --publish, --keys, --delete or --topics"
                .to_owned(),
        );
    }
    let now = now().floor() as u64;
    let mut claims = json!({
        "iat": now,
        "exp": now.saturating_add(args.expires.0.as_secs()),
        "publish": args.publish,
        "subscribe": args.subscribe,
    });
    if !args.delete.is_empty() {
        claims["delete"] = json!(args.delete);
    }
    if !args.topics.is_empty() {
        claims["topics"] = json!(args.topics);
    }
    if !args.keys.is_empty() {
        claims["keys"] = json!(args.keys);
    }
    let audience = (!args.audience.is_empty()).then(|| json!(args.audience));
    for (claim, value) in [
        ("sub", args.subject.as_ref().map(|name| json!(name))),
        ("jti", args.id.as_ref().map(|name| json!(name))),
        ("aud", audience),
        ("iss", args.issuer.as_ref().map(|name| json!(name))),
    ] {
        if let Some(value) = value {
            claims[claim] = value;
        }
    }
    let header = Header { kid: args.key_id.clone(), ..Header::new(algorithm) };
    encode(&header, &claims, &key).map_err(|error| format!("cannot sign: {error}"))
}

/// Reads the key, and determines its algorithms.
fn key_and_algorithms(args: &MakeTokenArgs) -> Result<(EncodingKey, Vec<Algorithm>), String> {
    if let Some(path) = &args.private_key_file {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        return pem::signing_key(&bytes).ok_or_else(|| {
            format!("{}: not a private key in PEM: expected RSA, EC (PKCS #8) or Ed25519", path.display())
        });
    }
    let Some(path) = &args.secret_file else {
        return Err("a key is needed: --secret-file or --private-key-file".to_owned());
    };
    let secret = read_secret(path).map_err(|error| error.to_string())?;
    let good = hmac_algorithms(&secret).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((EncodingKey::from_secret(&secret), good))
}

fn inspect(args: &InspectTokenArgs) -> Result<(), String> {
    let mut token = args.token.clone();
    if token == "-" {
        token.clear();
        // A token is in a request's head, which is smaller.
        let stdin = io::stdin().lock().take(1 << 20);
        { stdin }.read_to_string(&mut token).map_err(|error| format!("standard input: {error}"))?;
    }
    let token = token.trim();
    let found =
        insecure_decode::<Value>(token).map_err(|error| format!("the token is not a JWT: {error}"))?;
    let header = serde_json::to_value(&found.header).map_err(|error| error.to_string())?;
    let mut shown = json!({ "header": header, "claims": found.claims });
    if let Some(exp) = found.claims["exp"].as_f64() {
        let left = seconds(exp).as_secs_f64() - now();
        shown["expires"] = if left > 0.0 {
            json!(format!("in {} s", left.ceil()))
        } else {
            json!(format!("{} s ago", (-left).floor()))
        };
    }
    let verdict = verdict(args, token)?;
    shown["verdict"] = match &verdict {
        None => json!("not checked: no key was given"),
        Some(Ok(())) => json!("good"),
        Some(Err(problem)) => json!(problem),
    };
    print(&escape_json(&format!("{shown:#}\n")))?;
    match verdict {
        Some(Err(problem)) => Err(format!("a server rejects this token: {problem}")),
        _ => Ok(()),
    }
}

/// Whether a server with the given key accepts the token; `None` without a key.
fn verdict(args: &InspectTokenArgs, token: &str) -> Result<Option<Result<(), String>>, String> {
    let path = |path: &Option<PathBuf>, source: fn(PathBuf) -> TokenKeys| path.clone().map(source);
    let keys = path(&args.secret_file, TokenKeys::SecretFile)
        .or_else(|| path(&args.public_key_file, TokenKeys::PublicKeyFile))
        .or_else(|| path(&args.jwks_file, TokenKeys::JwksFile));
    let Some(keys) = keys else { return Ok(None) };
    let mut options = AuthOptions::new().with_keys(keys).with_leeway(Duration::ZERO);
    if let Some(audience) = &args.audience {
        options = options.with_audience(audience.iter().cloned());
    }
    if let Some(issuer) = &args.issuer {
        options = options.with_issuer(issuer.iter().cloned());
    }
    let auth = Auth::new(&options).map_err(|error| error.to_string())?;
    Ok(Some(auth.verify(token).map(drop).map_err(|error| error.to_string())))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn print(message: &str) -> Result<(), String> {
    io::stdout().lock().write_all(message.as_bytes()).map_err(|error| format!("standard output: {error}"))
}
