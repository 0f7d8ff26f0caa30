//! Directories, as archives that are packed and unpacked on the way.

use super::bar::Bar;
use super::remote::Remote;
use crate::client::{Client, header};
use crate::failure::{Failure, Result};
use crate::terminal::note;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::Path;

/// Copies what is in a directory into a directory of a sandbox.
pub(super) fn up(client: &Client, from: &Path, mut to: Remote) -> Result<Value> {
    if to.path.as_encoded_bytes().ends_with(b"/") {
        let name = from.canonicalize().ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
        to.path.push(name.ok_or_else(|| Failure::Usage(format!("{} has no name", from.display())))?);
    }
    // How long an upload is must be known before it begins.
    let mut archive = pack(from).map_err(|error| Failure::file("pack", from, error))?;
    let size = archive.seek(SeekFrom::End(0)).and_then(|size| archive.seek(SeekFrom::Start(0)).map(|_| size));
    let size = size.map_err(|error| Failure::file("pack", from, error))?;
    let bar = Bar::new(&to.told(), size);
    let (_, mut answer) = client.put(&to.archive_route(), &[], size, &mut bar.counting(&mut archive))?;
    bar.finish();
    answer["to"] = Value::String(to.told());
    Ok(answer)
}

fn pack(from: &Path) -> io::Result<File> {
    let mut builder = tar::Builder::new(GzEncoder::new(tempfile::tempfile()?, Compression::fast()));
    // Links stay links, as they do on the way back.
    builder.follow_symlinks(false);
    builder.append_dir_all(".", from)?;
    builder.into_inner()?.finish()
}

/// Copies what is in a directory of a sandbox into a new directory.
pub(super) fn down(client: &Client, from: &Remote, to: &Path) -> Result<Value> {
    let to = if to.is_dir() { to.join(from.name()?) } else { to.to_owned() };
    let failed = |error: io::Error| Failure::file("write", &to, error);
    if to.symlink_metadata().is_ok() {
        let next = "Name another destination, or remove that one.";
        return Err(Failure::Here { what: format!("{} is there already", to.display()), next: next.to_owned() });
    }
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let response = client.get(&from.archive_route(), &[])?;
    let omitted = header(response.headers(), "x-archive-omitted").parse::<u64>().unwrap_or(0);
    let folder = tempfile::Builder::new().prefix(".cfops-").tempdir_in(parent).map_err(failed)?;
    let unfinished = folder.path().to_owned();
    let _held = crate::interrupt::hold(move || {
        let _ = std::fs::remove_dir_all(unfinished);
    });
    let bar = Bar::new(&from.told(), 0);
    let inside = folder.path().join("directory");
    // Nothing of it leads out of that folder: the archive is what commands of the sandbox made of it.
    let mut archive = tar::Archive::new(GzDecoder::new(bar.counting(response.into_body().into_reader())));
    archive.unpack(&inside).map_err(|error| Failure::Unreachable {
        what: format!("the directory did not arrive whole: {error}"),
        next: "Try again. Nothing is left of it here.".to_owned(),
    })?;
    bar.finish();
    std::fs::rename(&inside, &to).map_err(failed)?;
    if omitted > 0 {
        note(&format!("{omitted} pipes, sockets or devices have no place in a copy and were left out."));
    }
    Ok(json!({ "to": to.to_string_lossy(), "omitted": omitted }))
}
