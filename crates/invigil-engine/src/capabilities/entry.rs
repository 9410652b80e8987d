//! What stands at a place, and how a new file is made to look like it. Never waits for a FIFO or a device.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use invigil_schema::{Digest, Entry, OsText};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

/// The attributes that are kept. Those of the first namespace are anybody's; the others follow where they can.
const NAMESPACES: [&str; 3] = ["user.", "system.posix_acl_", "security.capability"];
const ANYBODYS: &str = NAMESPACES[0];

/// An entry, and the open file if it is a regular one, at its beginning.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) entry: Entry,
    pub(super) file: Option<File>,
}

/// What a name in a directory stands for. Links are not followed; the content of files is read for its digest.
pub(super) fn look(dir: impl AsFd, name: &OsStr) -> io::Result<Found> {
    let dir = dir.as_fd();
    let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Found::without_file(Entry::Absent)),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => regular(open_regular(dir, name)?),
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            directory(&fd).map(Found::without_file)
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes();
            Ok(Found::without_file(Entry::Symlink {
                target: OsText::from(target),
                uid: stat.st_uid,
                gid: stat.st_gid,
            }))
        }
        other => Err(unfit(other)),
    }
}

impl Found {
    fn without_file(entry: Entry) -> Self {
        Found { entry, file: None }
    }
}

/// Opens a regular file for reading, and nothing else.
pub(crate) fn open_regular(dir: impl AsFd, name: &OsStr) -> io::Result<File> {
    let dir = dir.as_fd();
    let kind = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    // Opening a device can already be an act, so it is looked at first; the open file is looked at again.
    let before = kind(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?);
    if before != FileType::RegularFile {
        return Err(unfit(before));
    }
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    match kind(&rustix::fs::fstat(&fd)?) {
        FileType::RegularFile => Ok(File::from(fd)),
        other => Err(unfit(other)),
    }
}

fn unfit(kind: FileType) -> io::Error {
    let what = match kind {
        FileType::Directory => "a directory",
        FileType::Symlink => "a link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "of an unknown kind",
    };
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {what}, not a regular file"),
    )
}

fn regular(mut file: File) -> io::Result<Found> {
    let (sha256, size) = digest(&mut file)?;
    file.seek(SeekFrom::Start(0))?;
    let stat = rustix::fs::fstat(&file)?;
    let entry = Entry::File {
        sha256,
        size,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        xattrs: xattrs(&file)?,
    };
    Ok(Found {
        entry,
        file: Some(file),
    })
}

/// An open directory, without what is in it.
pub(super) fn directory(fd: &OwnedFd) -> io::Result<Entry> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(Entry::Directory {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        xattrs: xattrs(fd)?,
    })
}

/// The digest and the length of everything that is read.
pub(crate) fn digest(content: &mut dyn Read) -> io::Result<(Digest, u64)> {
    let mut hash = Sha256::new();
    let size = hash_into(&mut hash, content)?;
    Ok((Digest::from_bytes(hash.finalize().into()), size))
}

/// The digest of bytes.
pub(super) fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

/// Hashes everything that is read; gives its length.
pub(super) fn hash_into(hash: &mut Sha256, content: &mut dyn Read) -> io::Result<u64> {
    let mut chunk = vec![0; 64 * 1024];
    let mut size = 0;
    loop {
        match content.read(&mut chunk) {
            Ok(0) => return Ok(size),
            Ok(read) => {
                hash.update(&chunk[..read]);
                size += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether two entries are the same, as far as anybody can put them back: access lists and file capabilities are left
/// out, since what a new file inherits of them is the kernel's decision.
pub(super) fn same(a: &Entry, b: &Entry) -> bool {
    comparable(a.clone()) == comparable(b.clone())
}

fn comparable(mut entry: Entry) -> Entry {
    if let Entry::File { xattrs, .. } | Entry::Directory { xattrs, .. } = &mut entry {
        xattrs.retain(|name, _| name.starts_with(ANYBODYS));
    }
    entry
}

fn xattrs(fd: impl AsFd) -> io::Result<BTreeMap<String, String>> {
    let mut names = vec![0; 64 * 1024];
    let length = match rustix::fs::flistxattr(&fd, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    };
    let kept = |name: &&[u8]| NAMESPACES.iter().any(|n| name.starts_with(n.as_bytes()));
    let mut value = vec![0; 64 * 1024];
    let mut all = BTreeMap::new();
    for name in names[..length].split(|&byte| byte == 0).filter(kept) {
        let size = match rustix::fs::fgetxattr(&fd, name, &mut value[..]) {
            Ok(size) => size,
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error.into()),
        };
        let name = str::from_utf8(name).map_err(|_| {
            let why = "an extended attribute has a name that is not UTF-8 and cannot be kept";
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        all.insert(name.to_owned(), STANDARD.encode(&value[..size]));
    }
    Ok(all)
}

/// Gives an open file or directory the owner, mode and attributes of an entry.
pub(super) fn dress(fd: impl AsFd, entry: &Entry) -> io::Result<()> {
    let (Entry::File {
        mode,
        uid,
        gid,
        xattrs: wanted,
        ..
    }
    | Entry::Directory {
        mode,
        uid,
        gid,
        xattrs: wanted,
    }) = entry
    else {
        return Ok(());
    };
    let stat = rustix::fs::fstat(&fd)?;
    if (stat.st_uid, stat.st_gid) != (*uid, *gid) {
        let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
        rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
    }
    let present = xattrs(&fd)?;
    let is_anybodys = |name: &str| name.starts_with(ANYBODYS);
    let set = |name: &str| -> io::Result<()> {
        let value = STANDARD
            .decode(&wanted[name])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        Ok(rustix::fs::fsetxattr(
            &fd,
            name,
            &value,
            XattrFlags::empty(),
        )?)
    };
    let new: Vec<&str> = wanted
        .iter()
        .filter(|(name, value)| present.get(*name) != Some(value))
        .map(|(name, _)| name.as_str())
        .collect();
    let gone = present.keys().filter(|name| !wanted.contains_key(*name));
    for name in gone.filter(|name| is_anybodys(name)) {
        rustix::fs::fremovexattr(&fd, name.as_str())?;
    }
    // These need a file that may be written, which the mode can end; access lists come after it, being part of it.
    for name in new.iter().filter(|name| is_anybodys(name)) {
        set(name)?;
    }
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(*mode))?;
    for name in new.iter().filter(|name| !is_anybodys(name)) {
        // Not everybody may; what cannot be set is not compared either.
        let _ = set(name);
    }
    Ok(())
}

/// A link cannot be opened; its owner is set by name.
pub(super) fn dress_link(dir: impl AsFd, name: &OsStr, uid: u32, gid: u32) -> io::Result<()> {
    let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (stat.st_uid, stat.st_gid) == (uid, gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::chownat(dir, name, Some(uid), Some(gid), flags)?)
}

/// The names in a directory, sorted.
pub(super) fn names(dir: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The owner and the permissions that a new entry gets in a directory: the group of the directory if it hands it down.
pub(super) fn newborn(dir: impl AsFd) -> io::Result<(u32, u32)> {
    let stat = rustix::fs::fstat(dir)?;
    let uid = rustix::process::geteuid().as_raw();
    if stat.st_mode & 0o2000 != 0 {
        return Ok((uid, stat.st_gid));
    }
    Ok((uid, rustix::process::getegid().as_raw()))
}

/// The permissions that are taken away from what this process creates.
pub(super) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o022)
}
