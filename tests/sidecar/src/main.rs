//! Stands in for `cloudflare/proxy-everything`, the networking sidecar through which workerd reaches a local container, where
//! that image cannot be pulled. A fixture of the container tests and no part of the product.
//!
//! The application's container shares this one's network namespace. What workerd asks of it, on the port that its arguments name:
//!
//! - `PUT /egress`: 200. With `"enabled":false` the way out of the namespace is taken away.
//! - `GET /ca`: 200 with text in the form of a certificate.
//! - `CONNECT host:port`: connects to that port of the namespace (400 when nothing listens there), answers 200, passes bytes on.
//!
//! The real one also takes hold of what leaves the namespace; this one leaves it alone. With the file [`FULL`] in its image it
//! refuses every connection as the platform does when it has no container to give.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Its presence makes every connection a refusal for want of capacity.
const FULL: &str = "/full";

/// What the platform says then.
const NO_INSTANCE: &str = "There is no container instance that can be provided to this Durable Object, try again later";

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n";

/// Until a connection inside the namespace is made.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

fn main() -> io::Result<()> {
    // As process 1 it gets no signal that it does not ask for.
    // SAFETY: the handler calls nothing but `_exit`.
    unsafe { libc::signal(libc::SIGTERM, end as *const () as libc::sighandler_t) };
    let mut arguments = std::env::args().skip_while(|argument| argument != "--http-ingress-address");
    let address = arguments.nth(1).unwrap_or_else(|| "0.0.0.0:39001".to_owned());
    for connection in TcpListener::bind(address)?.incoming() {
        let connection = connection?;
        thread::spawn(move || {
            if let Err(error) = serve(connection) {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}

extern "C" fn end(_signal: libc::c_int) {
    // SAFETY: allowed in a signal handler.
    unsafe { libc::_exit(0) }
}

/// Requests of one connection, one after the other.
fn serve(mut connection: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut length = 0;
        let mut destination = None;
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
                break;
            }
            match header.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().map_err(io::Error::other)?;
                }
                Some((name, value)) if name.eq_ignore_ascii_case("x-dst-addr") => {
                    destination = Some(value.trim().to_owned());
                }
                _ => {}
            }
        }
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("CONNECT"), Some(target)) => {
                return connect(reader, connection, &destination.unwrap_or(target.into()));
            }
            (Some("PUT"), Some("/egress")) => {
                let mut body = vec![0; length];
                reader.read_exact(&mut body)?;
                let body = String::from_utf8_lossy(&body).replace(char::is_whitespace, "");
                if body.contains("\"enabled\":false") {
                    close_the_way_out()?;
                }
                answer(&mut connection, "200 OK", "")?;
            }
            (Some("GET"), Some("/ca")) => answer(&mut connection, "200 OK", CERTIFICATE)?,
            _ => answer(&mut connection, "404 Not Found", "")?,
        }
    }
}

fn answer(connection: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    write!(connection, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn connect(mut reader: BufReader<TcpStream>, mut caller: TcpStream, destination: &str) -> io::Result<()> {
    if Path::new(FULL).exists() {
        return answer(&mut caller, "503 Service Unavailable", NO_INSTANCE);
    }
    let port: u16 = destination.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let Ok(application) = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), CONNECT_LIMIT) else {
        return answer(&mut caller, "400 Bad Request", "");
    };
    caller.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    application.set_nodelay(true)?;
    caller.set_nodelay(true)?;
    let (mut up, mut down) = (application.try_clone()?, application);
    let there = thread::spawn(move || {
        let copied = io::copy(&mut reader, &mut up);
        // One direction may end before the other.
        let _ = up.shutdown(Shutdown::Write);
        copied
    });
    io::copy(&mut down, &mut caller)?;
    let _ = caller.shutdown(Shutdown::Both);
    let _ = there.join();
    Ok(())
}

/// Removes the default route of the namespace; without one it is already so.
fn close_the_way_out() -> io::Result<()> {
    // SAFETY: a plain structure of which zero is a good value, filled below and read by the call; the descriptor is closed
    // after it.
    unsafe {
        let mut route: libc::rtentry = std::mem::zeroed();
        let anywhere = libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: [0; 14] };
        route.rt_dst = anywhere;
        route.rt_genmask = anywhere;
        route.rt_flags = libc::RTF_UP;
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let removed = libc::ioctl(socket, libc::SIOCDELRT as libc::Ioctl, &raw mut route);
        let error = io::Error::last_os_error();
        libc::close(socket);
        if removed != 0 && error.raw_os_error() != Some(libc::ESRCH) {
            return Err(error);
        }
    }
    Ok(())
}
