//! Offered and accepted extensions (RFC 6455 section 9.1, RFC 7692 section 7.1), parsed leniently.

use super::violation::Violation;

/// An extension with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtensionHeader {
    pub(crate) name: String,
    pub(crate) params: Vec<(String, Option<String>)>,
}

/// Valid parameters in a permessage-deflate offer or answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfferParams {
    pub(crate) server_no_context_takeover: bool,
    pub(crate) client_no_context_takeover: bool,
    pub(crate) server_max_window_bits: Option<u8>,
    /// An offer may omit the value.
    pub(crate) client_max_window_bits: Option<Option<u8>>,
}

pub(crate) const DEFLATE: &str = "permessage-deflate";

/// Parses the list in all lines of a header.
pub(crate) fn parse<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<ExtensionHeader> {
    let mut found = Vec::new();
    for part in lines.flat_map(|line| split(line, ',')) {
        let mut pieces = split(part, ';').into_iter();
        let name = pieces.next().unwrap_or_default().trim().to_owned();
        let param = |piece: &str| {
            let (name, value) =
                piece.split_once('=').map_or((piece, None), |(name, value)| (name, Some(value)));
            (name.trim().to_owned(), value.map(|value| value.trim().trim_matches('"').to_owned()))
        };
        if !name.is_empty() {
            found.push(ExtensionHeader { name, params: pieces.map(param).collect() });
        }
    }
    found
}

/// Splits outside quotes.
fn split(text: &str, at: char) -> Vec<&str> {
    let mut quoted = false;
    text.split(|c| {
        quoted ^= c == '"';
        c == at && !quoted
    })
    .collect()
}

impl OfferParams {
    pub(crate) fn server_bits(&self) -> u8 {
        self.server_max_window_bits.unwrap_or(15)
    }

    pub(crate) fn client_bits(&self) -> u8 {
        self.client_max_window_bits.flatten().unwrap_or(15)
    }

    /// Parses an extension's parameters, and returns their violations. A server must decline an invalid offer, a
    /// client must fail the connection on an invalid answer (RFC 7692 section 7.1).
    pub(crate) fn read(extension: &ExtensionHeader, in_answer: bool) -> (Self, Vec<Violation>) {
        let (mut params, mut violations) = (Self::default(), Vec::new());
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in &extension.params {
            if seen.contains(&name.as_str()) {
                violations.push(Violation::new(
                    "RFC 7692 section 7.1",
                    format!("the parameter {name} is given twice"),
                ));
            }
            seen.push(name);
            let bits = value.as_deref().and_then(window_bits);
            let violation = match (name.as_str(), value) {
                ("server_no_context_takeover", None) => {
                    params.server_no_context_takeover = true;
                    None
                }
                ("client_no_context_takeover", None) => {
                    params.client_no_context_takeover = true;
                    None
                }
                ("server_no_context_takeover", _) => Some(("RFC 7692 section 7.1.1.1", "takes no value")),
                ("client_no_context_takeover", _) => Some(("RFC 7692 section 7.1.1.2", "takes no value")),
                ("server_max_window_bits", _) => {
                    params.server_max_window_bits = bits;
                    bits.is_none().then_some(("RFC 7692 section 7.1.2.1", "must be a number from 8 to 15"))
                }
                ("client_max_window_bits", None) if !in_answer => {
                    params.client_max_window_bits = Some(None);
                    None
                }
                ("client_max_window_bits", _) => {
                    params.client_max_window_bits = Some(bits);
                    bits.is_none().then_some(("RFC 7692 section 7.1.2.2", "must be a number from 8 to 15"))
                }
                _ => Some(("RFC 7692 section 7.1", "is no parameter of permessage-deflate")),
            };
            if let Some((section, why)) = violation {
                let value = value.as_ref().map_or_else(String::new, |value| format!("={value}"));
                violations.push(Violation::new(section, format!("{name}{value} {why}")));
            }
        }
        (params, violations)
    }
}

/// Parses 8 to 15 without a leading zero.
fn window_bits(text: &str) -> Option<u8> {
    let bits = text.parse().ok().filter(|bits| (8..=15).contains(bits))?;
    (!text.starts_with(['0', '+'])).then_some(bits)
}

/// Returns the accepted parameters, and their violations.
pub(crate) fn check(
    offered: &[ExtensionHeader],
    answered: &[ExtensionHeader],
) -> (Option<OfferParams>, Vec<Violation>) {
    let (mut agreed, mut violations) = (None, Vec::new());
    for answer in answered {
        let offers: Vec<&ExtensionHeader> =
            offered.iter().filter(|offer| offer.name == answer.name).collect();
        if offers.is_empty() {
            let description = format!("the extension {} was not offered", answer.name);
            violations.push(Violation::new("RFC 6455 section 4.1 item 5", description));
        }
        if answer.name != DEFLATE {
            continue;
        }
        if agreed.is_some() {
            violations.push(Violation::new("RFC 7692 section 5", "permessage-deflate is agreed to twice"));
        }
        let (params, wrong) = OfferParams::read(answer, true);
        violations.extend(wrong);
        violations.extend(check_offers(&offers, &params));
        agreed = Some(params);
    }
    (agreed, violations)
}

