//! Negotiation of permessage-deflate (RFC 7692 sections 5 and 7.1).

use alloc::string::String;
use core::fmt::Write as _;

use super::extensions::{ListItem, MalformedExtensions, Value, items};
use crate::deflate::{DeflateConfig, DeflateParams};

const NAME: &[u8] = b"permessage-deflate";
/// The largest window, and the default of an absent parameter.
const BITS_MAX: u8 = 15;
/// The smallest window of a raw zlib deflate stream; the format permits 8.
const BITS_MIN_OURS: u8 = 9;

/// Server side: the answer to the first acceptable offer, and the agreed parameters.
///
/// Unacceptable or invalid offers are declined one by one, and other extensions are ignored; neither fails
/// the handshake.
pub(super) fn agree<'v>(
    lines: impl Iterator<Item = &'v [u8]>,
    config: Option<&DeflateConfig>,
) -> Result<Option<(DeflateParams, String)>, MalformedExtensions> {
    let mut agreed = None;
    for_each_extension(lines, |name, parameters| {
        if let Some(config) = config
            && agreed.is_none()
            && name == NAME
        {
            agreed = answer(&parameters, config);
        }
    })?;
    Ok(agreed)
}

/// The answer to one offer, if it is acceptable.
fn answer(offer: &OfferedParameters, config: &DeflateConfig) -> Option<(DeflateParams, String)> {
    if offer.is_invalid {
        return None;
    }
    let server_bits = match offer.server_bits {
        WindowBits::Absent => config.server_max_window_bits(),
        WindowBits::Given(bits) if bits >= BITS_MIN_OURS => bits.min(config.server_max_window_bits()),
        // The server would have to compress with a window of 256 bytes. A value is required in an offer too
        // (RFC 7692 section 7.1.2.1).
        WindowBits::Given(_) | WindowBits::NoValue => return None,
    };
    // A limit may be sent only to a client that announces support for it (section 7.1.2.2). A client that
    // announces 8 for itself gets no limit: it may have the same restriction as this end.
    let client_bits = match offer.client_bits {
        WindowBits::NoValue => config.client_max_window_bits(),
        WindowBits::Given(bits) if bits >= BITS_MIN_OURS => bits.min(config.client_max_window_bits()),
        WindowBits::Absent | WindowBits::Given(_) => BITS_MAX,
    };
    // Safari of iOS 15 offers no parameter, and keeps its window although the answer forbids it. Other clients without a
    // parameter cannot be told from it.
    let forbids_takeover = config.client_no_context_takeover() && !offer.is_bare();
    let params = DeflateParams {
        server_no_context_takeover: offer.server_no_context_takeover || config.server_no_context_takeover(),
        client_no_context_takeover: offer.client_no_context_takeover || forbids_takeover,
        server_max_window_bits: server_bits,
        client_max_window_bits: client_bits,
    };
    let mut text = header_text(&params);
    // The parameter of an offer is accepted by repeating it, even with the default value (section 7.1.2.1).
    if offer.server_bits != WindowBits::Absent && server_bits == BITS_MAX {
        push_bits(&mut text, "server_max_window_bits", BITS_MAX);
    }
    Some((params, text))
}

/// Client side: the offer.
pub(super) fn offer(config: &DeflateConfig) -> String {
    let mut text = header_text(&requested_params(config));
    // Without it the server could not limit the client's window; the client supports any limit except 8.
    if config.client_max_window_bits() == BITS_MAX {
        text.push_str("; client_max_window_bits");
    }
    text
}

/// The reason for rejecting the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadAnswer;

/// Client side: checks the answer against the offer.
pub(super) fn check<'v>(
    lines: impl Iterator<Item = &'v [u8]>,
    config: Option<&DeflateConfig>,
) -> Result<DeflateParams, BadAnswer> {
    let mut found = None;
    let mut count = 0;
    for_each_extension(lines, |name, parameters| {
        count += 1;
        found = (name == NAME).then_some(parameters);
    })
    .map_err(|MalformedExtensions| BadAnswer)?;
    match (config, found) {
        (Some(config), Some(answer)) if count == 1 => parse_accepted_params(&answer, config).ok_or(BadAnswer),
        _ => Err(BadAnswer),
    }
}

fn parse_accepted_params(answer: &OfferedParameters, config: &DeflateConfig) -> Option<DeflateParams> {
    let requested_params = requested_params(config);
    // A server that accepts an offer with the parameter repeats it (RFC 7692 section 7.1.1.1).
    if answer.is_invalid
        || (requested_params.server_no_context_takeover && !answer.server_no_context_takeover)
    {
        return None;
    }
    let within = |bits: WindowBits, limit: u8, least: u8| match bits {
        WindowBits::Absent => Some(BITS_MAX),
        WindowBits::Given(bits) => (least..=limit).contains(&bits).then_some(bits),
        // An answer requires a value (section 7.1.2.2).
        WindowBits::NoValue => None,
    };
    let server_bits = within(answer.server_bits, requested_params.server_max_window_bits, 8)?;
    // An 8-bit compression window is not supported, so the limit 8 is rejected.
    let client_bits = within(answer.client_bits, requested_params.client_max_window_bits, BITS_MIN_OURS)?;
    // An offered limit is accepted by an answer with the same or a lower value (section 7.1.2.1).
    if server_bits > requested_params.server_max_window_bits {
        return None;
    }
    Some(DeflateParams {
        server_no_context_takeover: answer.server_no_context_takeover,
        // Restrictions announced by the client itself apply with or without an answer (section 7.1.1.2).
        client_no_context_takeover: answer.client_no_context_takeover
            || requested_params.client_no_context_takeover,
        server_max_window_bits: server_bits,
        client_max_window_bits: client_bits.min(requested_params.client_max_window_bits),
    })
}

