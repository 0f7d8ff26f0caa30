//! An archive into a directory. Its content is hostile: every name, number and kind is checked before it has an effect.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use flate2::bufread::MultiGzDecoder;
use rustix::fs::{AtFlags, Timespec, Timestamps};
use sandbox_api::{ArchiveExtracted, ControlErrorCode};
use tar::{Archive, Entry, EntryType, PaxExtensions};

use super::super::destination::{hidden_name, open_or_make};
use super::super::refused;
use super::zstd::Unpacker;
use crate::http::Problem;

/// Most entries of one archive.
const MOST_ENTRIES: u64 = 1_000_000;

/// Longest name, and longest block of attributes, that an archive may hand over.
const LONGEST_EXTENSION: u64 = 64 << 10;

/// Bytes behind the last entry that are read to see that the packing is whole.
const MOST_PADDING: u64 = 16 << 20;

/// Unpacks all of `source`. What was written before a fault stays, and the fault says how much that is.
pub(super) fn unpack(directory: &Dir, source: impl Read, most_bytes: u64) -> Result<ArchiveExtracted, Problem> {
    let mut extraction = Extraction {
        directory,
        most_bytes,
        seen: 0,
        done: ArchiveExtracted::default(),
        parent: None,
        next: Extensions::default(),
    };
    let outcome = extraction.run(BufReader::with_capacity(64 << 10, source));
    let ArchiveExtracted { files, directories, symlinks, .. } = extraction.done;
    match outcome {
        Ok(()) => Ok(extraction.done),
        Err(problem) if files + directories + symlinks == 0 => Err(problem),
        Err(problem) => Err(problem.followed_by(&format!(
            "; {files} files, {directories} directories and {symlinks} links were written before"
        ))),
    }
}

struct Extraction<'a> {
    directory: &'a Dir,
    most_bytes: u64,
    seen: u64,
    done: ArchiveExtracted,
    /// The directory of the entry before: the next one is mostly in the same.
    parent: Option<(PathBuf, Dir)>,
    next: Extensions,
}