/// An answer must match at least one offer; otherwise the first offer's violations are reported.
fn check_offers(offers: &[&ExtensionHeader], answer: &OfferParams) -> Vec<Violation> {
    let mut first = None;
    for offer in offers {
        let (offer, wrong) = OfferParams::read(offer, false);
        let violations = if wrong.is_empty() {
            check_offer(&offer, answer)
        } else {
            let declined = |violation: Violation| {
                Violation::new(
                    "RFC 7692 section 7.1",
                    format!("an offer was accepted that must be declined: {}", violation.description),
                )
            };
            wrong.into_iter().map(declined).chain(check_offer(&offer, answer)).collect()
        };
        if violations.is_empty() {
            return violations;
        }
        first = first.or(Some(violations));
    }
    first.unwrap_or_default()
}

fn check_offer(offer: &OfferParams, answer: &OfferParams) -> Vec<Violation> {
    let mut violations = Vec::new();
    if let Some(bits) = offer.server_max_window_bits
        && answer.server_max_window_bits.is_none_or(|answered| answered > bits)
    {
        let description =
            format!("server_max_window_bits={bits} was demanded, and the answer does not keep to it");
        violations.push(Violation::new("RFC 7692 section 7.1.2.1", description));
    }
    if offer.server_no_context_takeover && !answer.server_no_context_takeover {
        let description = "server_no_context_takeover was demanded, and the answer does not say it";
        violations.push(Violation::new("RFC 7692 section 7.1.1.1", description));
    }
    let too_many = match (offer.client_max_window_bits, answer.client_max_window_bits) {
        (None, Some(_)) => Some("client_max_window_bits is answered, and was not offered"),
        (Some(Some(offered)), Some(Some(answered))) if answered > offered => {
            Some("client_max_window_bits is larger than offered")
        }
        _ => None,
    };
    violations.extend(too_many.map(|description| Violation::new("RFC 7692 section 7.1.2.2", description)));
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(offer: &str, answer: &str) -> Vec<String> {
        let (_, violations) = check(&parse([offer].into_iter()), &parse([answer].into_iter()));
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn answer_within_the_offer_is_valid() {
        for (offer, answer) in [
            ("permessage-deflate", "permessage-deflate"),
            ("permessage-deflate", "permessage-deflate; server_max_window_bits=10"),
            (
                "permessage-deflate; client_max_window_bits",
                "permessage-deflate; client_max_window_bits=\"9\"",
            ),
            ("permessage-deflate; server_max_window_bits=10", "permessage-deflate; server_max_window_bits=8"),
            ("permessage-deflate; nonsense, permessage-deflate", "permessage-deflate"),
            (
                "permessage-deflate",
                "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
            ),
            ("permessage-deflate", ""),
        ] {
            assert_eq!(violations(offer, answer), [""; 0], "{offer} / {answer}");
        }
    }

    #[test]
    fn answer_beyond_the_offer_is_named() {
        for (offer, answer, section) in [
            ("", "permessage-deflate", "RFC 6455 section 4.1 item 5"),
            ("permessage-deflate", "x-other", "RFC 6455 section 4.1 item 5"),
            ("permessage-deflate", "permessage-deflate; x=1", "RFC 7692 section 7.1"),
            (
                "permessage-deflate",
                "permessage-deflate; server_max_window_bits=16",
                "RFC 7692 section 7.1.2.1",
            ),
            (
                "permessage-deflate",
                "permessage-deflate; server_max_window_bits=09",
                "RFC 7692 section 7.1.2.1",
            ),
            (
                "permessage-deflate",
                "permessage-deflate; client_max_window_bits=10",
                "RFC 7692 section 7.1.2.2",
            ),
            (
                "permessage-deflate; client_max_window_bits=9",
                "permessage-deflate; client_max_window_bits=10",
                "RFC 7692 section 7.1.2.2",
            ),
            (
                "permessage-deflate; client_max_window_bits",
                "permessage-deflate; client_max_window_bits",
                "RFC 7692 section 7.1.2.2",
            ),
            (
                "permessage-deflate; server_max_window_bits=8",
                "permessage-deflate",
                "RFC 7692 section 7.1.2.1",
            ),
            ("permessage-deflate; server_max_window_bits=16", "permessage-deflate", "RFC 7692 section 7.1"),
            ("permessage-deflate; nonsense", "permessage-deflate", "RFC 7692 section 7.1"),
            (
                "permessage-deflate; server_no_context_takeover",
                "permessage-deflate",
                "RFC 7692 section 7.1.1.1",
            ),
            (
                "permessage-deflate",
                "permessage-deflate; server_no_context_takeover=1",
                "RFC 7692 section 7.1.1.1",
            ),
            ("permessage-deflate", "permessage-deflate, permessage-deflate", "RFC 7692 section 5"),
            (
                "permessage-deflate",
                "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
                "RFC 7692 section 7.1",
            ),
        ] {
            let found = violations(offer, answer);
            let expected = format!("{section}: ");
            assert!(found.len() == 1 && found[0].starts_with(&expected), "{offer} / {answer}: {found:?}");
        }
    }
}
