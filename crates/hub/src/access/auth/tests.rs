use jsonwebtoken::EncodingKey;
use serde_json::json;

use super::*;

const SECRET: &str = "a secret of at least thirty-two bytes for HS256";

fn auth() -> Auth {
    Auth::new(&AuthOptions::new().with_keys(TokenKeys::Secret(SECRET.to_owned()))).unwrap()
}

fn signed(claims: &Value) -> String {
    jsonwebtoken::encode(&Header::default(), claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn claims_that_are_null_are_absent() {
    let auth = auth();
    let all = ["publish", "subscribe", "delete", "keys", "topics", "sub", "jti", "iat", "nbf", "aud", "iss"];
    for name in all {
        let mut claims = json!({ "exp": now() + 60.0 });
        claims[name] = Value::Null;
        assert!(auth.verify(&signed(&claims)).is_ok(), "{name}");
        let claims = claims.as_object().unwrap().clone();
        assert!(auth.rights_of_claims(claims).is_ok(), "{name}");
    }
    assert_eq!(
        auth.verify(&signed(&json!({ "exp": null }))).unwrap_err().to_string(),
        "the token has no exp"
    );
    let unlimited = auth.rights_of_claims(json!({ "exp": null, "sub": "a" }).as_object().unwrap().clone());
    assert!(unlimited.is_ok_and(|rights| rights.deadline().is_none()));
}

#[test]
fn unknown_client_has_no_rights() {
    let rights = Rights::none();
    let actions = [Action::Publish, Action::Subscribe, Action::Delete];
    assert!(actions.into_iter().all(|action| rights.may(action, "a").is_err()));
    assert!(rights.may_write_key("a", "b").is_err());
}

#[test]
fn errors_of_claims_name_the_claim_and_repeat_no_value() {
    let auth = auth();
    for name in ["publish", "subscribe", "delete", "keys", "topics"] {
        for bad in [json!(7), json!({}), json!([7]), json!(["a", null]), json!([["secret"]]), json!(true)] {
            let claims = json!({ "exp": now() + 60.0, name: bad });
            let expected = format!("{name} is not a string or a list of strings");
            assert_eq!(
                auth.verify(&signed(&claims)).unwrap_err().to_string(),
                format!("the token's {expected}")
            );
            let claims = claims.as_object().unwrap().clone();
            assert_eq!(auth.rights_of_claims(claims).unwrap_err(), expected);
        }
    }
    for (name, bad, expected) in [
        ("sub", json!(42), "sub is not a string"),
        ("jti", json!(["secret"]), "jti is not a string"),
        ("iat", json!("secret"), "iat is not a number"),
        ("nbf", json!("secret"), "nbf is not a number"),
        ("exp", json!("secret"), "exp is not a number"),
    ] {
        let mut claims = json!({ "exp": now() + 60.0 });
        claims[name] = bad;
        assert_eq!(auth.verify(&signed(&claims)).unwrap_err().to_string(), format!("the token's {expected}"));
        let claims = claims.as_object().unwrap().clone();
        assert_eq!(auth.rights_of_claims(claims).unwrap_err(), expected);
    }
}

#[test]
fn token_is_not_valid_before_its_nbf() {
    let auth = auth();
    let verify = |nbf: f64| auth.verify(&signed(&json!({ "exp": now() + 900.0, "nbf": nbf })));
    assert_eq!(verify(now() + 600.0).unwrap_err().to_string(), "the token is not valid yet (nbf)");
    for nbf in [0.0, -1.0, now() - 0.5, now() - 600.0] {
        assert!(verify(nbf).is_ok(), "{nbf}");
    }
    assert!(verify(1e300).is_err());
}
