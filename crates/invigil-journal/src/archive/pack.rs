//! Packing: the same journal gives the same bytes. Two passes over the journal, one for digests and views and one for
//! the bytes, so that memory does not grow with it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use invigil_schema::Digest;
use sha2::{Digest as _, Sha256};

use super::form::{Kind, check, check_line};
use super::gzip::Encoder;
use super::manifest::MANIFEST;
use super::{ArchiveError, Derived, Entry, Limits, Manifest, Member, ViewError, Views, tar};
use crate::chain::{Head, digest};
use crate::read::{Reader, opened};
use crate::storage::Storage;
use crate::{Error, Record};

/// How to pack.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packing<'a> {
    /// Replace a file that is there already.
    pub overwrite: bool,
    /// What else goes in.
    pub attachments: &'a [Attachment<'a>],
    /// How large things may be.
    pub limits: Limits,
}

/// A member that is not computed from the journal.
#[derive(Debug, Clone, Copy)]
pub struct Attachment<'a> {
    /// Which one: the contract or the patch.
    pub member: Member,
    /// Its content.
    pub bytes: &'a [u8],
}

/// What was packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// What is in it.
    pub manifest: Manifest,
    /// The digest of the file.
    pub sha256: Digest,
    /// Its size.
    pub bytes: u64,
}

