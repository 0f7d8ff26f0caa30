//! Background processes: they live on when the call, the stream or the Worker that started them is gone.
//!
//! `process` is one of them and the owner of its tree, `life` runs it again as its policy and `backoff` say, `input` and
//! `log` are what goes in and what came out, `wait` waits for a condition with the help of `matcher` and `ports`, `stream`
//! tells of it live, `table` knows every process of this boot.

mod backoff;
mod input;
mod life;
mod log;
mod matcher;
mod ports;
mod process;
pub(super) mod routes;
mod stream;
mod table;
mod wait;

pub(super) use routes::routes;
pub(super) use table::{CONCURRENT_PROCESSES, Table};
