//! A directory into an archive.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use sandbox_api::{ArchiveFormat, ControlErrorCode};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::super::globs::Globs;
use super::super::names::percent;
use super::super::tree::{Found, Walk, open_file};
use super::super::{Cancelled, refused};
use super::zstd::Packer;
use crate::http::Problem;

/// Bytes of the archive that are sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// Sees that everything can be read, as far as that can be known before, so that a refusal still has a status and a name;
/// answers how many entries have no place in an archive.
pub(super) fn survey(directory: &OwnedFd, exclude: &Globs, cancelled: &Cancelled) -> Result<u64, Problem> {
    let directory = directory.try_clone().map_err(refused)?;
    let mut walk = Walk::of(directory).map_err(refused)?;
    let mut omitted = 0;
    while let Some(found) = walk.next() {
        if cancelled.is_set() {
            return Err(Problem::new(ControlErrorCode::Unavailable, "the caller left"));
        }
        if exclude.matches(&found.path, &found.name) {
            continue;
        }
        let read = match found.kind() {
            FileType::Directory => walk.try_enter(&found),
            FileType::RegularFile => open_file(walk.parent(), &found.name).map(drop),
            FileType::Symlink => Ok(()),
            _ => {
                omitted += 1;
                Ok(())
            }
        };
        match read {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ACCESS | Errno::PERM) => {
                let shown: String = percent(&found.path).chars().take(200).collect();
                let message = format!("path: {shown} in it may not be read; exclude it or change its permissions");
                return Err(Problem::new(ControlErrorCode::PermissionDenied, message));
            }
            Err(error) => return Err(refused(error.into())),
        }
    }
    if walk.unread > 0 {
        return Err(Problem::new(ControlErrorCode::PermissionDenied, "path: a directory in it may not be entered"));
    }
    Ok(omitted)
}

/// Packs everything below `directory`, down to the last byte of the format.
pub(super) fn pack(
    directory: OwnedFd,
    exclude: &Globs,
    format: ArchiveFormat,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let pieces = Pieces { sender, gathered: Vec::new() };
    let pieces = match format {
        ArchiveFormat::Tar => entries(directory, exclude, pieces)?,
        ArchiveFormat::TarGz => {
            entries(directory, exclude, GzEncoder::new(pieces, Compression::default()))?.finish()?
        }
        ArchiveFormat::TarZst => entries(directory, exclude, Packer::new(pieces))?.finish()?,
    };
    pieces.send()
}

fn entries<W: Write>(directory: OwnedFd, exclude: &Globs, target: W) -> io::Result<W> {
    let mut builder = Builder::new(target);
    let mut walk = Walk::of(directory)?;
    while let Some(found) = walk.next() {
        if exclude.matches(&found.path, &found.name) {
            continue;
        }
        match found.kind() {
            FileType::RegularFile => match open_file(walk.parent(), &found.name) {
                Ok(file) => self::file(&mut builder, &found.path, File::from(file))?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            },
            FileType::Directory => {
                let mut header = header(EntryType::Directory, &found.stat, 0);
                builder.append_data(&mut header, slashed(&found), io::empty())?;
                match walk.try_enter(&found) {
                    Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            FileType::Symlink => {
                if let Ok(target) = rustix::fs::readlinkat(walk.parent(), found.name.as_os_str(), Vec::new()) {
                    let mut header = header(EntryType::Symlink, &found.stat, 0);
                    builder.append_link(&mut header, &found.path, std::ffi::OsStr::from_bytes(target.as_bytes()))?;
                }
            }
            _ => {}
        }
    }
    builder.into_inner()
}

/// The name of a directory, with the slash that some programs know directories by.
fn slashed(found: &Found) -> std::path::PathBuf {
    found.path.join("")
}

fn file<W: Write>(builder: &mut Builder<W>, path: &Path, file: File) -> io::Result<()> {
    let stat = rustix::fs::fstat(&file)?;
    // Swapped for something else meanwhile.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let size = stat.st_size.cast_unsigned();
    let mut header = header(EntryType::Regular, &stat, size);
    builder.append_data(&mut header, path, Exactly { file, left: size })
}

fn header(kind: EntryType, stat: &Stat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(u64::from(stat.st_uid));
    header.set_gid(u64::from(stat.st_gid));
    header
}

/// As many bytes as the header says. A file that grows is cut there; one that shrinks is a fault, since the archive would be
/// off from there on.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = (&self.file).take(self.left).read(buffer)?;
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file shrank while it was packed"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Bytes on their way to the caller; waits while it is behind.
struct Pieces<'a> {
    sender: &'a mpsc::Sender<io::Result<Bytes>>,
    gathered: Vec<u8>,
}

impl Pieces<'_> {
    fn send(mut self) -> io::Result<()> {
        self.piece()
    }

    fn piece(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.gathered);
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.gathered.len());
        self.gathered.extend_from_slice(&bytes[..taken]);
        if self.gathered.len() == PIECE_BYTES {
            self.piece()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
