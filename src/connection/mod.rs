//! WebSocket at `GET /ws`: many calls at once on one connection, one Durable Object each.
//!
//! ```text
//! upgrade ─▶ key (headers, subprotocol, or a first `init`) ─▶ ready ─▶ invoke, subscribe, cancel, ping
//! ```

pub mod message;
pub mod protocols;

#[cfg(target_arch = "wasm32")]
pub mod actor;
#[cfg(target_arch = "wasm32")]
mod invocation;
#[cfg(target_arch = "wasm32")]
mod sink;
#[cfg(target_arch = "wasm32")]
mod socket;
#[cfg(target_arch = "wasm32")]
mod subscription;

/// Name of this door in log lines and in the audit.
pub const DOOR: &str = "websocket";

/// Why a connection is closed by the service, as in the close frame; documented in docs/websocket.md.
pub mod close {
    use crate::error::ErrorCode;

    /// A binary frame was sent.
    pub const UNSUPPORTED: u16 = 1003;
    /// The `init` is none that can be read, or names a tenant that cannot be one.
    pub const BAD_INIT: u16 = 4400;
    /// No key, or one that is not valid.
    pub const UNAUTHENTICATED: u16 = 4401;
    /// The key may not call anything.
    pub const FORBIDDEN: u16 = 4403;
    /// Nothing was presented in time.
    pub const TOO_LATE: u16 = 4408;
    /// What was sent was not read for too long, or pings stopped.
    pub const GONE: u16 = 4410;
    /// The key could not be looked at, or too many calls were made with it; try again.
    pub const TRY_AGAIN: u16 = 4429;

    /// Why a connection is closed whose `init` was answered with this error.
    pub fn of_entry(code: ErrorCode) -> u16 {
        match code {
            ErrorCode::Unauthenticated => UNAUTHENTICATED,
            ErrorCode::Forbidden | ErrorCode::ApprovalRejected => FORBIDDEN,
            ErrorCode::InvalidArguments | ErrorCode::MalformedRequest => BAD_INIT,
            _ => TRY_AGAIN,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_what_can_pass_is_to_be_tried_again() {
            for code in ErrorCode::ALL {
                assert_eq!(of_entry(code) == TRY_AGAIN, ![400, 401, 403].contains(&code.status()), "{code:?}");
            }
        }
    }
}