/// Why nothing was packed. Nothing is left behind then, and a file that was there is as it was.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// There is a file of that name.
    #[error("{} exists already: choose another name, or use --force to replace it", .0.display())]
    Exists(PathBuf),
    /// The operating system said no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The journal cannot be read, or is damaged.
    #[error(transparent)]
    Journal(#[from] Error),
    /// A view cannot be computed, or is not what an archive may hold.
    #[error("a view cannot be computed: {0}")]
    Views(#[source] ViewError),
    /// Something that cannot be attached, or twice.
    #[error("{0} cannot be attached: it comes from the journal, or is attached twice")]
    Attachment(Member),
    /// An archive with this in it would be refused by everybody who checks it.
    #[error("the archive would be refused: {0}")]
    Unfit(#[from] ArchiveError),
    /// What was read the second time is not what was read the first time.
    #[error("{0} changed while it was packed")]
    Changed(Member),
}

/// Packs the journal in `storage` as far as it has come, with everything that `views` computes from it.
pub fn pack(
    storage: Arc<dyn Storage>,
    target: &Path,
    views: &mut dyn Views,
    packing: &Packing<'_>,
) -> Result<Packed, PackError> {
    let scratch = Scratch::new(target);
    if !packing.overwrite && target.symlink_metadata().is_ok() {
        return Err(PackError::Exists(target.to_owned()));
    }
    let derived = Derived::spooled(&packing.limits, || scratch.nameless());
    let mut derived = derived.map_err(scratch.error("make a temporary file beside"))?;
    let run_id = opened(&mut Reader::open(Arc::clone(&storage))?)?.run_id;
    let (journal, head) = survey(&storage, views, &mut derived)?;
    let mut contents = vec![(journal, Content::Journal)];
    for attachment in packing.attachments {
        contents.push(attached(attachment, &packing.limits)?);
    }
    let mut sums = derived.sums().collect::<Vec<_>>().into_iter();
    for (member, file) in derived.into_spools().map_err(PackError::Views)? {
        let Some((_, sha256, size)) = sums.find(|sum| sum.0 == member) else {
            continue;
        };
        contents.push((entry(member, sha256, size), Content::Spool(file)));
    }
    contents.sort_by(|a, b| a.0.path.cmp(&b.0.path));
    if let Some(pair) = contents
        .windows(2)
        .find(|pair| pair[0].0.path == pair[1].0.path)
    {
        let member = Member::from_path(&pair[0].0.path).unwrap_or(Member::Journal);
        return Err(PackError::Attachment(member));
    }
    let entries = contents.iter().map(|(entry, _)| entry.clone()).collect();
    let manifest = Manifest::new(run_id, head, entries);
    let (path, file) = scratch.named()?;
    let draft = Draft(path);
    let (file, bytes) = write(file, &manifest, contents, &storage, packing, &scratch)?;
    let sha256 = seal(file).map_err(scratch.error("write"))?;
    draft.publish(target, packing.overwrite, &scratch)?;
    Ok(Packed {
        manifest,
        sha256,
        bytes,
    })
}

/// Where the bytes of a member come from.
enum Content<'a> {
    Journal,
    Spool(File),
    Bytes(&'a [u8]),
}

fn entry(member: Member, sha256: Digest, size: u64) -> Entry {
    Entry {
        path: member.path().to_owned(),
        sha256,
        size,
    }
}

/// The first pass: checks the journal, computes the views, and says what the journal's entry is.
fn survey(
    storage: &Arc<dyn Storage>,
    views: &mut dyn Views,
    derived: &mut Derived,
) -> Result<(Entry, Head), PackError> {
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut reader = Reader::open(Arc::clone(storage))?;
    while let Some(record) = reader.next()? {
        check_line(Member::Journal.path(), record.seq + 1, record.line())?;
        hash.update(record.line());
        hash.update(b"\n");
        size += record.line().len() as u64 + 1;
        views.record(record, derived).map_err(PackError::Views)?;
    }
    views.finish(derived).map_err(PackError::Views)?;
    let head = reader.head().ok_or(Error::Missing)?;
    let sha256 = Digest::from_bytes(hash.finalize().into());
    Ok((entry(Member::Journal, sha256, size), head))
}

fn attached<'a>(
    attachment: &Attachment<'a>,
    limits: &Limits,
) -> Result<(Entry, Content<'a>), PackError> {
    let Attachment { member, bytes } = *attachment;
    if !member.is_optional() {
        return Err(PackError::Attachment(member));
    }
    if member.kind() == Kind::Document {
        if bytes.len() as u64 > limits.document {
            let (member, limit) = (member.path().to_owned(), limits.document);
            return Err(ArchiveError::DocumentTooLarge { member, limit }.into());
        }
        check(member.path(), 1, bytes)?;
    }
    let entry = entry(member, digest(bytes), bytes.len() as u64);
    Ok((entry, Content::Bytes(bytes)))
}

/// The second pass: everything in its order, with what was counted in the first one.
fn write(
    file: File,
    manifest: &Manifest,
    contents: Vec<(Entry, Content<'_>)>,
    storage: &Arc<dyn Storage>,
    packing: &Packing<'_>,
    scratch: &Scratch<'_>,
) -> Result<(File, u64), PackError> {
    let listing = manifest.encode().map_err(Error::Encode)?;
    let block = tar::BLOCK as u64;
    let sizes = manifest.members.iter().map(|entry| entry.size);
    let decoded: u64 = std::iter::once(listing.len() as u64)
        .chain(sizes)
        .map(|size| block + size + tar::padding(size) as u64)
        .sum();
    if decoded + tar::END.len() as u64 > packing.limits.decoded {
        let limit = packing.limits.decoded;
        return Err(ArchiveError::DecodedTooLarge { limit }.into());
    }
    let encoder = Encoder::new(BufWriter::with_capacity(256 * 1024, file));
    let mut out = Output {
        encoder: encoder.map_err(scratch.error("write"))?,
        limit: packing.limits.source,
        scratch,
    };
    out.start(MANIFEST, listing.len() as u64)?;
    out.put(&listing)?;
    out.pad(listing.len() as u64)?;
    for (entry, content) in contents {
        out.start(&entry.path, entry.size)?;
        let found = match content {
            Content::Bytes(bytes) => out.put(bytes).map(|()| digest(bytes))?,
            Content::Spool(file) => out.copy(file)?,
            Content::Journal => out.journal(storage, manifest.head.seq)?,
        };
        if found != entry.sha256 {
            let member = Member::from_path(&entry.path).unwrap_or(Member::Journal);
            return Err(PackError::Changed(member));
        }
        out.pad(entry.size)?;
    }
    out.put(&tar::END)?;
    let (file, bytes) = out.encoder.finish().map_err(scratch.error("write"))?;
    limit_source(bytes, packing.limits.source)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error);
    Ok((file.map_err(scratch.error("write"))?, bytes))
}

fn limit_source(bytes: u64, limit: u64) -> Result<(), ArchiveError> {
    match bytes > limit {
        true => Err(ArchiveError::SourceTooLarge { limit }),
        false => Ok(()),
    }
}

struct Output<'a> {
    encoder: Encoder<BufWriter<File>>,
    limit: u64,
    scratch: &'a Scratch<'a>,
}

