//! A line to the Worker that is cut after so many bytes.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Where a connection is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// After so many bytes to the Worker.
    Up(usize),
    /// After so many bytes from the Worker.
    Down(usize),
}

/// Listens until the process ends; each cut is used up by one connection, those after the last are whole.
pub(crate) struct Line {
    port: u16,
    left: Arc<Mutex<VecDeque<Cut>>>,
}

impl Line {
    pub(crate) fn to(base: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = base.strip_prefix("http://").unwrap().to_owned();
        let left = Arc::new(Mutex::new(VecDeque::new()));
        let cuts: Arc<Mutex<VecDeque<Cut>>> = left.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let cut = cuts.lock().unwrap().pop_front();
                let worker = TcpStream::connect(&target).unwrap();
                let (up, down) = match cut {
                    Some(Cut::Up(bytes)) => (bytes, usize::MAX),
                    Some(Cut::Down(bytes)) => (usize::MAX, bytes),
                    None => (usize::MAX, usize::MAX),
                };
                let back = (worker.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pump(client, worker, up));
                thread::spawn(move || pump(back.0, back.1, down));
            }
        });
        Self { port, left }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The next connections are cut so.
    pub(crate) fn cut(&self, cuts: &[Cut]) {
        self.left.lock().unwrap().extend(cuts);
    }

    /// Cuts that no connection has met yet.
    pub(crate) fn uncut(&self) -> usize {
        self.left.lock().unwrap().len()
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut left: usize) {
    let mut buffer = vec![0; 64 * 1024];
    while left > 0 {
        let most = left.min(buffer.len());
        match from.read(&mut buffer[..most]) {
            Ok(read) if read > 0 && to.write_all(&buffer[..read]).is_ok() => left -= read,
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
