//! Webhooks: what is posted to a URL of a tenant's choice, as [Standard Webhooks](https://www.standardwebhooks.com) say it.
//!
//! Whoever has something to tell keeps it in its own object's storage, under an id that stays the same over all attempts, until
//! the receiver took it or [`schedule`] is over: a message arrives at least once, and a receiver that looks at `webhook-id` sees
//! it once. Here is what all of them share: what is told ([`event`]), where a message may go ([`address`]), how it is signed
//! ([`signature`]), when it is tried again, and one attempt (`send`). The tenant's outbox (`tenant/outbox.rs`) holds them together.

pub mod address;
pub mod event;
pub mod schedule;
pub mod signature;

#[cfg(target_arch = "wasm32")]
pub mod send;