const fn requested_params(config: &DeflateConfig) -> DeflateParams {
    DeflateParams {
        server_no_context_takeover: config.server_no_context_takeover(),
        client_no_context_takeover: config.client_no_context_takeover(),
        server_max_window_bits: config.server_max_window_bits(),
        client_max_window_bits: config.client_max_window_bits(),
    }
}

/// The extension with each parameter that differs from its default.
fn header_text(params: &DeflateParams) -> String {
    let mut text = String::with_capacity(128);
    text.push_str("permessage-deflate");
    if params.server_no_context_takeover {
        text.push_str("; server_no_context_takeover");
    }
    if params.client_no_context_takeover {
        text.push_str("; client_no_context_takeover");
    }
    if params.server_max_window_bits < BITS_MAX {
        push_bits(&mut text, "server_max_window_bits", params.server_max_window_bits);
    }
    if params.client_max_window_bits < BITS_MAX {
        push_bits(&mut text, "client_max_window_bits", params.client_max_window_bits);
    }
    text
}

fn push_bits(text: &mut String, name: &str, bits: u8) {
    // Writing to a String cannot fail.
    let _ = write!(text, "; {name}={bits}");
}

/// The parameters of one permessage-deflate, in an offer or an answer.
#[derive(Clone, Copy, Debug, Default)]
struct OfferedParameters {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_bits: WindowBits,
    client_bits: WindowBits,
    /// A parameter is unknown, repeated, or has an invalid value (section 7.1).
    is_invalid: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WindowBits {
    #[default]
    Absent,
    NoValue,
    /// 8 to 15.
    Given(u8),
}

impl OfferedParameters {
    /// Whether there is no parameter.
    fn is_bare(&self) -> bool {
        let Self { server_no_context_takeover, client_no_context_takeover, server_bits, client_bits, .. } =
            self;
        let has_flag = *server_no_context_takeover || *client_no_context_takeover;
        !has_flag && *server_bits == WindowBits::Absent && *client_bits == WindowBits::Absent
    }

    fn add(&mut self, name: &[u8], value: Option<Value<'_>>) {
        let sound = match name {
            b"server_no_context_takeover" => set_flag(&mut self.server_no_context_takeover, value),
            b"client_no_context_takeover" => set_flag(&mut self.client_no_context_takeover, value),
            b"server_max_window_bits" => set_bits(&mut self.server_bits, value),
            b"client_max_window_bits" => set_bits(&mut self.client_bits, value),
            _ => false,
        };
        self.is_invalid |= !sound;
    }
}

fn set_flag(flag: &mut bool, value: Option<Value<'_>>) -> bool {
    let repeated = core::mem::replace(flag, true);
    !repeated && value.is_none()
}

fn set_bits(bits: &mut WindowBits, value: Option<Value<'_>>) -> bool {
    let parsed = match value {
        None => WindowBits::NoValue,
        Some(value) => match window_bits(value) {
            Some(number) => WindowBits::Given(number),
            None => return false,
        },
    };
    core::mem::replace(bits, parsed) == WindowBits::Absent
}

/// 8 to 15 without leading zeros (section 7.1.2.1).
fn window_bits(value: Value<'_>) -> Option<u8> {
    let mut characters = value.characters();
    match (characters.next()?, characters.next(), characters.next()) {
        (digit @ b'8'..=b'9', None, None) => Some(digit - b'0'),
        (b'1', Some(digit @ b'0'..=b'5'), None) => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// Calls back for each extension in the lines, with its parameters parsed as permessage-deflate parameters.
///
/// The list has at least one element, so an empty list is malformed (RFC 6455 section 9.1).
fn for_each_extension<'v>(
    lines: impl Iterator<Item = &'v [u8]>,
    mut found: impl FnMut(&[u8], OfferedParameters),
) -> Result<(), MalformedExtensions> {
    let mut present = false;
    let mut current: Option<(&[u8], OfferedParameters)> = None;
    let mut any = false;
    for item in items(lines.inspect(|_| present = true)) {
        match (item?, &mut current) {
            (ListItem::Extension(name), current) => {
                any = true;
                if let Some((name, parameters)) = current.replace((name, OfferedParameters::default())) {
                    found(name, parameters);
                }
            }
            (ListItem::Parameter(name, value), Some((_, parameters))) => parameters.add(name, value),
            // The grammar permits no parameter before an extension.
            (ListItem::Parameter(..), None) => return Err(MalformedExtensions),
        }
    }
    if let Some((name, parameters)) = current {
        found(name, parameters);
    }
    if present && !any { Err(MalformedExtensions) } else { Ok(()) }
}
