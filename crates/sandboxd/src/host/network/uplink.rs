//! `sandboxd uplink`: refuses routes in a sandbox's network, and becomes slirp4netns. For the host's own use.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::ifaddrs::InterfaceAddress;
use nix::net::if_::InterfaceFlags;

use super::routes;
use crate::secret;

/// Packets of the sandbox's side may be this large, since they meet no wire.
const PACKET_BYTES: u32 = 65_520;

/// bubblewrap needs a moment between telling of a network and bringing its loopback device up.
const LOOPBACK_PATIENCE: Duration = Duration::from_secs(8);

/// The command line of `sandboxd uplink`.
#[derive(clap::Args)]
pub(crate) struct UplinkArguments {
    /// The sandbox's network namespace.
    #[arg(long)]
    network_fd: RawFd,
    /// The user namespace that has power over it.
    #[arg(long)]
    owner_fd: RawFd,
    /// The uplink ends when the other end of this pipe does.
    #[arg(long)]
    until_fd: RawFd,
    /// Where one byte is written once the network stands.
    #[arg(long)]
    ready_fd: RawFd,
    /// slirp4netns.
    #[arg(long)]
    program: PathBuf,
    /// Private ranges can be reached.
    #[arg(long)]
    allow_private: bool,
    /// The user namespace is not entered: root has power over the network as it is.
    #[arg(long)]
    as_root: bool,
    /// slirp4netns tells what it does on standard error.
    #[arg(long)]
    talkative: bool,
}

/// Does not return when all goes well.
pub(crate) fn run(arguments: UplinkArguments) -> Result<(), String> {
    let UplinkArguments { network_fd, owner_fd, until_fd, ready_fd, .. } = arguments;
    let kept = [network_fd, owner_fd, until_fd, ready_fd];
    secret::close_all_but(&kept).map_err(|error| format!("could not close inherited descriptors: {error}"))?;
    let ranges = routes::refused(own_addresses()?, arguments.allow_private);
    let owner = (!arguments.as_root).then_some(owner_fd);
    let prepare = || loopback_is_up().and_then(|()| routes::refuse(&ranges));
    in_namespace(network_fd, owner, prepare).map_err(|error| format!("routes: {error}"))?;
    let mut words: Vec<OsString> =
        ["--configure", "--disable-host-loopback", "--enable-seccomp"].map(OsString::from).into();
    words.push(format!("--mtu={PACKET_BYTES}").into());
    words.push(format!("--ready-fd={ready_fd}").into());
    words.push(format!("--exit-fd={until_fd}").into());
    words.push("--netns-type=path".into());
    // Root gives up its privileges and its view of the files. Others cannot: the user namespace has no user 0.
    words.push(match owner {
        None => "--enable-sandbox".into(),
        Some(_) => format!("--userns-path=/proc/self/fd/{owner_fd}").into(),
    });
    words.push(format!("/proc/self/fd/{network_fd}").into());
    words.push("tap0".into());
    let mut command = Command::new(&arguments.program);
    command.args(words);
    if !arguments.talkative {
        command.stderr(File::options().write(true).open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?);
    }
    let error = command.exec();
    Err(format!("{}: {error}", arguments.program.display()))
}

/// All IPv4 addresses of this machine.
fn own_addresses() -> Result<Vec<Ipv4Addr>, String> {
    let all = nix::ifaddrs::getifaddrs().map_err(|error| format!("the machine's addresses: {error}"))?;
    Ok(all.filter_map(|it| Some(it.address?.as_sockaddr_in()?.ip())).collect())
}

/// Waits for bubblewrap to have brought the loopback device up, its last step in a network. slirp4netns brings it up too,
/// the kernel then adds the address, and bubblewrap, which would add it a moment later, gives up.
fn loopback_is_up() -> io::Result<()> {
    let until = Instant::now() + LOOPBACK_PATIENCE;
    while Instant::now() < until {
        let up = |it: &InterfaceAddress| it.interface_name == "lo" && it.flags.contains(InterfaceFlags::IFF_UP);
        if nix::ifaddrs::getifaddrs()?.any(|it| up(&it)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
}

/// Does something in a process of its own that enters the namespaces first.
fn in_namespace(network: RawFd, owner: Option<RawFd>, work: impl Fn() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: this process has one thread, so that its copy may do anything; the calls work on numbers and a local.
    unsafe {
        let child = libc::fork();
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        if child == 0 {
            let mut result = Ok(());
            for (descriptor, kind) in
                owner.map(|it| (it, libc::CLONE_NEWUSER)).into_iter().chain([(network, libc::CLONE_NEWNET)])
            {
                if result.is_ok() && libc::setns(descriptor, kind) != 0 {
                    result = Err(io::Error::last_os_error());
                }
            }
            let result = result.and_then(|()| work());
            libc::_exit(result.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EPROTO)));
        }
        let mut status = 0;
        while libc::waitpid(child, &raw mut status, 0) < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => Ok(()),
            (true, number) => Err(io::Error::from_raw_os_error(number)),
            _ => Err(io::Error::other("the process was killed")),
        }
    }
}