impl Output<'_> {
    fn start(&mut self, name: &str, size: u64) -> Result<(), PackError> {
        let Some(header) = tar::header(name, size) else {
            let limit = self.limit;
            return Err(ArchiveError::DecodedTooLarge { limit }.into());
        };
        self.put(&header)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        let written = self.encoder.write(bytes);
        written.map_err(self.scratch.error("write"))?;
        Ok(limit_source(self.encoder.encoded(), self.limit)?)
    }

    fn pad(&mut self, size: u64) -> Result<(), PackError> {
        self.put(&[0; tar::BLOCK][..tar::padding(size)])
    }

    fn copy(&mut self, mut file: File) -> Result<Digest, PackError> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let read = file.read(&mut buffer);
            let read = read.map_err(self.scratch.error("read a temporary file beside"))?;
            if read == 0 {
                return Ok(Digest::from_bytes(hash.finalize().into()));
            }
            hash.update(&buffer[..read]);
            self.put(&buffer[..read])?;
        }
    }

    fn journal(&mut self, storage: &Arc<dyn Storage>, last: u64) -> Result<Digest, PackError> {
        let mut hash = Sha256::new();
        let mut reader = Reader::open(Arc::clone(storage))?;
        while let Some(Record { seq, line, .. }) = reader.next()? {
            hash.update(line);
            hash.update(b"\n");
            self.put(line)?;
            self.put(b"\n")?;
            if seq == last {
                break;
            }
        }
        Ok(Digest::from_bytes(hash.finalize().into()))
    }
}

/// Brings the file to the medium, and reads it once more for its digest.
fn seal(mut file: File) -> io::Result<Digest> {
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest::from_bytes(hash.finalize().into())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Temporary files beside the target, so that a rename is enough in the end.
struct Scratch<'a> {
    target: &'a Path,
}

impl<'a> Scratch<'a> {
    fn new(target: &'a Path) -> Self {
        Scratch { target }
    }

    fn error(&self, action: &'static str) -> impl FnOnce(io::Error) -> PackError + use<> {
        let path = self.target.to_owned();
        move |source| PackError::Io {
            action,
            path,
            source,
        }
    }

    fn directory(&self) -> &'a Path {
        match self.target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn make(&self) -> io::Result<(PathBuf, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let own = self.target.file_name().unwrap_or_default();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut name = std::ffi::OsString::from(".");
            name.push(own);
            name.push(format!(".{}.{number}.tmp", std::process::id()));
            let path = self.directory().join(name);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            match options.open(&path) {
                Ok(file) => return Ok((path, file)),
                // Left over by a process of the same number that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn named(&self) -> Result<(PathBuf, File), PackError> {
        self.make()
            .map_err(self.error("make a temporary file beside"))
    }

    fn nameless(&self) -> io::Result<File> {
        let (path, file) = self.make()?;
        fs::remove_file(path)?;
        Ok(file)
    }
}

/// The archive under its temporary name; removed again if it is not published.
struct Draft(PathBuf);

impl Draft {
    fn publish(
        self,
        target: &Path,
        overwrite: bool,
        scratch: &Scratch<'_>,
    ) -> Result<(), PackError> {
        let named = match overwrite {
            true => fs::rename(&self.0, target),
            // A second name is refused where there is a file; a rename is not.
            false => match fs::hard_link(&self.0, target) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !target.exists() => {
                    // A file system without hard links.
                    fs::rename(&self.0, target)
                }
                linked => linked,
            },
        };
        match named {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(PackError::Exists(target.to_owned()));
            }
            Err(error) => return Err(scratch.error("make")(error)),
        }
        let synced = File::open(scratch.directory()).and_then(|directory| directory.sync_all());
        synced.map_err(scratch.error("sync the directory of"))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename there is nothing of this name.
        drop(fs::remove_file(&self.0));
    }
}
