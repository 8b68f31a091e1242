//! The end of a connection.

use napi_derive::napi;
use sinews_proto::{CloseCode, PeerMisbehaved as Fault};
use sinews_session::{Cause, Closed};

/// A connection's end, for JavaScript.
#[napi(object, object_from_js = false)]
#[derive(Debug)]
pub struct ClosedInfo {
    /// The peer's close code, 1005 for a Close without a code. For a fault, the code in the local Close.
    pub code: u16,
    /// The peer's reason.
    pub reason: String,
    /// The peer's fault, as an error code.
    pub fault: Option<&'static str>,
    /// The invalid number for a fault that has one: opcode or close code.
    pub value: Option<u16>,
    /// A description of the fault.
    pub detail: Option<&'static str>,
}

impl From<Closed> for ClosedInfo {
    fn from(closed: Closed) -> Self {
        let fault = match closed.cause() {
            Cause::Fault(fault) => Some(fault),
            _ => None,
        };
        Self {
            code: fault.map_or(closed.status(), close_code),
            reason: if fault.is_some() { String::new() } else { closed.reason().to_owned() },
            fault: fault.map(error_code),
            value: fault.and_then(invalid_value),
            detail: fault.map(Fault::reason),
        }
    }
}

/// The error codes of the npm package `ws`, and codes in its manner for faults that it does not report.
const fn error_code(fault: Fault) -> &'static str {
    match fault {
        Fault::ReservedBits => "WS_ERR_UNEXPECTED_RSV_2_3",
        Fault::MisplacedCompressionBit => "WS_ERR_UNEXPECTED_RSV_1",
        Fault::UnknownOpcode(_) | Fault::NothingToContinue | Fault::DataInsideMessage => {
            "WS_ERR_INVALID_OPCODE"
        }
        Fault::UnmaskedFrame => "WS_ERR_EXPECTED_MASK",
        Fault::MaskedFrame => "WS_ERR_UNEXPECTED_MASK",
        Fault::ControlTooLong | Fault::CloseTooShort => "WS_ERR_INVALID_CONTROL_PAYLOAD_LENGTH",
        Fault::ControlFragmented => "WS_ERR_EXPECTED_FIN",
        Fault::LengthNotMinimal => "WS_ERR_INVALID_PAYLOAD_LENGTH",
        Fault::LengthTopBit => "WS_ERR_UNSUPPORTED_DATA_PAYLOAD_LENGTH",
        Fault::InvalidCloseCode(_) => "WS_ERR_INVALID_CLOSE_CODE",
        Fault::CloseReasonNotUtf8 | Fault::InvalidUtf8 => "WS_ERR_INVALID_UTF8",
        Fault::BadDeflate => "Z_DATA_ERROR",
        Fault::FrameTooBig | Fault::MessageTooBig => "WS_ERR_UNSUPPORTED_MESSAGE_LENGTH",
        Fault::TooManyFragments | Fault::TooManyEmptyFragments => "WS_ERR_TOO_MANY_BUFFERED_PARTS",
        _ => "WS_ERR_PROTOCOL",
    }
}

/// The codes in the Close of the npm package `ws`, which treats a reason as it does text.
const fn close_code(fault: Fault) -> u16 {
    match fault {
        Fault::CloseReasonNotUtf8 => CloseCode::INVALID_DATA.as_u16(),
        _ => fault.close_code().as_u16(),
    }
}

const fn invalid_value(fault: Fault) -> Option<u16> {
    match fault {
        Fault::UnknownOpcode(opcode) => Some(opcode as u16),
        Fault::InvalidCloseCode(code) => Some(code),
        Fault::NothingToContinue => Some(0),
        Fault::CloseTooShort => Some(1),
        _ => None,
    }
}