/// What extensions say of the entry that follows them.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Extraction<'_> {
    fn run(&mut self, mut source: impl BufRead) -> Result<(), Problem> {
        let head = source.fill_buf().map_err(unreadable)?;
        // Who packs and fails sends nothing.
        if head.is_empty() {
            return Err(Problem::invalid("archive: is empty; one without entries ends with two blocks of zeros"));
        }
        if head.starts_with(&[0x1f, 0x8b]) {
            self.entries(MultiGzDecoder::new(source))
        } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]) {
            self.entries(Unpacker::new(source))
        } else {
            self.entries(source)
        }
    }

    fn entries(&mut self, source: impl Read) -> Result<(), Problem> {
        let mut archive = Archive::new(source);
        // Raw: extensions are read here, within bounds.
        for entry in archive.entries().map_err(unreadable)?.raw(true) {
            let entry = entry.map_err(unreadable)?;
            self.seen += 1;
            if self.seen > MOST_ENTRIES {
                return Err(too_large(format!("archive: more than {MOST_ENTRIES} entries")));
            }
            self.entry(entry)?;
        }
        let mut rest = archive.into_inner().take(MOST_PADDING);
        io::copy(&mut rest, &mut io::sink()).map_err(unreadable)?;
        Ok(())
    }

    fn entry<R: Read>(&mut self, mut entry: Entry<'_, R>) -> Result<(), Problem> {
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => {
                self.next.path = Some(extension(&mut entry)?);
                return Ok(());
            }
            EntryType::GNULongLink => {
                self.next.link = Some(extension(&mut entry)?);
                return Ok(());
            }
            EntryType::XHeader => return self.attributes(&mut entry),
            EntryType::XGlobalHeader => return extension(&mut entry).map(drop),
            _ => {}
        }
        let Extensions { path, link } = std::mem::take(&mut self.next);
        let name = path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let link = link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
        let path = plain(&name)?;
        if path.as_os_str().is_empty() {
            // The directory itself, which is there.
            return if kind == EntryType::Directory { Ok(()) } else { Err(refuse(&name, "names no file")) };
        }
        match kind {
            EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") => self.make_directory(&path, 0o755),
            EntryType::Regular | EntryType::Continuous => self.file(&path, &mut entry),
            EntryType::Directory => {
                let mode = entry.header().mode().map_err(unreadable)?;
                self.make_directory(&path, mode)
            }
            EntryType::Symlink => self.symlink(&path, &link.unwrap_or_default()),
            EntryType::Link => self.hard_link(&path, &link.unwrap_or_default()),
            _ => Err(refuse(&name, "is a device, a pipe or of another kind that is not taken")),
        }
    }

    /// Attributes of the entry that follows (POSIX.1-2001, pax).
    fn attributes<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), Problem> {
        let bytes = extension(entry)?;
        for attribute in PaxExtensions::new(&bytes) {
            let attribute = attribute.map_err(unreadable)?;
            match attribute.key_bytes() {
                b"path" => self.next.path = Some(attribute.value_bytes().to_vec()),
                b"linkpath" => self.next.link = Some(attribute.value_bytes().to_vec()),
                // Where the two sizes differ, everything behind would be read at the wrong place.
                b"size" => return Err(Problem::invalid("archive: sizes as attributes are not taken")),
                _ => {}
            }
        }
        Ok(())
    }

    fn file<R: Read>(&mut self, path: &Path, entry: &mut Entry<'_, R>) -> Result<(), Problem> {
        let size = entry.size();
        if self.done.bytes.saturating_add(size) > self.most_bytes {
            return Err(too_large(format!("archive: more than {} bytes of files", self.most_bytes)));
        }
        let mode = entry.header().mode().map_err(unreadable)? & 0o777;
        let modified = entry.header().mtime().map_err(unreadable)?;
        self.replace(path, |parent, hidden| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let mut file = parent.open_with(hidden, &options).map_err(refused)?.into_std();
            let written = copy(entry, &mut file)?;
            if written != size {
                return Err(unreadable(io::ErrorKind::UnexpectedEof.into()));
            }
            file.set_permissions(PermissionsExt::from_mode(mode)).map_err(refused)?;
            let at = Timespec { tv_sec: i64::try_from(modified).unwrap_or(0), tv_nsec: 0 };
            rustix::fs::futimens(&file, &Timestamps { last_access: at, last_modification: at })
                .map_err(|error| refused(error.into()))
        })?;
        self.done.files += 1;
        self.done.bytes += size;
        Ok(())
    }

    fn make_directory(&mut self, path: &Path, mode: u32) -> Result<(), Problem> {
        let directory = open_or_make(self.directory, path)?;
        // Its owner must be able to fill it, also with what follows in this archive.
        let mode = (mode & 0o777) | 0o700;
        rustix::fs::chmodat(directory.as_fd(), c".", rustix::fs::Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|error| refused(error.into()))?;
        self.done.directories += 1;
        Ok(())
    }

    /// A link is stored as it is. What is written through it later must stay inside like everything else.
    fn symlink(&mut self, path: &Path, target: &[u8]) -> Result<(), Problem> {
        if target.is_empty() {
            return Err(refuse(path.as_os_str().as_bytes(), "is a link to nothing"));
        }
        self.replace(path, |parent, hidden| {
            rustix::fs::symlinkat(OsStr::from_bytes(target), parent.as_fd(), hidden)
                .map_err(|error| refused(error.into()))
        })?;
        self.done.symlinks += 1;
        Ok(())
    }

    /// A second name of a file that the archive wrote before.
    fn hard_link(&mut self, path: &Path, target: &[u8]) -> Result<(), Problem> {
        let target = plain(target)?;
        let Some(name) = target.file_name().map(OsStr::to_owned) else {
            return Err(refuse(path.as_os_str().as_bytes(), "is a link to nothing"));
        };
        let from = open_or_make(self.directory, target.parent().unwrap_or(Path::new("")))?;
        self.replace(path, |parent, hidden| {
            rustix::fs::linkat(from.as_fd(), name.as_os_str(), parent.as_fd(), hidden, AtFlags::empty())
                .map_err(|error| refused(error.into()))
        })?;
        self.done.files += 1;
        Ok(())
    }

    /// Makes something under a hidden name and gives it its own in one step.
    fn replace(&mut self, path: &Path, make: impl FnOnce(&Dir, &Path) -> Result<(), Problem>) -> Result<(), Problem> {
        let parent_path = path.parent().unwrap_or(Path::new(""));
        let parent = match self.parent.take() {
            Some((known, directory)) if known == parent_path => directory,
            _ => open_or_make(self.directory, parent_path)?,
        };
        let hidden = hidden_name()?;
        let made = make(&parent, &hidden).and_then(|()| match path.file_name() {
            Some(name) => parent.rename(&hidden, &parent, name).map_err(refused),
            None => Err(refuse(path.as_os_str().as_bytes(), "names no file")),
        });
        // Also after a success: two names of one file are both left by a rename.
        let _ = parent.remove_file(&hidden);
        self.parent = Some((parent_path.to_owned(), parent));
        made
    }
}

