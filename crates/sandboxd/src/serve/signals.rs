//! Signals as events: an ended child to reap, or the wish that the daemon ends.
//!
//! They are blocked and read from a descriptor, which also tells who sent them. As process 1 of a sandbox the daemon
//! obeys only senders outside: a command inside must not be able to stop it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What a signal means.
pub(super) enum Event {
    /// A child ended.
    Child,
    /// The daemon is to end.
    Terminate,
}

/// The descriptor that signals are read from.
pub(super) struct Signals {
    descriptor: AsyncFd<OwnedFd>,
}

impl Signals {
    /// Blocks the signals, so call it before another thread exists. Must run inside a tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the set is a local that the calls only read once it is filled.
        let descriptor = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT] {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let number = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(number)
        };
        // SAFETY: the descriptor is owned by the result, so it stays open and the same for as long as it is registered.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE)? };
        Ok(Self { descriptor })
    }

    pub(super) async fn next(&self) -> io::Result<Event> {
        loop {
            let info = self.descriptor.async_io(Interest::READABLE, read).await?;
            let from_outside = info.ssi_pid == 0 || std::process::id() != 1;
            match info.ssi_signo.cast_signed() {
                libc::SIGCHLD => return Ok(Event::Child),
                _ if from_outside => return Ok(Event::Terminate),
                _ => tracing::info!("a command asked the daemon to end; ignored"),
            }
        }
    }
}

fn read(descriptor: &OwnedFd) -> io::Result<libc::signalfd_siginfo> {
    // SAFETY: the structure is plain data, and the kernel fills all of it or nothing.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        let length = libc::read(descriptor.as_raw_fd(), (&raw mut info).cast(), size);
        if length == size as isize { Ok(info) } else { Err(io::Error::last_os_error()) }
    }
}
