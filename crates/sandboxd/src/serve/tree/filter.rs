//! What a command may not ask the kernel for.
//!
//! A command often runs as the daemon's own user, inside a sandbox that has no other. Then `prlimit` on another process
//! would let it take away the daemon's memory or descriptors, which no other protection stops. So limits can be set for
//! the calling process only: `ulimit`, `setrlimit` and `prlimit` on itself by number 0 work as everywhere.
//!
//! The daemon puts the filter on itself when it starts, and everything that it starts inherits it: installing one costs a
//! tenth of what running a small program costs. It sets the limits of no other process either.

use std::io;

use libc::sock_filter;

#[cfg(target_arch = "x86_64")]
mod machine {
    pub(super) const ARCHITECTURE: u32 = 0xC000_003E;
    pub(super) const PRLIMIT: u32 = 302;
    /// The same calls by their 32-bit numbers: another architecture to the kernel, and a bit in the number.
    pub(super) const COMPATIBLE_ARCHITECTURE: u32 = 0x4000_0003;
    pub(super) const COMPATIBLE_PRLIMIT: u32 = 340;
    pub(super) const NUMBER_MASK: u32 = !0x4000_0000;
}

#[cfg(target_arch = "aarch64")]
mod machine {
    pub(super) const ARCHITECTURE: u32 = 0xC000_00B7;
    pub(super) const PRLIMIT: u32 = 261;
    pub(super) const COMPATIBLE_ARCHITECTURE: u32 = 0x4000_0028;
    pub(super) const COMPATIBLE_PRLIMIT: u32 = 369;
    pub(super) const NUMBER_MASK: u32 = u32::MAX;
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets in the kernel's `seccomp_data`. Arguments are 64 bits, on both machines the lower half first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const PROCESS: u32 = 16;
const NEW_LIMIT: u32 = 32;

const fn step(code: u16, value: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k: value }
}

/// Goes on to the next step when equal, otherwise over `skipped` more.
const fn unless_equal(value: u32, skipped: u8) -> sock_filter {
    sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: skipped, k: value }
}

/// Goes over `skipped` steps when equal, otherwise on to the next.
const fn when_equal(value: u32, skipped: u8) -> sock_filter {
    sock_filter { code: JUMP_IF_EQUAL, jt: skipped, jf: 0, k: value }
}

/// The program. Steps are numbered because jumps count them.
static FILTER: [sock_filter; 17] = [
    /* 0 */ step(LOAD, ARCHITECTURE),
    /* 1 */ when_equal(machine::COMPATIBLE_ARCHITECTURE, 11),
    /* 2 */ unless_equal(machine::ARCHITECTURE, 12),
    /* 3 */ step(LOAD, NUMBER),
    /* 4 */ step(AND, machine::NUMBER_MASK),
    /* 5 */ unless_equal(machine::PRLIMIT, 9),
    /* 6 */ step(LOAD, PROCESS),
    /* 7 */ when_equal(0, 7),
    /* 8 */ step(LOAD, NEW_LIMIT),
    /* 9 */ unless_equal(0, 6),
    /* 10 */ step(LOAD, NEW_LIMIT + 4),
    /* 11 */ unless_equal(0, 4),
    /* 12 */ step(RETURN, ALLOW),
    /* 13 */ step(LOAD, NUMBER),
    /* 14 */ when_equal(machine::COMPATIBLE_PRLIMIT, 1),
    /* 15 */ step(RETURN, ALLOW),
    /* 16 */ step(RETURN, REFUSE),
];

/// Puts the filter on this process and all that it starts from now on. Nothing of that can gain privileges any more, which the
/// kernel asks for first. Call it before another thread exists.
pub(crate) fn install() -> io::Result<()> {
    let filter =
        libc::sock_fprog { len: FILTER.len() as u16, filter: (&raw const FILTER).cast::<sock_filter>().cast_mut() };
    // SAFETY: numbers, and a program that the kernel copies.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) == 0
    };
    let error = io::Error::last_os_error();
    // A kernel built without filters runs commands all the same.
    if installed || matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer, by the same rules.
    fn run(number: u32, architecture: u32, process: u64, new_limit: u64) -> u32 {
        let mut accumulator = 0u32;
        let mut position = 0usize;
        loop {
            let sock_filter { code, jt, jf, k } = FILTER[position];
            position += 1;
            match code {
                LOAD => {
                    accumulator = match k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        PROCESS => process as u32,
                        NEW_LIMIT => new_limit as u32,
                        _ => (new_limit >> 32) as u32,
                    };
                }
                AND => accumulator &= k,
                JUMP_IF_EQUAL => position += usize::from(if accumulator == k { jt } else { jf }),
                RETURN => return k,
                _ => panic!("step {position} is not understood"),
            }
        }
    }

    #[test]
    fn limits_are_set_for_oneself_and_read_of_anyone() {
        let native = |process, limit| run(machine::PRLIMIT, machine::ARCHITECTURE, process, limit);
        assert_eq!(native(0, 0x7fff_0000_1000), ALLOW, "setrlimit");
        assert_eq!(native(1, 0), ALLOW, "reading");
        assert_eq!(native(1, 0x1000), REFUSE);
        assert_eq!(native(7, 0x7fff_0000_0000), REFUSE, "a pointer whose lower half is zero");
        assert_eq!(run(39, machine::ARCHITECTURE, 1, 1), ALLOW, "any other call");
        assert_eq!(run(machine::COMPATIBLE_PRLIMIT, machine::COMPATIBLE_ARCHITECTURE, 1, 1), REFUSE);
        assert_eq!(run(20, machine::COMPATIBLE_ARCHITECTURE, 1, 1), ALLOW);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(run(machine::PRLIMIT | 0x4000_0000, machine::ARCHITECTURE, 1, 1), REFUSE, "the x32 number");
    }
}