/// Copies a file's bytes; a fault of the disk is told apart from one of the archive.
fn copy(source: &mut impl Read, target: &mut impl io::Write) -> Result<u64, Problem> {
    let mut buffer = vec![0; 64 << 10];
    let mut copied = 0;
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(error)),
        };
        target.write_all(&buffer[..read]).map_err(refused)?;
        copied += read as u64;
    }
}

/// The content of an extension, within bounds and without the NUL that ends names.
fn extension<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, Problem> {
    if entry.size() > LONGEST_EXTENSION {
        return Err(too_large(format!("archive: a name or attributes of more than {LONGEST_EXTENSION} bytes")));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(unreadable)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

/// A name without `.`, refused when it is absolute or has `..`.
fn plain(name: &[u8]) -> Result<PathBuf, Problem> {
    if name.contains(&0) || name.len() > 4096 {
        return Err(refuse(name, "is no name"));
    }
    let mut plain = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => plain.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(Problem::new(ControlErrorCode::PathEscapes, refusal(name, "leads out of the directory")));
            }
        }
    }
    Ok(plain)
}

fn refusal(name: &[u8], why: &str) -> String {
    let shown: String = String::from_utf8_lossy(name).chars().take(200).collect();
    format!("archive: entry {shown:?} {why}")
}

fn refuse(name: &[u8], why: &str) -> Problem {
    Problem::invalid(refusal(name, why))
}

fn too_large(message: String) -> Problem {
    Problem::new(ControlErrorCode::PayloadTooLarge, message)
}

fn unreadable(error: io::Error) -> Problem {
    if error.kind() == io::ErrorKind::ConnectionAborted {
        return Problem::new(ControlErrorCode::UploadAborted, "the archive ended before its declared length");
    }
    Problem::invalid(format!("archive: it is damaged, or no archive: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::zstd::Packer;
    use super::*;
    use cap_std::ambient_authority;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use std::io::Write;

    #[test]
    fn names_stay_below_the_directory() {
        assert_eq!(plain(b"./a/./b/").ok().as_deref(), Some(Path::new("a/b")));
        assert_eq!(plain(b"./").ok().as_deref(), Some(Path::new("")));
        for bad in [b"/etc/passwd".as_slice(), b"../a", b"a/../../b", b"a\0b", b"a/.."] {
            assert!(plain(bad).is_err(), "{bad:?}");
        }
    }

    /// An archive with an entry of every kind, packed in one of three ways.
    fn archive(format: u8) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |name: &str, kind: EntryType, content: &[u8], link: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            match kind {
                EntryType::Symlink | EntryType::Link => builder.append_link(&mut header, name, link),
                _ => builder.append_data(&mut header, name, content),
            }
            .expect("memory takes everything");
        };
        add("d/", EntryType::Directory, b"", "");
        add("d/f", EntryType::Regular, &b"some text that repeats, some text that repeats ".repeat(40), "");
        add(&"long/".repeat(60), EntryType::Regular, b"x", "");
        add("d/l", EntryType::Symlink, b"", &"../target".repeat(20));
        add("d/h", EntryType::Link, b"", "d/f");
        add("pax", EntryType::XHeader, b"12 path=a/b\n", "");
        add("ignored", EntryType::Regular, b"y", "");
        let tar = builder.into_inner().expect("memory takes everything");
        match format {
            0 => tar,
            1 => {
                let mut packer = GzEncoder::new(Vec::new(), flate2::Compression::default());
                packer.write_all(&tar).and_then(|()| packer.finish()).expect("memory takes everything")
            }
            _ => {
                let mut packer = Packer::new(Vec::new());
                packer.write_all(&tar).and_then(|()| packer.finish()).expect("memory takes everything")
            }
        }
    }

    /// A directory of its own, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let path = std::env::temp_dir().join(hidden_name().expect("randomness"));
            std::fs::create_dir(&path).expect("a scratch directory");
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn unpack_into_scratch(bytes: &[u8]) -> Result<ArchiveExtracted, Problem> {
        let scratch = Scratch::new();
        let directory = Dir::open_ambient_dir(&scratch.0, ambient_authority()).expect("the scratch directory");
        unpack(&directory, bytes, 1 << 20)
    }

    #[test]
    fn whole_archives_are_unpacked() {
        for format in 0..3 {
            let done = unpack_into_scratch(&archive(format)).expect("a whole archive");
            assert_eq!((done.files, done.directories, done.symlinks), (3, 2, 1), "{format}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn no_bytes_panic_the_unpacking(
            format in 0u8..3,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut: prop::sample::Index,
        ) {
            let mut bytes = archive(format);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len() * 2));
            let _ = unpack_into_scratch(&bytes);
        }
    }
}
