//! Out of a sandbox: a file, which is whole before it takes its name.

use super::bar::Bar;
use super::remote::Remote;
use crate::client::{Client, broken_off, header};
use crate::failure::{Failure, Result};
use crate::terminal::write_out;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// Attempts in a row that brought nothing.
const ATTEMPTS: u32 = 4;

const CHUNK: usize = 64 * 1024;

/// Copies a file out of a sandbox.
pub(super) fn copy(client: &Client, from: &Remote, path: &Path) -> Result<Value> {
    let path = if path.is_dir() { path.join(from.name()?) } else { path.to_owned() };
    let failed = |error: std::io::Error| Failure::file("write", &path, error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As any other new file: what the mask of this process leaves.
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mut file =
        tempfile::Builder::new().prefix(".cfops-").permissions(permissions).tempfile_in(folder).map_err(failed)?;
    let unfinished = file.path().to_owned();
    let _held = crate::interrupt::hold(move || {
        let _ = std::fs::remove_file(unfinished);
    });
    let bar = Bar::new(&from.told(), 0);
    let mut download = Download::of(client, from);
    download.write_to(&mut ToFile { file: file.as_file_mut(), path: &path }, &bar)?;
    bar.finish();
    file.persist(&path).map_err(|error| failed(error.error))?;
    Ok(json!({ "to": path.to_string_lossy(), "size": download.received, "etag": download.etag }))
}

pub(super) fn to_standard_output(client: &Client, from: &Remote) -> Result<()> {
    Download::of(client, from).write_to(&mut StandardOutput, &Bar::hidden())
}

/// Takes the bytes of a download. A fault of its own is not mended by asking again.
trait Sink {
    fn take(&mut self, bytes: &[u8]) -> Result<()>;
}

struct StandardOutput;

impl Sink for StandardOutput {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        write_out(bytes)
    }
}

struct ToFile<'a> {
    file: &'a mut File,
    path: &'a Path,
}

impl Sink for ToFile<'_> {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Failure::file("write", self.path, error))
    }
}

struct Download<'a> {
    client: &'a Client,
    route: String,
    etag: String,
    received: u64,
    total: Option<u64>,
}

impl<'a> Download<'a> {
    fn of(client: &'a Client, from: &Remote) -> Self {
        Self { client, route: from.file_route(), etag: String::new(), received: 0, total: None }
    }

    fn write_to(&mut self, sink: &mut dyn Sink, bar: &Bar) -> Result<()> {
        let mut failures = 0;
        loop {
            let before = self.received;
            match self.once(sink, bar) {
                Ok(()) => return Ok(()),
                Err(Failure::OutcomeUnknown(_)) => {
                    failures = if self.received > before { 0 } else { failures + 1 };
                    if failures >= ATTEMPTS {
                        return Err(Failure::Unreachable {
                            what: format!("the connection broke off {ATTEMPTS} times without bringing anything"),
                            next: "Try again. What was there before is as it was.".to_owned(),
                        });
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// One request, from the byte that is missing.
    fn once(&mut self, sink: &mut dyn Sink, bar: &Bar) -> Result<()> {
        let range = format!("bytes={}-", self.received);
        let resumes = self.received > 0;
        let headers: &[(&'static str, &str)] = if resumes { &[("range", &range)] } else { &[] };
        let response = self.client.get(&self.route, headers)?;
        let etag = header(response.headers(), "etag").to_owned();
        if resumes && (response.status().as_u16() != 206 || etag != self.etag) {
            return Err(Failure::Here {
                what: "the file changed in the sandbox while it was copied".to_owned(),
                next: "Copy it again once nothing writes to it. What was here before is as it was.".to_owned(),
            });
        }
        let length = header(response.headers(), "content-length").parse::<u64>();
        let length = length.map_err(|_| broken_off("the answer does not say how long the file is"))?;
        self.etag = etag;
        self.total = Some(self.received + length);
        bar.set_length(self.received + length);
        let mut body = response.into_body().into_reader();
        let mut chunk = [0; CHUNK];
        while self.total != Some(self.received) {
            let read = body.read(&mut chunk).map_err(|error| broken_off(&error.to_string()))?;
            if read == 0 {
                return Err(broken_off("it was closed"));
            }
            sink.take(chunk.get(..read).unwrap_or_default())?;
            self.received += read as u64;
            bar.set(self.received);
        }
        Ok(())
    }
}
