//! Routes that refuse, in the network namespace of the calling process.

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// A range of addresses: its first, and how many bits all have in common.
pub(super) type Range = (Ipv4Addr, u8);

/// What is nobody's on the internet and may be somebody's here. Link-local is where clouds tell machines their secrets.
const NEVER: [Range; 5] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];
const PRIVATE: [Range; 6] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
];
/// slirp4netns's network inside; its addresses never leave it, whoever has the same outside.
const INSIDE: [u8; 3] = [10, 0, 2];

/// What a sandbox must not reach: `own` are the machine's addresses.
pub(super) fn refused(own: impl IntoIterator<Item = Ipv4Addr>, allow_private: bool) -> Vec<Range> {
    let mut ranges = NEVER.to_vec();
    if !allow_private {
        ranges.extend(PRIVATE);
    }
    ranges.extend(own.into_iter().filter(|it| !it.octets().starts_with(&INSIDE)).map(|it| (it, 32)));
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

/// Refuses every range, or fails.
pub(super) fn refuse(ranges: &[Range]) -> io::Result<()> {
    // The first protocol of this family is the one for routes.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    for range in ranges {
        send(&socket, &message(*range), SendFlags::empty())?;
        acknowledged(&socket)?;
    }
    Ok(())
}

/// `nlmsghdr`, `rtmsg` and one attribute: the destination.
fn message((first, bits): Range) -> Vec<u8> {
    const LENGTH: u32 = 16 + 12 + 8;
    const FLAGS: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend(LENGTH.to_ne_bytes());
    message.extend(libc::RTM_NEWROUTE.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([libc::AF_INET as u8, bits, 0, 0]);
    message.extend([libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE, libc::RTN_PROHIBIT]);
    message.extend([0; 4]);
    message.extend(8u16.to_ne_bytes());
    message.extend(libc::RTA_DST.to_ne_bytes());
    message.extend(first.octets());
    message
}

/// The kernel's answer: `nlmsghdr`, then an error number, 0 for none.
fn acknowledged(socket: &OwnedFd) -> io::Result<()> {
    let mut answer = [0u8; 256];
    let (length, _) = recv(socket, &mut answer, RecvFlags::empty())?;
    let error = answer.get(16..16 + size_of::<i32>()).filter(|_| length >= 20);
    match error.and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::other(format!("descriptor {}: not an answer", socket.as_raw_fd()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_what_is_private_are_refused() {
        let own = [Ipv4Addr::new(203, 0, 113, 5), Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 2, 15)];
        let ranges = refused(own, false);
        for range in [(Ipv4Addr::new(203, 0, 113, 5), 32), (Ipv4Addr::new(10, 0, 0, 0), 8)] {
            assert!(ranges.contains(&range), "{range:?}");
        }
        assert!(ranges.contains(&(Ipv4Addr::new(169, 254, 0, 0), 16)));
        assert!(!ranges.contains(&(Ipv4Addr::new(10, 0, 2, 15), 32)), "it is an address of the inside");
        let fewer = refused(own, true);
        assert!(!fewer.contains(&(Ipv4Addr::new(10, 0, 0, 0), 8)));
        assert!(fewer.contains(&(Ipv4Addr::new(203, 0, 113, 5), 32)), "the machine itself stays out of reach");
        assert!(fewer.contains(&(Ipv4Addr::new(169, 254, 0, 0), 16)));
    }
}
