//! The issuer and the audience that a rejected token claims, for its error.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use crate::model::brief::brief;

/// Accepted names that an error repeats.
const SHOWN_MAX: usize = 4;

/// Unverified token claims.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimedNames {
    pub(super) iss: Option<Value>,
    pub(super) aud: Option<Value>,
}

impl ClaimedNames {
    /// Reads a token's claims. A token without readable claims has none.
    pub(super) fn read(token: &str) -> Self {
        let claims = token.split('.').nth(1).and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
        claims.and_then(|claims| serde_json::from_slice(&claims).ok()).unwrap_or_default()
    }

    /// Describes a token whose issuer is not in a setting.
    pub(super) fn describe_issuer(&self, setting: &str, accepted: &[String]) -> String {
        let difference = describe_difference("iss", self.iss.as_ref(), setting, accepted);
        format!("the token comes from another issuer: {difference}")
    }

    /// Describes a token that names no accepted audience.
    pub(super) fn describe_audience(&self, accepted: Option<&[String]>) -> String {
        let difference =
            describe_difference("aud", self.aud.as_ref(), "auth.audience", accepted.unwrap_or_default());
        format!("the token is meant for another audience: {difference}")
    }
}

/// Names the claimed and the accepted values, first values that differ in a final slash only.
fn describe_difference(claim: &str, claimed: Option<&Value>, setting: &str, accepted: &[String]) -> String {
    let claimed_text = claimed.map_or_else(|| "nothing".to_owned(), |value| brief(&value.to_string()));
    if accepted.is_empty() {
        return format!("its {claim} is {claimed_text}, and {setting} is not set");
    }
    let without_slash = |name: &str| name.strip_suffix('/').unwrap_or(name).to_owned();
    let claims = |name: &str| {
        let is_alike = |value: &Value| value.as_str().is_some_and(|text| without_slash(text) == name);
        claimed.is_some_and(|value| match value {
            Value::Array(all) => all.iter().any(is_alike),
            one => is_alike(one),
        })
    };
    let alike: Vec<&String> = accepted.iter().filter(|name| claims(&without_slash(name))).collect();
    let shown = if alike.is_empty() { accepted.iter().collect() } else { alike.clone() };
    let names: Vec<String> = shown.iter().take(SHOWN_MAX).map(|name| format!("{:?}", brief(name))).collect();
    let more = if shown.len() > SHOWN_MAX { ", …" } else { "" };
    let hint = if alike.is_empty() { "" } else { "; they differ in the final /" };
    format!("its {claim} is {claimed_text}, and {setting} has {}{more}{hint}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_claimed_and_the_accepted_value() {
        let issuer = |claimed: Value, accepted: &[&str]| {
            let claimed = ClaimedNames { iss: Some(claimed), aud: None };
            let accepted: Vec<String> = accepted.iter().map(|&name| name.to_owned()).collect();
            claimed.describe_issuer("auth.issuer", &accepted)
        };
        for (claimed, accepted) in [("https://a/", "https://a"), ("https://a", "https://a/")] {
            assert_eq!(
                issuer(json!(claimed), &["https://b", accepted]),
                format!(
                    "the token comes from another issuer: its iss is {claimed:?}, and auth.issuer has {accepted:?}; \
                     they differ in the final /"
                )
            );
        }
        let text = issuer(json!("x".repeat(1_000)), &["a", "b", "c", "d", "e"]);
        assert!(text.len() < 200 && text.ends_with("\"a\", \"b\", \"c\", \"d\", …"), "{text}");
        let audience = ClaimedNames { iss: None, aud: Some(json!(["us/", "them"])) };
        let accepted = ["us".to_owned()];
        assert_eq!(
            audience.describe_audience(Some(&accepted)),
            "the token is meant for another audience: its aud is [\"us/\",\"them\"], and auth.audience has \"us\"; \
             they differ in the final /"
        );
        assert_eq!(
            audience.describe_audience(None),
            "the token is meant for another audience: its aud is [\"us/\",\"them\"], and auth.audience is not set"
        );
        assert!(ClaimedNames::read("no token").iss.is_none() && ClaimedNames::read("a.e30.b").aud.is_none());
    }
}
