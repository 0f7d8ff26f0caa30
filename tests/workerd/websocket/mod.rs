//! The WebSocket door: who may come in, many calls at once, their ends, and what it costs.

mod calls;
mod ends;
mod entry;
mod load;
mod subscriptions;
